"""JSON of other programs, read within limits: lines, one value a file, and fields whose types are checked."""

from __future__ import annotations

import contextlib
import json
import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import open_regular, read_bytes
from hgpo_envs.responses import is_deep
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from pathlib import Path

MOST_BYTES: Final = 256 << 20
"""Size limit of a JSON value in bytes."""


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a JSONL file, each with its place for errors.

    Raises:
        InputError: A line is too long, no JSON object, or nested too deeply.
    """
    with open_regular(path, "JSONL file") as file:
        lines = iter(partial(file.readline, MOST_BYTES + 1), b"")
        for number, line in enumerate(lines, 1):
            where = f"{path}, line {number}"
            if len(line) > MOST_BYTES:
                raise InputError(
                    f"{where}: expected at most {MOST_BYTES:,} bytes, received a longer line"
                )
            if line.strip():
                yield where, parse_object(line, where)


def json_file(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file."""
    return parse_object(read_bytes(path, MOST_BYTES, "JSON file"), str(path))


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """Return a JSON object. It may have NaN and infinities, which Python's own writer leaves."""
    try:
        value = _parsed(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: expected JSON ({one_line(error, 200)})") from None
    if not isinstance(value, dict):
        raise InputError(
            f"{where}: expected a JSON object, received {type(value).__name__}"
        )
    if is_deep(value):
        raise InputError(f"{where}: expected JSON that is nested in at most 100 levels")
    return value


def _parsed(data: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # What is beyond JSON, but written by json.dump: NaN, and lone surrogates.
        value = json.loads(data.decode("utf-8-sig"))
        written = clean_text(json.dumps(value, ensure_ascii=False))
        return json.loads(written, parse_int=_integer)


def _integer(written: str) -> int | float:
    """Return an integer as orjson does: one of more than 64 bits is a float."""
    value = int(written)
    return value if -(1 << 63) <= value < 1 << 64 else float(written)


def objects(value: object, where: str) -> list[dict[str, Any]]:
    """Return a list of JSON objects; an absent one is empty."""
    entries = [] if value is None else value
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) for entry in entries
    ):
        raise InputError(
            f"{where}: expected a list of JSON objects, received {one_line(repr(value), 60)}"
        )
    return entries


def number(value: object) -> float | None:
    """Return a finite number, or None if the value is none. Booleans are 0 and 1."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def integer(value: object) -> int | None:
    """Return an integer, also one of at most nine digits that is a float or a text; None for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,9}", value):
        return int(value)
    is_integer = isinstance(value, float) and abs(value) < 1e9 and value.is_integer()
    return int(value) if isinstance(value, float) and is_integer else None


def reward_of(value: object, where: str) -> float | None:
    """Return a reward, which may be the text of a number; None if it is null.

    Raises:
        InputError: It is something else. No rollout is left out because its reward was not understood.
    """
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    reward = number(value)
    if reward is None and value is not None:
        raise InputError(
            f"{where}: expected a number as reward, received {one_line(repr(value), 60)}"
        )
    return reward


def without(record: dict[str, Any], names: Container[str]) -> dict[str, Any]:
    """Return the fields of an object but those with names."""
    return {name: value for name, value in record.items() if name not in names}


def numbers(record: dict[str, Any]) -> dict[str, float]:
    """Return the fields of an object that are numbers."""
    found = {name: number(value) for name, value in record.items()}
    return {name: value for name, value in found.items() if value is not None}


def fields(value: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return an object, and an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def text(value: object) -> str | None:
    """Return a text as it is, another value as JSON, and None for null."""
    return value if isinstance(value, str | None) else orjson.dumps(value).decode()
