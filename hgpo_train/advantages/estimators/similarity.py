"""Clusters of similar texts, as in GiGPO and GraphGPO.

Each text is compared with the first text of each cluster by the ratio of `difflib.SequenceMatcher`. It is added to the
first cluster with a ratio of at least the threshold, or starts a new cluster. The result depends on the order of texts.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_train.advantages.trajectories import whole_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class TextClusters:
    """The clusters of one task, built one text at a time.

    Args:
        threshold: The minimum ratio of similar texts, in (0, 1).

    Raises:
        InputError: The threshold is out of range.
    """

    def __init__(self, threshold: float) -> None:
        if not 0 < threshold < 1:
            raise InputError(f"similarity_threshold: expected a number between 0 and 1, received {threshold}")
        self.threshold = threshold
        self.known: dict[str, int] = {}
        self.openers: list[SequenceMatcher[str]] = []

    def group(self, text: str) -> int:
        """Return the number of a text's cluster. Equal texts are always in the same cluster."""
        if text not in self.known:
            found = next((i for i, opener in enumerate(self.openers) if self._similar(text, opener)), None)
            if found is None:
                found = len(self.openers)
                self.openers.append(SequenceMatcher(None, "", text))
            self.known[text] = found
        return self.known[text]

    def _similar(self, text: str, opener: SequenceMatcher[str]) -> bool:
        """Return whether the ratio is at least the threshold."""
        opener.set_seq1(text)  # the two cheap ratios are upper bounds of the third
        ratios = (opener.real_quick_ratio, opener.quick_ratio, opener.ratio)
        return all(ratio() >= self.threshold for ratio in ratios)


def similar_states(steps: pl.LazyFrame, threshold: float) -> pl.LazyFrame:
    """Add `similar_state`, the int64 number of each state's cluster of similar texts.

    Texts are clustered within each task, in the order of trajectory names and steps.

    Args:
        steps: A table with `task_key`, `trajectory`, `step` and `state`.
        threshold: The minimum ratio of similar texts, in (0, 1).

    Raises:
        InputError: The threshold is out of range.
    """
    TextClusters(threshold)  # validates the threshold before anything is read

    def group(columns: Sequence[pl.Series]) -> pl.Series:
        task, trajectory, step, state = columns
        rows = order_by_name(trajectory, step)
        texts = [(task[row], row, state[row] or "") for row in rows if task[row] is not None]
        return number_by_task(texts, len(task), threshold)

    columns = [pl.col(name) for name in ("task_key", "trajectory", "step", "state")]
    return steps.with_columns(similar_state=whole_columns(columns, group, pl.Int64()))


def order_by_name(trajectory: pl.Series, step: pl.Series) -> pl.Series:
    """Return row indices sorted by trajectory name and step."""
    rows = pl.DataFrame({"trajectory": trajectory, "step": step})
    return rows.select(pl.arg_sort_by("trajectory", "step")).to_series()


def number_by_task(texts: Iterable[tuple[int, int, str]], height: int, threshold: float) -> pl.Series:
    """Cluster texts within each task, and return the number of each row's cluster as int64.

    Args:
        texts: Triples of task, row and text.
        height: The number of rows; the number of a row without a text is null.
        threshold: The minimum ratio of similar texts, in (0, 1).
    """
    tasks: dict[int, TextClusters] = {}
    numbers: dict[tuple[int, int], int] = {}
    code: list[int | None] = [None] * height
    for task, row, text in texts:
        similar = tasks.setdefault(task, TextClusters(threshold))
        code[row] = numbers.setdefault((task, similar.group(text)), len(numbers))
    return pl.Series(code, dtype=pl.Int64)
