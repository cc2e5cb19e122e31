"""Plays the same episodes with the engine, with AppWorld's class and with its HTTP server, and lists what differs."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hgpo_appworld.data.commands import run
from hgpo_appworld.engine.process import Limits, variables
from hgpo_appworld.engine.source import AppWorldSource, Rules
from hgpo_appworld.reference.random_programs import STEPS
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hgpo_appworld.reference.random_programs import Episode

_WORKER: Final = Path(__file__).with_name("original_worker.py")
_WHOLE: Final = 10**7
_STARTING_S: Final = 120.0
_STEP_S: Final = 150.0

Call: TypeAlias = "Callable[[str, Mapping[str, Any]], Any]"


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


def play_engine(
    root: Path, python: str, episodes: Sequence[Episode]
) -> Iterator[Played]:
    """Play episodes with this package's engine."""
    source = AppWorldSource(
        root, python, Rules(max_steps=STEPS), Limits(longest=_WHOLE)
    )
    engine = source.engine()
    for episode in episodes:
        engine.start(episode.task)
        states = []
        for program in episode.programs:
            states.append(engine.act(program))
            if states[-1].terminated:
                break
        # evaluated at the step limit only, so spend the steps that are left
        while "tests" not in states[-1].info:
            states[-1] = engine.act("pass")
        info = states[-1].info
        yield Played(
            tuple(state.text for state in states),
            tuple(state.terminated for state in states),
            bool(states[-1].won),
            info["tests_passed"],
            info["tests"],
            tuple(sorted(info["failed_tests"])),
        )


def play_class(
    root: Path, python: str, episodes: Sequence[Episode]
) -> Iterator[Played]:
    """Play episodes with AppWorld's class."""
    for batch in batches(episodes):
        with tempfile.TemporaryDirectory(prefix="hgpo-appworld-") as scratch:
            given = Path(scratch, "episodes.json")
            results = Path(scratch, "results.json")
            given.write_text(
                json.dumps([[episode.task, episode.programs] for episode in batch]),
                "utf-8",
            )
            command = [python, "-s", str(_WORKER), str(given), str(results)]
            run(
                command,
                "AppWorld's class",
                environment=_environment(root, scratch),
                folder=Path(scratch),
            )
            yield from map(_played, json.loads(results.read_text("utf-8")))


def play_server(
    root: Path, python: str, episodes: Sequence[Episode]
) -> Iterator[Played]:
    """Play episodes with AppWorld's HTTP server, which is started on a free port of this machine only."""
    for batch in batches(episodes):
        with original_server(root, python) as (_, call):
            for number, episode in enumerate(batch):
                world = {"task_id": episode.task}
                call("initialize", {**world, "experiment_name": f"server-{number}"})
                outputs = []
                completed = []
                for program in episode.programs:
                    outputs.append(call("execute", {**world, "code": program}))
                    completed.append(bool(call("task_completed", world)))
                    if completed[-1]:
                        break
                tests = call("evaluate", {**world, "suppress_errors": True})
                call("close", world)
                yield _played(
                    {"outputs": outputs, "completed": completed, "evaluation": tests}
                )


def batches(episodes: Sequence[Episode]) -> list[list[Episode]]:
    """Divide episodes into those that may share a process of the original.

    Tokens of access are the same in every world of a task's person, and the original's process remembers those that
    were logged out: they stay so in its later worlds. A process therefore ends with the first episode that logs out.
    """
    divided: list[list[Episode]] = [[]]
    for episode in episodes:
        divided[-1].append(episode)
        if any(".logout(" in program for program in episode.programs):
            divided.append([])
    return [batch for batch in divided if batch]


def differences(first: Played, second: Played) -> list[str]:
    """Return the names of what differs, with the two values."""
    pairs = (
        (name, getattr(first, name), getattr(second, name))
        for name in Played.__dataclass_fields__
    )
    return [
        f"{name}: {one!r} != {other!r}" for name, one, other in pairs if one != other
    ]


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


def _environment(root: Path, scratch: str) -> Mapping[str, str]:
    """Return the variables of AppWorld's process, which reads the data of `root` and writes into `scratch`."""
    Path(scratch, "data").symlink_to(root.resolve() / "data", target_is_directory=True)
    return variables(scratch)


@contextmanager
def original_server(root: Path, python: str) -> Iterator[tuple[int, Call]]:
    """Start AppWorld's HTTP server; yield its process id, and a function that calls it by name and body."""
    with tempfile.TemporaryDirectory(prefix="hgpo-appworld-") as scratch:
        yield from _serve(root, python, scratch)


def _serve(root: Path, python: str, scratch: str) -> Iterator[tuple[int, Call]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        python,
        "-s",
        "-m",
        "uvicorn",
        "appworld.serve.environment:app",
        "--host",
        "127.0.0.1",
    ]
    with Path(scratch, "log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - the user's interpreter
            [*command, "--port", str(port), "--log-level", "error"],
            stdout=log,
            stderr=log,
            env=_environment(root, scratch),
            cwd=scratch,
        )

    def call(name: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - what the server returns
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/{name}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_STEP_S) as answer:  # noqa: S310
            return json.load(answer)["output"]

    try:
        _await_server(process, port, Path(scratch, "log"))
        yield process.pid, call
    finally:
        process.kill()  # it does not stop when asked to
        process.wait()


def _await_server(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _STARTING_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    raise InputError(
        f"AppWorld's server does not start: {lines[-1] if lines else 'it gave no reason'}"
    )
