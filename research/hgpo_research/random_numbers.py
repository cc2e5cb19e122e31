"""Random numbers as hashes of what they belong to: they do not depend on which others are drawn beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hgpo_envs.hashing import link, mix

if TYPE_CHECKING:
    from numpy.typing import NDArray


def subkey(key: NDArray[np.int64], item: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the key of an item below a key, element by element: int64 arrays of shapes that broadcast."""
    with np.errstate(over="ignore"):
        return mix(link(key, item).view(np.uint64)).view(np.int64)


def uniform(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the uniform numbers in [0, 1) of keys."""
    return (keys.view(np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53  # the 53 bits that it can hold
