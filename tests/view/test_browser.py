"""The page in a real browser: headless Chromium, driven by Playwright."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import pytest
from viewed import HOSTILE, small_rows

from hgpo_datasets import StepWriter, scan_steps
from hgpo_train.advantages import compute
from hgpo_train.analysis.statistics import statistics
from hgpo_train.view.page import write_page
from hgpo_train.view.sources import open_sources

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = Path(__file__).parents[2] / "viewer/node_modules/axe-core/axe.min.js"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]

Viewer = Callable[..., str]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    quiet = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *quiet])
        yield found
        found.close()


@pytest.fixture
def page(browser) -> Iterator[Any]:
    """A page without network that fails the test for an error in its console, or a request to another place."""
    context = browser.new_context(viewport={"width": 1300, "height": 900}, color_scheme="light")
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(f"{error} {error.stack}"))
    page.on("console", lambda line: problems.append(line.text) if line.type in ("error", "warning") else None)
    here = ("http://127.0.0.1:", "file://", "data:")
    page.on("request", lambda asked: None if asked.url.startswith(here) else problems.append(asked.url))
    page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
    page.set_default_timeout(30_000)
    yield page
    context.close()
    assert problems == []


@pytest.fixture
def viewer() -> Iterator[Viewer]:
    """Return a function that serves runs as the command does, and returns the address."""
    running = []

    def serve(*runs: Path) -> str:
        words = ["-c", "from hgpo_train.cli import main; main()", "view", *map(str, runs), "--no-browser"]
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        return found[0]

    yield serve
    for process in running:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_open_filter_follow_a_group_and_compare(viewer, page, small_run) -> None:
    page.goto(viewer(small_run))
    expect = playwright.expect
    expect(page.get_by_role("heading", name="small")).to_be_visible()
    expect(page.get_by_text("66.7%").first).to_be_visible()
    page.get_by_role("link", name="Look at the tasks").click()
    rows = page.get_by_role("treegrid").get_by_role("row")
    expect(rows).to_have_count(3)  # with the head
    page.get_by_label("Task id or instruction contains").fill("omega")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Clear filters").click()
    page.get_by_label("Task type").select_option("find")
    expect(rows).to_have_count(2)
    rows.nth(1).click()
    expect(rows).to_have_count(6)
    expect(page.get_by_role("heading", name="find the key of alpha")).to_be_visible()
    rows.nth(3).click()  # the second of four trajectories, which is lost
    expect(page.get_by_text("step 0 of 3")).to_be_visible()
    assert page.url.endswith("#/small/step/alpha%2F0%2Fx/0")

    level = page.get_by_role("region", name="Level 0")
    expect(level).to_contain_text("2 steps of 2 rollouts")
    expect(level.locator(".value")).to_have_text("−1.000")
    level.get_by_role("link", name="…w · 0").click()
    expect(level.locator(".value")).to_have_text("+1.000")
    page.get_by_label("A: mode").select_option("mean_norm")
    page.get_by_label("A: gamma, number").fill("1")
    page.get_by_label("A: gamma, number").press("Enter")
    expect(level.locator(".value")).to_have_text("+5.000")  # (10 - 0) / 2
    page.get_by_label("B: estimator").select_option("rloo")
    expect(page.locator(".advantages")).to_contain_text("B: rloo")
    rloo = compute(scan_steps(small_run), "rloo", reward_scale=10).collect()["advantage"][0]
    expect(page.locator(".advantages > div").nth(1).locator("dd").first).to_have_text(f"+{rloo:.3f}")
    page.get_by_label("A: history_length, number").fill("0")
    page.get_by_label("A: history_length, number").press("Enter")
    expect(page.get_by_role("region", name="Level 1")).to_have_count(0)


def test_what_differs_between_histories(viewer, page, small_run) -> None:
    """Step 1 of y is in room b, as step 1 of w is; but w came from room a."""
    page.goto(f"{viewer(small_run)}#/small/step/alpha%2F0%2Fy/1")
    level = page.get_by_role("region", name="Level 0")
    row = level.get_by_role("row", name="…w · 1")
    row.get_by_role("button", name="what differs").click()
    difference = level.get_by_role("region", name="Difference")
    playwright.expect(difference.locator("del")).to_have_text("b")
    playwright.expect(difference.locator("ins")).to_have_text("a")


def test_why_an_action_is_invalid_and_a_rollout_aborted(viewer, page, small_run) -> None:
    address = viewer(small_run)
    page.goto(f"{address}#/small/step/alpha%2F0%2Fx/1")
    playwright.expect(page.get_by_text("Invalid: the environment did not accept it")).to_be_visible()
    page.goto(f"{address}#/small/step/alpha%2F0%2Fz/0")
    playwright.expect(page.get_by_text("Aborted: the server hung up")).to_be_visible()


def test_the_keyboard_alone(viewer, page, small_run) -> None:
    page.goto(viewer(small_run))
    expect = playwright.expect
    expect(page.get_by_role("heading", name="small")).to_be_visible()
    press = page.keyboard.press
    press("t")
    expect(page.get_by_role("row", name="find the key of alpha")).to_be_focused()
    for key in ("ArrowDown", "ArrowUp", "ArrowRight"):
        press(key)
    expect(page.get_by_role("treegrid").get_by_role("row")).to_have_count(7)
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        press(key)
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
    expect(page.get_by_role("link", name="Trajectories")).to_have_attribute("aria-current", "page")
    press("d")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    press("Escape")
    expect(page.get_by_role("dialog")).not_to_be_visible()
    press("/")
    page.keyboard.type("jog?")  # shortcuts are off in an input
    expect(page.get_by_label("Task id or instruction contains")).to_have_value("jog?")
    expect(page.get_by_role("dialog")).not_to_be_visible()


def test_the_graph_and_its_trajectories(viewer, page, small_run) -> None:
    page.goto(f"{viewer(small_run)}#/small/group/0/graph")
    expect = playwright.expect
    expect(page.locator(".node")).to_have_count(4)  # rooms a, b, c, and the end
    expect(page.locator(".edges path")).to_have_count(4)  # a b, b c, c end, b b
    expect(page.locator(".edges path.loop")).to_have_count(1)
    page.get_by_label("Highlight a trajectory").select_option(index=1)
    page.get_by_text("States as a table").click()
    page.get_by_role("button", name="room b").click()
    expect(page.get_by_role("region", name="Selected state")).to_contain_text("5 visits")


def test_the_graph_of_all_groups_of_a_task(viewer, page, training_run, tmp_path) -> None:
    """Three iterations of four rollouts; also in a file, from the groups that it contains."""
    expect = playwright.expect
    file = tmp_path / "page.html"
    write_page(open_sources([str(training_run)]), file)
    for address in (viewer(training_run), file.as_uri()):
        page.goto(f"{address}#/training/group/1")
        page.get_by_role("link", name="Graph of all 3 groups").click()
        expect(page).to_have_url(re.compile("group/1/task-graph$"))
        expect(page.get_by_text("All 3 groups of this task in the run, 12 rollouts")).to_be_visible()
        expect(page.locator(".node")).to_have_count(4)  # as in one group: the states are the same
        expect(page.locator(".edges path").first).to_have_attribute("style", re.compile("opacity: (?!0.08)"))
        page.get_by_label("Highlight an iteration").select_option("iteration 2: 2 of 4 won")
        page.get_by_text("States as a table").click()
        page.get_by_role("button", name="room b").click()
        facts = page.get_by_role("region", name="Selected state")
        expect(facts).to_contain_text("15 visits")
        facts.get_by_role("link").last.click()
        expect(page).to_have_url(re.compile("step/alpha%2F2%2F"))


def test_the_tokens_of_a_response_as_text(viewer, page, token_run) -> None:
    expect = playwright.expect
    address = viewer(token_run)
    page.goto(f"{address}#/run/step/t%2F0/0")
    tokens = page.locator(".tokens > span")
    expect(page.get_by_text("The tokens of the response")).to_be_visible()
    expect(tokens.last).to_have_text("<|end|>")
    expect(tokens.last).to_have_attribute("title", re.compile(r"token \d+, id \d+: probability"))
    expect(page.locator(".tokens")).to_contain_text("go 0</action>")
    page.goto(f"{address}#/run/step/t%2F1/0")
    expect(page.locator(".tokens")).to_contain_text("<img src=x onerror")
    assert_nothing_ran(page)


def test_levels_with_intervals_and_chance(viewer, page, six_tasks) -> None:
    """Six tasks are the fewest with intervals. The figures are those of the library."""
    page.goto(viewer(six_tasks))
    expect = playwright.expect
    levels = page.get_by_role("region", name="Levels")
    expect(page.get_by_text("20 permutations")).to_be_visible(timeout=60_000)
    found = statistics(scan_steps(six_tasks), history_length=4, reward_scale=10.0, permutations=20).intervals
    row = found.filter(level="1", statistic="explained").row(0, named=True)
    cell = levels.get_by_role("row", name="variance of returns").get_by_role("cell").nth(1)
    expect(cell).to_contain_text(f"{row['value']:.1%}")
    expect(cell).to_contain_text(f"chance {row['chance']:.1%}")
    assert row["low"] < row["value"] < row["high"], "the tasks differ"
    expect(cell).to_contain_text(f"({row['low']:.1%} to {row['high']:.1%})")


def test_what_chance_gives_at_a_step(viewer, page, small_run) -> None:
    """Step 1 of w: w, x and y are in room b, where x does something invalid; w and x came from room a."""
    page.goto(f"{viewer(small_run)}#/small/step/alpha%2F0%2Fw/1")
    expect = playwright.expect
    page.get_by_label("A: gamma, number").fill("1")
    page.get_by_label("A: gamma, number").press("Enter")
    level = page.get_by_role("region", name="Level 1")
    values = [10.0, -0.1, 10.0, 10.0]  # y is in room b twice
    drawn = [mean(pair) for pair in combinations(values, 2)]
    expect(level).to_contain_text(f"(by chance {mean(drawn):.3f} ± {pstdev(drawn):.3f})")
    expect(level).to_contain_text("In a group of two, A1 is +1 and −1")


def test_search_in_texts(viewer, page, small_run) -> None:
    page.goto(f"{viewer(small_run)}#/small/tasks")
    box = page.get_by_label("Search in states, actions, responses and errors")
    box.fill("hung up")
    box.press("Enter")
    page.get_by_text("2 steps in 2 groups").click()
    page.get_by_role("link", name="omega/0/z step 1, error").click()
    playwright.expect(page.get_by_text("Aborted: the server hung up")).to_be_visible()


def test_a_run_that_is_being_written(viewer, page, tmp_path) -> None:
    with StepWriter(tmp_path / "live") as writer:
        writer.add_group(small_rows("alpha"))
        writer.commit()
        page.goto(f"{viewer(tmp_path / 'live')}#/live/tasks")
        rows = page.get_by_role("treegrid").get_by_role("row")
        playwright.expect(rows).to_have_count(2)
        page.wait_for_timeout(500)  # the page has asked once for the run's version
        writer.add_group(small_rows("omega"))
        writer.commit()
        playwright.expect(rows).to_have_count(3)


def test_two_runs_and_the_curves_of_a_training_run(viewer, page, small_run, training_run) -> None:
    page.goto(viewer(small_run, training_run))
    page.get_by_label("Run").select_option("training")
    expect = playwright.expect
    expect(page.get_by_role("heading", name="training")).to_be_visible()
    expect(page.locator(".chart canvas").first).to_be_visible()
    expect(page.get_by_label("metric of the training run")).to_have_value("loss/policy")
    chart = page.locator("figure", has_text="Success and valid actions")
    chart.get_by_text("Table").click()
    chart.get_by_role("button", name="2").click()
    expect(page.get_by_label("Iteration")).to_have_value("2")
    expect(page.get_by_text("1 task, 1 group")).to_be_visible()


# ------------------------------------------------------------------------------------------------------ hostile texts


def assert_nothing_ran(page: Any) -> None:
    found = run_in(page, "JSON.stringify([typeof window.hacked, document.title === 'hacked'])")
    assert json.loads(found) == ["undefined", False]
    assert page.locator("#app :is(img, script, iframe, object, embed, [onclick], [onload], [onerror])").count() == 0
    assert page.locator("#app a[href^='javascript' i]").count() == 0


def run_in(page: Any, expression: str) -> Any:
    """Evaluate an expression from outside: the page's policy allows no `eval`."""
    session = page.context.new_cdp_session(page)
    done = session.send("Runtime.evaluate", {"expression": expression, "awaitPromise": True, "returnByValue": True})
    assert "exceptionDetails" not in done, done
    return done["result"]["value"]


