"""AppWorld's processes: what they return, what they survive, what they deny, and that none is left behind."""

import contextlib
import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hgpo_appworld.engine import process
from hgpo_appworld.engine.engine import AppWorldEngine
from hgpo_appworld.engine.process import CONFINED, WorldFailed
from hgpo_appworld.engine.source import AppWorldSource
from hgpo_envs.errors import InputError, UnknownTask

pytestmark = [pytest.mark.original, pytest.mark.slow]

Opened = Callable[..., AppWorldSource]

POSIX = "import os\nposix = os.sys.modules['posix']\n"
"""AppWorld's own guard replaces the functions of `os`, but not those of the module behind it."""


def children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if (
                    int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                    == pid
                ):
                    found.append(int(folder.name))
    return found


def gone(pids: list[int], seconds: float = 30) -> bool:
    """Return whether all processes end in time; a zombie has ended."""

    def ended(pid: int) -> bool:
        try:
            return (
                Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                == "Z"
            )
        except OSError:
            return True

    until = time.monotonic() + seconds
    while not all(map(ended, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def scratch_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/cwd").readlink()


def started(source: AppWorldSource) -> AppWorldEngine:
    """Return a new engine in the first task of the split train."""
    engine = source.engine()
    engine.start(source.ids("train")[0])
    return engine


# -------------------------------------------------------------------------------------------------------------- playing


def test_programs_share_a_session_and_their_output_is_the_state(
    engine: AppWorldEngine,
) -> None:
    assert engine.act("x = 20").text == "Execution successful."
    assert engine.act("print(x + 1)").text == "21\n"
    failed = engine.act("1 / 0")
    assert failed.text.startswith("Execution failed. Traceback:")
    assert failed.info["execution_failed"]
    assert failed.valid
    assert not failed.terminated


def test_a_task_ends_with_its_evaluation(opened: Opened) -> None:
    engine = started(opened())
    state = engine.act("apis.supervisor.complete_task(status='fail')")
    assert state.terminated
    assert not state.won
    assert state.reward == 0
    assert state.score == state.info["tests_passed"] / state.info["tests"] < 1
    assert (
        len(state.info["failed_tests"])
        == state.info["tests"] - state.info["tests_passed"]
    )
    assert engine.act("print(1)") is state


def test_at_the_step_limit_the_state_is_evaluated(opened: Opened) -> None:
    engine = started(opened(max_steps=2, reward_scale="score"))
    assert "tests" not in engine.act("x = 1").info
    last = engine.act("y = 1")
    assert not last.terminated
    assert last.info["tests"] > 0
    assert last.reward == last.score == last.info["tests_passed"] / last.info["tests"]


def test_calls_tell_steps_with_the_same_output_apart(opened: Opened) -> None:
    engine = started(opened(observation="calls"))
    first = engine.act("x = apis.supervisor.show_profile()").text
    assert (
        first == "Execution successful.\n\nAPI calls so far:\nGET /supervisor/profile"
    )
    assert engine.act("x = apis.supervisor.show_profile()").text.endswith(
        "GET /supervisor/profile (2 times)"
    )


def test_refused_programs_are_not_executed(opened: Opened) -> None:
    engine = started(opened(refuse=True))
    for program in ("x = 1; ...", "try:\n    x = 1\nexcept Exception:\n    pass", "  "):
        state = engine.act(program)
        assert not state.valid
        assert state.text.startswith("Execution failed.")
    assert "NameError" in engine.act("print(x)").text
    assert engine.programs == ["print(x)"]


def test_long_outputs_are_shortened(opened: Opened) -> None:
    engine = started(opened(max_output=100))
    text = engine.act("print('a' * 60 + 'b' * 1000 + 'c' * 60)").text
    assert text.startswith("a" * 50 + "\n[… 1021 characters left out …]\n")
    assert text.endswith("c" * 49 + "\n")


def test_outputs_are_the_same_in_other_processes(opened: Opened) -> None:
    source = opened()
    programs = [
        "print(apis.supervisor.show_account_passwords())",
        "import random\nprint(random.random(), {'a', 'b', 'c'}, hash('a'))",
        "print(DateTime.now())",
    ]
    texts = []
    for _ in range(2):
        engine = started(source)
        texts.append([engine.act(program).text for program in programs])
        assert source._server is not None
        source._server.close()
    assert texts[0] == texts[1]


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("import os\nos.abort()", "died of SIGABRT"),
        (f"{POSIX}posix._exit(3)", "ended with exit code 3"),
        (
            f"{POSIX}[posix.close(number) for number in range(3, 99) if number not in ()]",
            "lost|closed|ended",
        ),
        (
            f"{POSIX}for n in range(3, 99):\n    try: posix.write(n, b'\\xff' * 9)\n    except OSError: pass",
            "bytes",
        ),
        ("apis.supervisor.complete_task(answer=chr(0xd800))", "UnicodeEncodeError"),
        ("json.dumps = None", "NoneType"),
    ],
    ids=[
        "abort",
        "exit",
        "closed",
        "garbage",
        "surrogate in the database",
        "broken library",
    ],
)
def test_a_program_that_ends_its_world_loses_its_episode_and_no_other(
    engine: AppWorldEngine, opened: Opened, program: str, line: str
) -> None:
    task = opened().ids("all")[0]
    other = opened().engine()
    other.start(task)
    state = engine.act(program)
    assert (state.terminated, state.won, state.reward, state.score) == (
        True,
        False,
        0.0,
        0.0,
    )
    # a lost episode, not a failure of the environment
    assert re.search(line, state.info["lost"])
    assert engine.act("print(1)") is state
    assert other.act("print(apis.supervisor.show_profile()['email'])").text.strip()
    engine.start(task)
    assert engine.act("print(apis.supervisor.show_profile()['email'])").text.strip()


