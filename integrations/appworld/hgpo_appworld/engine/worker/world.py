"""One world in its own process: AppWorld's `AppWorld` for one task, and the evaluation of what it left.

Evaluations have a process of their own. The process of a world therefore never reads the task's solution and tests:
the program of an agent, which shares its memory, cannot find them there, and Landlock denies it their files.
"""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .framing import receive, send  # noqa: TID252 - the package has another name in AppWorld's interpreter

if TYPE_CHECKING:
    import socket

    from appworld import AppWorld  # type: ignore[import-not-found, unused-ignore]

_LARGEST_REQUEST: Final = 1 << 24
# a program may replace the functions of the module
_decode: Final = json.JSONDecoder().decode
_SURROGATES: Final = re.compile("[\ud800-\udfff]")

FAILED: Final = "Execution failed. Traceback:\n"
"""How AppWorld begins the output of a program that raised an error."""


def open_world(request: dict[str, Any]) -> AppWorld:
    """Return a new world for a task.

    Args:
        request: task, rollout (the experiment's name) and seconds (of one program).
    """
    from appworld import AppWorld

    world = AppWorld(
        request["task"],
        experiment_name=request["rollout"],
        load_ground_truth=False,
        timeout_seconds=request["seconds"],
    )
    # they grow with every step, and one lone surrogate in them breaks all later ones
    world.save_logs = lambda: None
    return world


def play(connection: socket.socket, request: dict[str, Any]) -> None:
    """Run a world: execute programs until the connection is closed."""
    world = open_world(request)
    send(connection, {"is": "ready"})
    while True:
        code = _decode(receive(connection, _LARGEST_REQUEST).decode("ascii"))["code"]
        send(connection, _execute(world, code, request["longest"]))


def _execute(world: AppWorld, code: str, longest: int) -> dict[str, Any]:
    calls = world.requester.request_tracker.requests
    before = len(calls)
    try:
        output = world.execute(code)
    except (KeyboardInterrupt, SystemExit, GeneratorExit) as error:
        # AppWorld lets them through, without cleaning up
        world.safety_guard.disable()
        world._save_state(world.output_db_home_path_on_disk)  # noqa: SLF001
        output = FAILED + type(error).__name__
    world.environment_io.clear()
    return {
        "is": "executed",
        "output": _without_surrogates(shortened(output, longest)),
        "failed": output.startswith(FAILED),
        "completed": bool(world.task_completed()),
        "calls": _counted(
            [f"{call['method'].upper()} {call['url']}" for call in calls[before:]],
            longest,
        ),
        "api_calls": len(calls) - before,
    }


def _counted(calls: list[str], longest: int) -> dict[str, int]:
    """Return how often each call was made, of the first calls that have at most `longest` characters together."""
    counts: dict[str, int] = {}
    for call in map(_without_surrogates, calls):
        if call not in counts:
            longest -= len(call)
        if call in counts or longest >= 0:
            counts[call] = counts.get(call, 0) + 1
    return counts


def _without_surrogates(text: str) -> str:
    return _SURROGATES.sub("\ufffd", text)


def shortened(text: str, longest: int) -> str:
    r"""Return a text of at most `longest` characters and a line that says what was left out.

    >>> shortened("0123456789", 4)
    '01\n[… 6 characters left out …]\n89'
    """
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[: longest - half]}\n[… {len(text) - longest} characters left out …]\n{text[len(text) - half :]}"


def evaluate(connection: socket.socket, request: dict[str, Any]) -> None:
    """Evaluate the state that a world has saved, and send the result.

    AppWorld repeats the SQL statements that the world has written into its files. They may change the records of a
    copy in memory, and nothing else.
    """
    from appworld.apps import model_lib  # type: ignore[import-not-found, unused-ignore]
    from appworld.evaluator import evaluate_task  # type: ignore[import-not-found, unused-ignore]

    apply = model_lib.apply_db_changes

    def apply_permitted(database: sqlite3.Connection, path: str | None) -> list[Any]:
        database.set_authorizer(_permit)
        try:
            return list(apply(database, path))
        finally:
            database.set_authorizer(None)

    model_lib.apply_db_changes = apply_permitted
    saved = Path("tasks", request["task"], "dbs")
    # of a database instead of statements, AppWorld would use the schema, too
    for path in saved.iterdir():
        if path.suffix not in (".json", ".jsonl") or path.is_symlink():
            raise ValueError(
                f"the world has left a file that AppWorld does not write: {path.name}"
            )
    result = evaluate_task(request["task"], request["rollout"], save_report=False)
    send(
        connection,
        {
            "is": "evaluated",
            "success": bool(result.success),
            "passed": int(result.pass_count),
            "tests": int(result.num_tests),
            "failed_tests": [failure["requirement"] for failure in result.failures],
        },
    )


def _permit(action: int, *about: str | None) -> int:
    """Return whether a statement may do something (`sqlite3.Connection.set_authorizer`)."""
    # SQLite's own, in its search tables
    full_text = action == sqlite3.SQLITE_PRAGMA and about[0] == "data_version"
    return (
        sqlite3.SQLITE_OK if full_text or action in _PERMITTED else sqlite3.SQLITE_DENY
    )


_PERMITTED: Final = (
    *(sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE),
    *(
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_TRANSACTION,
    ),
)
"""What AppWorld's own statements do."""


def warm_up(request: dict[str, Any]) -> None:
    """Play a task for one step, so that all that is imported and computed on first use is there before forking."""
    import pytest  # noqa: F401 - AppWorld imports it for the first test of an evaluation
    from appworld import AppWorld
    from appworld.apps.model_lib import (  # type: ignore[import-not-found, unused-ignore]
        get_direct_cached_sqlite3_connection,
    )
    from appworld.evaluator import evaluate_task  # noqa: F401

    world = open_world(request)
    world.execute("print(apis.api_docs.show_app_descriptions())")
    world.task_completed()
    world.close()
    AppWorld.close_all()
    # each process opens the databases anew, and only to read
    get_direct_cached_sqlite3_connection.cache_clear()
    for one in gc.get_objects():
        if isinstance(one, sqlite3.Connection):
            one.close()


def said(error: BaseException) -> str:
    """Return an error in one line of at most 500 characters."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text[:500].encode("utf-8", "replace").decode()


def keep_only(connection: socket.socket, folder: Path) -> None:
    """Close all open files but a socket. Standard input is empty, and output goes to a file of this process alone.

    Two processes that can write to one file, also to /dev/null, could lock it for each other to see.
    """
    os.closerange(3, connection.fileno())
    os.closerange(
        connection.fileno() + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    )
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    with tempfile.TemporaryFile(dir=folder) as written:
        os.dup2(written.fileno(), 1)
        os.dup2(written.fileno(), 2)
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
