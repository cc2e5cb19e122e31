"""Keys of states: what of a state's text is compared when steps are grouped, apart from the text that the policy reads.

Two states of a task belong to one group if their keys are equal. A counter in a status line or objects listed in
another order make every text different; a key leaves such noise out. It is named by `EnvironmentSpec.state_key`, or by
``--state-key`` for a saved run:

- ``mask-numbers`` replaces every number by ``#``. Objects that differ by their number alone become equal too.
- ``sort-lines`` sorts the lines.
- ``module:function`` is a function from a text to a text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.plugins import import_object

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NUMBER: Final = re.compile(r"[-+]?\d+(?:[.,:]\d+)*")


def mask_numbers(text: str) -> str:
    """Return the text with every number replaced by ``#``.

    >>> mask_numbers("Score: -5  Moves: 1,024  Time: 10:45")
    'Score: #  Moves: #  Time: #'
    """
    return _NUMBER.sub("#", text)


def sort_lines(text: str) -> str:
    r"""Return the text with its lines sorted.

    >>> sort_lines("a red ball\na blue box")
    'a blue box\na red ball'
    """
    return "\n".join(sorted(text.split("\n")))


STATE_KEYS: Final[dict[str, Callable[[str], str]]] = {
    "mask-numbers": mask_numbers,
    "sort-lines": sort_lines,
}
"""The named functions."""


def state_key(name: str, others: Sequence[str] = ()) -> Callable[[str], str]:
    """Return the function that computes a state's key from its text.

    Args:
        name: One of `STATE_KEYS`, or ``module:function``. Modules are also found in the working directory.
        others: Further names that the caller knows, which an error lists.

    Raises:
        InputError: There is no such function.
    """
    if name in STATE_KEYS:
        return STATE_KEYS[name]
    if ":" not in name:
        raise InputError(
            unknown("state key", name, (*STATE_KEYS, *others, "module:function"))
        )
    function = import_object(name, "a function from text to text")
    if not callable(function):
        raise InputError(
            f"state key {name}: expected a function from text to text, received {type(function).__name__}"
        )
    return function
