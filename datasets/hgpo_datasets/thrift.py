"""The compact Thrift encoding of Parquet's page headers and footer, as far as it is needed to rewrite them.

A structure is decoded to a mapping from field number to `Field`, nothing is interpreted, and what is not touched is
encoded back to the same bytes. Source: Apache Thrift, "Thrift Compact protocol encoding" (thrift-compact-protocol.md).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

_INTEGERS: Final = frozenset({I16, I32, I64})


@dataclass(slots=True)
class Field:
    """One field: its compact type and its value (int, bytes, float, `Items`, or a structure)."""

    type: int
    value: Any


@dataclass(slots=True)
class Items:
    """A list: the compact type of its elements, and the elements."""

    type: int
    values: list[Any]


Structure = dict[int, Field]


def decode(data: memoryview, position: int) -> tuple[Structure, int]:
    """Decodes the structure that begins at `position`.

    Returns:
        The structure, and the position after it.

    Raises:
        ValueError: What is there is not a structure (also: it runs past the end).
    """
    try:
        return _read_struct(data, position)
    except (IndexError, struct.error, RecursionError) as error:
        raise ValueError(f"no Thrift structure at byte {position}: {error}") from error


def encode(structure: Structure) -> bytes:
    """Encodes a structure; the inverse of `decode`.

    >>> encode({1: Field(I32, -3), 4: Field(BINARY, b"ab")}).hex()
    '15053802616200'
    """
    out = bytearray()
    _write_struct(out, structure)
    return bytes(out)


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError(f"a variable-length integer before byte {position} does not end")


def _read_integer(data: memoryview, position: int) -> tuple[int, int]:
    value, position = _read_varint(data, position)
    return (value >> 1) ^ -(value & 1), position


def _read_struct(data: memoryview, position: int) -> tuple[Structure, int]:
    fields: Structure = {}
    number = 0
    while True:
        head = data[position]
        position += 1
        if head == 0:
            return fields, position
        kind = head & 0x0F
        if head >> 4:
            number += head >> 4
        else:
            number, position = _read_integer(data, position)
        if kind in {TRUE, FALSE}:
            value: Any = None
        else:
            value, position = _read_value(data, position, kind)
        fields[number] = Field(kind, value)


def _read_value(data: memoryview, position: int, kind: int) -> tuple[Any, int]:
    if kind in _INTEGERS:
        return _read_integer(data, position)
    if kind == BINARY:
        length, position = _read_varint(data, position)
        if position + length > len(data):
            raise ValueError(f"{length} bytes of text at byte {position} run past the end")
        return bytes(data[position : position + length]), position + length
    if kind == STRUCT:
        return _read_struct(data, position)
    if kind in {LIST, SET}:
        return _read_list(data, position)
    if kind == DOUBLE:
        return struct.unpack_from("<d", data, position)[0], position + 8
    if kind in {TRUE, FALSE, BYTE}:  # as a list's element a truth value takes one byte
        return data[position], position + 1
    raise ValueError(f"field type {kind} at byte {position} is not one that Parquet uses")


def _read_list(data: memoryview, position: int) -> tuple[Items, int]:
    head = data[position]
    position += 1
    size = head >> 4
    if size == 15:
        size, position = _read_varint(data, position)
    if size > len(data) - position:
        raise ValueError(f"a list of {size} at byte {position} runs past the end")
    values = []
    for _ in range(size):
        value, position = _read_value(data, position, head & 0x0F)
        values.append(value)
    return Items(head & 0x0F, values), position


def _write_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _write_integer(out: bytearray, value: int) -> None:
    _write_varint(out, (value << 1) ^ (value >> 63))


def _write_struct(out: bytearray, structure: Structure) -> None:
    previous = 0
    for number in sorted(structure):
        field = structure[number]
        if 0 < number - previous <= 15:
            out.append((number - previous) << 4 | field.type)
        else:
            out.append(field.type)
            _write_integer(out, number)
        previous = number
        if field.type not in {TRUE, FALSE}:
            _write_value(out, field.type, field.value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:  # noqa: ANN401 (one of five shapes, by kind)
    if kind in _INTEGERS:
        _write_integer(out, value)
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind in {LIST, SET}:
        if len(value.values) < 15:
            out.append(len(value.values) << 4 | value.type)
        else:
            out.append(0xF0 | value.type)
            _write_varint(out, len(value.values))
        for item in value.values:
            _write_value(out, value.type, item)
    elif kind == DOUBLE:
        out += struct.pack("<d", value)
    else:
        out.append(value)
