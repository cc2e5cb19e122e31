"""State hashes and history-hash chains, from which the keys of step groups are built.

A *state hash* is xxh3_64 of the state text's UTF-8 bytes. A *history hash* of depth k identifies the state and the
k states before it. Both have 64 bits and are stored as the int64 with the same bits.

The chain is defined by integer arithmetic, so its values do not depend on platform or version:

    mix(x)        the splitmix64 finaliser (Steele, Lea and Flood 2014, "Fast splittable pseudorandom generators")
    link(a, b)    mix(a + G) ⊕ b,  G = 0x9E3779B97F4A7C15, all modulo 2⁶⁴
    h_0(t)        link(0, s_t)
    h_k(t)        link(h_{k-1}(t-1), s_t)                       states only
    c_0(t)        link(0, s_t)
    c_k(t)        link(link(c_{k-1}(t-1), a_{t-1}), s_t)        states and the actions between them

`link` is a bijection in each argument and is not symmetric: the order of states matters, and equal neighbours do not
cancel. Keys are compared within one task, where 64 bits make a collision negligible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

DEFAULT_DEPTH: Final = 8
"""The default maximum depth k of stored history hashes."""

UNDEFINED: Final = -(2**63)
"""The value in observations where a history hash does not exist (k > t). Step tables contain null there."""

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_30: Final = np.uint64(30)
_27: Final = np.uint64(27)
_31: Final = np.uint64(31)
_MASK: Final = (1 << 64) - 1
_PACKED: Final = np.dtype("<i8")  # of `Chain`'s integers as arrays
_PACKED_STRIDES: Final = (16,)


def text_hash(text: str) -> int:
    """Return the xxh3_64 hash (seed 0) of a text's UTF-8 bytes as an int64.

    A lone surrogate, which UTF-8 cannot encode, is hashed as its three-byte "surrogatepass" form.

    >>> text_hash("") == 0x2D06800538D394C2  # xxHash's own test vector
    True
    """
    bits = xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def text_hashes(texts: Iterable[str]) -> NDArray[np.int64]:
    """Return the hashes of many texts, an int64 array of shape (number of texts,)."""
    return np.array([text_hash(text) for text in texts], dtype=np.int64)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the splitmix64 finaliser of each element (see the module)."""
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    return x ^ (x >> _31)


