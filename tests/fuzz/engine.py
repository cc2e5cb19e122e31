"""A small mutational fuzzer.

Inputs are mutations of a target's seeds, and of inputs with a new outcome: a kind of error or result that no earlier
input had. More than half of them are repaired afterwards (checksums, lengths), so that they pass the first check.
A target passes an input if it returns or raises InputError with one line, within limits of CPU time and memory.

Each target runs in a separate process. The current input is in shared memory, so that an input that kills the process
(a crash in compiled code) is known.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import pickle
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LONGEST_INPUT = 1 << 17
CPU_S = 10.0
"""Limit of CPU time per input, in seconds."""
MEMORY = 512 << 20
"""Limit of bytes by which one input may raise the process's peak memory."""
ADDRESSES = 8 << 30
"""Limit of bytes that a process may allocate in addition, used or not; beyond it MemoryError is raised."""
POOL = 400
_SHARED = LONGEST_INPUT + 16
_FRAME = re.compile(r"/(hgpo_envs|hgpo_datasets|hgpo_train)/")


class TooSlowError(BaseException):
    """An input exceeded the limit of CPU time."""


@dataclass(frozen=True)
class Target:
    """A function that reads untrusted bytes.

    Attributes:
        name: The target's name in reports and in the corpus.
        seeds: Returns valid inputs.
        run: Reads an input; may write into the empty folder that it receives. Must raise nothing except InputError. The
            returned value only decides whether an outcome is new.
        weight: The target's share of a campaign's inputs.
        words: Byte strings that mutations insert.
        repair: Corrects checksums and lengths after a mutation.
    """

    name: str
    seeds: Callable[[Path], Sequence[bytes]]
    run: Callable[[bytes, Path], object]
    weight: float = 1.0
    words: tuple[bytes, ...] = ()
    repair: Callable[[bytes], bytes] | None = None


@dataclass
class Finding:
    """An outcome other than success or InputError, with an input that causes it."""

    what: str
    data: str
    times: int = 1


