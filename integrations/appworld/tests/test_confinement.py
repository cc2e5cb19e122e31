"""Confinement by the kernel, in processes of this interpreter: at every version of Landlock, and as root."""

import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hgpo_appworld.engine.worker import framing

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="needs Linux on x86-64",
)

HARNESS = r"""
import codecs, ctypes, errno, fcntl, json, os, resource, signal, socket, struct, sys, threading
from hgpo_appworld.engine.worker import confinement

settings = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def call(number, *arguments):
    values = [a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
    if libc.syscall(ctypes.c_long(number), *values) < 0:
        raise OSError(ctypes.get_errno(), "failed")

def attempts(folder, elsewhere, readable):
    parent, me, here, zeros = os.getppid(), os.getpid(), os.fsencode(folder), bytes(128)
    told = struct.pack("<iii", 0, 0, -1) + bytes(116)  # si_code SI_QUEUE
    lock = struct.pack("<hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0) + bytes(8)
    cores = os.sched_getaffinity(0)
    opened = os.open(readable, os.O_RDONLY)

    def thread():
        ran = []
        one = threading.Thread(target=ran.append, args=(1,))
        one.start(); one.join()
        assert ran

    def pair():
        ours, theirs = socket.socketpair()
        ours.sendall(b"x")
        assert theirs.recv(1) == b"x"

    def fork():
        if os.fork() == 0:
            os._exit(0)

    def large():
        with open(folder + "/large", "wb") as file:
            file.write(bytes(2 << 20))

    def own_file():
        os.mkdir(folder + "/a")
        with open(folder + "/a/b", "w") as file:
            file.write("x"); file.truncate(0)
        os.rename(folder + "/a/b", folder + "/a/c"); os.remove(folder + "/a/c"); os.rmdir(folder + "/a")

    return {
        "what AppWorld needs": [
            lambda: open(readable).read(), own_file, thread, pair, lambda: os.kill(me, 0), lambda: os.urandom(9),
            lambda: resource.getrlimit(resource.RLIMIT_AS), lambda: os.sched_getaffinity(0),
        ],
        "read, list, write, make or remove other files": [
            lambda: open(elsewhere).read(), lambda: os.listdir("/"), lambda: open("/proc/%d/environ" % me).read(),
            lambda: open(elsewhere, "a"), lambda: open(elsewhere + "2", "x"),
            lambda: os.mkdir(elsewhere + "3"), lambda: os.remove(elsewhere), lambda: open(elsewhere, "w"),
        ],
        "`stat` files, processes and their threads": [
            lambda: os.stat(elsewhere), lambda: os.stat("/proc/%d/task" % parent), lambda: os.stat("/proc"),
        ],
        "empty files that it may only read": [
            lambda: os.truncate(elsewhere, 0), lambda: os.truncate(readable, 0),
            lambda: os.open(readable, os.O_RDONLY | os.O_TRUNC), lambda: os.open(elsewhere, 3 | os.O_TRUNC),
            lambda: os.open(readable, 3), lambda: call(2, os.fsencode(readable), os.O_TRUNC),
            lambda: call(437, -100, os.fsencode(readable), struct.pack("<QQQ", os.O_TRUNC, 0, 0), 24),
        ],
        "start, signal, read or trace processes": [
            fork, lambda: os.execv("/no/program", ["x"]), lambda: os.posix_spawn("/bin/true", ["true"], {}),
            lambda: call(322, opened, b"", 0, 0, 0x1000), lambda: call(56, 0x800 | 17, 0, 0, 0, 0),
            lambda: call(56, 0x10000 | 0x20000, 0, 0, 0, 0), lambda: call(435, zeros, 0),
            lambda: os.kill(parent, 0), lambda: os.kill(-1, 0), lambda: os.kill(0, 0),
            lambda: call(200, parent, 0), lambda: call(234, parent, parent, 0), lambda: call(129, parent, 0, told),
            lambda: call(297, parent, parent, 0, told), lambda: call(434, parent, 0), lambda: call(424, -1, 0, 0, 0),
            lambda: fcntl.fcntl(opened, fcntl.F_SETOWN, parent), lambda: fcntl.fcntl(opened, 15, zeros),
            lambda: call(101, 16, -1, 0, 0), lambda: call(310, parent, 0, 0, 0, 0, 0),
            lambda: call(311, parent, 0, 0, 0, 0, 0),
            lambda: call(312, me, parent, 0, 0, 0), lambda: call(438, -1, 0, 0), lambda: os.getpgid(parent),
            lambda: call(99, zeros),
        ],
        "open sockets; share memory, queues, locks or events": [
            lambda: socket.socket(), lambda: socket.socket(socket.AF_UNIX), lambda: socket.socket(16, 3, 0),
            lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b"x", "/tmp/x"),
            lambda: socket.socketpair()[0].sendmsg([b"x"]), lambda: call(307, opened, zeros, 1, 0),
            lambda: call(42, opened, zeros, 9), lambda: call(49, opened, zeros, 9), lambda: call(425, 1, zeros),
            lambda: call(29, 0, 0, 0), lambda: call(68, 1, 0), lambda: call(64, 0, -1, 0),
            lambda: call(240, 0, 0, 0, 0),
            lambda: os.memfd_create("x"), lambda: call(447, 0), lambda: call(253), lambda: call(294, 0),
            lambda: call(254, -1, here, 1),
            lambda: fcntl.flock(opened, fcntl.LOCK_SH), lambda: fcntl.fcntl(opened, fcntl.F_GETLK, lock),
            lambda: fcntl.fcntl(opened, 36, lock), lambda: fcntl.fcntl(opened, 1031, 1 << 20),
            lambda: os.open(folder + "/shared", os.O_RDWR | os.O_CREAT),
            lambda: os.open(folder, os.O_TMPFILE | os.O_RDWR),
        ],
        "change modes, owners, times, limits, scheduling, devices, the machine": [
            lambda: os.chmod(folder, 0o777), lambda: os.fchmod(opened, 0o777), lambda: os.utime(readable),
            lambda: os.utime(opened), lambda: os.chown(folder, -1, -1), lambda: os.setxattr(folder, "user.a", b"b"),
            lambda: call(452, -100, here, 0o777, 0),
            lambda: os.sched_setaffinity(parent, cores), lambda: os.sched_setaffinity(0, cores),
            lambda: os.sched_getaffinity(parent), lambda: os.setpriority(os.PRIO_PROCESS, 0, 5),
            lambda: os.getpriority(os.PRIO_PROCESS, parent), lambda: call(144, 0, 0, zeros), lambda: call(251, 1, 0, 0),
            lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE),
            lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)), lambda: call(314, 0, zeros, 0),
            lambda: os.mknod(folder + "/device", 0o666 | 0o20000, os.makedev(1, 3)),
            lambda: os.mkfifo(folder + "/fifo"),
            lambda: call(272, 0), lambda: call(308, -1, 0), lambda: call(161, here),
            lambda: call(165, 0, 0, 0, 0, 0),
            lambda: call(321, -1, 0, 0), lambda: call(250, -1, 0, 0, 0), lambda: call(298, 0, 0, -1, -1, 0),
            lambda: call(323, -1), lambda: call(135, 0xFFFFFFFF), lambda: os.setuid(os.getuid()),
            lambda: call(126, 0, 0),
            lambda: call(157, 1, 0, 0, 0, 0), lambda: call(317, -1, 0, 0), lambda: call(444, 0, 0, 1),
            lambda: call(164, 1, 0),
            lambda: call(304, -1, 0, 0), lambda: fcntl.ioctl(opened, 0x5412, b"x"),
        ],
        "use more memory, larger files or more open files": [
            lambda: bytearray(1 << 30), large, lambda: [os.dup(0) for _ in range(300)],
        ],
    }

def run(version, user, tree):
    codecs.lookup("ascii")  # another user cannot import it
    if user:
        os.setgroups([]); os.setgid(user); os.setuid(user)
        libc.prctl(4, 1, 0, 0, 0)  # a process that was never root is dumpable
    folder, elsewhere, readable = (os.path.join(tree, name) for name in ("folder", "elsewhere", "readable"))
    tries = attempts(folder, elsewhere, readable)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if version is not None:
        confinement.limit_resources(200 << 20, 1 << 20)
        offered = confinement.landlock_version()
        confinement.landlock_version = lambda: min(version, offered)
        active = confinement.restrict_files([readable, "/no/such/file"], [folder])
        assert active == (version > 0), active
        assert confinement.drop_capabilities() and confinement.filter_system_calls()
    found = {}
    for name, ways in tries.items():
        found[name] = []
        for way in ways:
            try:
                way()
                found[name].append("")
            except OSError as error:
                found[name].append(errno.errorcode.get(error.errno, "?"))
            except MemoryError:
                found[name].append("MemoryError")
            except ValueError:  # of setrlimit
                found[name].append("EPERM")
    return found

for version, user, tree in settings:
    ours, theirs = os.pipe()
    if os.fork() == 0:
        try:
            answer = run(version, user, tree)
        except BaseException as error:
            answer = repr(error)
        os.write(theirs, json.dumps(answer).encode())
        os._exit(0)
    os.close(theirs)
    with open(ours) as pipe:
        print(pipe.read(), flush=True)
    os.wait()
"""

