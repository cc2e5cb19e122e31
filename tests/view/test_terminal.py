"""The terminal's viewer, used as a person does: by its keys, in small and large windows, on hostile texts."""

import unicodedata
from pathlib import Path

import polars as pl
import pytest
from command import invoke
from viewed import HOSTILE, small_rows

from hgpo_train.view.documents import group_document
from hgpo_train.view.estimates import estimate, estimator_with
from hgpo_train.view.sources import open_sources
from hgpo_train.view.terminal.step import shared_depths

pytest.importorskip("textual")
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute
from hgpo_train.view.terminal.app import Question, TerminalViewer
from hgpo_train.view.terminal.step import StepScreen
from hgpo_train.view.terminal.texts import block, line, visible
from hgpo_train.view.terminal.tree import RunTree, TreeScreen


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


pytestmark = pytest.mark.anyio


def viewer(*runs: Path, estimators: tuple[str, ...] = ()) -> TerminalViewer:
    return TerminalViewer(open_sources(map(str, runs)), estimators)


def screen_text(app: TerminalViewer) -> str:
    """Return what the terminal shows now, line by line."""
    width, height = app.size
    strips = app.screen._compositor.render_strips()
    rows = ["".join(segment.text for segment in strip if not segment.control) for strip in strips]
    assert len(rows) == height
    return "\n".join(row[:width].rstrip() for row in rows)


async def press(pilot: Pilot, *keys: str) -> str:
    """Press keys and return what the terminal shows."""
    await pilot.press(*keys)
    await pilot.pause()
    return screen_text(pilot.app)


def text_of(app: TerminalViewer, name: str) -> str:
    return str(app.screen.query_one(name, Static).content)


async def write(pilot: Pilot, text: str) -> None:
    pilot.app.screen.query_one(Input).value = text
    await pilot.pause()


# ------------------------------------------------------------------------------------------------------------ walk


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (140, 45)])
async def test_a_person_walks_to_a_step_and_follows_a_member(small_run: Path, size: tuple[int, int]) -> None:
    app = viewer(small_run)
    async with app.run_test(size=size) as pilot:
        shown = await press(pilot)
        for text in ("2 tasks", "find the key of alpha", "67%"):
            assert text in shown
        shown = await press(pilot, "enter")
        assert [row.split()[-4:-1] for row in shown.splitlines() if "…x" in row] == [["0", "0", "3"]]
        assert "step 0 of 3" in await press(pilot, "down", "enter", "p")
        shown = await press(pilot, "n")
        for text in ("step 1 of 3", "room b", "go 1"):
            assert text in shown
        shown = await press(pilot, "tab")
        for text in ("k = 0 same state", "4 steps of 3 rollouts (+1 aborted)", "k = 1 and the same state before"):
            assert text in shown
        assert len([option for option in app.screen.query_one(OptionList).options if not option.disabled]) == 5
        assert "alpha/0/y · step 1 of 3" in await press(pilot, "down", "enter")
        assert "alpha/0/w · step 1 of 3" in await press(pilot, "escape")
        assert "alpha/0/w · step 2 of 3" in await press(pilot, "n", "n", "n")
        assert "State after the last step" in text_of(app, "#step")
        await press(pilot, "enter", "enter", "question_mark")
        assert "Level k of the hierarchy" in screen_text(app)
        await press(pilot, "t")
        assert isinstance(app.screen, TreeScreen)
        assert "Find a task" in await press(pilot, "question_mark")
        await press(pilot, "q")
    assert app.return_code == 0


@pytest.mark.slow
async def test_the_advantages_are_those_of_the_estimators(small_run: Path) -> None:
    steps = scan_steps(small_run).filter(pl.col("task_id") == "alpha")
    app = viewer(small_run, estimators=("hgpo:history_length=1", "grpo"))
    async with app.run_test(size=(140, 45)) as pilot:
        await press(pilot, "enter", "down", "enter", "n")
        for letter, name, given in [("A", "hgpo", {"history_length": 1}), ("B", "grpo", {})]:
            expected = compute(steps, name, reward_scale=10, **given).collect()["advantage"][1]
            row = next(row for row in text_of(app, "#advantages").splitlines() if row.startswith(f"{letter} {name}"))
            assert f" {expected:+.3f} " in row
        assert "k = 2" not in screen_text(app)


