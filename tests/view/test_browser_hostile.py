"""Texts of a run that try to run code in a real browser: they are shown, and nothing runs."""

from typing import Any

import pytest
from browsing import assert_nothing_ran, expect, region, sees
from viewed import HOSTILE

from hgpo_train.view.page import write_page
from hgpo_train.view.sources import open_sources

pytestmark = pytest.mark.slow


def visit_everything(page, address, texts):
    shown = {
        "": "h1",
        "/rollouts": ".every-rollout tbody tr",
        "/group/0": ".strips tbody tr",
        "/group/0/graph": ".node",
    }
    for place, selector in shown.items():
        page.goto(f"{address}#/hostile{place}")
        expect(page.locator(selector)).to_have_count(
            {"h1": 1, ".node": texts + 1}.get(selector, texts)
        )
        assert_nothing_ran(page)
    page.get_by_text("States as a table").click()
    assert_nothing_ran(page)
    for place in range(texts):
        page.goto(f"{address}#/hostile/group/0")
        page.locator(".strips tbody tr").nth(place).get_by_role("link").first.click()
        sees(page, "step 0 of 2")
        page.keyboard.press("j")
        sees(page, "step 1 of 2")
        page.get_by_text("Prompt", exact=True).last.click()
        page.get_by_text("admissible actions").last.click()
        assert_nothing_ran(page)


def test_hostile_texts_are_shown_and_not_run(viewer, page, hostile_run):
    address = viewer(hostile_run)
    visit_everything(page, address, len(HOSTILE))
    names = list(HOSTILE)

    def state(name: str) -> Any:
        page.goto(f"{address}#/hostile/group/0")
        page.locator(".strips tbody tr").nth(names.index(name)).locator(".strip a").nth(
            1
        ).click()
        sees(page, "step 1 of 2")
        return region(page, "State of step 1")

    expect(state("script")).to_have_text(HOSTILE["script"])
    expect(state("right to left")).to_contain_text("U+202E")
    expect(state("control")).to_contain_text("U+001B")
    expect(state("surrogate")).to_have_text("lone \ufffd and \ufffd")
    large = state("large")
    assert len(large.inner_text()) == 20_000
    rest = f"{len(HOSTILE['large']) - 20_000:,} more characters."
    expect(page.locator("p.note").filter(has_text=rest).first).to_be_visible()


def test_a_hostile_run_as_a_file(page, hostile_run, tmp_path):
    file = tmp_path / "page.html"
    write_page(open_sources([str(hostile_run)]), file)
    visit_everything(page, file.as_uri(), len(HOSTILE))
