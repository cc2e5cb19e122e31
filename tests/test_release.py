"""What keeps a release from being made (`python -m tools.release dist`), and the versions of the two lock files."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.release import problems

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ADDRESS = {"urls": {"Repository": "https://github.com/somebody/hgpo"}}
CHANGELOG, CITATION = (
    (ROOT / name).read_text("utf-8") for name in ("CHANGELOG.md", "CITATION.cff")
)


def test_all_but_the_address_is_ready():
    assert problems(PROJECT | ADDRESS, CHANGELOG, CITATION, None) == []
    assert (
        problems(PROJECT | ADDRESS, CHANGELOG, CITATION, f"v{PROJECT['version']}") == []
    )


@pytest.mark.parametrize(
    "address",
    ["", "https://HOST/OWNER/hgpo", "https://example.org/hgpo", "git@github.com:a/b"],
)
def test_a_placeholder_of_the_address_fails(address):
    (line,) = problems(
        PROJECT | {"urls": {"Repository": address}}, CHANGELOG, CITATION, None
    )
    assert "project.urls.Repository: expected an address" in line


def test_another_tag_a_missing_entry_and_a_citation_with_gaps_fail():
    project = PROJECT | ADDRESS
    assert "expected the tag" in problems(project, CHANGELOG, CITATION, "v9")[0]
    assert "expected a heading" in problems(project, "# Changelog\n", CITATION, None)[0]
    assert (
        "expected authors"
        in problems(
            project, CHANGELOG, CITATION.replace("authors:", "writers:", 1), None
        )[0]
    )
    assert (
        "expected no version"
        in problems(project, CHANGELOG, CITATION + "version: 1\n", None)[0]
    )


def test_the_address_and_the_version_are_nowhere_else():
    """One setting each: pages and other metadata have neither."""
    for name in ("README.md", "CITATION.cff", "mkdocs.yml"):
        text = (ROOT / name).read_text("utf-8")
        assert PROJECT["urls"]["Repository"] not in text
        assert f"version: {PROJECT['version']}" not in text


def locked(name):
    """Return a lock file's requirements without hashes."""
    lines = [
        line.rstrip("\\").strip() for line in (ROOT / name).read_text().splitlines()
    ]
    return [line for line in lines if line and not line.startswith(("#", "--hash="))]


def test_both_locks_name_the_same_and_every_file_has_a_hash():
    assert locked("requirements.lock") == locked("requirements-hashed.lock")
    entries = re.split(
        r"\n(?=[a-z0-9])", (ROOT / "requirements-hashed.lock").read_text()
    )[1:]
    assert len(entries) == len(locked("requirements.lock"))
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry.splitlines()[0]


@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_what_is_locked_is_allowed(python):
    environment = {
        **default_environment(),
        "python_version": python,
        "python_full_version": f"{python}.0",
    }
    versions: dict[str, str] = {}
    for line in locked("requirements.lock"):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            versions[canonicalize_name(requirement.name)] = str(
                requirement.specifier
            ).removeprefix("==")
    extras = PROJECT["optional-dependencies"]
    asked = (
        PROJECT["dependencies"]
        + extras["dev"]
        + extras["train"]
        + extras["api"]
        + extras["interchange"]
    )
    for line in asked:
        requirement = Requirement(line)
        if requirement.name != "hgpo":
            name = canonicalize_name(requirement.name)
            assert name in versions, f"{name} is not locked; run .ci/lock"
            assert versions[name] in requirement.specifier, (
                f"{name} {versions[name]} is not {requirement.specifier}"
            )
