"""The nodes of G2PO's state graph in ALFWorld, where an observation does not identify the state.

"Nothing happens." can follow in any state, and the observation after "You heat …" does not show which object was
heated. G2PO's environment therefore identifies a step's node by the last effective observation: the last one that is
not "Nothing happens.", with the actions that were admissible there. If the previous effective observation starts with
one of `HIDING`, the node also includes that one. Two steps have the same node if these are equal:

    first step of an episode                                 its observation
    no effective observation after the first                 the first observation, as a separate node
    last effective observation o                             o and its admissible actions except `help`
    … and the previous one starts with one of `HIDING`       both observations with their actions

Source: `AlfWorldEnvironmentManager` of env_manager.py in the repository of G2PO (arXiv 2606.22995).
"""

from __future__ import annotations

from typing import Final

import polars as pl

from hgpo_train.advantages.windows import chain

ALFWORLD_NODES: Final = "alfworld-nodes"
"""The name of these nodes as a state key, `Parameters.state_key`."""

NOTHING: Final = "Nothing happens"
HIDING: Final = ("You heat", "You cool", "You clean", "You turn on")
"""Starts of observations whose effect later observations do not show."""


def with_alfworld_nodes(
    steps: pl.LazyFrame, into: str = "alfworld_node"
) -> pl.LazyFrame:
    """Add the int64 hash of each step's node; null if `state` or `admissible_actions` is null.

    Args:
        steps: A table with `trajectory_key`, `first`, `state` and `admissible_actions` (a list of strings).
        into: The name of the new column.

    >>> steps = pl.LazyFrame({"trajectory_key": 0, "first": [True, False, False, False],
    ...                       "state": ["a room", "Nothing happens.", "a desk", "Nothing happens."],
    ...                       "admissible_actions": [["go"]] * 4})
    >>> nodes = with_alfworld_nodes(steps).collect()["alfworld_node"]
    >>> nodes[2] == nodes[3], nodes.n_unique()
    (True, 3)
    """
    state = pl.col("state")
    first = pl.col("first")
    effective = ~state.str.starts_with(NOTHING) | first
    shown = (
        pl.col("admissible_actions").list.filter(pl.element() != "help").list.join("\n")
    )
    seen = pl.format("{}\n\n{}", state, shown).hash().reinterpret(signed=True)
    start = state.hash().reinterpret(signed=True)
    hides = (
        pl.any_horizontal(state.str.starts_with(opening) for opening in HIDING) & ~first
    )
    steps = steps.with_columns(
        pl.when(effective).then(seen).alias("(seen)"),
        pl.when(effective).then(hides).alias("(hides)"),
    )

    # What the last effective observation before a step was, and whether it hides its effect.
    steps = steps.with_columns(
        pl.col("(seen)")
        .forward_fill()
        .shift(1)
        .over("trajectory_key")
        .alias("(before)"),
        pl.col("(hides)")
        .forward_fill()
        .shift(1)
        .over("trajectory_key")
        .alias("(hidden)"),
    )
    both = chain(pl.col("(before)"), pl.col("(seen)"))
    node = pl.when("(hidden)").then(both).otherwise("(seen)")

    # The first observation, hashed twice, is the node of the next steps while nothing happens.
    node = pl.when(first).then(chain(start, start)).otherwise(node)
    node = node.forward_fill().over("trajectory_key")
    node = pl.when(first).then(start).otherwise(node)
    known = state.is_not_null() & pl.col("admissible_actions").is_not_null()
    return steps.with_columns(pl.when(known).then(node).alias(into))
