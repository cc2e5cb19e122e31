"""Streaming readers of the official raw files `items_shuffle.json`, `items_ins_v2.json` and `items_human_ins.json`.

The item file is one JSON array of up to 5 GB. It is decoded piece by piece with the standard library's decoder, which
the original also uses, so that the same JSON extensions are accepted (NaN, lone surrogates). Files may be gzipped.
"""

from __future__ import annotations

import io
import json
import os
import re
import zlib
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError
from hgpo_envs.files.untrusted_files import open_unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PIECE: Final = 1 << 22
"""The number of characters read at a time."""

LONGEST: Final = 1 << 24
"""The maximum length of a record in characters. A longer record must be damaged."""

_SPACE: Final = re.compile(r"[ \t\r\n]*")


class _Stream:
    """A decoder of successive JSON values from a file that is larger than memory."""

    def __init__(self, path: Path, advance: Callable[[int], None] | None) -> None:
        self.path = path
        self.text = ""
        self.at = 0
        self.passed = 0  # characters of the file before `text`
        self.ended = False
        self.advance = advance
        self.record = "before the first record"
        self.source = open_unpacked(path, "file of WebShop's official data")
        self.characters = io.TextIOWrapper(self.source, "utf-8", newline="")

    def fault(self, what: str, at: int) -> InputError:
        return InputError(
            f"{self.path}: {what} at character {self.passed + at:,} ({self.record}); "
            "the file is damaged or truncated: fetch it again"
        )

    def more(self) -> bool:
        """Read another piece. Returns False at the end of the file."""
        if self.ended:
            return False
        before = os.lseek(self.source.fileno(), 0, os.SEEK_CUR)
        try:
            piece = self.characters.read(PIECE)
        except UnicodeDecodeError as error:
            raise self.fault(f"not UTF-8 ({error.reason})", len(self.text)) from None
        except (EOFError, zlib.error, OSError) as error:
            raise InputError(
                f"{self.path}: cannot be read to its end ({error}; {self.record}); fetch it again"
            ) from None
        if self.advance:
            self.advance(os.lseek(self.source.fileno(), 0, os.SEEK_CUR) - before)
        self.ended = not piece
        self.passed += self.at
        self.text, self.at = self.text[self.at :] + piece, 0
        return not self.ended

    def peek(self) -> str:
        """Return the next character that is not white space, or '' at the end."""
        while True:
            match = _SPACE.match(self.text, self.at)
            assert match
            self.at = match.end()
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def take(self, wanted: str) -> str:
        """Consume and return the next character, which must be in `wanted`."""
        character = self.peek()
        if not character or character not in wanted:
            shown = f"{character!r}" if character else "the end of the file"
            raise self.fault(f"expected {' or '.join(repr(c) for c in wanted)}, received {shown}", self.at)
        self.at += 1
        return character

    def value(self) -> Any:  # noqa: ANN401 - JSON
        """Decode the next value."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                # an incomplete value fails at the end of the text read so far, or in a string that the end splits
                unfinished = error.msg.startswith(("Unterminated", "Invalid \\u")) or error.pos >= len(self.text) - 16
                if unfinished and len(self.text) - self.at < LONGEST and self.more():
                    continue
                raise self.fault(error.msg, error.pos) from None
            except (RecursionError, ValueError) as error:  # nested too deeply, or an integer with too many digits
                raise self.fault(str(error).split(";")[0], self.at) from None
            # a number or literal at the end of a piece may continue in the next
            if end < len(self.text) or not self.more():
                self.at = end
                return value

    def close(self) -> None:
        self.characters.close()


_DECODER: Final = json.JSONDecoder()


def records(path: Path, advance: Callable[[int], None] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON array with their positions from 0.

    Args:
        path: The file, gzipped or not.
        advance: Called after each read with the number of bytes read from the file, for a progress bar.

    Raises:
        InputError: If the file is missing, not UTF-8, not a JSON array of objects, or truncated. The message states
            the position and the record.
    """
    with closing(_Stream(path, advance)) as stream:
        for number in _elements(stream, "[", "]", "record"):
            value = stream.value()
            if not isinstance(value, dict):
                raise stream.fault(f"expected an object, received {type(value).__name__}", stream.at)
            yield number, value


def entries(
    path: Path, advance: Callable[[int], None] | None = None, *, most: int | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a JSON object.

    Args:
        path: See `records`.
        advance: See `records`.
        most: The maximum length of the file in characters, for callers that store all values. None sets no limit.

    Raises:
        InputError: As in `records`, or if the file is too long.
    """
    with closing(_Stream(path, advance)) as stream:
        for number in _elements(stream, "{", "}", "entry"):
            name = stream.value()
            if not isinstance(name, str):
                raise stream.fault(f"expected a name, received {type(name).__name__}", stream.at)
            stream.record = f"entry {number:,}, {name!r}"
            stream.take(":")
            yield name, stream.value()
            if most is not None and stream.passed + stream.at > most:
                raise InputError(f"{path}: expected a file of at most {most:,} characters, received a longer one")


def _elements(stream: _Stream, opening: str, end: str, what: str) -> Iterator[int]:
    """Yield the number of each element of an array or object. The caller decodes the element before the next one."""
    stream.take(opening)
    number = 0
    mark = "," if stream.peek() != end else stream.take(end)
    while mark == ",":
        stream.record = f"{what} {number:,}"
        yield number
        number += 1
        mark = stream.take(f",{end}")
    stream.record = f"after {number:,} records"
    if stream.peek():
        raise stream.fault("expected the end of the file, received more", stream.at)
