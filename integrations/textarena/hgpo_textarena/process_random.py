"""Random state of one engine, for packages that draw from the random generators of the whole process."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from types import TracebackType


class OwnRandom:
    """The state of `random` and `numpy.random` that belongs to one engine, put in place while the engine works.

    Episodes that take turns then draw as if each were alone, and the process's own state is as it was afterwards. The
    context must not be used by several threads at the same time.

    Args:
        seed: The seed.

    >>> first, second = OwnRandom(1), OwnRandom(1)
    >>> with first:
    ...     drawn = [random.random()]
    >>> with second:
    ...     both = [random.random(), random.random()]
    >>> with first:
    ...     drawn.append(random.random())
    >>> drawn == both
    True
    """

    def __init__(self, seed: int) -> None:
        generator = random.Random(seed)
        self._own: tuple[Any, Any] = (
            generator.getstate(),
            np.random.RandomState(seed).get_state(),
        )

    def __enter__(self) -> Self:
        self._exchange()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exchange()

    def _exchange(self) -> None:
        process = random.getstate(), np.random.get_state()  # noqa: NPY002
        random.setstate(self._own[0])
        np.random.set_state(self._own[1])  # noqa: NPY002
        self._own = process

    def copy(self) -> OwnRandom:
        """Return an independent generator in the same state."""
        other = OwnRandom(0)
        other._own = self._own
        return other
