"""The terminal's viewer, used as a person does: by its keys, in small and large windows, on hostile texts."""

import subprocess
import sys
import unicodedata
from pathlib import Path

import polars as pl
import pytest
from command import invoke
from viewed import HOSTILE, small_rows

pytest.importorskip("textual")
from textual.pilot import Pilot
from textual.widgets import HelpPanel, Input, OptionList, Static

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute
from hgpo_train.view.sources import open_sources
from hgpo_train.view.terminal.app import Question, TerminalViewer, read_two
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
        assert "2 tasks" in shown
        assert "find the key of alpha" in shown
        assert "67%" in shown
        shown = await press(pilot, "enter")
        assert [row.split()[-4:-1] for row in shown.splitlines() if "…x" in row] == [["0", "0", "3"]]
        shown = await press(pilot, "down", "enter")
        assert "step 0 of 3" in shown
        shown = await press(pilot, "n")
        assert "step 1 of 3" in shown
        assert "room b" in shown
        assert "go 1" in shown
        shown = await press(pilot, "tab")
        assert "k = 0 same state" in shown
        assert "4 steps of 3 rollouts (+1 aborted)" in shown
        assert "k = 1 and the same state before" in shown
        listed = app.screen.query_one(OptionList)
        here = [str(option.prompt) for option in listed.options if not option.disabled]
        assert len(here) == 5
        assert text_of(app, "#difference") == "One step before, that rollout had not begun."  # y's first step is in b
        await press(pilot, "down")
        assert "[-this rollout-] and [+that rollout+] were in different states" in text_of(app, "#difference")
        assert "room [-a-][+b+]" in text_of(app, "#difference")
        shown = await press(pilot, "enter")
        assert "alpha/0/y · step 1 of 3" in shown
        shown = await press(pilot, "escape")
        assert "alpha/0/w · step 1 of 3" in shown
        await press(pilot, "enter", "enter", "t")
        assert isinstance(app.screen, TreeScreen)
        await press(pilot, "q")
    assert app.return_code == 0


@pytest.mark.slow
async def test_n_and_p_stay_within_the_trajectory(small_run: Path) -> None:
    app = viewer(small_run)
    async with app.run_test(size=(80, 24)) as pilot:
        assert "step 0 of 3" in await press(pilot, "enter", "down", "down", "enter")
        assert "step 0 of 3" in await press(pilot, "p")
        assert "…/x" not in await press(pilot, "n", "n")
        shown = await press(pilot, "n", "n")
        assert "alpha/0/x · step 2 of 3" in shown
        assert "State after the last step" in text_of(app, "#step")
        await press(pilot, "p")
        assert "invalid" in text_of(app, "#step")


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
        assert isinstance(app.screen, StepScreen)
        assert "B rloo" in text_of(app, "#advantages")
        await press(pilot, "e")
        await write(pilot, "hgpo:history_length=99")
        await press(pilot, "enter")
        assert "expected at most 8, the depth of the stored contexts, received 99" in text_of(app, "#advantages")
        await press(pilot, "e", "escape")
        assert isinstance(app.screen, StepScreen)


@pytest.mark.parametrize("text", ["", "hgpo gigpo grpo", "nonsense", "hgpo:alpha=x", "hgpo:nothing=1", "hgpo hgpo"])
def test_other_estimators_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_two([text])


async def test_a_task_is_found(small_run: Path) -> None:
    app = viewer(small_run)
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "slash")
        await write(pilot, "omega")
        shown = await press(pilot, "enter")
        assert "1 task contain" in shown
        assert "key of omega" in shown
        assert "key of alpha" not in shown
        assert "key of alpha" in await press(pilot, "escape")


