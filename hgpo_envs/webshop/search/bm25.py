"""BM25 as in Lucene 8: k1 = 0.9, b = 0.4, lengths in one byte, float32 arithmetic.

Source: Lucene's BM25Similarity and SmallFloat. k1 and b are the defaults of Anserini, which the original uses.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

K1: Final = np.float32(0.9)
B: Final = np.float32(0.4)

_EXACT: Final = 24  # smaller lengths are stored unchanged


def length_byte(length: int) -> int:
    """Encode a length in one byte: exact below 40, then with three bits after the leading one.

    >>> [length_byte(n) for n in (0, 23, 39, 40, 41, 42, 1000, 2**31 - 1)]
    [0, 23, 39, 40, 40, 41, 87, 255]
    """
    rest = length - _EXACT
    if rest < 0:
        return length
    shift = max(rest.bit_length() - 4, -1)
    return _EXACT + (rest if shift < 0 else (shift + 1) << 3 | (rest >> shift & 7))


def byte_length(byte: int) -> int:
    """Return the smallest length that is encoded by a byte.

    >>> all(length_byte(byte_length(byte)) == byte for byte in range(256))
    True
    """
    rest = byte - _EXACT
    if rest < 8:
        return byte
    return _EXACT + ((rest & 7 | 8) << (rest >> 3) - 1)


_LENGTHS: Final = np.array([byte_length(byte) for byte in range(256)], np.float32)


def saturation(
    frequencies: NDArray[np.int32],
    lengths: NDArray[np.uint8],
    documents: int,
    tokens: int,
) -> NDArray[np.float32]:
    """Return frequencies divided by their norms. A posting scores `weight - weight / (1 + saturation)`.

    Args:
        frequencies: int32 array of shape (n,).
        lengths: uint8 array of shape (n,), the documents' lengths in Lucene's one-byte encoding.
        documents: The number of documents with at least one term.
        tokens: The number of terms in these documents, with repetitions.

    Returns:
        float32 array of shape (n,).
    """
    average = np.float32(tokens / max(documents, 1)) or np.float32(1)
    one = np.float32(1)
    inverse = one / (K1 * ((one - B) + B * _LENGTHS / average))
    result: NDArray[np.float32] = frequencies.astype(np.float32) * inverse[lengths]
    return result


def weight(documents: int, holding: int, boost: int = 1) -> np.float32:
    """Return a term's weight: its inverse document frequency times its frequency in the query.

    Args:
        documents: The number of documents with at least one term.
        holding: The number of documents with this term.
        boost: The term's frequency in the query.
    """
    return np.float32(boost) * np.float32(
        math.log(1 + (documents - holding + 0.5) / (holding + 0.5))
    )


def scores(weight: np.float32, saturation: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the scores of postings, a float32 array that increases with their saturation."""
    result: NDArray[np.float32] = weight - weight / (np.float32(1) + saturation)
    return result