@dataclass
class Result:
    """The outcomes of a target's inputs."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    kinds: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    peak_mb: float = 0.0
    findings: dict[str, Finding] = field(default_factory=dict)


def fuzz(target: Target, inputs: int, seed: int) -> Result:
    """Run a target with a number of inputs."""
    result = Result()
    shared = mmap.mmap(-1, _SHARED)
    while result.inputs < inputs and len(result.findings) < 50:
        part, status = _in_a_process(target, result.inputs, inputs, seed, shared)
        _add(result, part)
        if status == 0:
            break
        if status > 0:
            raise RuntimeError(f"{target.name}: the fuzzer itself failed; its traceback is above")
        count, length = struct.unpack_from("<QQ", shared)
        data = shared[16 : 16 + length]
        name = signal.Signals(-status).name
        result.inputs = max(result.inputs, count) + 1
        known = result.findings.setdefault(
            f"the process ends: {name}", Finding(f"the process ends: {name}", data.hex(), 0)
        )
        known.times += 1
    return result


def _in_a_process(target: Target, first: int, last: int, seed: int, shared: mmap.mmap) -> tuple[Result, int]:
    with tempfile.TemporaryDirectory(
        prefix="hgpo-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as work:
        kept = Path(work) / "result"
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _Loop(target, Path(work), shared).run(first, last, seed, kept)
                status = 0
            except BaseException:  # noqa: BLE001 (the fork ends here)
                traceback.print_exc()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not kept.exists():
            return Result(), status or 1
        return pickle.loads(kept.read_bytes()), status


def _add(whole: Result, part: Result) -> None:
    whole.inputs += part.inputs
    whole.outcomes += part.outcomes
    whole.kinds = max(whole.kinds, part.kinds)
    whole.seconds += part.seconds
    whole.slowest_s, whole.peak_mb = max(whole.slowest_s, part.slowest_s), max(whole.peak_mb, part.peak_mb)
    for name, finding in part.findings.items():
        known = whole.findings.setdefault(name, finding)
        known.times += finding.times if known is not finding else 0


class _Loop:
    """The loop over one target's inputs."""

    def __init__(self, target: Target, work: Path, shared: mmap.mmap) -> None:
        self.target, self.shared, self.work = target, shared, work
        made = work / "seeds"
        made.mkdir()
        self.pool = [bytes(seed) for seed in target.seeds(made)]
        for seed in self.pool:
            outcome = judge(target, seed, work / "seed")
            assert outcome.startswith("fine"), f"{target.name}: a seed is {outcome}"
        self.known: set[str] = set()
        self.result = Result()

    def run(self, first: int, last: int, seed: int, kept: Path) -> None:
        signal.signal(signal.SIGPROF, _too_slow)
        warnings.simplefilter("ignore")
        limit_memory()
        began = time.monotonic()
        noted = began
        for number in range(first, last):
            draw = random.Random(f"{seed} {self.target.name} {number}")
            self.one(mutated(draw, self.pool, self.target), number)
            if time.monotonic() - noted > 1 or number == last - 1:
                noted = time.monotonic()
                self.result.seconds = noted - began
                self.result.peak_mb = peak() / 2**20
                kept.write_bytes(pickle.dumps(self.result))

    def one(self, data: bytes, number: int) -> None:
        struct.pack_into("<QQ", self.shared, 0, number, len(data))
        self.shared[16 : 16 + len(data)] = data
        began = time.process_time()
        most = peak()
        outcome = judge(self.target, data, self.work / "one")
        if peak() - most > MEMORY and not outcome.startswith("found"):
            outcome = f"found: memory, and then {outcome}"
        self.result.slowest_s = max(self.result.slowest_s, time.process_time() - began)
        self.result.inputs += 1
        kind, _, what = outcome.partition(": ")
        self.result.outcomes[kind] += 1
        if kind == "found":
            finding = self.result.findings.setdefault(what, Finding(what, data.hex(), 0))
            finding.times += 1
            if len(data) * 2 < len(finding.data):
                finding.data = data.hex()
        if outcome not in self.known:
            self.known.add(outcome)
            self.result.kinds = len(self.known)
            if kind != "found" and len(self.pool) < POOL:
                self.pool.append(data)


def judge(target: Target, data: bytes, folder: Path) -> str:
    """Return `fine`, `refused: <the line without its numbers and quotes>` or `found: <what and where>`."""
    from hgpo_envs.errors import InputError

    folder.mkdir(exist_ok=True)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        returned = target.run(data, folder)
    except InputError as error:
        line = str(error)
        if "\n" in line or not line:
            return f"found: InputError of {line.count(chr(10)) + 1} lines{_where(error)}"
        return "refused: " + re.sub(r"'[^']*'|\"[^\"]*\"|/\S*|[-\d.,]+", "*", line)[:100]
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 (any exception is a finding)
        return f"found: {type(error).__name__}{_where(error)}"
    else:
        return "fine" if returned is None else f"fine: {returned}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        shutil.rmtree(folder, ignore_errors=True)


