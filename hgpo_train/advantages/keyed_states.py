"""Step tables whose states are compared by a key instead of their text; for tables that are stored without it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_envs.hashing import text_hashes
from hgpo_envs.state_keys import STATE_KEYS, state_key
from hgpo_train.advantages.alfworld_nodes import with_alfworld_nodes
from hgpo_train.advantages.input_columns import missing, with_keys

if TYPE_CHECKING:
    from collections.abc import Callable

ALFWORLD_NODES: Final = "alfworld-nodes"
"""The nodes of G2PO in ALFWorld (`alfworld_nodes`), which depend on a trajectory's earlier states."""
NAMES: Final = (*STATE_KEYS, ALFWORLD_NODES)


def with_state_key(steps: pl.LazyFrame, name: str) -> pl.LazyFrame:
    """Replace `state_hash` by the hash of each state's key, and drop the stored hashes of contexts and next states.

    Estimators compute contexts from `state_hash` where a table has none.

    Args:
        steps: A table with `state`; for ``alfworld-nodes`` also `admissible_actions`.
        name: ``alfworld-nodes``, or a function of `hgpo_envs.state_keys`.

    Raises:
        InputError: There is no such function, or the table has no such column.

    >>> steps = pl.LazyFrame({"state": ["score 1", "score 2", None]})
    >>> with_state_key(steps, "mask-numbers").collect()["state_hash"].n_unique()
    2
    """
    schema = steps.collect_schema()
    for column in ("state", "admissible_actions") if name == ALFWORLD_NODES else ("state",):
        if column not in schema:
            raise missing(column, schema, f"the state key {name}")
    stored = [column for column in schema if re.fullmatch(r"(history|context)_hash_\d+|next_state(_hash)?", column)]
    kept = [column for column in schema if column not in {*stored, "state_hash"}]
    if name == ALFWORLD_NODES:
        nodes = with_alfworld_nodes(with_keys(steps, schema))
        return nodes.select(*kept, pl.col("alfworld_node").alias("state_hash"))
    return steps.select(*kept, key_hash(state_key(name)).alias("state_hash"))


def key_hash(key: Callable[[str], str]) -> pl.Expr:
    """Return the int64 hash of each state's key, which is computed once per distinct state; null for null."""

    def hashes(states: pl.Series) -> pl.Series:
        distinct = states.drop_nulls().unique()
        keys = pl.Series(text_hashes([key(text) for text in distinct]), dtype=pl.Int64)
        return states.replace_strict(distinct, keys, default=None, return_dtype=pl.Int64)

    return pl.col("state").map_batches(hashes, return_dtype=pl.Int64, is_elementwise=True)
