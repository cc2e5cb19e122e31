"""The page in a real browser: headless Chromium, driven by Playwright."""

import json
import re
from itertools import combinations
from pathlib import Path
from statistics import mean, pstdev
from typing import Any
from urllib.parse import quote

import polars as pl
import pytest
from viewed import HOSTILE, small_rows

from hgpo_datasets import StepWriter, scan_steps
from hgpo_train.advantages import compute
from hgpo_train.view.page import write_page
from hgpo_train.view.sources import open_sources

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
AXE = Path(__file__).parents[2] / "viewer/node_modules/axe-core/axe.min.js"

pytestmark = pytest.mark.slow


def region(within: Any, name: str) -> Any:
    return within.get_by_role("region", name=name)


def test_open_filter_follow_a_group_and_compare(viewer, page, small_run) -> None:
    page.goto(viewer(small_run))
    expect(page.get_by_role("heading", name="small")).to_be_visible()
    expect(page.get_by_text("66.7%").first).to_be_visible()
    page.get_by_role("link", name="Look at the rollouts").click()
    rows = page.locator(".every-rollout tbody tr")
    page.get_by_label("Filter", exact=True).fill("'omega' and outcome = 'won'")
    wilson = "success 100.0% (95%: 20.7% to 100.0%)"
    expect(page.get_by_text(f"2 of 8 rollouts, 1 task · {wilson}")).to_be_visible()
    page.get_by_role("button", name="Clear filters").click()
    expect(rows).to_have_count(8)
    page.get_by_label("Rows").select_option("task")
    expect(rows).to_have_count(2)
    rows.nth(0).get_by_role("link").click()
    expect(rows).to_have_count(1)  # the groups of the task
    rows.nth(0).get_by_role("link").click()
    expect(page.get_by_role("heading", name="find the key of alpha")).to_be_visible()
    # of four rollouts, the lost one
    page.locator(".strips tbody tr").nth(1).get_by_role("link").first.click()
    expect(page.get_by_text("step 0 of 3")).to_be_visible()
    assert "#/small/step/alpha%2F0%2Fx/0?" in page.url

    level = region(page, "Level 0")
    expect(level).to_contain_text("2 steps of 2 rollouts")
    expect(level.locator(".value")).to_have_text("−1.000")
    level.get_by_role("link", name="…w · 0").click()
    expect(level.locator(".value")).to_have_text("+1.000")
    page.get_by_text("Estimators and their parameters").click()
    page.get_by_label("A: mode").select_option("mean_norm")
    page.get_by_label("A: gamma, number").fill("1")
    page.get_by_label("A: gamma, number").press("Enter")
    expect(level.locator(".value")).to_have_text("+5.000")  # (10 - 0) / 2
    page.get_by_label("B: estimator").select_option("rloo")
    expect(page.locator(".advantages")).to_contain_text("B: rloo")
    rloo = compute(scan_steps(small_run), "rloo", reward_scale=10).collect()[
        "advantage"
    ][0]
    expect(page.locator(".advantages > div").nth(1).locator("dd").first).to_have_text(
        f"+{rloo:.3f}"
    )
    page.get_by_label("A: history_length, number").fill("0")
    page.get_by_label("A: history_length, number").press("Enter")
    expect(region(page, "Level 1")).to_have_count(0)


def test_the_keyboard_alone(viewer, page, small_run) -> None:
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
    expect(page.get_by_text("step 0 of 3")).to_be_visible()
    press("j")
    expect(page.get_by_text("step 1 of 3")).to_be_visible()
    press("k")
    expect(page.get_by_text("step 0 of 3")).to_be_visible()
    press("]")
    expect(page).to_have_url(re.compile("alpha%2F0%2Fy/0$"))
    press("[")
    expect(page).to_have_url(re.compile("alpha%2F0%2Fx/0$"))
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