@pytest.mark.slow
async def test_estimators_are_chosen_and_refused(small_run: Path) -> None:
    app = viewer(small_run)
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "enter", "down", "enter", "n", "e")
        assert isinstance(app.screen, Question)
        await write(pilot, "rlooo")
        shown = await press(pilot, "enter")
        assert "unknown estimator 'rlooo'" in shown
        await write(pilot, "hgpo:history_length=1 rloo")
        await press(pilot, "enter")
        assert [variant.name for variant in app.compared] == ["hgpo:history_length=1", "rloo"]
        assert "B rloo" in text_of(app, "#advantages")
        await press(pilot, "e")
        await write(pilot, "hgpo:history_length=99")
        await press(pilot, "enter")
        assert "expected at most 8, the depth of the stored contexts, received 99" in text_of(app, "#advantages")
        await press(pilot, "e", "escape")
        assert isinstance(app.screen, StepScreen)


@pytest.mark.slow
async def test_the_tree_finds_tasks_and_follows_several_runs(small_run: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("hgpo_train.view.terminal.tree.PAGE", 1)
    training = tmp_path / "training"
    with StepWriter(training) as writer:
        writer.add_group(small_rows("alpha", 0))
        writer.commit()
        app = viewer(small_run, training)
        async with app.run_test(size=(80, 24)) as pilot:
            shown = await press(pilot, "end", "right", "down", "right")
            for text in ("small", "training", "…w", "1 more: find a task"):
                assert text in shown
            assert "key of omega" not in shown
            writer.add_group(small_rows("alpha", 1))
            writer.commit()
            shown = await press(pilot, "r", "end", "right", "down", "right")
            assert "iteration 0" in shown
            assert "iteration 1" in shown
            await press(pilot, "slash")
            await write(pilot, "omega")
            shown = await press(pilot, "enter")
            assert "1 task contain" in shown
            assert "key of omega" in shown
            assert "key of alpha" in await press(pilot, "escape")


# --------------------------------------------------------------------------------------------------------- hostile


@pytest.mark.parametrize("text", [*HOSTILE.values(), "\x9b31m\U000e0041"])
def test_texts_are_shown_as_they_are(text: str) -> None:
    for shown in (block(text), line(text), visible(text[:10_000])):
        hidden = [one for one in shown.plain if unicodedata.category(one) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]
        assert set(hidden) <= {"\n"}
    if "[red]" in text:
        assert block(text).plain == text
        assert not block(text).spans


@pytest.mark.slow
async def test_a_hostile_run_is_shown(hostile_run: Path) -> None:
    app = viewer(hostile_run)
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "enter")
        tree = app.screen.query_one(RunTree)
        assert tree.root.children[0].data is not None
        assert tree.root.children[0].data.name == HOSTILE["script"]
        for number in range(len(HOSTILE)):
            tree.move_cursor_to_line(1 + number)
            shown = await press(pilot, "enter", "n")
            assert isinstance(app.screen, StepScreen)
            assert "State" in shown
            if number == 3:  # the hierarchy of groups and what differs
                shown += await press(pilot, "tab", "down")
            assert not {one for one in shown if unicodedata.category(one) in ("Cc", "Cf", "Cs")} - {"\n"}
            await press(pilot, "t")
    assert app.return_code in (0, None)


# --------------------------------------------------------------------------------------------------------- command


def test_options_of_the_browser_and_a_pipe_are_refused(small_run: Path) -> None:
    with pytest.raises(InputError, match="--terminal has no meaning with --out"):
        invoke("view", small_run, "--terminal", "-o", "x.html")
    with pytest.raises(InputError, match="expected a terminal"):
        invoke("view", small_run, "--terminal")


def test_the_levels_are_the_groups_of_hgpo(small_run: Path, rich_run: Path) -> None:
    checked = 0
    for folder in (small_run, rich_run):
        index = open_sources([str(folder)])[0].index()
        for number in range(index.groups.height):
            group = group_document(index, number)
            aborted = [group["trajectories"][owner]["aborted"] for owner in group["steps"]["trajectory"]]
            for kind, contexts in group["contexts"].items():
                spec = estimator_with("hgpo", ["history_length=3", f"context={kind}"], ["hgpo"])
                columns = estimate(index, number, spec)["columns"]
                for row in (row for row in range(group["rows"]) if not aborted[row]):
                    depths = shared_depths(contexts[:4], row)
                    for k in range(4):
                        size = columns[f"size_k{k}"][row] or 0
                        assert sum(deepest >= k and not aborted[other] for other, deepest in depths.items()) == size
                        checked += k > 0 and bool(size)
    assert checked > 20
