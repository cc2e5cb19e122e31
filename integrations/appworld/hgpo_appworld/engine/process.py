"""The processes that run AppWorld: one that has imported it, and one that it forks for every world.

They are started on first use, in AppWorld's interpreter (`hgpo_appworld.engine.worker`), and spoken to over pairs
of connected sockets, which have no port. A world that dies, hangs or sends nonsense is an error of its episode alone.
No process outlives its owner: a world ends when its `World` is closed or collected, and all end when this process does.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from hgpo_appworld.engine.answers import (
    Answer,
    Evaluated,
    Executed,
    NoAnswerError,
    Ready,
    read_answer,
)
from hgpo_appworld.engine.worker import framing
from hgpo_appworld.engine.worker.files import remove_folder
from hgpo_envs.errors import InputError, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPENING_S: Final = 300.0
"""Maximum seconds to start the interpreter and import AppWorld, and to start a world."""

CONFINED: Final = ("landlock", "seccomp")
"""What confines worlds where the kernel offers it (`hgpo_appworld.engine.worker.confinement`)."""

GRACE_S: Final = 20.0
"""Seconds beyond the time limit of programs after which a world that has not answered is killed."""

EVALUATION_CPU_S: Final = 30
"""CPU seconds of an evaluation, which takes a tenth of one: it repeats SQL statements that the world has written."""

_DYING_S: Final = 2.0
_LOOK_S: Final = 0.02
_LARGEST_ANSWER: Final = 1 << 16
_PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
_WORKER: Final = Path(__file__).with_name("worker")


class WorldFailed(RuntimeError):  # noqa: N818 (a public name)
    """A world's process died, did not answer or could not continue. Its rollout is aborted, and no other."""


class WorldLost(WorldFailed):
    """A program ended its world, or made its evaluation endless or impossible: the agent has lost the episode."""


@dataclass(frozen=True)
class Limits:
    """Limits of each world.

    Attributes:
        seconds: Maximum seconds of one program, by AppWorld's own timer.
        memory_mb: Maximum memory in MB beyond that of a new world.
        longest: Maximum length of an output in characters.
    """

    seconds: int = 100
    memory_mb: int = 1024
    longest: int = 20_000


@dataclass(frozen=True)
class Launch:
    """How AppWorld is started.

    Attributes:
        python: The interpreter in which `appworld` is installed.
        data: AppWorld's folder `data`.
        isolation: ``auto`` (what the kernel offers), ``bwrap`` (in bubblewrap, too) or ``none``.
    """

    python: str
    data: str
    isolation: str


