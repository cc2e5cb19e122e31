"""Mutations of valid inputs, and what a reader of untrusted bytes may do with them."""

import contextlib
import json
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from hgpo_envs.errors import InputError

LONGEST_INPUT = 1 << 17
CPU_S = 10.0
"""Limit of CPU time per input, in seconds."""
HOSTILE_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**400),
    *(1e308, -0.0, 0.5, float("nan"), float("inf")),
    *("", " ", "\x00", "a" * 300, "../../x", "/etc/x", "\ud800", "日本"),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": []}}),
)
HOSTILE_BYTES = (
    *(
        b"",
        b"\x00",
        b"\xff",
        b"\n",
        b"\r\n",
        b"\\",
        b'"',
        b"'",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"../",
        b"/",
    ),
    *(
        b"\xed\xa0\x80",
        b"\xf0\x9f",
        b"\x1b[0m",
        b"\xef\xbb\xbf",
        b"\xe2\x80\xae",
        b"\xff" * 4,
        b"\x7f\xff\xff\xff",
    ),
    *(b"NaN", b"1e999", b"-1", b"null", b"%s", b"0" * 40, b"9" * 5000, b"[" * 2000),
)


@dataclass(frozen=True)
class Target:
    """A function that reads untrusted bytes.

    Attributes:
        name: The target's name, also of its folder in the corpus.
        seeds: Returns valid inputs; may write into the empty folder that it receives.
        run: Reads an input; may write into the empty folder that it receives. Must raise nothing except InputError.
        inputs: Number of inputs by default; nightly, fifty times as many.
        words: Byte strings that mutations insert.
        repair: Corrects checksums and lengths after a mutation, so that it reaches the code behind the first check.
    """

    name: str
    seeds: Callable[[Path], Sequence[bytes]]
    run: Callable[[bytes, Path], None]
    inputs: int
    words: tuple[bytes, ...] = ()
    repair: Callable[[bytes], bytes] = bytes


class TooSlowError(BaseException):
    """An input exceeded the limit of CPU time; a BaseException, so that no reader handles it."""


def _too_slow(*_: object) -> None:
    raise TooSlowError


def read(target: Target, data: bytes, folder: Path) -> None:
    """Read an input, which must be accepted or refused in one line within the limit of CPU time."""
    lines = ["accepted"]
    folder.mkdir()
    handler = signal.signal(signal.SIGPROF, _too_slow)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        target.run(data, folder)
    except InputError as error:
        lines = str(error).split("\n")
    except TooSlowError:
        raise AssertionError(f"takes more than {CPU_S} s") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        shutil.rmtree(folder)
    assert len(lines) == 1
    assert lines[0]


@st.composite
def mutations(draw: st.DrawFn, target: Target, seeds: Sequence[bytes]) -> bytes:
    """Draw a seed with a changed JSON value, changed bytes, or both."""
    data = draw(st.sampled_from(seeds))
    lines = data.splitlines(keepends=True)
    number = draw(st.integers(0, len(lines) - 1))
    with contextlib.suppress(ValueError, RecursionError):
        value = draw(changed_json(json.loads(lines[number])))
        lines[number] = (
            json.dumps(value, ensure_ascii=draw(st.booleans())).encode(
                "utf-8", "surrogatepass"
            )
            + b"\n"
        )
        data = b"".join(lines)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        end = at + draw(st.sampled_from((0, 1, 2, 4, 8, 64, len(data))))
        inserted = st.sampled_from(
            (*target.words, *HOSTILE_BYTES, data[at:end] * 2)
        ) | st.binary(max_size=8)
        data = data[:at] + draw(inserted) + data[end:]
    if draw(st.booleans()):
        with contextlib.suppress(Exception):
            data = target.repair(data)
    return data[:LONGEST_INPUT]


@st.composite
def changed_json(draw: st.DrawFn, value: Any) -> Any:
    """Draw the value with one part replaced, removed or doubled, at any depth."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(HOSTILE_VALUES))
    key = draw(
        st.sampled_from(list(value) if isinstance(value, dict) else range(len(value)))
    )
    change = draw(st.sampled_from(["part"] * 6 + ["remove", "double"]))
    if change == "part":
        inner = draw(changed_json(value[key]))
        return (
            {**value, key: inner}
            if isinstance(value, dict)
            else [*value[:key], inner, *value[key + 1 :]]
        )
    if isinstance(value, dict):
        added = (
            {draw(st.sampled_from(["", "x", "format"])): value[key]}
            if change == "double"
            else {}
        )
        return {
            name: part for name, part in value.items() if name != key or added
        } | added
    return (
        value[:key] + [value[key]] * (2 if change == "double" else 0) + value[key + 1 :]
    )
