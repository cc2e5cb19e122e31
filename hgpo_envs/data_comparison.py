"""Comparison of two data sets of a benchmark, task by task.

Data sets differ under the same ids: tasks that were generated again have another sentence, or objects in other places,
and other versions of a benchmark have other commands. Results on them cannot be compared, and no id shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hgpo_envs.engine import TaskSource


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between two tasks with the same id.

    Attributes:
        task_id: The id.
        a: The text of the first data set; of texts with several lines, those that the second does not have.
        b: Likewise, of the second.
    """

    task_id: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class DataComparison:
    """What is different in two data sets.

    Attributes:
        tasks_in_a: The number of tasks in the first.
        tasks_in_b: The number of tasks in the second.
        only_in_a: The ids that only the first has, in its order.
        only_in_b: The ids that only the second has, in its order.
        differences: The differences of tasks with the same id, by what was compared, such as ``sentence``; an empty
            list for what is equal everywhere.
    """

    tasks_in_a: int
    tasks_in_b: int
    only_in_a: list[str]
    only_in_b: list[str]
    differences: dict[str, list[Difference]]

    @property
    def equal(self) -> bool:
        """Whether both have the same ids with equal tasks."""
        return not (self.only_in_a or self.only_in_b or any(self.differences.values()))


def compare_data(
    a: TaskSource,
    b: TaskSource,
    ids: tuple[Sequence[str], Sequence[str]],
    progress: Callable[[Sequence[str]], Iterable[str]] = iter,
) -> DataComparison:
    """Compare the tasks of two sources.

    Sources with a method ``contents`` (`hgpo_envs.engine.TaskSource`) are compared by what it returns, others by the
    descriptions of their tasks: sentence, type, split and versions.

    Args:
        a: The first source.
        b: The second.
        ids: The task ids of each.
        progress: Iterates over the ids of both, and may show how far it is.

    Raises:
        InputError: A task cannot be read.
    """
    first, second = (dict.fromkeys(each) for each in ids)
    both = [task_id for task_id in first if task_id in second]
    differences: dict[str, list[Difference]] = {}
    for task_id in progress(both):
        texts = _contents("A", a, task_id)
        others = _contents("B", b, task_id)
        for name in texts | others:
            found = differences.setdefault(name, [])
            text = texts.get(name, "")
            other = others.get(name, "")
            change = Difference(task_id, _only(text, other), _only(other, text))
            if change.a or change.b:
                found.append(change)
    return DataComparison(
        len(first),
        len(second),
        [task_id for task_id in first if task_id not in second],
        [task_id for task_id in second if task_id not in first],
        differences,
    )


def _contents(side: str, source: TaskSource, task_id: str) -> dict[str, str]:
    """Return the texts by which a task is compared: those of ``contents``, or else the task's description."""
    own: Callable[[str], Mapping[str, str]] | None = getattr(source, "contents", None)
    try:
        if own is not None:
            return dict(own(task_id))
        task = source.task(task_id)
    except InputError as error:
        raise InputError(f"{side}: {error}") from error
    return {
        "sentence": task.instruction,
        "type": task.task_type,
        "split": task.split,
        **task.versions,
    }


def _only(text: str, other: str) -> str:
    """Return the lines of a text that another one does not have, whatever their order and indentation."""
    if text == other:
        return ""
    if "\n" not in text + other:
        return text
    known = {line.strip() for line in other.splitlines()}
    lines = [line.strip() for line in text.splitlines()]
    return "\n".join([line for line in lines if line and line not in known])
