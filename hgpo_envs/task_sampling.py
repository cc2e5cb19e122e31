"""Orders in which environments draw the tasks of a split.

`TASK_SAMPLINGS` contains four orders by name:

- ``sweep``: every task exactly once in the split's order, then again. For evaluation.
- ``random`` (the default of environments): tasks drawn with replacement. Draw n, counted from 0, is
  ``ids[h · len(ids) // 2⁶⁴]``, where h is the unsigned text hash of ``"<seed>/<n>"``. The cost of a draw does not
  depend on the number of tasks.
- ``shuffled`` (the default of rollouts): each pass through the split is a new permutation, sorted by the text hash of
  ``"<seed>/<pass>/<task id>"``, ties by id. The order depends on these bytes alone, not on files, platform or library.
  Splits of more than `SORTED` tasks are not read whole: their positions are permuted by a Feistel network of hashes.
- ``verl-agent``: the order in which verl-agent's ALFWorld workers draw games (`verl_agent`).
"""

from __future__ import annotations

from itertools import chain, count, islice
from typing import TYPE_CHECKING, Final

import numpy as np

from hgpo_envs.errors import InputError, UnknownTask, check_known
from hgpo_envs.hashing import text_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


SORTED: Final = 1 << 20
"""The largest number of tasks that a pass of ``shuffled`` sorts, and that ``verl-agent`` accepts."""


def shuffled(ids: Sequence[str], seed: int, epoch: int = 0) -> list[str]:
    """Return the tasks of one pass in seeded order.

    Args:
        ids: Distinct task ids. Their order has no effect.
        seed: Any integer.
        epoch: The number of the pass. Each pass has a different order.

    >>> shuffled(["a", "b", "c", "d"], seed=1) == shuffled(["d", "c", "b", "a"], seed=1)
    True
    """
    return sorted(ids, key=lambda task: (text_hash(f"{seed}/{epoch}/{task}"), task))


def permuted(ids: Sequence[str], seed: int, epoch: int = 0) -> Iterator[str]:
    """Yield the tasks of one pass in seeded order, for splits that are too long to be sorted.

    A position's two halves of bits are mixed in four rounds (a Feistel network), which permutes the positions below a
    power of four; those that are not below the number of tasks are mixed again.

    >>> sorted(permuted(["a", "b", "c", "d", "e"], seed=1))
    ['a', 'b', 'c', 'd', 'e']
    """
    bits = (max(len(ids) - 1, 1).bit_length() + 1) // 2
    low = (1 << bits) - 1

    def mixed(position: int) -> int:
        left = position >> bits
        right = position & low
        for turn in range(4):
            mask = text_hash(f"{seed}/{epoch}/{turn}/{right}") & low
            left, right = right, left ^ mask
        return (left << bits) | right

    for position in range(len(ids)):
        place = mixed(position)
        while place >= len(ids):
            place = mixed(place)
        yield ids[place]


def _passes(ids: Sequence[str], seed: int) -> Iterator[str]:
    """Yield the tasks of one pass after the other, each in another order."""
    order = shuffled if len(ids) <= SORTED else permuted
    return chain.from_iterable(order(ids, seed, epoch) for epoch in count())


def _sweep(ids: Sequence[str], _: int) -> Iterator[str]:
    """Yield every task in the split's order, again and again, without storing them."""
    return (ids[draw % len(ids)] for draw in count())


def independent(ids: Sequence[str], seed: int = 0) -> Iterator[str]:
    """Yield tasks drawn with replacement."""
    for draw in count():
        unsigned = text_hash(f"{seed}/{draw}") % (1 << 64)
        yield ids[unsigned * len(ids) >> 64]


def verl_agent(ids: Sequence[str], seed: int = 0) -> Iterator[str]:
    """Yield the tasks that one verl-agent worker with this seed draws, one per reset.

    The worker's textworld environment shuffles the game list with NumPy's legacy generator, seeded with the worker's
    seed (NumPy guarantees this stream). After the last game it shuffles the shuffled list again. With group size G,
    worker i has seed ``seed + i // G``: the members of a group draw the same tasks as long as they are reset in
    lockstep. Different groups may draw the same task at the same time.

    One difference: verl-agent's list has the order of the file system, so that a seed selects different games on
    different machines. Here the list is the split's sorted order.
    """
    if len(ids) > SORTED:
        raise InputError(
            f"sampling verl-agent: expected at most {SORTED:,} tasks, received {len(ids):,}; use shuffled"
        )
    generator = np.random.RandomState(seed)
    order = list(ids)
    while True:
        generator.shuffle(order)
        yield from order


TASK_SAMPLINGS: Final[dict[str, Callable[[Sequence[str], int], Iterator[str]]]] = {
    "random": independent,
    "sweep": _sweep,
    "shuffled": _passes,
    "verl-agent": verl_agent,
}


def task_stream(name: str, ids: Sequence[str], seed: int = 0) -> Iterator[str]:
    """Return an endless stream of task ids in an order of `TASK_SAMPLINGS`.

    Raises:
        InputError: If the name is unknown or there are no tasks.

    >>> stream = task_stream("sweep", ["a", "b"])
    >>> [next(stream) for _ in range(5)]
    ['a', 'b', 'a', 'b', 'a']
    """
    check_known("sampling", name, TASK_SAMPLINGS)
    if not ids:
        raise InputError("no tasks to choose from: the split is empty")
    return TASK_SAMPLINGS[name](ids, seed)


def task_number(task_id: object, count: int, expected: str) -> int:
    """Return the number of a task whose id is one of ``"0"`` to ``str(count - 1)``, as text or integer.

    Raises:
        UnknownTask: There is no such task. The line begins with what is expected.

    >>> task_number("17", 100, "expected a seed")
    17
    """
    text = str(task_id)
    is_short = text.isascii() and text.isdigit() and len(text) <= len(str(count))
    if not is_short or str(int(text)) != text or int(text) >= count:
        raise UnknownTask(f"{expected} from 0 to {count - 1}, received {task_id!r:.40}")
    return int(text)


class TaskSampler:
    """The tasks that one environment draws, one per reset. Copies and pickles continue at the same draw.

    Args:
        name: As in `task_stream`; likewise `ids`, `seed` and the errors.
        ids: See `name`.
        seed: See `name`.
        drawn: How many tasks to skip, for copies of a sampler that has already drawn them.
    """

    def __init__(
        self, name: str, ids: Sequence[str], seed: int, drawn: int = 0
    ) -> None:
        self._name = name
        self._ids = ids
        self._seed = seed
        self._drawn = drawn
        self._stream = islice(task_stream(name, ids, seed), drawn, None)

    def draw(self) -> str:
        """Return the id of the next task."""
        self._drawn += 1
        return next(self._stream)

    def __reduce__(
        self,
    ) -> tuple[type[TaskSampler], tuple[str, Sequence[str], int, int]]:
        return TaskSampler, (self._name, self._ids, self._seed, self._drawn)
