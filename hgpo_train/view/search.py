"""Search in the texts of a run's steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets import scan_steps
from hgpo_datasets.reader import errors
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from hgpo_train.view.index import Index

COLUMNS: Final = ("state", "action", "response", "error")
"""The columns that are searched. Prompts repeat states, so they are not."""
HITS: Final = 1_000
"""The largest number of steps that an answer lists."""


def search_document(index: Index, text: str) -> dict[str, Any]:
    """Return the steps whose state, action, response or error contains a text; case does not matter.

    This reads the texts of the whole run.

    Returns:
        ``steps`` (their number), ``groups`` (positions of the groups), and ``hits``: the first of them, each with its
        ``row``, ``group``, ``trajectory``, ``step`` and ``column``.

    Raises:
        InputError: The text is empty, or the steps cannot be read.
    """
    if not text:
        raise InputError("text: expected what to search for, received an empty text")
    lowered = text.lower()
    matches = {name: pl.col(name).str.to_lowercase().str.contains(lowered, literal=True) for name in COLUMNS}
    column = pl.coalesce(pl.when(hit).then(pl.lit(name)) for name, hit in matches.items())
    with errors("the step table"):
        steps = scan_steps(index.files).select("step", *COLUMNS).with_row_index("row")
        hits = steps.select(pl.col("row").cast(pl.Int64), "step", column.alias("column")).drop_nulls("column").collect()
    owners = index.episodes.select("row", "number", "trajectory").with_columns(pl.col("row").set_sorted())
    named = hits.sort("row").join_asof(owners, on="row", strategy="backward")
    listed = named.head(HITS).rename({"number": "group"})
    return {"steps": hits.height, "groups": named["number"].unique().sort().to_list(), "hits": listed.to_dicts()}