OPEN_FOLDER = f"{POSIX}folder = posix.open('.', 0)\n"
NEST = (
    "posix.mkdir(NAME, MODE, dir_fd=folder); inner = posix.open(NAME, 0, dir_fd=folder); posix.close(folder); "
    "folder = inner"
)


@pytest.mark.parametrize(
    "program",
    [
        f"{OPEN_FOLDER}for _ in range(3000):\n    {NEST}".replace(
            "NAME", "'a'"
        ).replace("MODE", "448"),
        f"{OPEN_FOLDER}for _ in range(99):\n    {NEST}".replace(
            "NAME", "'b' * 255"
        ).replace("MODE", "493"),
        f"{POSIX}for n in range(5000):\n    posix.mkdir(str(n), 0)",
    ],
    ids=["3,000 nested", "long names", "without permissions"],
)
def test_files_of_a_program_end_neither_the_parent_nor_another_world(
    engine: AppWorldEngine, opened: Opened, program: str
) -> None:
    source = opened()
    task = source.ids("all")[0]
    pid = source.server(task).pid
    scratch = scratch_of(pid)
    other = source.engine()
    other.start(task)
    engine.act(program)  # done, or killed meanwhile
    engine.close()
    assert source.server(task).pid == pid
    assert other.act("print(1)").text == "1\n"
    other.close()
    gc.collect()
    assert [path.name for path in (scratch / "experiments" / "outputs").iterdir()] == [
        "warm-up"
    ]


SPIN = (
    "ctypes, mmap = (os.sys.modules[name] for name in ('ctypes', 'mmap'))\n"
    "code, stacks = mmap.mmap(-1, 4096, prot=7), mmap.mmap(-1, 1 << 25)\n"
    "code.write(b'\\xeb\\xfe')\n"  # a jump to itself
    "address, stack = (ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(x))) for x in (code, stacks))\n"
    "for top in range(stack.value + 960, stack.value + (1 << 25), 1024):\n"
    "    top = ctypes.c_void_p(top)\n"
    "    ctypes.CDLL(None).clone(address, top, 0x3D0F00, None, stack, top, stack)\n"
)
SLEEP = "os.sys.modules['select'].select([], [], [], 90)"
GREEDY = {
    "threads": SPIN + SLEEP,
    "threads of Python": "os.sys.modules['_thread'].stack_size(1 << 16)\n"
    "start = os.sys.modules['_thread'].start_new_thread\n"
    f"for _ in range(100): start(os.sys.modules['select'].select, ([], [], [], 90))\n{SLEEP}",
    "large files": "x = bytes(1 << 24)\nfor n in range(6000): posix.write(posix.open(str(n % 60), 1025 | 64), x)",
    "nameless files": "x = bytes(1 << 24)\nfiles = [posix.open('.', 0o20200001) for _ in range(60)]\n"
    "for n in range(6000): posix.write(files[n % 60], x)",
    "many files": f"for n in range(2000): posix.close(posix.open(str(n), 65))\n{SLEEP}",
    "hidden files": f"posix.mkdir('a', 0)\n{SLEEP}"
    if os.getuid()
    else f"{OPEN_FOLDER}for _ in range(99):\n    {NEST}\n{SLEEP}".replace(
        "NAME", "'b' * 255"
    ).replace("MODE", "448"),
}


