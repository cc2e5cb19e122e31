"""The nodes of G2PO's graph in ALFWorld, where an observation alone does not say which state it is.

"Nothing happens." is seen in any state, and after "You heat …" nothing shows what was heated. So G2PO's environment
names a step's node by the last observation at which something happened, with the actions that were admissible there;
if the one before it began with one of `HIDING`, by both. Two steps are at one node if these are equal:

    first step of an episode                     its observation
    later, nothing has happened yet              the first prompt, which is a node of its own
    the last thing that happened was o           o and its admissible actions but for `help`
    … and the one before it hides something      both of these

Source: `AlfWorldEnvironmentManager` of env_manager.py in the repository of G2PO (arXiv 2606.22995).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_envs.hashing import link
from hgpo_train.advantages.steps import hashed

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTHING: Final = "Nothing happens"
HIDING: Final = ("You heat", "You cool", "You clean", "You turn on")
"""Observations after which what was done cannot be seen."""


def alfworld_nodes(state: pl.Series, admissible: pl.Series, first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The hash of each step's node.

    Args:
        state: Observations; strings of shape (rows,), trajectory after trajectory, each by step.
        admissible: The actions that were admissible; lists of strings of shape (rows,).
        first: Where a trajectory begins; bool of shape (rows,).

    Returns:
        int64 of shape (rows,).

    >>> state = pl.Series(["a room", "Nothing happens.", "a desk", "Nothing happens.", "a shelf"])
    >>> nodes = alfworld_nodes(state, pl.Series([["go"]] * 5), np.array([True, False, False, False, False]))
    >>> bool(nodes[2] == nodes[3]), len(set(nodes.tolist()))
    (True, 4)
    """
    rows = np.arange(len(state))
    happened = ~state.str.starts_with(NOTHING).to_numpy() | first
    latest = np.maximum.accumulate(np.where(happened, rows, 0))
    before = latest[np.maximum(latest - 1, 0)]  # what happened before that; of no meaning at a trajectory's beginning
    hiding = pl.any_horizontal(pl.col("state").str.starts_with(opening) for opening in HIDING)
    hides = state.to_frame("state").select(hiding).to_series().to_numpy() & ~first

    shown = admissible.list.filter(pl.element() != "help").list.join("\n")
    texts = pl.select(pl.format("{}\n\n{}", state, shown)).to_series()
    alone, plain = hashed(texts), hashed(state)
    own = np.where(hides[before], link(alone[before], alone[latest]), alone[latest])
    begun = first[latest]
    return np.where(begun, np.where(first, plain, link(plain[latest], plain[latest])), own)
