"""The two lock files contain the same versions, which pyproject.toml allows."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked(name: str) -> list[str]:
    """Return a lock file's requirements without hashes."""
    lines = [line.rstrip("\\").strip() for line in (ROOT / name).read_text().splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "--hash="))]


def test_both_locks_name_the_same() -> None:
    assert locked("requirements.lock") == locked("requirements-hashed.lock")


def test_every_file_has_a_hash() -> None:
    entries = re.split(r"\n(?=[a-z0-9])", (ROOT / "requirements-hashed.lock").read_text())[1:]
    assert len(entries) == len(locked("requirements.lock"))
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry.splitlines()[0]


@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_what_is_locked_is_allowed(python: str) -> None:
    environment = {**default_environment(), "python_version": python, "python_full_version": f"{python}.0"}
    versions: dict[str, str] = {}
    for line in locked("requirements.lock"):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            versions[canonicalize_name(requirement.name)] = str(requirement.specifier).removeprefix("==")
    extras = PROJECT["optional-dependencies"]
    asked = PROJECT["dependencies"] + extras["dev"] + extras["train"] + extras["api"] + extras["interchange"]
    for line in asked:
        requirement = Requirement(line)
        if requirement.name != "hgpo":
            name = canonicalize_name(requirement.name)
            assert name in versions, f"{name} is not locked; run .ci/lock"
            assert versions[name] in requirement.specifier, f"{name} {versions[name]} is not {requirement.specifier}"
