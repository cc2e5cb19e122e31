"""Clusters of similar texts, as in GiGPO and GraphGPO.

Each text is compared with the first text of each cluster by the ratio of `difflib.SequenceMatcher`. It is added to the
first cluster with a ratio of at least the threshold, or starts a new cluster. The result depends on the order of texts.
"""

from __future__ import annotations

from collections import defaultdict
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import polars as pl

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def clusters(
    texts: Mapping[str, pl.Expr], threshold: float, *, goal: str = ""
) -> pl.Expr:
    """Return structs with the int64 numbers of the clusters of each row's texts, and of `goal`; null for null.

    Texts are clustered within each task, in the order of trajectory names and steps, then of `texts`; the goal, a text
    that all tasks have, is the last.

    Args:
        texts: Expressions of texts, by the name of the field.
        threshold: The minimum ratio of similar texts, in (0, 1).
        goal: The text of the field `goal`.

    Raises:
        InputError: The threshold is out of range.
    """
    if not 0 < threshold < 1:
        raise InputError(
            f"similarity_threshold: expected a number between 0 and 1, received {threshold}"
        )

    def numbers(columns: Sequence[pl.Series]) -> pl.Series:
        # Clusters depend on the order of texts, which therefore is not that of the table's rows.
        rows = pl.DataFrame(columns)
        order = rows.select(pl.arg_sort_by("trajectory", "step")).to_series()

        # The number of each text of a task, and the first text of each of its clusters.
        known: dict[tuple[int, str], int] = {}
        openers: dict[int, list[tuple[int, SequenceMatcher[str]]]] = defaultdict(list)

        def number(task: int | None, text: str | None) -> int | None:
            if task is None or text is None:
                return None
            if (task, text) in known:
                return known[task, text]
            near = (
                cluster
                for cluster, opener in openers[task]
                if _similar(text, opener, threshold)
            )
            cluster = next(near, len(known))
            if cluster == len(known):
                openers[task].append((cluster, SequenceMatcher(None, "", text)))
            known[task, text] = cluster
            return cluster

        ordered = rows[order].rows(named=True)
        codes = [
            {name: number(row["task_key"], row[name]) for name in texts}
            for row in ordered
        ]
        for row, code in zip(ordered, codes, strict=True):
            code["goal"] = number(row["task_key"], goal)
        return pl.DataFrame(codes, schema=fields)[order.arg_sort()].to_struct()

    fields = dict.fromkeys([*texts, "goal"], pl.Int64())
    keys = [pl.col(name) for name in ("task_key", "trajectory", "step")]
    columns = [text.alias(name) for name, text in texts.items()]
    return pl.map_batches([*keys, *columns], numbers, pl.Struct(fields))


def _similar(text: str, opener: SequenceMatcher[str], threshold: float) -> bool:
    opener.set_seq1(text)
    # The two cheap ratios are upper bounds of the third, which takes quadratic time.
    return (
        opener.real_quick_ratio() >= threshold
        and opener.quick_ratio() >= threshold
        and opener.ratio() >= threshold
    )
