"""Plays TextWorld's games, one at a time."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import textworld

from hgpo_envs.engine import State

if TYPE_CHECKING:
    from collections.abc import Hashable

    from hgpo_textworld.source import TextWorldSource

# the interpreter's: room, score and moves
_STATUS_LINE: Final = re.compile(r"\n>\s*-= [^\n]* =-.*\Z", re.DOTALL)
_FIRST_ROOM: Final = re.compile(r"^-= .* =-$", re.MULTILINE)
_BLANK_LINES: Final = re.compile(r"\n{3,}")

_SHORT: Final = frozenset(
    (
        "n",
        "e",
        "s",
        "w",
        "north",
        "east",
        "south",
        "west",
        "i",
        "l",
        "x",
        "the",
        "a",
        "an",
    )
)
# the game's own reply to an unknown verb
_NOT_SENT: Final = "That's not a verb I recognise."


class TextWorldEngine:
    """A game of TextWorld (`hgpo_envs.engine.BranchingEngine`).

    The state's text is the game's reply, without the banner and the objective, which is the task's instruction, and
    without the status line of rooms and moves. A command counts as valid if it is listed as admissible, or if the game
    understands it in other words (``n`` for ``go north``) and something changes.

    Only admissible commands, and those made of the game's verbs and nouns, are sent to the interpreter. It has commands
    that write files (``save``, ``script``) or end the game, and it never answers some characters.

    Args:
        source: Finds the file of a game.
    """

    def __init__(self, source: TextWorldSource) -> None:
        self._source = source
        self._env: Any = None  # TextWorld's environment
        self._state = State("", ())
        self._words: frozenset[str] = frozenset()

    def start(self, task_id: str) -> State:
        """Load and start a game."""
        infos = textworld.EnvInfos(
            feedback=True,
            admissible_commands=True,
            won=True,
            lost=True,
            score=True,
            max_score=True,
            policy_commands=True,
        )
        if self._env is not None:
            self._env.close()
        file = self._source.file(task_id)
        # Jericho's, which knows commercial games only
        with warnings.catch_warnings(action="ignore"):
            self._env = textworld.start(str(file), infos)
        self._env.seed(0)  # of the interpreter, which else takes the time
        reply = self._env.reset()
        self._words = _SHORT.union(
            *map(str.split, [*reply.game.verbs, *reply.game.entity_names])
        )
        self._state = self._observed(reply, valid=True)
        return self._state

    def act(self, command: str) -> State:
        """Send a command to the game. After its end, the last state is returned."""
        if self._state.terminated:
            return self._state
        admissible = command in self._state.actions
        if not admissible and not self._words.issuperset(command.split()):
            self._state = replace(self._state, text=_NOT_SENT, valid=False, reward=0.0)
            return self._state
        facts = self._env.state["_facts"]
        reply, _, _ = self._env.step(command)
        valid = admissible or set(reply["_facts"]) != set(facts)
        self._state = self._observed(reply, valid=valid)
        return self._state

    def fork(self) -> TextWorldEngine:
        """Return an independent copy of the game."""
        copy = TextWorldEngine(self._source)
        copy._env = self._env.copy()
        copy._state = self._state
        copy._words = self._words
        return copy

    def key(self) -> Hashable:
        """Return the facts that hold, and the score."""
        return tuple(sorted(map(str, self._env.state["_facts"]))), self._state.score

    def solution(self) -> list[str]:
        """Return the commands that solve the game from here, if TextWorld knows them."""
        return list(self._env.state.policy_commands or ())

    def walkthrough(self) -> list[str]:
        """Return the commands that solve the game from its start."""
        return list(self._env.state.game.metadata.get("walkthrough", ()))

    def _observed(self, reply: Any, *, valid: bool) -> State:  # noqa: ANN401 (TextWorld's GameState)
        score = reply.score / reply.max_score
        ended = bool(reply.won or reply.lost)
        return State(
            text=game_text(reply.feedback),
            actions=() if ended else tuple(reply.admissible_commands),
            valid=valid,
            terminated=ended,
            won=bool(reply.won),
            reward=max(score - self._state.score, 0.0) if self._state.text else score,
            score=score,
        )


def game_text(feedback: str) -> str:
    r"""Return the text of a reply without banner, objective and status line.

    >>> game_text("\n-= Vault =-\nA vault.\n\n\n\nThere is a door.\n\n>      -= Vault =-0/11")
    '-= Vault =-\nA vault.\n\nThere is a door.'
    """
    text = _STATUS_LINE.sub("", feedback)
    room = _FIRST_ROOM.search(text)
    if "$$" in text and room:  # the banner of the first reply
        text = text[room.start() :]
    return _BLANK_LINES.sub("\n\n", text.rstrip("> \n")).strip()