@pytest.mark.parametrize("name", GREEDY)
def test_a_program_that_takes_what_all_share_is_killed(
    engine: AppWorldEngine, opened: Opened, name: str
) -> None:
    other = opened().engine()
    other.start(opened().ids("all")[1])
    state = engine.act(f"{POSIX}{GREEDY[name]}")
    assert "died of SIGKILL" in state.info["lost"]
    assert other.act("print(apis.supervisor.show_profile()['email'])").text.strip()
    other.close()


def test_worlds_do_not_find_each_others_files(
    engine: AppWorldEngine, opened: Opened
) -> None:
    """The size or existence of a file, which Landlock does not hide, would carry a text to the rollouts of a group."""
    other = opened().engine()
    other.start(opened().ids("all")[0])
    folder, foreign = (
        one.act(f"{POSIX}print(posix.getcwd())").text.strip() for one in (engine, other)
    )
    assert Path(folder).parent == Path(foreign).parent
    # drawn at random
    assert len(set(Path(folder).name)) > 8 < len(set(Path(foreign).name))
    assert "PermissionError" in engine.act(f"{POSIX}posix.listdir('..')").text
    other.close()


@pytest.mark.parametrize(
    "request_", [{"run": "nothing"}, {"end": "x"}, {}, {"end": 10**9, "kill": True}]
)
def test_a_bad_request_has_an_answer(
    opened: Opened, request_: dict[str, object]
) -> None:
    server = opened().server(opened().ids("all")[0])
    assert server._ask(request_).keys() & {"failed", "status"}
    assert server.running


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (
            "INSERT INTO sqlite_sequence SELECT 'a', 1 FROM "
            + ", ".join(f"sqlite_master t{n}" for n in range(9)),
            "SIGKILL",
        ),
        (
            "INSERT INTO sqlite_sequence WITH RECURSIVE c AS (VALUES(1) UNION ALL SELECT 1 FROM c) SELECT 1, 1 FROM c",
            "not authorized",
        ),
        (
            "INSERT INTO sqlite_sequence VALUES ('a', hex(randomblob(400000000)))",
            "MemoryError",
        ),
        ("ATTACH 'other.db' AS other", "not authorized"),
        ("VACUUM INTO 'other.db'", "authorization denied"),
        ("PRAGMA writable_schema = 1", "not authorized"),
        (
            "CREATE TRIGGER t AFTER INSERT ON sqlite_sequence BEGIN SELECT 1; END",
            "not authorized|system table",
        ),
        ("SELECT load_extension('x')", "not authorized|no such function"),
        ("no statement", "syntax error"),
    ],
    ids=[
        "endless join",
        "endless recursion",
        "memory",
        "attach",
        "vacuum",
        "pragma",
        "trigger",
        "extension",
        "nothing",
    ],
)
def test_statements_of_a_program_lose_its_evaluation(
    engine: AppWorldEngine, monkeypatch: pytest.MonkeyPatch, statement: str, reason: str
) -> None:
    """AppWorld's evaluation repeats the statements that the world has saved, and a program can add to them."""
    monkeypatch.setattr(process, "EVALUATION_CPU_S", 3)
    state = engine.act(
        f"import os\nfor one in os.sys.modules['gc'].get_objects():\n"
        f"    if type(one).__name__ == 'DBChangesTracker': one.changes.append(({statement!r}, [], False))\n"
        "apis.supervisor.complete_task()"
    )
    assert (state.terminated, state.won, state.reward) == (True, False, 0.0)
    assert re.search(f"the evaluation of .* failed: .*({reason})", state.info["lost"])


