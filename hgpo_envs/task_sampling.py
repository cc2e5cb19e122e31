"""Which task comes when: the documented orders of a split's tasks.

Four ways, by name (`TASK_SAMPLINGS`):

- ``sequential``: every task exactly once, in the split's own order, then again. For evaluation.
- ``random`` (the default of environments): any task at any time, ``ids[h · len(ids) // 2⁶⁴]`` with h the unsigned text
  hash of ``"<seed>/<draw>"``, draws counted from 0. It costs nothing however many tasks there are.
- ``shuffled`` (the default of rollouts): each pass through the split is a new permutation, by the text hash
  (`hgpo_envs.hashing.text_hash`) of ``"<seed>/<pass>/<task id>"``, ties by id. It is defined by these bytes alone: not
  by the order of files in a folder, a platform, a library's generator, or which other tasks are there.
- ``verl-agent``: the order in which verl-agent's ALFWorld workers draw games (`verl_agent`).
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Final

import numpy as np

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.hashing import text_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def shuffled(ids: Sequence[str], seed: int, epoch: int = 0) -> list[str]:
    """One pass through the tasks in seeded order.

    Args:
        ids: Task ids, each once; their order does not matter.
        seed: Any integer.
        epoch: Which pass; each has an order of its own.

    >>> shuffled(["a", "b", "c", "d"], seed=1) == shuffled(["d", "c", "b", "a"], seed=1)
    True
    """
    return sorted(ids, key=lambda task: (text_hash(f"{seed}/{epoch}/{task}"), task))


def sequential(ids: Sequence[str], seed: int = 0) -> Iterator[str]:
    """Every task once in the split's order, endlessly repeated; the seed does not matter."""
    del seed
    while True:
        yield from _some(ids)


def shuffled_passes(ids: Sequence[str], seed: int = 0) -> Iterator[str]:
    """Every task once in seeded order, then every task once in another, and so on."""
    _some(ids)
    for epoch in count():
        yield from shuffled(ids, seed, epoch)


def independent(ids: Sequence[str], seed: int = 0) -> Iterator[str]:
    """Any task at each draw, with replacement."""
    _some(ids)
    for draw in count():
        yield ids[((text_hash(f"{seed}/{draw}") % (1 << 64)) * len(ids)) >> 64]


def verl_agent(ids: Sequence[str], seed: int = 0) -> Iterator[str]:
    """The tasks that one verl-agent worker with this seed draws, reset by reset.

    The worker's textworld environment shuffles the game list by NumPy's legacy generator with the worker's seed
    (a stream that NumPy has frozen), plays it through, shuffles the shuffled list again, and so on. Worker i of a
    group size G has seed ``seed + i // G``: members of a group draw the same task as long as they
    are reset in lockstep, and different groups may draw the same task at once.

    One difference: verl-agent takes the list as the file system gives it, so its seeds stand for different games on
    different machines; here the list is the split's sorted order.
    """
    generator = np.random.RandomState(seed)
    order = list(_some(ids))
    while True:
        generator.shuffle(order)
        yield from order


TASK_SAMPLINGS: Final[dict[str, Callable[[Sequence[str], int], Iterator[str]]]] = {
    "random": independent,
    "sweep": sequential,
    "shuffled": shuffled_passes,
    "verl-agent": verl_agent,
}


def task_stream(name: str, ids: Sequence[str], seed: int = 0) -> Iterator[str]:
    """An endless stream of task ids, by the name of its order.

    Raises:
        InputError: for a name that is not known, or no tasks.

    >>> stream = task_stream("sweep", ["a", "b"])
    >>> [next(stream) for _ in range(5)]
    ['a', 'b', 'a', 'b', 'a']
    """
    if name not in TASK_SAMPLINGS:
        raise InputError(unknown("sampling", name, TASK_SAMPLINGS))
    return TASK_SAMPLINGS[name](_some(ids), seed)


class TaskSampler:
    """The tasks that one environment draws, reset by reset; copies and pickles go on where it stood.

    Args:
        name: One of `TASK_SAMPLINGS`.
        ids: The split's tasks.
        seed: Any integer.

    Raises:
        InputError: for a name that is not known, or no tasks.
    """

    def __init__(self, name: str, ids: Sequence[str], seed: int, drawn: int = 0) -> None:
        self._name, self._ids, self._seed, self._drawn = name, ids, seed, drawn
        self._stream = islice(task_stream(name, ids, seed), drawn, None)

    def draw(self) -> str:
        """The next task."""
        self._drawn += 1
        return next(self._stream)

    def __reduce__(self) -> tuple[type[TaskSampler], tuple[str, Sequence[str], int, int]]:
        return TaskSampler, (self._name, self._ids, self._seed, self._drawn)


def _some(ids: Sequence[str]) -> Sequence[str]:
    if not ids:
        raise InputError("no tasks to choose from: the split is empty")
    return ids