class Server:
    """The process that has imported AppWorld. It belongs to the process that created it.

    Args:
        launch: How to start it.
        task: A task to warm up with.

    Attributes:
        version: The version of `appworld`.
        confined: What confines worlds on this machine: ``landlock``, ``seccomp``, both or neither.

    Raises:
        InputError: If it cannot be started. The line says why, and what to do.
    """

    def __init__(self, launch: Launch, task: str) -> None:
        if sys.platform != "linux":
            raise InputError(
                f"AppWorld's worlds need Linux, received {sys.platform}; use a container or virtual machine"
            )
        # 1. A folder of its own, and a socket that only the new process inherits: no port, and no name to connect to.
        self._lock = threading.Lock()
        self._numbers = count()
        scratch = tempfile.mkdtemp(prefix="hgpo-appworld-")
        complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {
            "scratch": scratch,
            "data": launch.data,
            "confined": launch.isolation != "none",
            "task": task,
            "seconds": Limits().seconds,
        }

        # 2. The process. Its session is another one, so that Ctrl-C in the terminal reaches this process alone.
        command = [
            launch.python,
            "-s",
            str(_WORKER / "start.py"),
            str(theirs.fileno()),
            json.dumps(settings),
        ]
        if launch.isolation == "bwrap":
            command = [*_bubblewrap(launch, scratch), *command]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's interpreter
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                env=variables(scratch),
                cwd=scratch,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            remove_folder(Path(scratch))
            complaints.close()
            ours.close()
            raise InputError(
                f"cannot run {command[0]}: {error.strerror}; name the interpreter that has appworld with python=… "
                "(hgpo data install appworld makes one)"
            ) from None
        finally:
            theirs.close()  # the end of the process is then the end of the socket

        # 3. From here on, the finalizer ends the process, also if what follows fails.
        self._control = ours
        self._complaints = complaints
        self._outputs = Path(scratch, "experiments", "outputs")
        self.pid: Final = self._process.pid
        self.close = weakref.finalize(
            self, _end, os.getpid(), self._process, ours, complaints, scratch
        )

        # 4. It says that AppWorld is imported, or why not.
        try:
            ours.settimeout(OPENING_S)
            answer = self._receive()
        except (OSError, ValueError) as error:
            answer = {"error": self._last_words() or str(error)}
        if "error" in answer:
            self.close()
            raise InputError(_with_fix(str(answer["error"]), launch))
        self.version = str(answer["version"])
        self.confined = tuple(answer["confined"])
        missing = [name for name in CONFINED if name not in self.confined]
        if missing and launch.isolation == "auto":
            warnings.warn(
                f"this machine offers no {' and no '.join(missing)}: programs of agents are less confined "
                "(integrations/appworld/README.md)",
                stacklevel=2,
            )

    @property
    def running(self) -> bool:
        """Whether the process still runs."""
        return bool(self.close.alive) and self._process.poll() is None

    def world(self, task: str, limits: Limits) -> World:
        """Start a world for a task. Raises `WorldFailed` if it does not start."""
        return World(self, task, limits)

    def fork(
        self, run: str, task: str, rollout: str, limits: Limits
    ) -> tuple[int, socket.socket]:
        """Start a process and return its number, and the socket on which it answers."""
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        request = {
            "run": run,
            "number": number,
            "task": task,
            "rollout": rollout,
            **asdict(limits),
        }
        request["cpu_seconds"] = EVALUATION_CPU_S if run == "evaluate" else -1
        try:
            answer = self._ask(request, [theirs.fileno()])
        except (OSError, ValueError) as error:
            answer = {
                "failed": f"AppWorld's process has ended: {self._last_words() or error}"
            }
        finally:
            theirs.close()
        if "failed" in answer:
            ours.close()
            raise WorldFailed(str(answer["failed"]))
        return number, ours

    def end(self, number: int, patience: float = 0.0) -> int | None:
        """End a process.

        Args:
            number: The process.
            patience: Seconds in which it may end by itself before it is killed.

        Returns:
            Its exit status, negative for a signal; None if it was killed, or if this server has ended.
        """
        until = time.monotonic() + patience
        while True:
            try:
                answer = self._ask({"end": number, "kill": time.monotonic() >= until})
            except (OSError, ValueError):
                return None
            if not answer.get("running"):
                return answer.get("status")
            time.sleep(_LOOK_S)

    def remove(self, rollout: str) -> None:
        """Remove the files of a rollout, whose processes have ended."""
        remove_folder(self._outputs / rollout)

    def _ask(
        self, request: dict[str, Any], files: Sequence[int] = ()
    ) -> dict[str, Any]:
        # an answer belongs to the request before it, whichever thread asked
        with self._lock:
            socket.send_fds(self._control, [json.dumps(request).encode()], files)
            return self._receive()

    def _receive(self) -> dict[str, Any]:
        data = self._control.recv(_LARGEST_ANSWER)
        if not data:
            self._process.poll()
            raise ConnectionError("it ended without an answer")
        answer: dict[str, Any] = json.loads(data)
        return answer

    def _last_words(self) -> str:
        if self._complaints.closed:
            return ""
        self._complaints.seek(0)
        lines = self._complaints.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""


class World:
    """A world: a process in which programs of one task are executed.

    Args:
        server: The process that forks it.
        task: The task's id.
        limits: Its limits.

    Raises:
        WorldFailed: If it does not start.
    """

    def __init__(self, server: Server, task: str, limits: Limits) -> None:
        self._server = server
        self._task = task
        self._limits = limits
        number, self._connection = server.fork(
            "play", task, rollout := secrets.token_hex(16), limits
        )
        self._number = number
        self._rollout = rollout
        self.close = weakref.finalize(
            self, _leave, os.getpid(), server, number, rollout, self._connection
        )
        # A world that dies before it is ready has executed no program: that is no agent's doing (`_failure`).
        self._opened = False
        self._receive(Ready, OPENING_S)
        self._opened = True

    def execute(self, code: str) -> Executed:
        """Execute a program.

        Raises:
            WorldLost: If the program ends the process, or it does not answer in time, or its answer is none. The world
                is closed.
            WorldFailed: If the server of all worlds has ended.
        """
        try:
            framing.send(self._connection, {"code": code})
        except OSError:  # it has died; what it said before is read now
            pass
        except BaseException:  # an interruption: what the world has done is not known
            self.close()
            raise
        return self._receive(Executed, self._limits.seconds + GRACE_S)

    def evaluate(self) -> Evaluated:
        """Evaluate the world's state, in another process.

        Raises:
            WorldLost: If the evaluation fails, or takes too much time or memory.
            WorldFailed: If the server of all worlds has ended.
        """
        number, connection = self._server.fork(
            "evaluate", self._task, self._rollout, self._limits
        )
        failure = f"the evaluation of {self._task} failed"
        try:
            return read_answer(connection, Evaluated, self._limits.longest, OPENING_S)
        except TimeoutError:
            raise self._failure(
                f"{failure}: no answer within {OPENING_S:g} s"
            ) from None
        except OSError as error:
            # a process that dies closes its socket a moment before it can be waited for
            status = self._server.end(number, _DYING_S)
            raise self._failure(f"{failure}: it {_how(status, error)}") from None
        except NoAnswerError as error:
            raise self._failure(f"{failure}: {error}") from None
        finally:
            connection.close()
            self._server.end(number)

    def _receive(self, expected: type[Answer], seconds: float) -> Answer:
        world = f"the world of {self._task}"
        try:
            return read_answer(
                self._connection, expected, self._limits.longest, seconds
            )
        except TimeoutError:
            failure = f"no answer from {world} within {seconds:g} s; it was killed"
        except OSError as error:
            status = self._server.end(self._number, _DYING_S)
            failure = f"{world} {_how(status, error)}"
        except NoAnswerError as error:
            failure = f"{world} ended: {error}"
        except BaseException:
            self.close()
            raise
        self.close()
        raise self._failure(failure)

    def _failure(self, message: str) -> WorldFailed:
        """Return the error of a world that failed: its program's doing, unless it was not open or the server ended."""
        return (
            WorldLost(message)
            if self._opened and self._server.running
            else WorldFailed(message)
        )