def _where(error: BaseException) -> str:
    """Return the last line of this project in a traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _FRAME.search(frame.filename)]
    if isinstance(error, AssertionError):
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = re.sub(r"/\S*/|\d+", "*", str(error))[:120]
        return f" in {last.name}, line {last.lineno}: {last.line} {said}"
    if not frames:
        return ""
    last = frames[-1]
    return f" at {_FRAME.split(last.filename, maxsplit=1)[1]}/{_FRAME.split(last.filename, maxsplit=1)[2]}:{last.name}"


def _too_slow(*_: object) -> None:
    raise TooSlowError


def peak() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit_memory() -> None:
    """Limit further allocations of this process to `ADDRESSES` bytes; beyond them MemoryError is raised."""
    used = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmData" in line)
    resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + ADDRESSES, resource.RLIM_INFINITY))


HOSTILE_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**400),
    *(1e308, -0.0, 0.5, float("nan"), float("inf")),
    *("", " ", "\x00", "a" * 300, "../../x", "/etc/x", "\ud800", "日本"),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": []}}),
)
HOSTILE_BYTES = (
    *(b"\x00", b"\xff", b"\n", b"\r\n", b"\\", b'"', b"'", b"{", b"}", b"[", b"]", b",", b":", b"../", b"/"),
    *(b"\xed\xa0\x80", b"\xf0\x9f", b"\x1b[0m", b"\xef\xbb\xbf", b"\xe2\x80\xae"),
    *(b"NaN", b"1e999", b"-1", b"null", b"%s", b"0" * 40, b"9" * 5000, b"[" * 2000),
)
_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)


def mutated(draw: random.Random, pool: Sequence[bytes], target: Target) -> bytes:
    """Return a mutation of an input from the pool."""
    data = draw.choice(pool)
    if draw.random() < 0.4 and (other := mutated_json(draw, data)) is not None:
        data = other
    else:
        for _ in range(draw.choice((1, 1, 1, 2, 2, 4, 8))):
            data = mutated_bytes(draw, data, pool, target.words)
    if target.repair is not None and draw.random() < 0.6:
        with contextlib.suppress(Exception):
            data = target.repair(data)
    return data[:LONGEST_INPUT]


def mutated_bytes(draw: random.Random, data: bytes, pool: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Return the data with one change of some bytes."""
    at = draw.randrange(len(data) + 1)
    size = draw.choice((1, 1, 2, 4, 8, 16, 64, 256))
    match draw.randrange(8):
        case 0:
            return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
        case 1:
            return data[:at] + data[at + size :]
        case 2:
            return data[:at] + data[at : at + size] * 2 + data[at + size :]
        case 3:
            return data[:at] + draw.choice((*words, *HOSTILE_BYTES)) + data[at:]
        case 4:
            width = draw.choice((1, 2, 4, 8))
            number = (draw.choice(_NUMBERS) & (2 ** (8 * width) - 1)).to_bytes(width, "little")
            return data[:at] + number + data[at + width :]
        case 5:
            other = draw.choice(pool)
            return data[:at] + other[draw.randrange(len(other) + 1) :]
        case 6:
            return data[:at]
        case _:
            word = draw.choice((*words, *HOSTILE_BYTES))
            return data[:at] + word + data[at + len(word) :]


def mutated_json(draw: random.Random, data: bytes) -> bytes | None:
    """Return a JSON text, or JSON lines, with one changed value; None if the data is not JSON."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return None
    several = len(lines) > 1 and lines[0][:1] == b"{" and lines[0].rstrip()[-1:] == b"}"
    number = draw.randrange(len(lines)) if several else None
    text = data if number is None else lines[number]
    if text.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    changed = json.dumps(_changed(draw, value), ensure_ascii=draw.random() < 0.5, separators=(",", ":"))
    changed_bytes = changed.encode("utf-8", "surrogatepass")
    if number is None:
        return changed_bytes
    lines[number] = changed_bytes + b"\n"
    return b"".join(lines)


def _changed(draw: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        match draw.randrange(8):
            case 0:
                return {name: one for name, one in value.items() if name != key}
            case 1:
                return {**value, draw.choice(("", "x", "format", key.upper())): draw.choice(HOSTILE_VALUES)}
            case _:
                return {**value, key: _changed(draw, value[key])}
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        match draw.randrange(6):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value[: at + 1] + value[at:]
            case _:
                return [*value[:at], _changed(draw, value[at]), *value[at + 1 :]]
    return draw.choice(HOSTILE_VALUES)


def file_name(data: bytes) -> str:
    """Return the name of an input's file in the corpus."""
    return hashlib.sha256(data).hexdigest()[:16]
