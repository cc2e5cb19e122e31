"""Every documentation page has a purpose and headings, and every link leads to an existing file and heading."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "research").rglob("*.md")])


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, by GitHub's rule."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        assert not anchor or anchor in headings(linked), target


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_pages_start_with_their_purpose(page: Path) -> None:
    title, purpose, *_ = page.read_text("utf-8").split("\n\n")
    assert title.startswith("# ")
    assert re.match(r"[A-Z].*\.$", purpose, re.DOTALL), purpose
    assert headings(page)