_servers: Final[WeakValueDictionary[tuple[int, Launch], Server]] = WeakValueDictionary()
_opening: Final = threading.RLock()


def server(launch: Launch, task: str) -> Server:
    """Return this process's server for a launch; one that has ended is replaced. It ends when nothing refers to it.

    Args:
        launch: How to start it.
        task: A task to warm up with.

    Raises:
        InputError: If it cannot be started.
    """
    key = os.getpid(), launch  # a process that was forked from this one starts its own
    with _opening:
        found = _servers.get(key)
        if found is not None and not found.running:
            found.close()  # removes its files
            found = None
        if found is None:
            found = _servers[key] = Server(launch, task)
        return found


def _leave(
    owner: int, server: Server, number: int, rollout: str, connection: socket.socket
) -> None:
    """End a world. A process that was forked from its owner only closes its copy of the socket."""
    connection.close()
    if os.getpid() == owner:
        server.end(number)
        server.remove(rollout)


def _end(
    owner: int,
    process: subprocess.Popen[bytes],
    control: socket.socket,
    complaints: IO[bytes],
    scratch: str,
) -> None:
    """End a server and all its worlds."""
    control.close()
    complaints.close()
    if os.getpid() != owner:
        process.returncode = 0  # it is not this process's child
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    process.kill()
    process.wait()
    remove_folder(Path(scratch))


def _how(status: int | None, error: Exception) -> str:
    """Return how a process ended."""
    if status is None:
        return f"was lost: {one_line(error)}"
    if status < 0:
        return f"died of {signal.Signals(-status).name}"
    return f"ended with exit code {status}"


def _bubblewrap(launch: Launch, scratch: str) -> list[str]:
    """Return the command that runs another in bubblewrap: all files read-only, no home, no network, own processes."""
    program = shutil.which("bwrap")
    if program is None:
        raise InputError(
            'isolation="bwrap" needs bubblewrap: install the package bubblewrap, or use isolation="auto"'
        )
    hidden = ("/home", "/root", "/run", tempfile.gettempdir())
    shown = (*_prefixes(launch.python), launch.data, str(_WORKER))
    return [
        *(program, "--unshare-all", "--cap-drop", "ALL", "--ro-bind", "/", "/"),
        *("--dev", "/dev", "--proc", "/proc"),
        *(
            part
            for folder in hidden
            if Path(folder).is_dir()
            for part in ("--tmpfs", folder)
        ),
        *(part for path in shown for part in ("--ro-bind", path, path)),
        *("--bind", scratch, scratch),
    ]


def _prefixes(python: str) -> list[str]:
    """Return the folder of an interpreter's installation, and of the one that its virtual environment is made from."""
    prefix = Path(python).absolute().parent.parent
    found = [str(prefix)]
    with contextlib.suppress(OSError):
        for line in (prefix / "pyvenv.cfg").read_text("utf-8").splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "home":
                found.append(str(Path(value.strip()).parent))
    return found


def variables(scratch: str) -> Mapping[str, str]:
    """Return the environment variables of AppWorld's processes, which write into a folder.

    None of this process's are passed on but search paths; the same hashes, time zone and encoding are in every process.
    """
    return {
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        "APPWORLD_ROOT": scratch,
        "APPWORLD_CACHE": f"{scratch}/cache",
        "HOME": scratch,
        "IPYTHONDIR": f"{scratch}/ipython",
        "TMPDIR": scratch,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
    }


_FIXES: Final = {
    "No module named 'appworld'": "install it: hgpo data install appworld",
    "No module named 'appworld.": "unpack its apps: hgpo data install appworld",
    "db_version": "its data and program have different versions; update both",
}


def _with_fix(failure: str, launch: Launch) -> str:
    fix = next(
        (fix for sign, fix in _FIXES.items() if sign in failure),
        "check its installation and its data",
    )
    return (
        f"AppWorld does not start in {launch.python}: {one_line(failure, 300)}; {fix}"
    )