def visit_everything(page: Any, address: str, texts: int) -> None:
    expect = playwright.expect
    page.goto(address)
    expect(page.get_by_role("heading", name="hostile")).to_be_visible()
    assert_nothing_ran(page)
    page.goto(f"{address}#/hostile/group/0")
    expect(page.locator(".strips tbody tr")).to_have_count(texts)
    assert_nothing_ran(page)
    page.goto(f"{address}#/hostile/group/0/graph")
    expect(page.locator(".node")).to_have_count(texts + 1)
    page.get_by_text("States as a table").click()
    assert_nothing_ran(page)
    for place in range(texts):
        page.goto(f"{address}#/hostile/group/0")
        page.locator(".strips tbody tr").nth(place).get_by_role("link").first.click()
        expect(page.get_by_text("step 0 of 2")).to_be_visible()
        page.keyboard.press("j")
        expect(page.get_by_text("step 1 of 2")).to_be_visible()
        page.get_by_text("Prompt", exact=True).click()
        page.get_by_text("admissible actions").click()
        assert_nothing_ran(page)


def test_hostile_texts_are_shown_and_not_run(viewer, page, hostile_run) -> None:
    address = viewer(hostile_run)
    visit_everything(page, address, len(HOSTILE))
    names = list(HOSTILE)

    def state(name: str) -> Any:
        page.goto(f"{address}#/hostile/group/0")
        page.locator(".strips tbody tr").nth(names.index(name)).locator(".strip a").nth(1).click()
        playwright.expect(page.get_by_text("step 1 of 2")).to_be_visible()
        return page.get_by_role("region", name="State", exact=True)

    playwright.expect(state("script")).to_have_text(HOSTILE["script"])
    playwright.expect(state("right to left")).to_contain_text("U+202E")
    playwright.expect(state("control")).to_contain_text("U+001B")
    playwright.expect(state("surrogate")).to_have_text("lone \ufffd and \ufffd")
    large = state("large")
    assert len(large.inner_text()) == 20_000
    page.get_by_role("button", name="Show 100,000 more").first.click()
    rest = f"{len(HOSTILE['large']) - 120_000:,} more characters."
    playwright.expect(page.locator("p.note").filter(has_text=rest)).to_be_visible(timeout=20_000)
    assert len(large.text_content()) == 120_000


