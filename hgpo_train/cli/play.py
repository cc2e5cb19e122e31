"""`hgpo play`: a person plays the tasks that policies play, and sees what they see."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from hgpo_train.cli import collection  # typer reads the annotations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_train.policies.base import Request
    from hgpo_train.rollout.collection import CollectedRun

HELP: Final = """\
NUMBER  take the action with this number
TEXT    send any other text as the action, such as search[red shoes]
/TEXT   list the actions that contain the text
a       list all actions
p       show the prompt that a model would see
q       quit; a game that is not finished is not saved"""

_SHOWN: Final = 40
"""Number of actions that are listed without being asked for."""


def play(
    env: Annotated[str, typer.Argument(help="Gymnasium id of the environment, or module:EnvironmentSpec.")] = (
        "HGPO/ALFWorld-v0"
    ),
    tasks: Annotated[int, typer.Option(help="Number of tasks to play.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the task order.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="A run's folder to save the games in; games of the same settings are added.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the tasks; 'all' includes every split.")] = "train",
    data: collection.Data = None,
    history_length: collection.HistoryLength = 2,
    max_steps: collection.MaxSteps = None,
    env_option: collection.EnvOption = None,
) -> None:
    """Play tasks in the terminal, as a policy does, and save the games as rollouts."""
    from hgpo_envs.errors import InputError
    from hgpo_train.cli.output_paths import check_folder
    from hgpo_train.rollout.collection import collect

    if tasks < 1:
        raise InputError(f"--tasks: expected at least 1, received {tasks}")
    console = Console(highlight=False)
    options = collection.environment_options(split, data, history_length, max_steps, "command", env_option)
    with tempfile.TemporaryDirectory(prefix="hgpo-play-") as scratch:
        folder = out or Path(scratch) / "run"
        check_folder("--out", folder)
        before = _games(folder)
        try:
            run = collect(
                env, Person(console), folder, tasks=before + tasks, group_size=1, seed=seed, slots=1, progress=False,
                **options,
            )  # fmt: skip
        except _Quit:
            played = _games(folder) - before
            console.print(f"\n{played} of {tasks} played. {_next(out, played)}", soft_wrap=True)
            return
        _report(console, run, before)
        console.print(_next(out, tasks), soft_wrap=True)


class Person:
    """A policy that asks the person at the terminal for every action."""

    name = "person"
    batch_size = 1

    def __init__(self, console: Console) -> None:
        self._console = console

    def respond(self, requests: Sequence[Request]) -> list[str]:
        """Return the person's actions."""
        return [self._action(request) for request in requests]

    def _action(self, request: Request) -> str:
        if not request.step:
            self._console.rule()
            self._console.print(Text(request.instruction, style="bold"))
        self._console.print(Panel(Text(request.observation), title=f"step {request.step}", title_align="left"))
        self._list(request.admissible_actions, "", _SHOWN)
        while True:
            action = self._answered(request, self._ask())
            if action is not None:
                return action

    def _answered(self, request: Request, text: str) -> str | None:
        """Return the action that a person's text means, or show what it asks for."""
        actions = request.admissible_actions
        if text in ("q", "quit"):
            raise _Quit
        if text in ("h", "?", "help", ""):
            self._console.print(Text(HELP, style="dim"))
        elif text == "p":
            self._console.print(Panel(Text(request.prompt), title="prompt", title_align="left"))
        elif text == "a" or text.startswith("/"):
            self._list(actions, text[1:].strip(), len(actions))
        elif not text.isdecimal():
            return text
        elif int(text) >= len(actions):
            self._console.print(Text(f"expected a number from 0 to {len(actions) - 1}", style="red"))
        elif "<" in (action := actions[int(text)]):  # an open query, such as search[<your query>]
            self._console.print(Text(f"{action}: write it with your own text", style="dim"))
        else:
            return action
        return None

    def _ask(self) -> str:
        # the collector's own handler of Ctrl-C waits for the end of a step
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return self._console.input("[bold]action[/] (h: help) > ").strip()
        except (EOFError, KeyboardInterrupt):
            raise _Quit from None
        finally:
            signal.signal(signal.SIGINT, before)

    def _list(self, actions: Sequence[str], part: str, limit: int) -> None:
        """List the actions that contain a text, with their numbers."""
        lines = [Text.assemble((f"{number:>3} ", "cyan"), name) for number, name in enumerate(actions) if part in name]
        if part and not lines:
            self._console.print(Text(f"no action contains {part!r}", style="dim"))
        self._console.print(Columns(lines[:limit], padding=(0, 3), column_first=True))
        if len(lines) > limit:
            self._console.print(Text(f"… and {len(lines) - limit} more (a: all, /TEXT: search)", style="dim"))


class _Quit(Exception):  # noqa: N818 - no error
    """The person ends the session."""


def _games(folder: Path) -> int:
    """Return the number of games in a run's folder."""
    from hgpo_datasets import scan_steps
    from hgpo_datasets.sources import is_run

    if not is_run(folder):
        return 0
    return int(scan_steps(folder).select("trajectory").unique().collect().height)


def _report(console: Console, run: CollectedRun, before: int) -> None:
    """Print the results of the games that were played now, from the last rows of their trajectories."""
    ends = run.steps.group_by("trajectory", maintain_order=True).last().collect()
    for end in ends.slice(before).iter_rows(named=True):
        if end["next_state"]:
            console.print(Text(end["next_state"], style="dim"))
        result = {True: "[bold green]Solved[/]", False: "[bold red]Not solved[/]", None: "Ended"}[end["won"]]
        console.print(f"{result} in {end['step'] + 1} steps, return {end['episode_return']:g}")


def _next(out: Path | None, played: int) -> str:
    if out is None:
        return "Save games with --out RUN."
    return f"The games are in {out}. Next: hgpo view {out}" if played else ""