def test_a_transcript(viewer, page, small_run) -> None:
    """Of y, which is in room b twice; of x, whose second action is invalid; and of z, which was aborted."""
    address = viewer(small_run)
    page.goto(f"{address}#/small/step/alpha%2F0%2Fy/1")
    turns = page.locator(".turn")
    expect(turns).to_have_count(3)
    expect(turns.nth(1)).to_have_attribute("aria-current", "step")
    expect(turns.nth(1)).to_contain_text("The same state as at step 0: room b")
    for turn, text in enumerate(("room b", "so", "go 2")):
        expect(turns.nth(2 if turn else 0)).to_contain_text(text)
    turns.nth(2).get_by_text("Prompt").click()
    expect(region(turns.nth(2), "Prompt of step 2")).to_have_text("You are in room c.")
    expect(region(turns.nth(2), "State after the last step")).to_have_text("the end")
    value = (
        compute(scan_steps(small_run), "hgpo")
        .collect()
        .filter(trajectory="alpha/0/y")["advantage"][1]
    )
    expect(turns.nth(1).locator(".bar").first).to_contain_text(
        f"A {'−' if value < 0 else '+'}{abs(value):.2f}"
    )
    level = region(page, "Level 0")
    level.get_by_role("row", name="…w · 1").get_by_role(
        "button", name="what differs"
    ).click()
    difference = region(level, "Difference")
    expect(difference.locator("del")).to_have_text("b")
    expect(difference.locator("ins")).to_have_text("a")
    page.goto(f"{address}#/small/step/alpha%2F0%2Fx/1")
    expect(
        page.get_by_text("Invalid: the environment did not accept it")
    ).to_be_visible()
    expect(turns.nth(1).locator(".margin")).to_contain_text("invalid")
    page.goto(f"{address}#/small/step/alpha%2F0%2Fz/0")
    expect(page.get_by_text("Aborted: the server hung up")).to_be_visible()


def test_a_long_conversation_with_tools(viewer, page, tmp_path) -> None:
    """Texts come as they are scrolled to; the address follows, and a link leads to its step."""
    call = '<tool_call>{"name": "find", "arguments": {"n": %d}}</tool_call>'
    rows = []
    for step in range(200):
        response = f"<think>thought {step}</think>{call % step}"
        texts = {
            "state": f"state {step}",
            "prompt": f"message {step}\n" * 9,
            "response": response,
            "action": call % step,
        }
        rows.append(
            {
                "task_id": "t",
                "trajectory": "t/0",
                "step": step,
                "action": call % step,
                "reward": 0.0,
            }
            | texts
        )
    with StepWriter(tmp_path / "long") as writer:
        writer.add_group(rows)
    address = viewer(tmp_path / "long")
    page.goto(f"{address}#/long/step/t%2F0/0")
    expect(page.locator(".turn")).to_have_count(200)
    expect(page.locator(".turn .tool_call").first).to_contain_text(
        '{"name": "find", "arguments": {"n": 0}}'
    )
    expect(page.get_by_text("thought 150")).to_have_count(0)
    # it fades at its edge
    expect(region(page, "Trajectories")).to_have_class(re.compile("more"))
    page.mouse.move(400, 500)
    page.mouse.wheel(0, 3000)
    expect(page).not_to_have_url(re.compile("t%2F0/0$"))
    page.goto("about:blank")
    page.goto(f"{address}#/long/step/t%2F0/150")
    expect(page.get_by_text("thought 150")).to_be_in_viewport()
    expect(region(page, "State of step 150")).to_be_in_viewport()


def test_rollouts_are_aligned_where_their_states_agree(viewer, page, small_run) -> None:
    page.goto(f"{viewer(small_run)}#/small/group/0")
    strips = page.locator(".strips tbody tr .strip")
    expect(strips).to_have_count(4)
    places = [
        [
            one.inner_text().strip() or "-"
            for one in strips.nth(row).locator("> *").all()
        ]
        for row in range(4)
    ]
    column = {
        name: [cells.index(str(step)) for step in range(3 - (name == "z"))]
        for name, cells in zip("wxyz", places, strict=True)
    }
    assert column["w"] == column["x"], "a, b, c"
    assert column["z"] == column["w"][:2], "a, b"
    assert column["w"][1] in column["y"], "one of y's two steps in b"
    assert column["y"][2] == column["w"][2]