def test_a_hostile_run_as_a_file(page, hostile_run, tmp_path) -> None:
    file = tmp_path / "page.html"
    write_page(open_sources([str(hostile_run)]), file)
    visit_everything(page, file.as_uri(), len(HOSTILE))


# -------------------------------------------------------------------------------------------------- a page of its own


def test_a_page_of_its_own(page, small_run, tmp_path) -> None:
    file = tmp_path / "page.html"
    write_page(open_sources([str(small_run)]), file, tasks=1)
    page.goto(file.as_uri())
    expect = playwright.expect
    expect(page.get_by_role("heading", name="small")).to_be_visible()
    expect(page.get_by_text("Shared contexts by level")).to_be_visible()
    page.get_by_role("link", name="Look at the tasks").click()
    rows = page.get_by_role("treegrid").get_by_role("row")
    expect(rows).to_have_count(2)
    rows.nth(1).click()
    rows.nth(2).click()
    expect(page.get_by_role("region", name="Level 0").locator(".value")).to_have_text("+1.000")
    page.get_by_label("B: estimator").select_option("grpo")
    expect(page.locator(".advantages")).to_contain_text("B: grpo")
    page.get_by_label("Outcome").select_option("all")
    expect(rows).to_have_count(1)


# -------------------------------------------------------------------------------------------------- for everyone


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm ci in viewer/")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1300, 400])
def test_no_serious_findings_of_axe(viewer, browser, small_run, training_run, scheme: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.add_init_script(path=AXE)
    page = context.new_page()
    address = viewer(small_run, training_run)
    views = {
        "#/small": "Configuration",
        "#/training": "metric of the training run",
        "#/small/tasks": "find the key of alpha",
        "#/small/group/0": "Graph of states",
        "#/small/group/0/graph": "States as a table",
        "#/training/group/0/task-graph": "States as a table",
        "#/small/step/alpha%2F0%2Fx/1": "Hierarchy of groups",
    }
    for place, text in views.items():
        page.goto(f"{address}{place}")
        playwright.expect(page.get_by_text(text).last).to_be_attached()
        page.wait_for_timeout(500)
        found = json.loads(run_in(page, "axe.run(document).then((found) => JSON.stringify(found.violations))"))
        serious = [
            (one["id"], node["html"][:200], node["failureSummary"][:300])
            for one in found
            for node in one["nodes"]
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == [], (place, serious)
    context.close()