def link(chain: NDArray[np.int64], item: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return mix(chain + G) ⊕ item, element by element.

    Args:
        chain: int64 array of any shape.
        item: int64 array of a shape that broadcasts with `chain`.

    >>> first, second = link(np.array([1, 2]), np.array([2, 1])).tolist()
    >>> first == second
    False
    """
    with np.errstate(over="ignore"):
        mixed = mix(np.atleast_1d(chain).astype(np.int64).view(np.uint64) + _GOLDEN)
    return mixed.view(np.int64) ^ item


def start(
    state_hash: NDArray[np.int64], depth: int = DEFAULT_DEPTH
) -> NDArray[np.int64]:
    """Return the history hashes of first steps.

    Args:
        state_hash: int64 array of shape (n,).
        depth: K, the depth of the last column.

    Returns:
        int64 array of shape (n, depth + 1): column 0 is defined, the others are `UNDEFINED`.
    """
    hashes = np.full((len(state_hash), depth + 1), UNDEFINED, dtype=np.int64)
    hashes[:, 0] = link(np.zeros(1, np.int64), state_hash)
    return hashes


def advance(
    hashes: NDArray[np.int64], state_hash: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the history hashes of the next steps.

    Args:
        hashes: int64 array of shape (n, depth + 1), the previous steps' values, `UNDEFINED` where k > t.
        state_hash: int64 array of shape (n,), the hashes of the states reached.

    Returns:
        int64 array of shape (n, depth + 1).
    """
    before = hashes[:, :-1]
    following = np.empty_like(hashes)
    following[:, 0] = link(np.zeros(1, np.int64), state_hash)
    following[:, 1:] = np.where(
        before == UNDEFINED, UNDEFINED, link(before, state_hash[:, None])
    )
    return following


class Chain:
    """`start` and `advance` for a single environment, without actions.

    On one row, NumPy's call overhead exceeds the computation. This class packs the values of all depths so far into
    one Python integer, depth k in bits 128k to 128k + 63, so that one operation applies to all of them. The upper half
    of each 128 bits receives the carry of a multiplication and is then cleared.

    Args:
        depth: K. Depths 0..K are computed.

    >>> chain = Chain(depth=2)
    >>> (chain.start(7) == start(np.array([7]), depth=2)[0]).all()
    np.True_
    >>> (chain.advance(8) == advance(start(np.array([7]), depth=2), np.array([8]))[0]).all()
    np.True_
    """

    def __init__(self, depth: int = DEFAULT_DEPTH) -> None:
        self._size = depth + 1
        ones = [
            sum(1 << 128 * k for k in range(count)) for count in range(1, depth + 2)
        ]
        # for each number of depths
        self._constants = [(one, one * int(_GOLDEN), one * _MASK) for one in ones]
        self._values = self._steps = 0

    def start(self, state_hash: int) -> NDArray[np.int64]:
        """Return the history hashes of a first step, an int64 array of shape (depth + 1,)."""
        self._values = self._steps = 0
        return self.advance(state_hash)

    def advance(self, state_hash: int) -> NDArray[np.int64]:
        """Return the history hashes of the next step, an int64 array of shape (depth + 1,)."""
        size = self._size
        steps = self._steps
        ones, golden, low = self._constants[steps if steps < size else -1]
        # depth k is computed from depth k - 1, depth 0 from 0
        before = self._values << 128
        values = self._values = _mix_packed((before + golden) & low, low) ^ ones * (
            state_hash & _MASK
        )
        self._steps += 1
        hashes = np.ndarray(
            size, _PACKED, values.to_bytes(16 * size, "little"), 0, _PACKED_STRIDES
        ).copy()
        if self._steps < size:
            hashes[self._steps :] = UNDEFINED
        return hashes


def _mix_packed(x: int, low: int) -> int:
    """Return `mix` of each 64-bit value of a packed integer; `low` has the bits of the values."""
    x = ((x ^ x >> 30) & low) * 0xBF58476D1CE4E5B9 & low
    x = ((x ^ x >> 27) & low) * 0x94D049BB133111EB & low
    return (x ^ x >> 31) & low


def chain_columns(
    state_hash: NDArray[np.int64],
    first: NDArray[np.bool_],
    depth: int = DEFAULT_DEPTH,
    action_hash: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the history hashes of a table whose rows are sorted by trajectory and step.

    Args:
        state_hash: int64 array of shape (rows,).
        first: bool array of shape (rows,), True at the first step of each trajectory.
        depth: K, the depth of the last column.
        action_hash: int64 array of shape (rows,), each row's own action. None chains states only.

    Returns:
        The values, an int64 array of shape (depth + 1, rows), and a bool array of the same shape that is True where
        they are defined.

    >>> values, defined = chain_columns(np.array([7, 7, 7]), np.array([True, False, True]), depth=1)
    >>> defined.tolist()
    [[True, True, True], [False, True, False]]
    >>> bool(values[0, 0] == values[0, 1] == values[0, 2])
    True
    """
    rows = len(state_hash)
    values = np.empty((depth + 1, rows), dtype=np.int64)
    defined = np.zeros((depth + 1, rows), dtype=np.bool_)
    values[0] = link(np.zeros(1, np.int64), state_hash) if rows else 0
    defined[0] = True
    for k in range(1, depth + 1):
        before = np.roll(values[k - 1], 1)
        inner = before if action_hash is None else link(before, np.roll(action_hash, 1))
        values[k] = link(inner, state_hash) if rows else 0
        defined[k] = np.roll(defined[k - 1], 1) & ~first
    return values, defined
