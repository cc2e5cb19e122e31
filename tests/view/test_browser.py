"""The page in headless Chromium: its tables, filters, notes, keyboard and addresses, and accessibility."""

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from browsing import (
    arrives,
    assert_nothing_ran,
    click,
    enter,
    expect,
    region,
    run_in,
    sees,
)
from viewed import small_rows

from hgpo_datasets import StepWriter, scan_steps
from hgpo_train.advantages import compute
from hgpo_train.view.page import write_page
from hgpo_train.view.sources import open_sources

AXE = Path(__file__).parents[2] / "viewer/node_modules/axe-core/axe.min.js"

pytestmark = pytest.mark.slow


def test_open_filter_follow_a_group_and_compare(viewer, page, small_run):
    page.goto(viewer(small_run))
    expect(page.get_by_role("heading", name="small")).to_be_visible()
    expect(page.get_by_text("66.7%").first).to_be_visible()
    click(page, "link", "Look at the rollouts")
    rows = page.locator(".every-rollout tbody tr")
    page.get_by_label("Filter", exact=True).fill("'omega' and outcome = 'won'")
    wilson = "success 100.0% (95%: 20.7% to 100.0%)"
    sees(page, f"2 of 8 rollouts, 1 task · {wilson}")
    click(page, "button", "Clear filters")
    expect(rows).to_have_count(8)
    page.get_by_label("Rows").select_option("task")
    expect(rows).to_have_count(2)
    rows.nth(0).get_by_role("link").click()
    expect(rows).to_have_count(1)  # the groups of the task
    rows.nth(0).get_by_role("link").click()
    expect(page.get_by_role("heading", name="find the key of alpha")).to_be_visible()
    # of four rollouts, the lost one
    page.locator(".strips tbody tr").nth(1).get_by_role("link").first.click()
    sees(page, "step 0 of 3")
    assert "#/small/step/alpha%2F0%2Fx/0?" in page.url

    level = region(page, "Level 0")
    expect(level).to_contain_text("2 steps of 2 rollouts")
    expect(level.locator(".value")).to_have_text("−1.000")
    click(level, "link", "…w · 0")
    expect(level.locator(".value")).to_have_text("+1.000")
    page.get_by_text("Estimators and their parameters").click()
    page.get_by_label("A: mode").select_option("mean_norm")
    enter(page, "A: gamma, number", "1")
    expect(level.locator(".value")).to_have_text("+5.000")  # (10 - 0) / 2
    page.get_by_label("B: estimator").select_option("rloo")
    expect(page.locator(".advantages")).to_contain_text("B: rloo")
    rloo = compute(scan_steps(small_run), "rloo", reward_scale=10).collect()[
        "advantage"
    ][0]
    expect(page.locator(".advantages > div").nth(1).locator("dd").first).to_have_text(
        f"+{rloo:.3f}"
    )
    enter(page, "A: history_length, number", "0")
    expect(region(page, "Level 1")).to_have_count(0)


def test_the_keyboard_alone(viewer, page, small_run):
    page.goto(viewer(small_run))
    expect(page.get_by_role("heading", name="small")).to_be_visible()
    press = page.keyboard.press
    press("t")
    rows = page.locator(".every-rollout tbody tr")
    expect(rows.nth(0).get_by_role("link")).to_be_focused()
    for key in ("ArrowDown", "ArrowDown", "ArrowUp"):
        press(key)
    expect(rows.nth(1).get_by_role("link")).to_be_focused()
    page.get_by_role("button", name="length 2: 2 of 2 rollouts").focus()
    for key in ("Enter", "Shift+ArrowRight"):
        press(key)
    expect(page.get_by_role("button", name="Clear length")).to_have_text("2 … 3 ×")
    press("Enter")
    expect(rows).to_have_count(6)
    press("Escape")
    expect(rows).to_have_count(8)
    rows.nth(1).get_by_role("link").focus()
    press("Enter")
    sees(page, "step 0 of 3")
    press("j")
    sees(page, "step 1 of 3")
    press("k")
    sees(page, "step 0 of 3")
    press("]")
    arrives(page, "alpha%2F0%2Fy/0$")
    press("[")
    arrives(page, "alpha%2F0%2Fx/0$")
    press("s")
    expect(page.get_by_text("4 states", exact=False).first).to_be_visible()
    press("g")
    expect(page.get_by_role("link", name="Trajectories")).to_have_attribute(
        "aria-current", "page"
    )
    press("d")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    press("Escape")
    press("/")  # at once: a closed dialog has the focus until the next frame
    expect(page.get_by_label("Filter", exact=True)).to_be_focused()
    page.keyboard.type("jog?")  # shortcuts are off in an input
    expect(page.get_by_label("Filter", exact=True)).to_have_value("jog?")
    expect(page.get_by_role("alert")).to_contain_text("filter: expected a column")
    expect(page.get_by_role("dialog")).not_to_be_visible()


