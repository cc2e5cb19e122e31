"""One rollout or group in a real browser: its transcript, advantages, branches, graph of states and tokens."""

import re
from itertools import combinations
from statistics import mean, pstdev
from urllib.parse import quote

import pytest
from browsing import arrives, assert_nothing_ran, click, enter, expect, region, sees
from groups import write_run

from hgpo_datasets import scan_steps
from hgpo_train.advantages import compute
from hgpo_train.view.page import write_page
from hgpo_train.view.sources import open_sources

pytestmark = pytest.mark.slow


def test_a_transcript(viewer, page, small_run):
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
    sees(page, "Invalid: the environment did not accept it")
    expect(turns.nth(1).locator(".margin")).to_contain_text("invalid")
    page.goto(f"{address}#/small/step/alpha%2F0%2Fz/0")
    sees(page, "Aborted: the server hung up")


def test_a_long_conversation_with_tools(viewer, page, tmp_path):
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
    write_run(tmp_path / "long", rows)
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


def test_rollouts_are_aligned_where_their_states_agree(viewer, page, small_run):
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
):
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
        arrives(page, "step/c/1$")
        branches = region(page, "Branches at step 1")
        expect(branches.locator("tbody tr")).to_have_text(
            [
                re.compile(f"{name} · 1{action}")
                for name, action in zip("acd", ("go", "stay", "run"), strict=True)
            ]
        )
        click(branches, "link", "d · 1")
        sees(page, "This branch leaves a at step 1")
        page.get_by_text("This branch leaves").get_by_role("link").click()
        arrives(page, "step/a/1$")


def test_steps_where_two_estimators_disagree(viewer, page, rich_run):
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
        arrives(page, f"/{ends}\\?")


def test_the_graph_and_its_trajectories(viewer, page, small_run, tmp_path):
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
    sees(page, "where rollouts ended is unknown")
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
    click(page, "button", "room b")
    expect(region(page, "Selected state")).to_contain_text("5 visits")


def test_the_graph_of_all_groups_of_a_task(viewer, page, training_run, tmp_path):
    """Three iterations of four rollouts; also in a file, from the groups that it contains."""
    file = tmp_path / "page.html"
    write_page(open_sources([str(training_run)]), file)
    for address in (viewer(training_run), file.as_uri()):
        page.goto(f"{address}#/training/group/1")
        click(page, "link", "Graph of all 3 groups")
        arrives(page, "group/1/task-graph$")
        sees(page, "All 3 groups of this task in the run, 12 rollouts")
        # as in one group: the states are the same
        expect(page.locator(".node")).to_have_count(4)
        expect(page.locator(".edges path").first).to_have_attribute(
            "style", re.compile("opacity: (?!0.08)")
        )
        page.get_by_label("Highlight an iteration").select_option(
            "iteration 2: 2 of 4 won"
        )
        page.get_by_text("States as a table").click()
        click(page, "button", "room b")
        facts = region(page, "Selected state")
        expect(facts).to_contain_text("15 visits")
        facts.get_by_role("link").last.click()
        arrives(page, "step/alpha%2F2%2F")


def test_a_training_run_begins_with_what_it_was_trained_on(
    viewer, page, trained_run, small_run, tmp_path
):
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


def test_the_tokens_of_a_response_as_text(viewer, page, token_run):
    address = viewer(token_run)
    page.goto(f"{address}#/run/step/t%2F0/0")
    tokens = page.locator(".tokens > span")
    sees(page, "The tokens of the response")
    expect(tokens.last).to_have_text("<|end|>")
    expect(tokens.last).to_have_attribute(
        "title", re.compile(r"token \d+, id \d+: probability")
    )
    expect(page.locator(".tokens")).to_contain_text("go 0</action>")
    page.goto(f"{address}#/run/step/t%2F1/0")
    expect(page.locator(".tokens")).to_contain_text("<img src=x onerror")
    assert_nothing_ran(page)


def test_what_chance_gives_at_a_step(viewer, page, small_run):
    """Step 1 of w: w, x and y are in room b, where x does something invalid; w and x came from room a."""
    page.goto(f"{viewer(small_run)}#/small/step/alpha%2F0%2Fw/1")
    page.get_by_text("Estimators and their parameters").click()
    enter(page, "A: gamma, number", "1")
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