async def test_several_runs_iterations_and_rows_that_are_committed_later(small_run: Path, tmp_path: Path) -> None:
    training = tmp_path / "training"
    with StepWriter(training) as writer:
        writer.add_group(small_rows("alpha", 0))
        writer.commit()
        app = viewer(small_run, training)
        async with app.run_test(size=(80, 24)) as pilot:
            shown = await press(pilot, "end", "right", "down", "right")
            assert "small" in shown
            assert "training" in shown
            assert "…w" in shown
            writer.add_group(small_rows("alpha", 1))
            writer.commit()
            shown = await press(pilot, "r", "end", "right", "down", "right")
            assert "iteration 0" in shown
            assert "iteration 1" in shown


async def test_tasks_beyond_a_page_are_counted_and_found(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hgpo_train.view.terminal.tree.PAGE", 1)
    app = viewer(small_run)
    async with app.run_test(size=(80, 24)) as pilot:
        shown = await press(pilot, "end")
        assert "1 more: find a task" in shown
        assert "key of omega" not in shown
        await press(pilot, "enter")
        await write(pilot, "omega")
        assert "key of omega" in await press(pilot, "enter")


async def test_help_lists_every_key(small_run: Path) -> None:
    app = viewer(small_run)
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "question_mark")
        assert app.screen.query(HelpPanel)
        assert "Find a task" in screen_text(app)
        await press(pilot, "question_mark", "d")
        assert not app.screen.query(HelpPanel)
        await press(pilot, "enter", "down", "enter", "question_mark")
        assert "Level k of the hierarchy" in screen_text(app)


# --------------------------------------------------------------------------------------------------------- hostile


@pytest.mark.parametrize("text", [*HOSTILE.values(), "[red]x[/red] [@click=app.quit]y[/]", "\x9b31m\U000e0041"])
def test_texts_are_shown_as_they_are(text: str) -> None:
    for shown in (block(text), line(text), visible(text[:10_000])):
        hidden = [one for one in shown.plain if unicodedata.category(one) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]
        assert set(hidden) <= {"\n"}
    if "[red]" in text:
        assert block(text).plain == text
        assert not block(text).spans


@pytest.mark.slow
@pytest.mark.parametrize("first", range(3))
async def test_a_hostile_run_is_shown(hostile_run: Path, first: int) -> None:
    app = viewer(hostile_run)
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "enter")
        tree = app.screen.query_one(RunTree)
        assert tree.root.children[0].data is not None
        assert tree.root.children[0].data.name == HOSTILE["script"]
        for number in range(first, len(HOSTILE), 3):
            tree.move_cursor_to_line(1 + number)
            shown = await press(pilot, "enter", "n")
            assert isinstance(app.screen, StepScreen)
            assert "State" in shown
            if number == first + 3:  # the hierarchy of groups and what differs
                shown += await press(pilot, "tab", "down", "tab")
            assert not {one for one in shown if unicodedata.category(one) in ("Cc", "Cf", "Cs")} - {"\n"}
            await press(pilot, "t")
    assert app.return_code in (0, None)


async def test_markup_of_a_run_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "[bold]run"
    rows = [
        row | {name: f"[red]{row[name]}[/red] [/nothing" for name in ("task", "state", "action", "prompt", "response")}
        for row in small_rows("alpha")
    ]
    with StepWriter(folder) as writer:
        writer.add_group(rows)
    app = viewer(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        shown = await press(pilot, "enter")
        assert "[bold]run" in shown
        assert "[red]find the key of alpha[/red] [/nothing" in shown
        shown = await press(pilot, "down", "enter", "n")
        assert "[red]room b[/red] [/nothing" in shown
        assert "[red]go 1[/red]" in await press(pilot, "tab")


# --------------------------------------------------------------------------------------------------------- command


def test_options_of_the_browser_and_a_pipe_are_refused(small_run: Path) -> None:
    with pytest.raises(InputError, match="--terminal has no meaning with --out"):
        invoke("view", small_run, "--terminal", "-o", "x.html")
    with pytest.raises(InputError, match="expected a terminal"):
        invoke("view", small_run, "--terminal")


@pytest.mark.slow
def test_only_the_terminal_imports_textual() -> None:
    code = "import sys, hgpo_train.view.app, hgpo_train.cli.view; print('textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
