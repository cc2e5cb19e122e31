"""Forged footers of Parquet files: the part of Thrift's compact encoding that Parquet uses.

A structure is a dictionary from field number to [type, value]; a list is (type of its elements, elements).
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any

Structure = dict[int, list[Any]]
INT32, INT64, DOUBLE, BINARY, LIST, STRUCT = 5, 6, 7, 8, 9, 12


def with_footer(data: bytes, change: Callable[[Structure], object]) -> bytes:
    """Return the file with a changed footer."""
    length = int.from_bytes(data[-8:-4], "little")
    footer = decode(iter(data[len(data) - 8 - length : -8]))
    change(footer)
    return data[: len(data) - 8 - length] + closed(footer)


def closed(footer: Structure) -> bytes:
    """Return the end of a file: footer, length, magic number."""
    encoded = encode(footer)
    return encoded + len(encoded).to_bytes(4, "little") + b"PAR1"


def decode(data: Iterator[int]) -> Structure:
    fields: Structure = {}
    number = 0
    while head := next(data):
        number = number + (head >> 4) if head >> 4 else zigzag(data)
        fields[number] = [head & 15, value(data, head & 15) if head & 15 > 2 else None]
    return fields


def value(data: Iterator[int], kind: int) -> Any:
    if kind in (4, INT32, INT64):
        return zigzag(data)
    if kind == BINARY:
        return bytes(next(data) for _ in range(varint(data)))
    if kind == STRUCT:
        return decode(data)
    if kind == LIST:
        head = next(data)
        size = varint(data) if head >> 4 == 15 else head >> 4
        return head & 15, [value(data, head & 15) for _ in range(size)]
    if kind == DOUBLE:
        return bytes(next(data) for _ in range(8))
    assert kind <= 3, kind
    return next(data)


def varint(data: Iterator[int]) -> int:
    found = shift = 0
    while True:
        byte = next(data)
        found |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return found


def zigzag(data: Iterator[int]) -> int:
    number = varint(data)
    return (number >> 1) ^ -(number & 1)


def encode(fields: Structure) -> bytes:
    out = b""
    for number, (kind, content) in sorted(fields.items()):
        out += struct.pack("B", kind) + encoded_value(INT32, number)
        if kind > 2:
            out += encoded_value(kind, content)
    return out + b"\0"


def encoded_value(kind: int, content: Any) -> bytes:
    if kind in (4, INT32, INT64):
        return encoded_varint((content << 1) ^ (content >> 63))
    if kind == BINARY:
        return encoded_varint(len(content)) + content
    if kind == STRUCT:
        return encode(content)
    if kind == LIST:
        inner, items = content
        return bytes([0xF0 | inner]) + encoded_varint(len(items)) + b"".join(encoded_value(inner, one) for one in items)
    return content if kind == DOUBLE else bytes([content])


def encoded_varint(number: int) -> bytes:
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
