"""Runs AppWorld's worlds for `hgpo_appworld.engine.process`, in the interpreter that has `appworld`.

This process imports AppWorld and plays one step, then forks a process for every world and every evaluation. It has one
socket, to the process that started it, and opens no port. A request comes with one end of a pair of sockets, over which
the new process answers. Requests:

- ``{"run": "play" | "evaluate", "number": n, "task": id, "rollout": name, …}`` and a socket: forks process n.
- ``{"end": n, "kill": bool}``: answers with the exit status of process n if it has ended, and may kill it before.

Every request has an answer; ``failed`` in it says why it failed. When the socket is closed, everything ends: the
processes, the files, and this process.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from . import confinement, world  # noqa: TID252 - the package has another name in AppWorld's interpreter
from .files import has_more_files, remove_folder  # noqa: TID252
from .framing import send  # noqa: TID252

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST_REQUEST: Final = 1 << 16
_LOOK_S: Final = 0.1
_FILE_SIZE: Final = 1 << 28
_MOST_THREADS = 64
_MOST_WRITTEN = 1 << 30
_MOST_FILES = 1000
"""Threads, written bytes and files of a process, of which AppWorld needs 3, 10,000 and 30. No limit of Linux bounds the
first for root, nor the others."""
_RUN: Final = {"play": world.play, "evaluate": world.evaluate}
_LIBRARIES: Final = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64")
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_SYSTEM: Final = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo")


class Job(NamedTuple):
    """What a new process runs.

    Attributes:
        file: The file descriptor of the socket on which it answers.
        request: The request, without the process's number.
        folder: Its folder.
        parent: The id of the process that forked it.
    """

    file: int
    request: dict[str, Any]
    folder: Path
    parent: int


class Parent:
    """The process that forks.

    Args:
        control: The socket to the process that started this one; each message is one packet.
        scratch: The folder of temporary files.
    """

    def __init__(self, control: socket.socket, scratch: Path) -> None:
        self._control = control
        self._scratch = scratch
        self._processes: dict[int, tuple[int, Path]] = {}

    def serve(self) -> Job | None:
        """Answer requests until the other end closes the socket, or its process ends.

        Returns:
            In each new process, what it runs. The caller then forgets this object, which a program could find.
        """
        owner = os.getppid()
        # copies of the other end may stay open in processes that it has forked
        self._control.settimeout(_LOOK_S)
        looked = time.monotonic()
        while os.getppid() == owner:
            # 1. Processes are looked at between requests, also while there are none.
            if time.monotonic() >= looked + _LOOK_S:
                self._kill_greedy()
                looked = time.monotonic()

            # 2. A request, with a socket for the new process.
            try:
                packet, files, *_ = socket.recv_fds(self._control, _LARGEST_REQUEST, 1)
            except TimeoutError:
                continue
            if not packet:
                return None

            # 3. In this process `job` stays None; a forked one leaves the loop with it and never answers here.
            answer = {}
            job = None
            try:
                request = json.loads(packet)
                if "end" in request:
                    answer = self._end(request["end"], kill=request["kill"])
                else:
                    job = self._fork(request, files[0])
            except Exception as error:  # noqa: BLE001 - it costs one request, not all worlds
                answer = {"failed": world.said(error)}
            if job is not None:
                return job
            self._control.send(json.dumps(answer).encode())
        return None

    def close(self) -> None:
        """Kill all processes."""
        for number in list(self._processes):
            self._end(number, kill=True)

    def _fork(self, request: dict[str, Any], file: int) -> Job | None:
        """Start a process. Return what it runs, in this process None."""
        number = request.pop("number")
        parent = os.getpid()
        with socket.socket(fileno=file) as connection:
            folder = self._scratch / "experiments" / "outputs" / request["rollout"]
            folder.mkdir(parents=True, exist_ok=True)
            pid = os.fork()
            if pid == 0:
                return Job(connection.detach(), request, folder, parent)
        self._processes[number] = pid, folder
        return None

    def _kill_greedy(self) -> None:
        """Kill the processes that take too much of what all share. Files are counted in one folder a call."""
        # Counting takes longest, so that each call counts one folder, or none.
        counted = random.choice([*self._processes, None])
        for number, (pid, folder) in self._processes.items():
            if (
                os.stat(f"/proc/{pid}/task").st_nlink - 2 > _MOST_THREADS  # noqa: PTH116
                or _written(pid) > _MOST_WRITTEN
                or (number == counted and has_more_files(folder, _MOST_FILES))
            ):
                os.kill(pid, signal.SIGKILL)

    def _end(self, number: int, *, kill: bool) -> dict[str, Any]:
        """Return whether a process runs, and its exit status: None if it is killed now, or does not exist."""
        if number not in self._processes:
            return {"running": False, "status": None}
        pid, _ = self._processes[number]
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended and not kill:
            return {"running": True}
        del self._processes[number]
        if ended:
            return {"running": False, "status": os.waitstatus_to_exitcode(status)}

        # not yet waited for, so no other process has its number
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return {"running": False, "status": None}


def main(number: str, given: str) -> None:
    """Import AppWorld, warm it up, say so, and serve. This process ends then, and so does every one that it forks.

    Args:
        number: The file descriptor of the socket.
        given: In JSON: scratch (the folder of temporary files), data (AppWorld's data), confined, and for the warm-up
            task and seconds.
    """
    settings = json.loads(given)
    control = socket.socket(fileno=int(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    scratch = Path(settings["scratch"])
    environment = dict(os.environ)
    parent = Parent(control, scratch)
    job = None
    own = os.getpid()
    try:
        (scratch / "data").symlink_to(settings["data"])
        import appworld  # type: ignore[import-not-found, unused-ignore]

        world.warm_up(
            {
                "task": settings["task"],
                "rollout": "warm-up",
                "seconds": settings["seconds"],
            }
        )
        os.environ.clear()
        os.environ.update(environment)  # without what AppWorld read from a file .env
        # Frozen objects are not touched by collections in forked processes, whose memory stays shared.
        gc.collect()
        gc.freeze()
        control.send(
            json.dumps(
                {"version": appworld.__version__, "confined": _offered()}
            ).encode()
        )
        job = parent.serve()
    except BaseException as error:  # noqa: BLE001 - the other end reports it
        if os.getpid() == own:
            with contextlib.suppress(OSError):
                control.send(json.dumps({"error": world.said(error)}).encode())
    finally:
        if os.getpid() == own:
            parent.close()
            remove_folder(scratch)
            os._exit(0)
    # This is a new process. A program could find objects on the stack: those about other worlds are not there any more.
    del parent, control
    _run(job, settings)


def _run(job: Job | None, settings: dict[str, Any]) -> None:
    """Run a new process. This never returns: an ordinary exit would take seconds."""
    status = 1
    connection = None
    try:
        if job is not None:
            confinement.end_with_parent(job.parent)
            connection = socket.socket(fileno=job.file)
            world.keep_only(connection, job.folder)
            _confine(job, settings)
            _RUN[job.request["run"]](connection, job.request)
            status = 0
    except BaseException as error:  # noqa: BLE001 - whatever it is, this process ends and says why
        if connection is not None:
            with contextlib.suppress(BaseException):
                send(connection, {"is": "failed", "error": world.said(error)})
    finally:
        os._exit(status)


def _confine(job: Job, settings: dict[str, Any]) -> None:
    request = job.request
    folder = job.folder
    data = Path(settings["data"])
    os.chdir(folder)
    # Limits first: what they need to read and write (/proc) is not there any more afterwards.
    playing = request["run"] == "play"
    confinement.limit_resources(
        request["memory_mb"] << 20, _FILE_SIZE, request["cpu_seconds"]
    )
    if not settings["confined"]:
        return
    task = data / "tasks" / request["task"]
    parts = ("dbs", "specs.json") if playing else ("",)
    readable = [
        *_LIBRARIES,
        *_DEVICES,
        *_SYSTEM,
        # AppWorld reads the source of all functions on the stack when a test fails
        str(Path(__file__).parent),
        *{sys.prefix, sys.base_prefix, *(path for path in sys.path if path)},
        *(str(data / name) for name in ("base_dbs", "api_docs")),
        *(str(task / name) for name in parts),
    ]
    # An evaluation repeats what a program has written, so it can write nothing at all.
    if playing:
        confinement.restrict_files(readable, [str(folder)])
    else:
        confinement.restrict_files([*readable, str(folder)], [])
    # The filter is last, because it does not allow the calls of the other two.
    confinement.drop_capabilities()
    confinement.filter_system_calls(writing=playing)


def _written(pid: int) -> int:
    """Return the bytes that a process has written; 0 if it has ended, or the kernel does not count them."""
    try:
        return int(Path(f"/proc/{pid}/io").read_bytes().split()[3])
    except OSError:
        return 0


def _offered() -> list[str]:
    """Return what this machine offers to confine a process, tried in a process that ends at once."""
    ways: dict[str, Callable[[], bool]] = {
        "landlock": lambda: confinement.restrict_files((), ()),
        "seccomp": confinement.filter_system_calls,
    }
    names = []
    for name, confine in ways.items():
        pid = os.fork()
        if pid == 0:
            os._exit(0 if confine() else 1)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
            names.append(name)
    return names
