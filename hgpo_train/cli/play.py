"""`hgpo play`: a person plays the tasks that policies play, and sees what they see."""

from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cyclopts.types import PositiveInt  # noqa: TC002 - cyclopts reads the annotations

from hgpo_train.cli import common, options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from hgpo_train.policies.base import Request

HELP: Final = """\
NUMBER  take the action with this number
TEXT    send any other text as the action, such as search[red shoes]
/TEXT   list the actions that contain the text; / alone lists all
p       show the prompt that a model would see
q       quit; a game that is not finished is not saved"""

HELP_TOOLS: Final = """\
NAME {"ARGUMENT": VALUE, …}
        call a tool; its arguments are JSON, none if they are left out
<tool_call>{"name": "NAME", "arguments": {…}}</tool_call>
        the same as models write it, also several calls in one line
t       show the schemas of the tools, as a model gets them
"""

_SHOWN: Final = 40
"""Number of actions that are listed without being asked for."""


def play(
    env: options.Env = "HGPO/ALFWorld-v0",
    /,
    *,
    tasks: PositiveInt = 1,
    seed: int = 0,
    out: Path | None = None,
    environment: options.EnvironmentOptions = options.EnvironmentOptions(),
) -> None:
    """Play tasks in the terminal, as a policy does, and save the games as rollouts.

    Args:
        env: The environment.
        tasks: Number of tasks to play.
        seed: Seed of the task order.
        out: A run's folder to add the games to.
        environment: The options of the environment.
    """
    from hgpo_datasets import scan_steps
    from hgpo_datasets.sources import is_run
    from hgpo_train.cli.display import terminal
    from hgpo_train.rollout.collection import collect

    console = terminal(highlight=False, emoji=False)
    arguments = environment.arguments(action_format="command")
    with tempfile.TemporaryDirectory(prefix="hgpo-play-") as scratch:
        folder = out or Path(scratch) / "run"

        def games() -> int:
            return (
                scan_steps(folder).collect()["trajectory"].n_unique()
                if is_run(folder)
                else 0
            )

        before = games()
        arguments |= {
            "tasks": before + tasks,
            "group_size": 1,
            "seed": seed,
            "slots": 1,
            "progress": False,
        }
        try:
            run = collect(env, Person(console), folder, **arguments)
        except _Quit:
            console.print(f"\n{games() - before} of {tasks} played.")
        else:
            ends = (
                run.steps.group_by("trajectory", maintain_order=True).last().collect()
            )
            for end in ends.slice(before).iter_rows(named=True):
                console.print(end["next_state"] or "", style="dim", markup=False)
                solved = {
                    True: "[bold green]Solved[/]",
                    False: "[bold red]Not solved[/]",
                    None: "Ended",
                }[end["won"]]
                console.print(
                    f"{solved} in {end['step'] + 1} steps, return {end['episode_return']:g}"
                )
        if out is None:
            console.print("Save games with --out RUN.", soft_wrap=True)
        elif games() > before:
            console.print(
                f"The games are in {out}. {common.next_commands(('view', out))}",
                soft_wrap=True,
            )