def test_branches_are_lanes_that_leave_their_parents(
    viewer, page, branched_run, tmp_path
) -> None:
    """c and d leave a at step 1, and e leaves c at step 2; also in a file."""
    file = tmp_path / "page.html"
    write_page(open_sources([str(branched_run)]), file)
    for address in (viewer(branched_run), file.as_uri()):
        page.goto(f"{address}#/branched/group/0")
        lanes = page.locator(".lanes tbody tr")
        expect(lanes.locator("th")).to_have_text(
            ["✗ a", "✗ ↳ c", "✓ ↳ e", "✓ ↳ d", "✓ b"]
        )
        columns = [
            [one.get_attribute("class") for one in lane.locator(".strip > *").all()]
            for lane in lanes.all()
        ]
        first = [sum("gap" in (kind or "") for kind in kinds) for kinds in columns]
        assert first == [1, 2, 3, 2, 1], (
            "an empty column, and one for each step of the parent"
        )
        through = [
            [at for at, kind in enumerate(kinds) if "line" in (kind or "")]
            for kinds in columns
        ]
        assert through == [[], [1], [1], [], []], "the line from a to d"
        lanes.nth(2).get_by_role("link").first.focus()
        for key in ("ArrowRight", "ArrowUp", "ArrowLeft", "Enter"):
            page.keyboard.press(key)
        expect(page).to_have_url(re.compile("step/c/1$"))
        branches = region(page, "Branches at step 1")
        expect(branches.locator("tbody tr")).to_have_text(
            [
                re.compile(f"{name} · 1{action}")
                for name, action in zip("acd", ("go", "stay", "run"), strict=True)
            ]
        )
        branches.get_by_role("link", name="d · 1").click()
        expect(page.get_by_text("This branch leaves a at step 1")).to_be_visible()
        page.get_by_text("This branch leaves").get_by_role("link").click()
        expect(page).to_have_url(re.compile("step/a/1$"))


def test_links_keep_every_setting(viewer, page, small_run) -> None:
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
    page.get_by_label("A: history_length, number").fill("0")
    page.get_by_label("A: history_length, number").press("Enter")
    page.keyboard.press("Tab")
    page.get_by_role("link", name="iteration 0").click()
    page.get_by_role("link", name="Graph of states").click()
    expect(page).to_have_url(
        re.compile(r"group/1/graph\?.*history_length%3D0.*sort=length")
    )
    page.get_by_role("navigation", name="Views").get_by_role(
        "link", name="Rollouts"
    ).click()
    expect(page.get_by_label("Filter", exact=True)).to_have_value("'omega'")
    expect(page.get_by_role("columnheader", name="length")).to_have_attribute(
        "aria-sort", "ascending"
    )
    lengths = page.locator(".every-rollout tbody tr td:nth-child(4)")
    expect(lengths).to_have_text(["2", "3", "3", "3"])


def test_rollouts_and_texts_are_found(viewer, page, small_run) -> None:
    page.goto(f"{viewer(small_run)}#/small")
    # the type of a task, in its row
    page.get_by_role("link", name="find", exact=True).click()
    rows = page.locator(".every-rollout tbody tr")
    expect(rows).to_have_count(4)
    page.get_by_role("button", name="Clear filters").click()
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
        page.get_by_role("button", name="CSV").click()
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
    page.get_by_role("link", name="omega/0/z step 1, error").click()
    expect(page.get_by_text("Aborted: the server hung up")).to_be_visible()


def test_a_note_is_saved_and_found(viewer, page, small_run, tmp_path) -> None:
    """Also in a file, which shows it."""
    text = "<img src=x onerror='window.hacked = true'> \u202e loops"
    page.goto(f"{viewer(small_run)}#/small/step/alpha%2F0%2Fx/0")
    page.get_by_label("Note on this rollout").fill(text)
    page.get_by_label("Score of this rollout").fill("-1.5")
    page.get_by_role("button", name="Save note").click()
    expect(page.get_by_text("saved 20")).to_be_visible()
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
) -> None:
    """An observer types as soon as the input is there, which a person does on a slow machine."""
    page.add_init_script(TYPE_AT_ONCE)
    page.goto(f"{viewer(small_run)}#/small/rollouts")
    expect(page).to_have_url(re.compile("filter=alpha"))
    expect(page.get_by_label("Filter", exact=True)).to_have_value("alpha")


