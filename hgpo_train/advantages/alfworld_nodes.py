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

from typing import Final

import polars as pl

from hgpo_train.advantages.windows import along, chain

NOTHING: Final = "Nothing happens"
HIDING: Final = ("You heat", "You cool", "You clean", "You turn on")
"""Observations after which what was done cannot be seen."""


def with_alfworld_nodes(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Adds `alfworld_node`, the hash of each step's node; null where a text is missing.

    Args:
        steps: A table with keys, `step`, `state` and `admissible_actions` (a list of strings).

    >>> steps = pl.LazyFrame({"trajectory_key": 0, "step": [0, 1, 2, 3], "admissible_actions": [["go"]] * 4,
    ...                       "state": ["a room", "Nothing happens.", "a desk", "Nothing happens."]})
    >>> nodes = with_alfworld_nodes(steps).collect()["alfworld_node"]
    >>> nodes[2] == nodes[3], nodes.n_unique()
    (True, 3)
    """
    state, first = pl.col("state"), pl.col("step") == pl.col("step").min().over("trajectory_key")
    happened = ~state.str.starts_with(NOTHING) | first
    shown = pl.col("admissible_actions").list.filter(pl.element() != "help").list.join("\n")
    seen = pl.format("{}\n\n{}", state, shown).hash().reinterpret(signed=True)
    plain = state.hash().reinterpret(signed=True)
    hides = pl.any_horizontal(state.str.starts_with(opening) for opening in HIDING) & ~first
    steps = steps.with_columns(
        pl.when(happened).then(seen).alias("(seen)"),
        pl.when(happened).then(hides).alias("(hides)"),
        pl.when(first).then(plain).alias("(begun)"),
        first.alias("(first)"),
    )
    # What happened last before this step, if anything did after the first observation.
    steps = steps.with_columns(
        along(pl.col("(seen)").forward_fill().shift(1)).alias("(before)"),
        along(pl.col("(hides)").forward_fill().shift(1)).alias("(hidden)"),
    )
    node = pl.when("(hidden)").then(chain(pl.col("(before)"), pl.col("(seen)"))).otherwise("(seen)")
    waiting = chain(pl.col("(begun)"), pl.col("(begun)"))
    steps = steps.with_columns(pl.when("(first)").then(waiting).otherwise(node).alias("(node)"))
    reached = along(pl.col("(node)").forward_fill())
    known = state.is_not_null() & pl.col("admissible_actions").is_not_null()
    return steps.with_columns(
        pl.when(known).then(pl.when("(first)").then("(begun)").otherwise(reached)).alias("alfworld_node")
    )
