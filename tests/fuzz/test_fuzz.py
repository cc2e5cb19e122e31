"""Some inputs for every target, and all earlier findings; `python -m tests.fuzz` runs a campaign."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.engine import Target, fuzz, judge, mutated_json
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).with_name("corpus")
INPUTS = 6000
KEPT = sorted(path for path in CORPUS.rglob("*") if path.is_file())


@pytest.mark.slow
def test_some_inputs_of_every_target() -> None:
    """It runs in a separate process, because a process that has computed with Polars cannot fork safely."""
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", str(INPUTS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_once_is_not_found_again(tmp_path: Path, path: Path) -> None:
    target = next(one for name, one in TARGETS.items() if name.replace(" ", "-") == path.parent.name)
    assert not judge(target, path.read_bytes(), tmp_path / "work").startswith("found"), path


def reading(data: bytes, _: Path) -> object:
    """A reader with planted faults: unexpected errors, an infinite loop, unbounded memory."""
    from hgpo_envs.errors import InputError

    if b"\xff" in data:
        raise KeyError("x")
    if b"NaN" in data:
        bytearray(20 << 30)
    if b"true" in data:
        assert len(b"x" * (600 << 20)) > 1
    if b"null" in data:
        raise InputError("two\nlines")
    if not data.isascii():
        raise InputError("not ASCII")
    return None


@pytest.mark.slow
def test_the_fuzzer_finds_planted_faults() -> None:
    result = fuzz(Target("planted", lambda _: [b'{"a": [1, 2]}', b"text"], reading), 3000, 1)
    assert result.inputs == 3000
    assert {name.split(" at ")[0] for name in result.findings} == {
        "KeyError",
        "MemoryError",
        "InputError of 2 lines",
        "memory, and then fine",
    }
    assert b"\xff" in bytes.fromhex(next(one.data for name, one in result.findings.items() if name == "KeyError"))


def test_the_fuzzer_stops_what_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    from tests.fuzz import engine

    def endless(_data: bytes, _folder: Path) -> object:
        while True:
            pass

    monkeypatch.setattr(engine, "CPU_S", 0.2)
    before = signal.signal(signal.SIGPROF, engine._too_slow)
    try:
        assert judge(Target("slow", lambda _: [], endless), b"", tmp_path / "work") == "found: TooSlowError"
    finally:
        signal.signal(signal.SIGPROF, before)


def test_the_fuzzer_knows_what_ended_its_process() -> None:
    import os
    import signal

    def crash(data: bytes, _: Path) -> object:
        if b"9" in data:
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    result = fuzz(Target("crash", lambda _: [b"1"], crash), 300, 1)
    assert result.inputs == 300
    (finding,) = result.findings.values()
    assert finding.what == "the process ends: SIGKILL"
    assert b"9" in bytes.fromhex(finding.data)


def test_json_is_changed_in_one_place() -> None:
    import random

    seen = {mutated_json(random.Random(seed), b'{"a": [1, {"b": "x"}]}') for seed in range(200)}
    assert len(seen) > 50
    assert mutated_json(random.Random(1), b"text") is None