DENIED = {"EPERM", "EACCES", "ENOSYS", "MemoryError", "EFBIG", "EMFILE"}
NEEDED = "what AppWorld needs"
FILES = {"read, list, write, make or remove other files"}
NOT_DENIED = {"`stat` files, processes and their threads"}
VERSIONS = range(8)
USERS = (0, 65534) if os.getuid() == 0 else (0,)  # 0: stay who we are

Results = dict[tuple[int | None, int], dict[str, list[str]]]


@pytest.fixture(scope="module")
def results() -> Results:
    """Return the error of each attempt, by the version of Landlock (0: off; None: not confined at all) and user."""
    cases = [(version, user) for version in (None, *VERSIONS) for user in USERS]
    # not pytest's, in which another user cannot look
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        settings = []
        for number, (version, user) in enumerate(cases):
            tree = Path(place, str(number))
            (tree / "folder").mkdir(parents=True)
            for name in ("elsewhere", "readable"):
                (tree / name).write_text("x")
            for path in (tree, *tree.iterdir()):
                os.chown(path, user or -1, -1)
            settings.append((version, user, str(tree)))
        command = [sys.executable, "-c", HARNESS, json.dumps(settings)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        kept = {
            setting[2]: (Path(setting[2]) / "readable").read_text()
            for setting in settings
            if setting[0] is not None
        }
    assert set(kept.values()) == {"x"}
    return dict(zip(cases, map(json.loads, done.stdout.splitlines()), strict=True))


def test_what_appworld_needs_is_possible_everywhere(results: Results) -> None:
    for found in results.values():
        assert set(found[NEEDED]) == {""}


def test_the_attempts_are_possible_without_confinement(results: Results) -> None:
    """Else a denial would say nothing."""
    for (version, _), found in results.items():
        if version is None:
            for name, errors in found.items():
                assert (
                    sum(error not in DENIED for error in errors) >= len(errors) / 2
                ), (
                    name,
                    errors,
                )


def test_the_page_says_what_is_denied(results: Results) -> None:
    """The table of docs/security.md, from what was tried."""
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text("utf-8")
    rows = [name for name in results[0, 0] if name != NEEDED]
    for name in rows:
        with_landlock = set[str]()
        without = set[str]()
        for (version, _), found in results.items():
            if version is not None:
                (with_landlock if version else without).update(found[name])
        denied = {True: "denied", False: "possible"}
        assert (with_landlock <= DENIED) == (name not in NOT_DENIED), (name, results)
        assert (without <= DENIED) == (name not in FILES | NOT_DENIED), (
            name,
            results[0, 0],
        )
        assert (
            f"| {name} | {denied[with_landlock <= DENIED]} | {denied[without <= DENIED]} |"
            in page
        )


PARENT = """
import os, sys, time
from hgpo_appworld.engine.worker import confinement
parent = os.getpid()
child = os.fork()
if child == 0:
    confinement.end_with_parent(parent)
    print(os.getpid(), flush=True)
    time.sleep(600)
time.sleep(600)
"""


def test_a_process_ends_with_its_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        child = Path(f"/proc/{int(parent.stdout.readline())}")
        assert child.exists()
        parent.kill()
        # the end of the child closes the last copy of the pipe
        assert parent.stdout.read() == ""


WORLDS = r"""
import fcntl, gc, json, socket, sys, types
from pathlib import PurePath
from hgpo_appworld.engine.worker import framing, parent, world

def reachable():
    # gc.get_objects leaves out what was frozen: begin at the stack, where a traceback would begin, too
    frame, found, seen = sys._getframe(1), [], set()
    while frame is not None:
        found += frame.f_locals.values()
        frame = frame.f_back
    found += gc.get_objects()
    for one in found:
        if id(one) not in seen and not isinstance(one, (types.ModuleType, type)):
            seen.add(id(one))
            found += gc.get_referents(one)
    return found

def play(connection, request):
    def lock(number):
        try:
            fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return type(error).__name__
        return "locked"

    objects = reachable()
    texts = [str(one) for one in objects if isinstance(one, (str, bytes, PurePath))]
    framing.send(connection, {
        "first": [text[:200] for text in texts if "of-the" "-first" in text],  # not this program itself
        "parents": sum(isinstance(one, parent.Parent) for one in objects),
        "keys": sorted(request),
        "locks": [lock(number) for number in (0, 1, 2)],
    })
    framing.receive(connection, 1 << 20)

sys.modules["appworld"] = types.SimpleNamespace(__version__="1")
world.warm_up = lambda request: None
parent._RUN["play"] = play
parent.main(*sys.argv[1:])
"""


def test_a_world_finds_nothing_of_another(tmp_path: Path) -> None:
    """Not on the stack or among Python's objects, and no lock on the files that it starts with."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    settings = {
        "scratch": str(scratch),
        "data": str(tmp_path),
        "confined": False,
        "task": "",
        "seconds": 1,
    }
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", WORLDS, str(theirs.fileno()), json.dumps(settings)]
    connections = []
    found = []
    with subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process, control:
        theirs.close()
        assert json.loads(control.recv(1 << 16))["version"] == "1"
        for number, rollout in enumerate(("rollout-of-the-first", "another")):
            ours, given = socket.socketpair()
            request = {
                "run": "play",
                "number": number,
                "task": "",
                "rollout": rollout,
                "memory_mb": 500,
            }
            socket.send_fds(
                control,
                [json.dumps({**request, "cpu_seconds": 60}).encode()],
                [given.fileno()],
            )
            given.close()
            connections.append(ours)  # the first runs while the second looks
            assert json.loads(control.recv(1 << 16)) == {}
            found.append(json.loads(framing.receive(ours, 1 << 20, 60)))
        control.shutdown(socket.SHUT_RDWR)
        assert process.wait(60) == 0
    for connection in connections:
        connection.close()
    first, second = found
    assert first["first"]
    assert (second["first"], second["parents"]) == ([], 0)
    assert "number" not in second["keys"]
    assert "locked" in first["locks"]
    assert second["locks"] == first["locks"]
    assert not scratch.exists()
