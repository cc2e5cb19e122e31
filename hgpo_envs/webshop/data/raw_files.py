"""A streaming reader of the official raw files `items_shuffle.json`, `items_ins_v2.json` and `items_human_ins.json`.

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
from typing import TYPE_CHECKING, Any, Final, Literal

from hgpo_envs.errors import InputError
from hgpo_envs.files.untrusted_files import open_unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Progress = Callable[[int, int], object]

PIECE: Final = 1 << 22
"""The number of characters read at a time."""

LONGEST: Final = 1 << 24
"""The maximum length of a record in characters. A longer record must be damaged."""

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_DECODER: Final = json.JSONDecoder()


class _Stream:
    """A decoder of successive JSON values from a file that is larger than memory."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self.path = path
        self.progress = progress
        self.text = ""
        self.at = 0
        self.passed = 0  # characters of the file before `text`
        self.element = "before the first record"
        self.source = open_unpacked(path, "file of WebShop's official data")
        self.characters = io.TextIOWrapper(self.source, "utf-8", newline="")
        self.close = self.characters.close

    def fault(self, reason: str, at: int) -> InputError:
        return InputError(
            f"{self.path}: {reason} at character {self.passed + at:,} ({self.element}); "
            "the file is damaged or truncated: fetch it again"
        )

    def more(self) -> bool:
        """Read another piece. Returns False at the end of the file."""
        try:
            piece = self.characters.read(PIECE)
        except UnicodeDecodeError as error:
            raise self.fault(f"not UTF-8 ({error.reason})", len(self.text)) from None
        except (EOFError, zlib.error, OSError) as error:
            raise InputError(
                f"{self.path}: cannot be read to its end ({error}; {self.element})"
            ) from None
        file = self.source.fileno()
        self.progress(os.lseek(file, 0, os.SEEK_CUR), os.fstat(file).st_size)
        # What is decoded is dropped, so that the text never grows beyond a record and a piece.
        self.passed += self.at
        self.text = self.text[self.at :] + piece
        self.at = 0
        return bool(piece)

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

    def take(self, allowed: str) -> str:
        """Consume and return the next character, which must be allowed."""
        character = self.peek()
        if not character or character not in allowed:
            shown = f"{character!r}" if character else "the end of the file"
            raise self.fault(
                f"expected {' or '.join(map(repr, allowed))}, received {shown}", self.at
            )
        self.at += 1
        return character

    def value(self, expected: type = object) -> Any:  # noqa: ANN401 - JSON
        """Decode the next value, which must have the expected type."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                # an incomplete value fails at the end of the text read so far, or in a string that the end splits
                unfinished = (
                    error.msg.startswith(("Unterminated", "Invalid \\u"))
                    or error.pos >= len(self.text) - 16
                )
                if unfinished and len(self.text) - self.at < LONGEST and self.more():
                    continue
                raise self.fault(error.msg, error.pos) from None
            except (RecursionError, ValueError) as error:
                # nested too deeply, or an integer with too many digits
                raise self.fault(str(error).split(";")[0], self.at) from None
            # a number or literal at the end of a piece may continue in the next
            if end < len(self.text) or not self.more():
                break
        if not isinstance(value, expected):
            raise self.fault(
                f"expected {expected.__name__}, received {type(value).__name__}",
                self.at,
            )
        self.at = end
        return value


def elements(
    path: Path,
    opening: Literal["[", "{"],
    progress: Progress = lambda *_: None,
    *,
    most: int | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Yield the objects of a JSON array with their positions from 0, or the values of a JSON object with their names.

    Args:
        path: The file, gzipped or not.
        opening: `[` for an array, `{` for an object.
        progress: Called after each read with the number of bytes read from the file, and its size.
        most: The maximum length of the file in characters, for callers that store all values. None sets no limit.

    Raises:
        InputError: If the file is missing, not UTF-8, not of this form, truncated or too long. The message states the
            position and the element.
    """
    end = {"[": "]", "{": "}"}[opening]
    with closing(_Stream(path, progress)) as stream:
        stream.take(opening)
        number = 0
        separator = "," if stream.peek() != end else stream.take(end)
        while separator == ",":
            stream.element = f"record {number:,}"
            if opening == "[":
                yield number, stream.value(dict)
            else:
                name = stream.value(str)
                stream.element = f"entry {number:,}, {name!r}"
                stream.take(":")
                yield name, stream.value()
            if most is not None and stream.passed + stream.at > most:
                raise InputError(
                    f"{path}: expected a file of at most {most:,} characters, received a longer one"
                )
            number += 1
            separator = stream.take(f",{end}")
        stream.element = f"after {number:,} records"
        if stream.peek():
            raise stream.fault("expected the end of the file, received more", stream.at)
