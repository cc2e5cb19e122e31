"""Confinement by the kernel, in a process of this interpreter."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="needs Linux on x86-64"
)

CONFINED = """
import json, os, resource, signal, socket, sys, threading
from hgpo_appworld.engine.worker import confinement

folder, readable = sys.argv[1:]
secret = os.open(readable, os.O_RDONLY)
confinement.limit_resources(200 << 20, 1 << 20)
active = [confinement.restrict_files([readable, "/no/such/file"], [folder]), confinement.filter_system_calls()]
if not all(active):
    print(json.dumps({"active": active}))
    sys.exit()

def fill():
    with open(folder + "/large", "wb") as file:
        file.write(b"x" * (2 << 20))

def thread():
    found = []
    one = threading.Thread(target=found.append, args=(1,))
    one.start()
    one.join()
    assert found

def pair():
    ours, theirs = socket.socketpair()
    ours.sendall(b"x")
    assert theirs.recv(1) == b"x"

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tries = {
    "read": lambda: open(readable).read(),
    "write": lambda: open(folder + "/new", "w").write("x"),
    "thread": thread,
    "pair": pair,
    "signal to itself": lambda: os.kill(os.getpid(), 0),
    "limit, read": lambda: resource.getrlimit(resource.RLIMIT_AS),
    "read another": lambda: open(__file__ if "__file__" in globals() else "/etc/passwd").read(),
    "list": lambda: os.listdir("/"),
    "write what is readable": lambda: open(readable, "a"),
    "truncate": lambda: os.truncate(readable, 0),
    "remove": lambda: os.remove(readable),
    "rename": lambda: os.rename(readable, folder + "/mine"),
    "fork": os.fork,
    "execute": lambda: os.execv("/bin/true", ["true"]),
    "socket": socket.socket,
    "named receiver": lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b"x", "/tmp/x"),
    "signal to the parent": lambda: os.kill(os.getppid(), 0),
    "signal to all": lambda: os.kill(-1, 0),
    "mode": lambda: os.chmod(folder, 0o777),
    "limit, write": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)),
    "memory": lambda: bytearray(1 << 30),
    "large file": fill,
}
found = {}
for name, one in tries.items():
    try:
        one()
        found[name] = ""
    except BaseException as error:
        found[name] = type(error).__name__
print(json.dumps(found))
"""

ALLOWED = {"read", "write", "thread", "pair", "signal to itself", "limit, read"}


def test_what_a_confined_process_can_do(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    readable = tmp_path / "readable"
    readable.write_text("x")
    command = [sys.executable, "-c", CONFINED, str(tmp_path / "folder"), str(readable)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if "active" in found:
        pytest.skip(f"this kernel lacks Landlock or seccomp: {found['active']}")
    assert {name for name, error in found.items() if not error} == ALLOWED
    assert found["memory"] == "MemoryError"
    assert found["large file"] == "OSError"
    denied = found.keys() - ALLOWED - {"memory", "large file", "limit, write"}
    assert {found[name] for name in denied} <= {"PermissionError", "OSError"}
    assert {found[name] for name in denied - {"rename"}} == {"PermissionError"}
    assert readable.read_text() == "x"


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
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = Path(f"/proc/{int(parent.stdout.readline())}")
        assert child.exists()
        parent.kill()
        assert parent.stdout.read() == ""  # the end of the child closes the last copy of the pipe
