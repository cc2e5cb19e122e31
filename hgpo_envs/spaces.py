"""A text space for language: any characters, up to a length, and no silent garbage in shared memory."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any, Final, NoReturn

from gymnasium import spaces
from gymnasium.error import CustomSpaceError
from gymnasium.vector.utils import create_shared_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

STATE_CHARACTERS: Final = 1 << 20
"""The longest state text, response or command in an observation or action space, in characters."""

PROMPT_CHARACTERS: Final = 1 << 24
"""The longest prompt in an observation space, in characters."""

_SAMPLED_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + string.punctuation + " \n")
_SAMPLED_LENGTH: Final = 64

_Mask = tuple[int | None, Any]  # as Gymnasium's Text: a length, and an array over the charset


class UnicodeText(spaces.Text):
    """Every `str` of at most `max_length` characters.

    Samples are short and of printable ASCII; membership looks at type and length only, so that it costs nothing.

    >>> UnicodeText(10).contains("žluťoučký"), UnicodeText(10).contains("x" * 11)
    (True, False)
    """

    def __init__(self, max_length: int, *, seed: int | None = None) -> None:
        super().__init__(max_length, min_length=0, charset=_SAMPLED_CHARACTERS, seed=seed)

    def contains(self, x: object) -> bool:
        """Whether `x` is a str of at most `max_length` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: _Mask | None = None, probability: _Mask | None = None) -> str:
        """A random text of printable ASCII, at most 64 characters unless a length is asked for (see Gymnasium)."""
        if mask is None and probability is None:
            mask = (int(self.np_random.integers(0, min(self.max_length, _SAMPLED_LENGTH) + 1)), None)
        return super().sample(mask=mask, probability=probability)

    def __getstate__(self) -> dict[str, Any]:
        return {"max_length": self.max_length, "_np_random": self._np_random}

    def __setstate__(self, state: Iterable[tuple[str, Any]] | Mapping[str, Any]) -> None:
        kept = dict(state)
        self.__init__(kept["max_length"])  # type: ignore[misc]  # the charset is the same for all
        self._np_random = kept["_np_random"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    __hash__ = None  # type: ignore[assignment]  # as Gymnasium's spaces: mutable, compared by value

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"


@create_shared_memory.register(UnicodeText)
def _no_shared_memory(space: UnicodeText, n: int = 1, ctx: object = None) -> NoReturn:  # noqa: ARG001 - its signature
    """Refuses what Gymnasium's Text does wrongly: it writes character indices of a fixed charset, or garbage."""
    raise CustomSpaceError(
        f"{space} cannot live in shared memory: use AsyncVectorEnv(…, shared_memory=False), "
        "or gymnasium.make_vec(id, num_envs=n), which runs all environments in this process"
    )