def test_a_search_that_is_typed_outlives_a_filter(viewer, page, small_run) -> None:
    page.goto(f"{viewer(small_run)}#/small/rollouts")
    search = page.get_by_label("Search in states", exact=False)
    search.fill("room b")
    page.get_by_label("Filter", exact=True).fill("length = 3")
    expect(page).to_have_url(re.compile("filter=length"))
    expect(search).to_have_value("room b")


def test_a_note_that_is_typed_before_the_saved_one_arrives_is_kept(
    viewer, page, small_run
) -> None:
    address = f"{viewer(small_run)}#/small/step/alpha%2F0%2Fx/0"
    page.goto(address)
    page.get_by_label("Note on this rollout").fill("first")
    page.get_by_role("button", name="Save note").click()
    expect(page.get_by_text("saved 20")).to_be_visible()

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
    page.get_by_role("button", name="Save note").click()
    expect(page.get_by_text("saved 20")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Note on this rollout")).to_have_value("second")


def test_a_run_that_is_being_written_is_followed(viewer, page, tmp_path) -> None:
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


def test_steps_where_two_estimators_disagree(viewer, page, rich_run) -> None:
    signs = [
        compute(scan_steps(rich_run), name).collect()["advantage"].round(9).sign()
        for name in ("hgpo", "grpo")
    ]
    steps = (
        scan_steps(rich_run)
        .select("trajectory", "step")
        .collect()
        .filter((signs[0] != signs[1]).fill_null(False))
    )
    name, apart = steps.group_by("trajectory", maintain_order=True).agg("step").row(0)
    page.goto(
        f"{viewer(rich_run)}#/rich/step/{quote(name, safe='')}/{apart[-1]}?b=grpo"
    )
    badges = page.locator(".turn", has_text="A ≠ B")
    expect(badges).to_have_count(len(apart))
    assert [int(turn.get_attribute("data-step")) for turn in badges.all()] == apart
    for key, ends in (("p", apart[0]), ("n", apart[-1])):
        for _ in apart[1:]:
            # at once: each starts where the one before it ended
            page.keyboard.press(key)
        expect(page).to_have_url(re.compile(f"/{ends}\\?"))


def test_the_graph_and_its_trajectories(viewer, page, small_run, tmp_path) -> None:
    """Also of a table without next states, which does not say where rollouts ended."""
    columns = (
        "task",
        "trajectory",
        "step",
        "state",
        "action",
        "reward",
        "action_valid",
        "won",
    )
    scan_steps(small_run).select(columns).collect().write_parquet(
        tmp_path / "plain.parquet"
    )
    address = viewer(small_run, tmp_path / "plain.parquet")
    page.goto(f"{address}#/plain.parquet/group/0/graph")
    expect(page.get_by_text("where rollouts ended is unknown")).to_be_visible()
    page.goto(f"{address}#/small/group/0/graph")
    expect(page.locator(".node")).to_have_count(4)  # rooms a, b, c, and the end
    expect(page.locator(".edges path")).to_have_count(4)  # a b, b c, c end, b b
    expect(page.locator(".edges path.loop")).to_have_count(1)
    assert sorted(page.locator(".node .label").all_text_contents()) == [
        "go 1",
        "go 2",
        "start",
        "start",
    ]
    expect(
        page.get_by_text("1 state where a rollout ended without success")
    ).to_have_count(0)
    page.get_by_label("Highlight a trajectory").select_option(index=1)
    page.get_by_text("States as a table").click()
    page.get_by_role("button", name="room b").click()
    expect(region(page, "Selected state")).to_contain_text("5 visits")


def test_runs_side_by_side(viewer, page, small_run, training_run) -> None:
    """Two runs whose common task went as well; and the curves of one."""
    page.goto(viewer(small_run, training_run))
    page.get_by_role("link", name="Compare").click()
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
        page.get_by_role("button", name="CSV").click()
    table = pl.read_csv(saved.value.path()).filter(run="training", metric="loss/policy")
    assert table.select("iteration", "steps", "value").rows() == [
        (0, 0, 1.0),
        (1, 11, 0.5),
    ]
    tasks = region(page, "Tasks of two runs")
    expect(tasks.get_by_text("success: 0.0 points in training")).to_be_visible()
    tasks.get_by_role("button", name="find the key of alpha").click()
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
    chart.get_by_role("button", name="2").click()
    expect(page.get_by_label("Filter", exact=True)).to_have_value("iteration = 2")
    expect(page.locator(".every-rollout tbody tr")).to_have_count(4)


def test_the_graph_of_all_groups_of_a_task(
    viewer, page, training_run, tmp_path
) -> None:
    """Three iterations of four rollouts; also in a file, from the groups that it contains."""
    file = tmp_path / "page.html"
    write_page(open_sources([str(training_run)]), file)
    for address in (viewer(training_run), file.as_uri()):
        page.goto(f"{address}#/training/group/1")
        page.get_by_role("link", name="Graph of all 3 groups").click()
        expect(page).to_have_url(re.compile("group/1/task-graph$"))
        expect(
            page.get_by_text("All 3 groups of this task in the run, 12 rollouts")
        ).to_be_visible()
        # as in one group: the states are the same
        expect(page.locator(".node")).to_have_count(4)
        expect(page.locator(".edges path").first).to_have_attribute(
            "style", re.compile("opacity: (?!0.08)")
        )
        page.get_by_label("Highlight an iteration").select_option(
            "iteration 2: 2 of 4 won"
        )
        page.get_by_text("States as a table").click()
        page.get_by_role("button", name="room b").click()
        facts = region(page, "Selected state")
        expect(facts).to_contain_text("15 visits")
        facts.get_by_role("link").last.click()
        expect(page).to_have_url(re.compile("step/alpha%2F2%2F"))


def test_a_training_run_begins_with_what_it_was_trained_on(
    viewer, page, trained_run, small_run, tmp_path
) -> None:
    """From a server with another run, and in a file; a filtered group has no advantage."""
    file = tmp_path / "page.html"
    write_page(open_sources([str(trained_run)]), file)
    address = viewer(trained_run, small_run)
    for start in (address, file.as_uri()):
        page.goto(f"{start}#/trained/step/alpha%2F0%2Fw/1")
        advantages = page.locator(".advantages > div")
        expect(advantages.nth(0)).to_contain_text("A: trained")
        expect(advantages.nth(0).locator("dd").first).to_have_text("+1.250")
        expect(advantages.nth(0)).to_contain_text("R 5")  # discounted as in training
        expect(advantages.nth(1)).to_contain_text("B: gigpo")
        expect(region(page, "Level 1")).to_contain_text("2 steps of 2 rollouts")
        page.goto(f"{start}#/trained/step/omega%2F0%2Fw/1")
        expect(advantages.nth(0).locator("dd").first).to_have_text("–")
    page.goto(f"{address}#/trained/step/alpha%2F0%2Fw/1?a=grpo")
    expect(page.locator(".advantages")).to_contain_text("A: grpo")
    page.get_by_text("Estimators and their parameters").click()
    page.get_by_label("A: estimator").select_option("trained")
    expect(page.locator(".advantages > div").nth(0).locator("dd").first).to_have_text(
        "+1.250"
    )
    page.goto(f"{address}#/small/step/alpha%2F0%2Fw/1")
    expect(page.locator(".advantages")).to_contain_text("A: hgpo")
    expect(
        page.get_by_label("A: estimator").get_by_role("option", name="trained")
    ).to_have_count(0)
    page.goto(f"{address}#/small/compare?with=trained")
    region(page, "Tasks of two runs").get_by_role(
        "button", name="find the key of alpha"
    ).click()
    expect(
        page.locator(".strips").nth(1).get_by_label("step 1, advantage +1.25").first
    ).to_be_attached()


def test_the_tokens_of_a_response_as_text(viewer, page, token_run) -> None:
    address = viewer(token_run)
    page.goto(f"{address}#/run/step/t%2F0/0")
    tokens = page.locator(".tokens > span")
    expect(page.get_by_text("The tokens of the response")).to_be_visible()
    expect(tokens.last).to_have_text("<|end|>")
    expect(tokens.last).to_have_attribute(
        "title", re.compile(r"token \d+, id \d+: probability")
    )
    expect(page.locator(".tokens")).to_contain_text("go 0</action>")
    page.goto(f"{address}#/run/step/t%2F1/0")
    expect(page.locator(".tokens")).to_contain_text("<img src=x onerror")
    assert_nothing_ran(page)


def test_what_chance_gives_at_a_step(viewer, page, small_run) -> None:
    """Step 1 of w: w, x and y are in room b, where x does something invalid; w and x came from room a."""
    page.goto(f"{viewer(small_run)}#/small/step/alpha%2F0%2Fw/1")
    page.get_by_text("Estimators and their parameters").click()
    page.get_by_label("A: gamma, number").fill("1")
    page.get_by_label("A: gamma, number").press("Enter")
    level = region(page, "Level 1")
    values = [10.0, -0.1, 10.0, 10.0]  # y is in room b twice
    drawn = [mean(pair) for pair in combinations(values, 2)]
    expect(
        level.get_by_role("row", name="…x · 1").get_by_role("cell", name="−0.10")
    ).to_be_visible()
    expect(level).to_contain_text(
        f"(by chance {mean(drawn):.3f} ± {pstdev(drawn):.3f})"
    )
    expect(level).to_contain_text("In a group of two, A1 is +1 and −1")


# ------------------------------------------------------------------------------------------------------ hostile texts


def assert_nothing_ran(page: Any) -> None:
    found = run_in(
        page, "JSON.stringify([typeof window.hacked, document.title === 'hacked'])"
    )
    assert json.loads(found) == ["undefined", False]
    assert (
        page.locator(
            "#app :is(img, script, iframe, object, embed, [onclick], [onload], [onerror])"
        ).count()
        == 0
    )
    assert page.locator("#app a[href^='javascript' i]").count() == 0


def run_in(page: Any, expression: str) -> Any:
    """Evaluate an expression from outside: the page's policy allows no `eval`."""
    session = page.context.new_cdp_session(page)
    done = session.send(
        "Runtime.evaluate",
        {"expression": expression, "awaitPromise": True, "returnByValue": True},
    )
    assert "exceptionDetails" not in done, done
    return done["result"]["value"]


def visit_everything(page: Any, address: str, texts: int) -> None:
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
        expect(page.get_by_text("step 0 of 2")).to_be_visible()
        page.keyboard.press("j")
        expect(page.get_by_text("step 1 of 2")).to_be_visible()
        page.get_by_text("Prompt", exact=True).last.click()
        page.get_by_text("admissible actions").last.click()
        assert_nothing_ran(page)


def test_hostile_texts_are_shown_and_not_run(viewer, page, hostile_run) -> None:
    address = viewer(hostile_run)
    visit_everything(page, address, len(HOSTILE))
    names = list(HOSTILE)

    def state(name: str) -> Any:
        page.goto(f"{address}#/hostile/group/0")
        page.locator(".strips tbody tr").nth(names.index(name)).locator(".strip a").nth(
            1
        ).click()
        expect(page.get_by_text("step 1 of 2")).to_be_visible()
        return region(page, "State of step 1")

    expect(state("script")).to_have_text(HOSTILE["script"])
    expect(state("right to left")).to_contain_text("U+202E")
    expect(state("control")).to_contain_text("U+001B")
    expect(state("surrogate")).to_have_text("lone \ufffd and \ufffd")
    large = state("large")
    assert len(large.inner_text()) == 20_000
    rest = f"{len(HOSTILE['large']) - 20_000:,} more characters."
    expect(page.locator("p.note").filter(has_text=rest).first).to_be_visible()


def test_a_hostile_run_as_a_file(page, hostile_run, tmp_path) -> None:
    file = tmp_path / "page.html"
    write_page(open_sources([str(hostile_run)]), file)
    visit_everything(page, file.as_uri(), len(HOSTILE))


# -------------------------------------------------------------------------------------------------- a page of its own


def test_a_page_of_its_own(page, small_run, tmp_path) -> None:
    file = tmp_path / "page.html"
    write_page(open_sources([str(small_run)]), file, tasks=1)
    page.goto(file.as_uri())
    expect(page.get_by_text("Shared contexts by level")).to_be_visible()
    page.get_by_role("link", name="Look at the rollouts").click()
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


# -------------------------------------------------------------------------------------------------- for everyone


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm ci in viewer/")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1300, 400])
def test_no_findings_of_axe(
    viewer, browser, small_run, training_run, branched_run, scheme: str, width: int
) -> None:
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
