"""Plays the same episodes with the engine, with AppWorld's class and with its HTTP server, and lists what differs."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.appworld.engine.process import Limits
from hgpo_envs.appworld.engine.source import AppWorldSource, Rules
from hgpo_envs.appworld.reference.random_programs import STEPS
from hgpo_envs.errors import InputError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hgpo_envs.appworld.reference.random_programs import Episode

_WORKER: Final = Path(__file__).with_name("original_worker.py")
_WHOLE: Final = 10**7
_ANSWER_S: Final = 150.0


@dataclass(frozen=True)
class Played:
    """What was seen in an episode.

    Attributes:
        outputs: The output of each program.
        completed: Whether the task was completed, after each program.
        success: Whether all tests passed.
        passed: How many tests passed.
        tests: How many there are.
        failed: The requirements that are not met, sorted.
    """

    outputs: tuple[str, ...]
    completed: tuple[bool, ...]
    success: bool
    passed: int
    tests: int
    failed: tuple[str, ...]


def play_engine(root: Path, python: str, episodes: Sequence[Episode]) -> Iterator[Played]:
    """Play episodes with this package's engine."""
    source = AppWorldSource(root, python, Rules(max_steps=STEPS), Limits(longest=_WHOLE))
    engine = source.engine()
    for episode in episodes:
        engine.start(episode.task)
        states = []
        for program in episode.programs:
            states.append(engine.act(program))
            if states[-1].terminated:
                break
        while "tests" not in states[-1].info:  # evaluated at the step limit only, so spend the steps that are left
            states[-1] = engine.act("pass")
        info = states[-1].info
        yield Played(
            tuple(state.text for state in states),
            tuple(state.terminated for state in states),
            states[-1].won,
            info["tests_passed"],
            info["tests"],
            tuple(sorted(info["failed_tests"])),
        )


def play_class(root: Path, python: str, episodes: Sequence[Episode]) -> Iterator[Played]:
    """Play episodes with AppWorld's class, each in a process of its own."""
    with _original("class", root, python) as ask:
        for episode in episodes:
            yield _played(json.loads(ask(json.dumps([episode.task, episode.programs]))))


def play_server(root: Path, python: str, episodes: Sequence[Episode]) -> Iterator[Played]:
    """Play episodes with AppWorld's HTTP server, a server each, on free ports of this machine only."""
    with _original("server", root, python) as ask:
        for number, episode in enumerate(episodes):
            call = partial(_call, int(ask("next")))
            world = {"task_id": episode.task}
            call("initialize", {**world, "experiment_name": f"server-{number}"})
            outputs, completed = [], []
            for program in episode.programs:
                outputs.append(call("execute", {**world, "code": program}))
                completed.append(bool(call("task_completed", world)))
                if completed[-1]:
                    break
            tests = call("evaluate", {**world, "suppress_errors": True})
            yield _played({"outputs": outputs, "completed": completed, "evaluation": tests})


def differences(first: Played, second: Played) -> list[str]:
    """Return the names of what differs, with the two values."""
    pairs = ((name, getattr(first, name), getattr(second, name)) for name in Played.__dataclass_fields__)
    return [f"{name}: {one!r} != {other!r}" for name, one, other in pairs if one != other]


def _played(seen: dict[str, Any]) -> Played:
    tests = seen["evaluation"]
    failed = tuple(sorted(failure["requirement"] for failure in tests["failures"]))
    return Played(
        tuple(seen["outputs"]),
        tuple(seen["completed"]),
        tests["success"],
        len(tests["passes"]),
        tests["num_tests"],
        failed,
    )


@contextmanager
def _original(kind: str, root: Path, python: str) -> Iterator[Callable[[str], str]]:
    """Start the original and yield a function that sends it a line and returns its answer."""
    with tempfile.TemporaryDirectory(prefix="hgpo-appworld-") as scratch, Path(scratch, "log").open("w+b") as log:
        Path(scratch, "data").symlink_to(root.resolve() / "data", target_is_directory=True)
        process = subprocess.Popen(  # noqa: S603 - the user's interpreter
            [python, "-s", str(_WORKER), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
            env=_environment(scratch),
            cwd=scratch,
        )
        asked, answers = process.stdin, process.stdout
        assert asked is not None
        assert answers is not None

        def ask(line: str) -> str:
            with suppress(BrokenPipeError):  # it has ended; the log says why
                asked.write(f"{line}\n")
                asked.flush()
            answer = answers.readline()
            if not answer.strip():
                log.seek(0)
                why = log.read().decode("utf-8", "replace").strip().splitlines()
                raise InputError(
                    f"AppWorld's {kind} has failed: {one_line(why[-1] if why else 'it gave no reason', 300)}"
                )
            return answer

        with process:
            yield ask
            asked.close()


def _call(port: int, name: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - what the server returns
    """Call a server that may still be starting: its port is open from the first."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{name}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310
        return json.load(answer)["output"]


def _environment(scratch: str) -> dict[str, str]:
    """Return the variables of AppWorld's process, which reads and writes below `scratch`."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "APPWORLD_ROOT": scratch,
        "APPWORLD_CACHE": f"{scratch}/cache",
        "HOME": scratch,
        "TZ": "UTC",
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
