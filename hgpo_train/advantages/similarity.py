"""Groups of similar texts, as GiGPO and GraphGPO make them.

A text joins the first group whose opening text it is similar to, by the ratio of `difflib.SequenceMatcher`, and opens
a new group where there is none. The outcome depends on the order of the texts.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_train.advantages.trajectories import batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class TextClusters:
    """The groups of one task, opened one text at a time."""

    def __init__(self, threshold: float) -> None:
        if not 0 < threshold < 1:
            raise InputError(f"similarity_threshold is in (0, 1), got {threshold}")
        self.threshold = threshold
        self.known: dict[str, int] = {}
        self.openers: list[SequenceMatcher[str]] = []

    def group(self, text: str) -> int:
        """The number of the group that a text is in. Equal texts are in the same one, whenever they come."""
        if text not in self.known:
            found = next((i for i, opener in enumerate(self.openers) if self._similar(text, opener)), None)
            if found is None:
                found = len(self.openers)
                self.openers.append(SequenceMatcher(None, "", text))
            self.known[text] = found
        return self.known[text]

    def _similar(self, text: str, opener: SequenceMatcher[str]) -> bool:
        """Whether the ratio reaches the threshold; its cheap upper bounds first."""
        opener.set_seq1(text)
        ratios = (opener.real_quick_ratio, opener.quick_ratio, opener.ratio)
        return all(ratio() >= self.threshold for ratio in ratios)


def similar_states(steps: pl.LazyFrame, threshold: float) -> pl.LazyFrame:
    """Adds `similar_state`, a key for the states of one task with similar texts.

    Texts are gone through by trajectory (in order of name) and step.

    Args:
        steps: A table with keys, `trajectory`, `step` and `state`.
        threshold: The least ratio of similar texts, in (0, 1).
    """
    TextClusters(threshold)  # refuses a threshold out of range before anything is read

    def group(columns: Sequence[pl.Series]) -> pl.Series:
        task, trajectory, step, state = columns
        rows = order_by_name(trajectory, step)
        texts = [(task[row], row, state[row] or "") for row in rows if task[row] is not None]
        return number_by_task(texts, len(task), threshold)

    columns = [pl.col(name) for name in ("task_key", "trajectory", "step", "state")]
    return steps.with_columns(similar_state=batches(columns, group, pl.Int64()))


def order_by_name(trajectory: pl.Series, step: pl.Series) -> pl.Series:
    """The rows by trajectory (in order of name) and step."""
    rows = pl.DataFrame({"trajectory": trajectory, "step": step})
    return rows.select(pl.arg_sort_by("trajectory", "step")).to_series()


def number_by_task(texts: Iterable[tuple[int, int, str]], height: int, threshold: float) -> pl.Series:
    """Groups of (task, row, text), numbered, each task for itself; null for rows that do not come."""
    tasks: dict[int, TextClusters] = {}
    numbers: dict[tuple[int, int], int] = {}
    code: list[int | None] = [None] * height
    for task, row, text in texts:
        similar = tasks.setdefault(task, TextClusters(threshold))
        code[row] = numbers.setdefault((task, similar.group(text)), len(numbers))
    return pl.Series(code, dtype=pl.Int64)