def test_links_keep_every_setting(viewer, page, small_run):
    """K, estimators and filters are in the address, which another page opens."""
    address = viewer(small_run)
    settings = (
        "a=hgpo%3Ahistory_length%3D1%3Aalpha%3D2&b=rloo&filter=%27omega%27&sort=length"
    )
    page.goto(f"{address}#/small/step/omega%2F0%2Fw/1?{settings}")
    expect(page.locator(".advantages")).to_contain_text("B: rloo")
    page.get_by_text("Estimators and their parameters").click()
    expect(page.get_by_label("A: history_length, number")).to_have_value("1")
    expect(page.get_by_label("A: alpha, number")).to_have_value("2")
    enter(page, "A: history_length, number", "0")
    page.keyboard.press("Tab")
    click(page, "link", "iteration 0")
    click(page, "link", "Graph of states")
    arrives(page, r"group/1/graph\?.*history_length%3D0.*sort=length")
    page.get_by_role("navigation", name="Views").get_by_role(
        "link", name="Rollouts"
    ).click()
    expect(page.get_by_label("Filter", exact=True)).to_have_value("'omega'")
    expect(page.get_by_role("columnheader", name="length")).to_have_attribute(
        "aria-sort", "ascending"
    )
    lengths = page.locator(".every-rollout tbody tr td:nth-child(4)")
    expect(lengths).to_have_text(["2", "3", "3", "3"])


def test_rollouts_and_texts_are_found(viewer, page, small_run):
    page.goto(f"{viewer(small_run)}#/small")
    # the type of a task, in its row
    click(page, "link", "find", exact=True)
    rows = page.locator(".every-rollout tbody tr")
    expect(rows).to_have_count(4)
    click(page, "button", "Clear filters")
    bars = page.get_by_role("group", name="length: histogram").locator(".column")
    expect(bars).to_have_count(2)
    bars.nth(0).click()
    expect(rows).to_have_count(2)
    bars.nth(0).hover()
    page.mouse.down()
    bars.nth(1).hover()
    page.mouse.up()
    expect(rows).to_have_count(8)
    with page.expect_download() as saved:
        click(page, "button", "CSV")
    assert (
        pl.read_csv(saved.value.path())["outcome"].to_list()
        == ["won", "lost", "won", "aborted"] * 2
    )
    box = page.get_by_label("Search in states, actions, responses and errors")
    box.fill("HUNG up")
    box.press("Enter")
    expect(rows).to_have_count(2)
    expect(page.locator(".hits mark").first).to_have_text("hung up")
    page.get_by_label("Filter", exact=True).fill("'omega'")
    expect(page.locator(".hits li")).to_have_count(1)
    click(page, "link", "omega/0/z step 1, error")
    sees(page, "Aborted: the server hung up")


