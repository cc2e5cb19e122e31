"""A Gymnasium space for text of any characters up to a maximum length."""

from __future__ import annotations

import string
from typing import Any, Final, NoReturn

from gymnasium import spaces
from gymnasium.error import CustomSpaceError
from gymnasium.vector.utils import create_shared_memory

STATE_CHARACTERS: Final = 1 << 20
"""The longest state text, response or command in an observation or action space, in characters."""

PROMPT_CHARACTERS: Final = 1 << 24
"""The longest prompt in an observation space, in characters."""

_SAMPLED_CHARACTERS: Final = frozenset(
    string.ascii_letters + string.digits + string.punctuation + " \n"
)
_SAMPLED_LENGTH: Final = 64

# as in Gymnasium's Text: a length and an array over the charset
_Mask = tuple[int | None, Any]


class UnicodeText(spaces.Text):
    """The space of all `str` of at most `max_length` characters.

    Samples are short texts of printable ASCII. `contains` checks type and length only, so its cost does not depend on
    the text.

    Args:
        max_length: The maximum length in characters.
        seed: The seed of `sample`.

    >>> UnicodeText(10).contains("žluťoučký"), UnicodeText(10).contains("x" * 11)
    (True, False)
    """

    def __init__(self, max_length: int, *, seed: int | None = None) -> None:
        super().__init__(
            max_length, min_length=0, charset=_SAMPLED_CHARACTERS, seed=seed
        )

    def contains(self, x: object) -> bool:
        """Return whether `x` is a str of at most `max_length` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(
        self, mask: _Mask | None = None, probability: _Mask | None = None
    ) -> str:
        """Return a random text of printable ASCII: at most 64 characters unless `mask` or `probability` is given."""
        if mask is None and probability is None:
            mask = (
                int(
                    self.np_random.integers(
                        0, min(self.max_length, _SAMPLED_LENGTH) + 1
                    )
                ),
                None,
            )
        return super().sample(mask=mask, probability=probability)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle no characters: vector environments have thousands of these spaces."""
        return UnicodeText, (self.max_length,), {"_np_random": self._np_random}

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"


@create_shared_memory.register(UnicodeText)
def _no_shared_memory(space: UnicodeText, n: int = 1, ctx: object = None) -> NoReturn:  # noqa: ARG001 - its signature
    """Raise an error: Gymnasium's `Text` stores characters outside its charset incorrectly in shared memory."""
    raise CustomSpaceError(
        f"{space} cannot be stored in shared memory: use AsyncVectorEnv(…, shared_memory=False), "
        "or gymnasium.make_vec(id, num_envs=n), which runs all environments in this process"
    )
