"""What keeps a release from being made; the release itself is `python -m tools.release dist`."""

import tomllib
from pathlib import Path

import pytest

from tools.release import problems

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ADDRESS = {"urls": {"Repository": "https://github.com/somebody/hgpo"}}
CHANGELOG, CITATION = ((ROOT / name).read_text("utf-8") for name in ("CHANGELOG.md", "CITATION.cff"))


def test_all_but_the_address_is_ready() -> None:
    assert problems(PROJECT | ADDRESS, CHANGELOG, CITATION, None) == []
    assert problems(PROJECT | ADDRESS, CHANGELOG, CITATION, f"v{PROJECT['version']}") == []


@pytest.mark.parametrize("address", ["", "https://HOST/OWNER/hgpo", "https://example.org/hgpo", "git@github.com:a/b"])
def test_a_placeholder_of_the_address_fails(address: str) -> None:
    (line,) = problems(PROJECT | {"urls": {"Repository": address}}, CHANGELOG, CITATION, None)
    assert "project.urls.Repository: expected an address" in line


def test_another_tag_a_missing_entry_and_a_citation_with_gaps_fail() -> None:
    project = PROJECT | ADDRESS
    assert "expected the tag" in problems(project, CHANGELOG, CITATION, "v9")[0]
    assert "expected a heading" in problems(project, "# Changelog\n", CITATION, None)[0]
    assert "expected authors" in problems(project, CHANGELOG, CITATION.replace("authors:", "writers:", 1), None)[0]
    assert "expected no version" in problems(project, CHANGELOG, CITATION + "version: 1\n", None)[0]


def test_the_address_and_the_version_are_nowhere_else() -> None:
    """One setting each: pages and other metadata have neither."""
    for name in ("README.md", "CITATION.cff", "mkdocs.yml"):
        text = (ROOT / name).read_text("utf-8")
        assert PROJECT["urls"]["Repository"] not in text
        assert f"version: {PROJECT['version']}" not in text