class Person:
    """A policy that asks the person at the terminal for every action."""

    name = "person"
    batch_size = 1

    def __init__(self, console: Console) -> None:
        self._console = console

    def respond(self, requests: Sequence[Request]) -> list[str]:
        """Return the person's actions."""
        return [self._action(request) for request in requests]

    def _introduce(self, request: Request) -> None:
        if not request.step:
            self._console.rule()
            self._console.print(request.instruction, style="bold", markup=False)
        if not request.step and request.tools:
            self._tools(request.tools)
        # from 1, as in prompts
        self._show(f"step {request.step + 1}", request.observation)
        if request.state.valid is False:
            self._note("The action was not admissible, and was not executed.")
        self._list(request.admissible_actions, "", _SHOWN)

    def _action(self, request: Request) -> str:
        self._introduce(request)
        actions = request.admissible_actions
        while True:
            text = self._ask()
            if text == "q":
                raise _Quit
            if text in ("h", "?", ""):
                self._note(HELP_TOOLS + HELP if request.tools else HELP)
            elif text == "p":
                self._show("prompt", request.prompt)
            elif text == "t" and request.tools:
                schemas = [
                    json.dumps(tool, ensure_ascii=False, indent=2)
                    for tool in request.tools
                ]
                self._show("schemas", "\n".join(schemas))
            elif text.startswith("/"):
                self._list(actions, text[1:].strip(), len(actions))
            elif action := self._chosen(text, request):
                return action

    def _chosen(self, text: str, request: Request) -> str:
        """Return the action that a text means; empty, with a note why, if it means none."""
        # imports Gymnasium, which help does not need
        from hgpo_envs.responses import numbered

        actions = request.admissible_actions
        if not actions or not text.isdecimal():  # without a list, a number is a text
            return self._called(text, request.tools)
        action = numbered(text, actions)
        if action == text:
            self._note(f"expected a number from 1 to {len(actions)}")
            return ""
        if "<" in action:  # an open query, such as search[<your query>]
            self._note(f"{action}: write it with your own text")
            return ""
        return action

    def _called(self, text: str, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return a text that begins with a tool's name as a call of it, any other text as it is; empty if malformed."""
        from hgpo_envs.responses import ToolCall

        name, _, written = text.partition(" ")
        if name not in [tool["function"]["name"] for tool in tools]:
            return text
        try:
            arguments = json.loads(written.strip() or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if isinstance(arguments, dict):
            return ToolCall(name, arguments).text()
        self._note(
            f'{name}: expected its arguments as JSON, such as {name} {{"ARGUMENT": "VALUE"}}; t shows them'
        )
        return ""

    def _tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """List the tools: what each does, and its arguments by name and type."""
        self._console.rule("tools", align="left")
        for tool in tools:
            function = tool["function"]
            parameters = function.get("parameters")
            properties = (
                parameters.get("properties") if isinstance(parameters, dict) else None
            )
            listed = properties.items() if isinstance(properties, dict) else ()
            arguments = ", ".join(
                [f"{name}: {_type(schema)}" for name, schema in listed]
            )
            description = " ".join(str(function.get("description", "")).split())
            self._note(f"{function['name']}({arguments})  {description}")
        first = tools[0]["function"]["name"]
        self._note(
            f'Type a call as {first} {{"ARGUMENT": VALUE, …}}; h: help, t: schemas'
        )

    def _ask(self) -> str:
        # the collector's own handler of Ctrl-C waits for the end of a step
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return self._console.input("[bold]action[/] (h: help) > ").strip()
        except (EOFError, KeyboardInterrupt):
            raise _Quit from None
        finally:
            signal.signal(signal.SIGINT, before)

    def _show(self, title: str, text: str) -> None:
        self._console.rule(title, align="left")
        self._console.print(text, markup=False)

    def _note(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False)

    def _list(self, actions: Sequence[str], part: str, limit: int) -> None:
        """List the actions that contain a text, with their numbers."""
        from rich.columns import Columns
        from rich.text import Text

        lines = [
            Text.assemble((f"{number:>3} ", "cyan"), name)
            for number, name in enumerate(actions, 1)
            if part in name
        ]
        if part and not lines:
            self._note(f"no action contains {part!r}")
        self._console.print(Columns(lines[:limit], padding=(0, 3), column_first=True))
        if len(lines) > limit:
            self._note(f"… and {len(lines) - limit} more (/: all, /TEXT: search)")


def _type(schema: object) -> str:
    """Return the values of an argument in a few words: those of an enumeration, or its type."""
    if not isinstance(schema, dict):
        return "any"
    if isinstance(schema.get("enum"), list):
        return " | ".join(
            [json.dumps(value, ensure_ascii=False) for value in schema["enum"]]
        )
    kind = schema.get("type", "any")
    return " | ".join(map(str, kind)) if isinstance(kind, list) else str(kind)


class _Quit(Exception):  # noqa: N818 - no error
    """The person ends the session."""