def test_a_note_is_saved_and_found(viewer, page, small_run, tmp_path):
    """Also in a file, which shows it."""
    text = "<img src=x onerror='window.hacked = true'> \u202e loops"
    page.goto(f"{viewer(small_run)}#/small/step/alpha%2F0%2Fx/0")
    page.get_by_label("Note on this rollout").fill(text)
    page.get_by_label("Score of this rollout").fill("-1.5")
    click(page, "button", "Save note")
    sees(page, "saved 20")
    page.get_by_role("navigation", name="Views").get_by_role(
        "link", name="Rollouts"
    ).click()
    page.get_by_label("Filter", exact=True).fill(
        "my_score < 0 and note contains 'LOOPS'"
    )
    rows = page.locator(".every-rollout tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("<img src=x onerror")
    expect(rows).to_contain_text("U+202E")
    assert_nothing_ran(page)
    file = tmp_path / "page.html"
    write_page(open_sources([str(small_run)]), file)
    page.goto(f"{file.as_uri()}#/small/step/alpha%2F0%2Fx/0")
    expect(page.get_by_role("heading", name="Note · score -1.5")).to_be_visible()
    assert_nothing_ran(page)


TYPE_AT_ONCE = """
new MutationObserver((_, observer) => {
  const input = document.querySelector("#filter-text");
  if (!input) return;
  observer.disconnect();
  input.value = "alpha";
  input.dispatchEvent(new Event("input", { bubbles: true }));
}).observe(document, { childList: true, subtree: true });
"""


def test_a_filter_that_is_typed_before_the_page_is_painted_is_kept(
    viewer, page, small_run
):
    """An observer types as soon as the input is there, which a person does on a slow machine."""
    page.add_init_script(TYPE_AT_ONCE)
    page.goto(f"{viewer(small_run)}#/small/rollouts")
    arrives(page, "filter=alpha")
    expect(page.get_by_label("Filter", exact=True)).to_have_value("alpha")


def test_a_search_that_is_typed_outlives_a_filter(viewer, page, small_run):
    page.goto(f"{viewer(small_run)}#/small/rollouts")
    search = page.get_by_label("Search in states", exact=False)
    search.fill("room b")
    page.get_by_label("Filter", exact=True).fill("length = 3")
    arrives(page, "filter=length")
    expect(search).to_have_value("room b")


def test_a_note_that_is_typed_before_the_saved_one_arrives_is_kept(
    viewer, page, small_run
):
    address = f"{viewer(small_run)}#/small/step/alpha%2F0%2Fx/0"
    page.goto(address)
    page.get_by_label("Note on this rollout").fill("first")
    click(page, "button", "Save note")
    sees(page, "saved 20")

    held: list[Any] = []
    page.route("**/notes*", lambda route: held.append(route), times=1)
    page.goto("about:blank")
    page.goto(address)
    page.get_by_label("Note on this rollout").fill("second")
    while not held:
        page.wait_for_timeout(10)
    with page.expect_response("**/notes*"):
        held[0].continue_()
    page.evaluate("() => new Promise((done) => setTimeout(done, 300))")  # it is shown
    expect(page.get_by_label("Note on this rollout")).to_have_value("second")
    click(page, "button", "Save note")
    sees(page, "saved 20")
    page.reload()
    expect(page.get_by_label("Note on this rollout")).to_have_value("second")


def test_a_run_that_is_being_written_is_followed(viewer, page, tmp_path):
    with StepWriter(tmp_path / "live") as writer:
        writer.add_group(small_rows("alpha"))
        writer.commit()
        page.goto(f"{viewer(tmp_path / 'live')}#/live/rollouts")
        rows = page.locator(".every-rollout tbody tr")
        expect(rows).to_have_count(4)
        expect(page.get_by_text("live", exact=True).last).to_have_class("live")
        writer.add_group(small_rows("omega"))
        writer.commit()
        expect(rows).to_have_count(8)
    expect(page.locator(".live")).to_have_count(0)


def test_runs_side_by_side(viewer, page, small_run, training_run):
    """Two runs whose common task went as well; and the curves of one."""
    page.goto(viewer(small_run, training_run))
    click(page, "link", "Compare")
    table = region(page, "Results of the runs")
    expect(table.get_by_role("row", name="training")).to_contain_text("66.7%")
    for row, colour in (
        ("small", "rgb(22, 104, 201)"),
        ("training", "rgb(197, 90, 0)"),
    ):
        expect(table.get_by_role("row", name=row).locator(".interval")).to_have_css(
            "color", colour
        )
        expect(table.get_by_role("row", name=row).locator(".key")).to_have_css(
            "background-color", colour
        )
        for figure in table.get_by_role("row", name=row).locator(".figure").all()[1:3]:
            # return and length, also where they are whole
            expect(figure).to_have_text(re.compile(r"^\d+\.\d\d($|\()"))
    expect(page.locator(".chart canvas")).to_have_count(3)  # success, return and length
    page.get_by_text("Metrics (3 of").click()
    page.get_by_label("loss/policy").check()
    page.get_by_label("Horizontal axis").select_option("environment steps")
    page.get_by_label("Smoothing").fill("0.5")
    loss = page.locator("figure", has_text="loss/policy, smoothed")
    loss.get_by_text("Table").click()
    expect(loss.get_by_role("row")).to_have_text(
        ["environment stepstraining", "01.00", "110.67"]
    )
    with page.expect_download() as saved:
        click(page, "button", "CSV")
    table = pl.read_csv(saved.value.path()).filter(run="training", metric="loss/policy")
    assert table.select("iteration", "steps", "value").rows() == [
        (0, 0, 1.0),
        (1, 11, 0.5),
    ]
    tasks = region(page, "Tasks of two runs")
    sees(tasks, "success: 0.0 points in training")
    click(tasks, "button", "find the key of alpha")
    expect(tasks.locator(".strips")).to_have_count(2)
    settings = region(page, "Differences of configurations")
    expect(settings.get_by_role("row", name="policy")).to_contain_text(
        "written by hand"
    )
    page.get_by_label("Run", exact=True).select_option("training")
    expect(page.get_by_role("heading", name="training")).to_be_visible()
    page.get_by_label("Horizontal axis").select_option("iteration")
    chart = page.locator("figure", has_text="success")
    chart.get_by_text("Table").click()
    click(chart, "button", "2")
    expect(page.get_by_label("Filter", exact=True)).to_have_value("iteration = 2")
    expect(page.locator(".every-rollout tbody tr")).to_have_count(4)


def test_a_page_of_its_own(page, small_run, tmp_path):
    file = tmp_path / "page.html"
    write_page(open_sources([str(small_run)]), file, tasks=1)
    page.goto(file.as_uri())
    sees(page, "Shared contexts by level")
    click(page, "link", "Look at the rollouts")
    rows = page.locator(".every-rollout tbody tr")
    expect(rows).to_have_count(4)
    spread = (
        compute(scan_steps(small_run), "hgpo")
        .collect()
        .filter(trajectory="alpha/0/y")["advantage"]
    )
    expect(rows.nth(2)).to_contain_text(f"{spread.max() - spread.min():.2f}")
    rows.nth(0).get_by_role("link").click()
    page.get_by_text("Estimators and their parameters").click()
    page.get_by_label("B: estimator").select_option("grpo")
    expect(page.locator(".advantages")).to_contain_text("B: grpo")


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm ci in viewer/")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1300, 400])
def test_no_findings_of_axe(
    viewer, browser, small_run, training_run, branched_run, scheme, width
):
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    )
    context.add_init_script(path=AXE)
    page = context.new_page()
    address = viewer(small_run, training_run, branched_run)
    views = {
        "#/branched/group/0": "Tree of rollouts",
        "#/branched/step/c/1": "3 rollouts of the tree continue from here",
        "#/small": "Configuration",
        "#/training": "Metrics (",
        "#/small/rollouts": "find the key of alpha",
        "#/small/rollouts?by=task&bars=length:3:3": "find the key of alpha",
        "#/small/group/0": "Graph of states",
        "#/small/group/0/graph": "States as a table",
        "#/training/group/0/task-graph": "States as a table",
        "#/small/rollouts?search=hung": "alpha/0/z step 1, error",
        "#/small/step/alpha%2F0%2Fx/1": "Hierarchy of groups",
        "#/small/compare?with=training": "What differs in the configurations",
    }
    for place, text in views.items():
        page.goto("about:blank")
        page.goto(f"{address}{place}")
        expect(page.get_by_role("heading", level=1)).to_be_attached()
        expect(page.get_by_text(text).last).to_be_attached()
        page.wait_for_load_state("networkidle")
        found = json.loads(
            run_in(
                page,
                "axe.run(document).then((found) => JSON.stringify(found.violations))",
            )
        )
        nodes = [
            (rule["id"], node["html"], node["failureSummary"])
            for rule in found
            for node in rule["nodes"]
        ]
        assert nodes == [], (place, nodes)
    context.close()
