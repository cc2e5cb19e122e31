"""Groups of similar texts, as GiGPO and GraphGPO make them.

A text joins the first group whose opening text it is similar to, by the ratio of `difflib.SequenceMatcher`, and opens
a new group where there is none. The outcome depends on the order of the texts.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import numpy as np

from hgpo_envs.errors import InputError
from hgpo_train.advantages.groups import Groups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hgpo_train.advantages.steps import Steps


class Similar:
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


def similar_groups(steps: Steps, threshold: float) -> Groups:
    """Steps of one task with similar states as groups; texts in order of trajectory (by name) and step."""
    texts = steps.texts("state")
    return number_by_task(((task, row, texts[row] or "") for task, row in by_name(steps)), steps.height, threshold)


def number_by_task(texts: Iterable[tuple[int, int, str]], height: int, threshold: float) -> Groups:
    """Groups of (task, row, text), each task for itself; the code is -1 for rows that do not come."""
    tasks: dict[int, Similar] = {}
    numbers: dict[tuple[int, int], int] = {}
    code = np.full(height, -1, dtype=np.int64)
    for task, row, text in texts:
        similar = tasks.setdefault(task, Similar(threshold))
        code[row] = numbers.setdefault((task, similar.group(text)), len(numbers))
    return Groups(code, len(numbers))


def by_name(steps: Steps) -> Iterable[tuple[int, int]]:
    """Task and row of each step, by trajectory (in order of name) and step."""
    names = steps.columns.frame["trajectory"][steps.part].gather(steps.starts)
    for trajectory in names.arg_sort().to_list():
        start = int(steps.starts[trajectory])
        for row in range(start, start + int(steps.lengths[trajectory])):
            yield int(steps.task.code[row]), row
