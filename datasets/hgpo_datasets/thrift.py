"""Decode Parquet footers and page headers (Thrift's compact protocol) from untrusted files.

pyarrow's footer reader cannot be used for this: an exception in a forged column chunk ends the process. A decoded
structure is a mapping from field number to value. Source: Apache Thrift, "Thrift Compact protocol encoding".
"""

from __future__ import annotations

from typing import Any, Final

Structure = dict[int, Any]

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_MOST_NESTED: Final = 32  # parquet.thrift nests six structures


def decode(data: bytes, position: int) -> tuple[Structure, int]:
    """Decode the structure that begins at `position`.

    Returns:
        The structure, and the position after it.

    Raises:
        ValueError: The bytes are not a structure, or the structure extends past the end of the data.

    >>> decode(bytes.fromhex("15053802616200"), 0)
    ({1: -3, 4: b'ab'}, 7)
    """
    reader = _Reader(data, position)
    try:
        return reader.structure(_MOST_NESTED), reader.position
    except IndexError as error:
        raise ValueError(f"no Thrift structure at byte {position}: it does not end") from error


class _Reader:
    def __init__(self, data: bytes, position: int) -> None:
        self.data, self.position = data, position

    def structure(self, deeper: int) -> Structure:
        fields: Structure = {}
        number = 0
        while head := self.byte():
            kind = head & 0x0F
            number = number + (head >> 4) if head >> 4 else self.integer()
            fields[number] = kind == _TRUE if kind in {_TRUE, _FALSE} else self.value(kind, deeper)
        return fields

    def value(self, kind: int, deeper: int) -> Any:  # noqa: ANN401 (one of five kinds)
        if kind in {_I16, _I32, _I64}:
            return self.integer()
        if kind == _BINARY:
            return self.bytes(self.varint())
        if kind == _STRUCT and deeper:
            return self.structure(deeper - 1)
        if kind in {_LIST, _SET} and deeper:
            head = self.byte()
            size = self.varint() if head >> 4 == 15 else head >> 4
            if size > len(self.data) - self.position:
                raise ValueError(f"a list of {size} at byte {self.position} runs past the end")
            return [self.value(head & 0x0F, deeper - 1) for _ in range(size)]
        if kind == _DOUBLE:
            return self.bytes(8)
        if kind in {_TRUE, _FALSE, _BYTE}:  # in a list, a boolean takes one byte
            return self.byte()
        raise ValueError(f"field type {kind} at byte {self.position} is not one that Parquet uses")

    def byte(self) -> int:
        byte = self.data[self.position]
        self.position += 1
        return byte

    def bytes(self, length: int) -> bytes:
        begin, self.position = self.position, self.position + length
        if self.position > len(self.data):
            raise ValueError(f"{length} bytes at byte {begin} run past the end")
        return self.data[begin : self.position]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError(f"a variable-length integer before byte {self.position} does not end")

    def integer(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)
