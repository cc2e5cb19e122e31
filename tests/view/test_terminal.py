"""The terminal's viewer, used as a person does: by its keys, in small and large windows, on hostile texts."""

import unicodedata

import polars as pl
import pytest
from command import invoke
from refusals import refused
from viewed import HOSTILE, small_rows

pytest.importorskip("textual")
from textual.widgets import Input, Static, Tree

from hgpo_datasets import StepWriter, scan_steps
from hgpo_train.advantages import compute
from hgpo_train.view.sources import open_sources
from hgpo_train.view.terminal import TerminalViewer, block, line, visible


@pytest.fixture
def anyio_backend():
    return "asyncio"


pytestmark = pytest.mark.anyio


def viewer(*runs, estimators=()):
    return TerminalViewer(open_sources(map(str, runs)), estimators)


def screen_text(app):
    """Return what the terminal shows now, line by line."""
    width, height = app.size
    strips = app.screen._compositor.render_strips()
    rows = [
        "".join(segment.text for segment in strip if not segment.control)
        for strip in strips
    ]
    assert len(rows) == height
    return "\n".join(row[:width].rstrip() for row in rows)


async def press(pilot, *keys):
    """Press keys and return what the terminal shows."""
    await pilot.press(*keys)
    await pilot.pause()
    return screen_text(pilot.app)


def shown_step(app):
    return str(app.screen.query_one("#step", Static).content)


async def write(pilot, text):
    pilot.app.screen.query_one(Input).value = text
    await pilot.pause()


# ------------------------------------------------------------------------------------------------------------ walk


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (140, 45)])
async def test_a_person_walks_to_a_step(small_run, size):
    app = viewer(small_run)
    async with app.run_test(size=size) as pilot:
        shown = await press(pilot)
        for text in ("67% won  find the key of alpha", "return 0.67", "Tab Other half"):
            assert text in shown
        shown = await press(pilot, "enter")
        assert [
            row.split(" · ")[2].split()[:2]
            for row in shown.splitlines()
            if "alpha/0/x" in row
        ] == [["3", "steps"]]
        await press(pilot, "down", "enter", "down")
        assert "alpha/0/w · return 1 · 3 steps\nstep 0 ·" in shown_step(app)
        shown = await press(pilot, "down")
        assert "step 1 ·" in shown
        for text in (
            "room b",
            "go 1",
            "k = 0 same state: 4 steps",
            "k = 1 and the same 1 state before: 2 steps",
        ):
            assert text in shown_step(app)
        await press(pilot, "down")
        assert "Next state\nthe end" in shown_step(app)
        assert await press(pilot, "tab", "pagedown") != shown
        await press(pilot, "q")
    assert app.return_code == 0


@pytest.mark.slow
async def test_the_advantages_are_those_of_the_estimators(small_run):
    steps = scan_steps(small_run).filter(pl.col("task_id") == "alpha")
    app = viewer(small_run, estimators=("hgpo:history_length=1", "grpo"))
    async with app.run_test(size=(140, 45)) as pilot:
        await press(pilot, "enter", "down", "enter", "down", "down")
        for name, given in [("hgpo", {"history_length": 1}), ("grpo", {})]:
            expected = compute(steps, name, reward_scale=10, **given).collect()[
                "advantage"
            ][1]
            row = next(
                row for row in shown_step(app).splitlines() if row.startswith(name)
            )
            assert f" {expected:+.3f} " in row
        assert "k = 2" not in shown_step(app)


@pytest.mark.slow
async def test_a_training_run_begins_with_what_it_was_trained_on(trained_run):
    app = viewer(trained_run)
    assert list(app.compared) == ["trained", "gigpo"]
    assert app.compared["gigpo"].parameters.gamma == 0.5
    named = viewer(trained_run, estimators=("grpo, gigpo",))
    assert list(named.compared) == ["grpo", "gigpo"]
    assert named.compared["gigpo"].parameters.gamma == 0.5, "as on the page"
    async with app.run_test(size=(140, 45)) as pilot:
        await press(pilot, "enter", "down", "enter", "down", "down")
        assert "trained +1.250  R 5" in shown_step(app)


