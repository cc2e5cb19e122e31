"""Random numbers as hashes of what they belong to: they do not depend on which others are drawn beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hgpo_envs.hashing import link, mix

if TYPE_CHECKING:
    from hgpo_research.arrays import Floats, Hashes, Integers


def subkey(key: Integers, *items: Integers | int) -> Integers:
    """Return the key of some items below a key, each below the one before, element by element.

    Args:
        key: int64 of any shape.
        items: Integers, or int64 arrays of shapes that broadcast with the key's.
    """
    with np.errstate(over="ignore"):
        # `link` alone would leave differences of small integers in few bits.
        for item in items:
            key = mix(link(key, np.asarray(item, np.int64)).view(np.uint64)).view(
                np.int64
            )
    return key


def uniform(keys: Integers) -> Floats:
    """Return the uniform numbers in [0, 1) of keys."""
    return unit(keys.view(np.uint64))


def unit(hashes: Hashes) -> Floats:
    """Return hashes as numbers in [0, 1): their first 53 bits, which a float64 can hold."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
