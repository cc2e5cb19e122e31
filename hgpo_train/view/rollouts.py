"""The rollouts of a run as columns, which the page filters and sorts; and a search in the texts of steps."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_datasets import scan_steps
from hgpo_datasets.branches import IS_BRANCH
from hgpo_datasets.reader import errors
from hgpo_envs.errors import InputError
from hgpo_train.measures import TASK
from hgpo_train.view.documents import TRAJECTORY, shortened

if TYPE_CHECKING:
    from collections.abc import Collection

    from hgpo_train.view.index import Index

MOST: Final = 200_000
"""Rollouts that the page receives; it says so if there are more."""
_LABEL: Final = 300
SEARCHED: Final = ("state", "action", "response", "error")
"""The columns that are searched. Prompts repeat states, so they are not."""
HITS: Final = 1_000
"""The largest number of steps that an answer lists."""


def rollouts_document(
    index: Index, groups: Collection[int] | None = None
) -> dict[str, Any]:
    """Return the rollouts of a run, or of some of its groups, in the order of the table.

    Returns:
        ``total``; ``tasks``: each task once; and ``columns``: a list per column of `Index.episodes`, of at most `MOST`
        rollouts, in which ``task`` is a position in ``tasks``.
    """
    episodes = index.episodes
    if groups is not None:
        episodes = episodes.filter(pl.col("number").is_in(list(groups)))
    total = episodes.height
    episodes = episodes.head(MOST)
    tasks = episodes.unique(TASK, keep="first", maintain_order=True).select(
        *TASK, "task_type", "task"
    )
    places = tasks.select(*TASK, pl.int_range(pl.len()).alias("place"))
    episodes = episodes.join(places, on=TASK, nulls_equal=True, maintain_order="left")
    columns = episodes.select(*TRAJECTORY, "number", "iteration", "group", task="place")
    return {
        "total": total,
        "tasks": [
            {**task, "task": shortened(task["task"], _LABEL)}
            for task in tasks.iter_rows(named=True)
        ],
        "columns": columns.to_dict(as_series=False),
    }


def selected(index: Index, bits: str) -> pl.DataFrame:
    """Return the rollouts of `Index.episodes` whose bits are set, in base64 with the lowest bit of a byte first.

    Branches among them are left out.

    Raises:
        InputError: The text is no base64, or selects nothing.
    """
    try:
        packed = base64.b64decode(bits, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InputError(
            f"rows: expected bits in base64, received {bits!r:.40}"
        ) from None
    chosen = np.unpackbits(
        np.frombuffer(packed, np.uint8), bitorder="little"
    ).nonzero()[0]
    episodes = index.episodes[chosen[chosen < index.episodes.height]].filter(~IS_BRANCH)
    if episodes.is_empty():
        raise InputError(
            "rows: expected at least one rollout of the run, received none"
        )
    return episodes


def search_document(index: Index, text: str) -> dict[str, Any]:
    """Return the steps whose state, action, response or error contains a text; case does not matter.

    This reads the texts of the whole run.

    Returns:
        ``steps`` (their number), ``rollouts`` (the first row of each), and ``hits``: the first of them, each with its
        ``row``, ``trajectory``, ``step``, ``column``, and the ``snippet`` in which the text occurs.

    Raises:
        InputError: The text is empty, or the steps cannot be read.
    """
    if not text:
        raise InputError("text: expected what to search for, received an empty text")
    # The first column that contains the text, and the text in it with what is around.
    pattern = pl.escape_regex(text)
    around = f"(?is)(.{{0,60}}{pattern}.{{0,120}})"
    columns = []
    snippets = []
    for name in SEARCHED:
        match = pl.when(pl.col(name).str.contains(f"(?i){pattern}"))
        columns.append(match.then(pl.lit(name)))
        snippets.append(match.then(pl.col(name).str.extract(around)))
    with errors(index.place):
        steps = scan_steps(index.files).select("step", *SEARCHED).with_row_index("row")
        steps = steps.with_columns(
            pl.col("row").cast(pl.Int64), column=pl.coalesce(columns)
        )
        steps = steps.filter(pl.col("column").is_not_null())
        found = steps.select(
            "row", "step", "column", snippet=pl.coalesce(snippets)
        ).collect()
    owners = index.episodes.select("row", "trajectory", first="row").with_columns(
        pl.col("row").set_sorted()
    )
    hits = found.sort("row").join_asof(owners, on="row", strategy="backward")
    return {
        "steps": hits.height,
        "rollouts": hits["first"].unique(maintain_order=True).to_list(),
        "hits": hits.head(HITS).drop("first").to_dicts(),
    }