def test_a_database_of_a_program_loses_its_evaluation(opened: Opened) -> None:
    source = opened(max_steps=1)
    engine = source.engine()
    task = source.ids("all")[0]
    engine.start(task)
    program = (
        f"{POSIX}def later(*_):\n    posix.close(posix.open('tasks/{task}/dbs/venmo.db', 65))\n"
        "for one in os.sys.modules['gc'].get_objects():\n"
        "    if type(one).__name__ == 'AppWorld': one.task_completed = later"
    )
    state = engine.act(program)
    assert "a file that AppWorld does not write: venmo.db" in state.info["lost"]


def test_a_world_that_hangs_is_killed(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_S", 1.0)
    source = opened(program_seconds=1)
    engine = started(source)
    assert "timed out after 1 seconds" in engine.act("while True: sum(range(99))").text
    assert source._server is not None
    running = children(source._server.pid)
    hang = "while True:\n    try:\n        for _ in iter(int, 1): sum(range(99))\n    except BaseException: pass"
    assert re.search(
        r"no answer from the world of .* within 2 s; it was killed",
        engine.act(hang).info["lost"],
    )
    assert running
    assert gone(running)


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ("print('a' * 10**9)", "MemoryError"),
        ("while True: print('a' * 10**6)", "MemoryError"),
        ("x = []\nwhile True: x.append('a' * 10**6)", "MemoryError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise SystemExit(2)", "Exception: 2"),
        ("print(chr(0xd800))", "\ufffd"),
        ("def f(): return f()\nf()", "RecursionError"),
    ],
)
def test_what_a_world_survives(opened: Opened, program: str, output: str) -> None:
    source = opened(memory_mb=300)
    engine = started(source)
    # raised by the program, or in the code that prints its error
    if output == "MemoryError":
        state = engine.act(program)
        if not state.terminated:
            assert output in state.text
            return
        engine = started(source)
    else:
        assert output in engine.act(program).text
    assert engine.act("import builtins\nbuiltins.print(1 + 1)").text == "2\n"


@pytest.mark.parametrize(
    "program",
    [
        "posix.fork()",
        "os.posix_spawn('/bin/sh', ['sh'], {})",
        "os.execv('/bin/sh', ['sh'])",
        "os.sys.modules['socket'].socket()",
        "os.sys.modules['socket'].socketpair()[0].sendto(b'', '/tmp/x')",
        "posix.kill(os.getppid(), 9)",
        "print(os.sys.modules['pathlib'].Path('/etc/passwd').read_text())",
        "posix.listdir('/home')",
        "posix.listdir('/proc')",
        "posix.open('/tmp/owned', 65)",
        "posix.chmod(os.environ['HOME'], 0o777)",
        "posix.open(TASK + '/ground_truth/evaluation.py', 0)",
        "posix.listdir(TASK + '/..')",
        "posix.open(TASK + '/specs.json', 2)",
    ],
)
def test_what_a_world_denies(
    engine: AppWorldEngine, opened: Opened, appworld_root: Path, program: str
) -> None:
    assert opened().server("").confined == CONFINED, (
        "this machine's kernel has no Landlock or seccomp"
    )
    task = appworld_root.resolve() / "data" / "tasks" / opened().ids("all")[0]
    text = engine.act(f"{POSIX}TASK = {str(task)!r}\n{program}").text
    assert "PermissionError" in text
    assert engine.act("print(1)").text == "1\n"