@pytest.mark.slow
async def test_estimators_are_refused_at_once_or_where_they_have_no_depth(small_run):
    with refused("unknown estimator 'rlooo'"):
        viewer(small_run, estimators=("rlooo",))
    app = viewer(small_run, estimators=("hgpo:history_length=99",))
    async with app.run_test(size=(140, 45)) as pilot:
        await press(pilot, "enter", "down", "enter", "down", "down")
        assert (
            "expected at most 8, the depth of the stored contexts, received 99"
            in shown_step(app)
        )


@pytest.mark.slow
async def test_branches_are_below_their_parents(branched_run):
    app = viewer(branched_run)
    assert list(app.compared) == ["tree_hgpo", "tree_grpo"]
    async with app.run_test(size=(140, 45)) as pilot:
        shown = await press(pilot, "enter")
        assert "50% won" in shown, "of the rollouts"
        labels = [
            row.partition("▶ ")[2].partition(" · ")[0].strip()
            for row in shown.splitlines()
            if "▶" in row
        ]
        assert labels == [
            "lost a",
            "└ lost c",
            "└ won e",
            "└ won d",
            "won b",
        ]
        await press(pilot, "down", "down", "enter", "down")
        assert "lost c · return 0 · 2 steps · from step 1 of a\nstep 1 ·" in shown_step(
            app
        )


@pytest.mark.slow
async def test_the_tree_finds_tasks_and_follows_several_runs(
    small_run, tmp_path, monkeypatch
):
    monkeypatch.setattr("hgpo_train.view.terminal.GROUPS", 1)
    training = tmp_path / "training"
    with StepWriter(training) as writer:
        writer.add_group(small_rows("alpha", 0))
        writer.commit()
        app = viewer(small_run, training)
        async with app.run_test(size=(80, 48)) as pilot:
            shown = await press(pilot, "end", "enter")
            for text in ("small", "training", "alpha/0/w", "1 more: find a task"):
                assert text in shown
            assert "key of omega" not in shown
            monkeypatch.setattr("hgpo_train.view.terminal.GROUPS", 2)
            writer.add_group(small_rows("alpha", 1))
            writer.commit()
            shown = await press(pilot, "r", "end", "enter")
            assert "iteration 0" in shown
            assert "iteration 1" in shown
            await press(pilot, "slash")
            await write(pilot, "omega")
            shown = await press(pilot, "enter")
            assert "key of omega" in shown
            assert "key of alpha" not in shown
            assert "key of alpha" in await press(pilot, "escape")


# --------------------------------------------------------------------------------------------------------- hostile


@pytest.mark.parametrize("text", [*HOSTILE.values(), "\x9b31m\U000e0041"])
def test_texts_are_shown_as_they_are(text):
    for shown in (block(text), line(text), visible(text[:10_000])):
        hidden = [
            one
            for one in shown.plain
            if unicodedata.category(one) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
        ]
        assert set(hidden) <= {"\n"}
    if "[red]" in text:
        assert block(text).plain == text


@pytest.mark.slow
async def test_a_hostile_run_is_shown(hostile_run):
    app = viewer(hostile_run)
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "enter")
        task = app.screen.query_one(Tree).root.children[0]
        assert HOSTILE["script"] in task.label.plain
        for number in range(len(HOSTILE)):
            rollout = task.children[number]
            rollout.expand()
            await pilot.pause()
            app.screen.query_one(Tree).move_cursor(rollout.children[1])
            shown = await press(pilot)
            assert "State" in shown_step(app)
            assert not {
                one for one in shown if unicodedata.category(one) in ("Cc", "Cf", "Cs")
            } - {"\n"}
    assert app.return_code in (0, None)


# --------------------------------------------------------------------------------------------------------- command


def test_options_of_the_browser_and_a_pipe_are_refused(small_run):
    with refused("--terminal has no meaning with --out"):
        invoke("view", small_run, "--terminal", "-o", "x.html")
    with refused("expected a terminal"):
        invoke("view", small_run, "--terminal")