def test_a_world_has_neither_secrets_nor_files_of_others_open_for_writing(
    engine: AppWorldEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-123")
    seen = engine.act("import os\nprint(dict(os.environ))").text
    assert (
        not {"OPENAI_API_KEY", "HGPO_APPWORLD_PYTHON", "USER"} & json.loads(seen).keys()
    )
    (pid,) = children(engine._world._server.pid)
    own = engine._world._server._outputs / engine._world._rollout
    for number in Path(f"/proc/{pid}/fd").iterdir():
        target = str(number.readlink())
        flags = Path(f"/proc/{pid}/fdinfo/{number.name}").read_text().split()[3]
        if target.startswith("/") and not target.startswith(f"{own}/"):
            assert int(flags, 8) & os.O_ACCMODE == os.O_RDONLY, target


def test_what_a_world_leaves_in_memory_has_no_solution(engine: AppWorldEngine) -> None:
    program = "import os\nprint('GroundTruth' in {type(x).__name__ for x in os.sys.modules['gc'].get_objects()})"
    assert engine.act(program).text == "False\n"


# ----------------------------------------------------------------------------------------------------------- no remains


def test_worlds_end_with_their_engines(opened: Opened) -> None:
    source = opened()
    task = source.ids("train")[0]
    gc.collect()
    engines = [source.engine() for _ in range(3)]
    for engine in engines:
        engine.start(task)
    pid = source.server(task).pid
    running = children(pid)
    assert len(running) == 3
    scratch = scratch_of(pid)
    engines[0].start(task)
    assert len(children(pid)) == 3
    engines[0].close()
    del engine, engines
    gc.collect()
    assert gone(running)
    assert not [
        path
        for path in (scratch / "experiments" / "outputs").iterdir()
        if path.name != "warm-up"
    ]


def test_a_server_that_was_killed_is_replaced(opened: Opened) -> None:
    source = opened()
    task = source.ids("train")[0]
    engine = started(source)
    pid = source.server(task).pid
    running = children(pid)
    scratch = scratch_of(pid)
    os.kill(pid, signal.SIGKILL)
    assert gone([pid, *running])
    with pytest.raises(WorldFailed):
        engine.act("print(1)")
    engine.start(task)
    assert source.server(task).pid != pid
    assert not scratch.exists()
    assert engine.act("print(1)").text == "1\n"


OWNER = """
import os, sys
from hgpo_appworld.environment import open_source
source = open_source(data=sys.argv[1], python=sys.argv[2])
engines = [source.engine() for _ in range(2)]
for engine in engines:
    engine.start(source.ids("train")[0])
if sys.argv[3] == "fork" and os.fork() == 0:
    os.read(0, 1)
    os._exit(0)
print(source.server("").pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["exit", "fork"])
def test_no_process_and_no_file_outlives_its_owner(
    appworld_python: str, appworld_root: Path, end: str
) -> None:
    """The second is killed and has forked a process that keeps copies of the sockets."""
    command = [sys.executable, "-c", OWNER, str(appworld_root), appworld_python, end]
    owner = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdin
    assert owner.stdout
    pid = int(owner.stdout.readline())
    running = children(pid)
    scratch = scratch_of(pid)
    assert len(running) == 2
    if end == "exit":
        owner.stdin.close()
    else:
        owner.kill()
    owner.wait(60)
    assert gone([pid, *running])
    assert not scratch.exists()
    owner.stdin.close()
    owner.stdout.close()


# --------------------------------------------------------------------------------------------------------- wrong inputs


def test_an_interpreter_without_appworld_is_named(appworld_root: Path) -> None:
    from hgpo_appworld.environment import open_source

    source = open_source(data=str(appworld_root), python=sys.executable)
    with pytest.raises(
        InputError,
        match="No module named 'appworld'; install it: hgpo data install appworld",
    ):
        source.engine().start(source.ids("train")[0])


def test_unknown_tasks_and_splits_are_named(opened: Opened) -> None:
    source = opened()
    with pytest.raises(UnknownTask, match="unknown AppWorld task 'x_1'"):
        source.engine().start("x_1")
    with pytest.raises(InputError, match="unknown split 'valid'"):
        source.ids("valid")
    assert source.ids("test_challenge") == []


def test_bubblewrap_hides_the_home_folder(opened: Opened) -> None:
    import shutil

    if not shutil.which("bwrap"):
        pytest.skip("needs bubblewrap")
    try:
        engine = started(opened(isolation="bwrap"))
    except InputError as error:
        pytest.skip(f"bubblewrap does not run here: {error}")
    text = engine.act(
        f"{POSIX}print(posix.stat('/home').st_nlink, os.getpid() < 100)"
    ).text
    assert text.endswith("True\n")
    assert engine.act("apis.supervisor.complete_task()").terminated
