"""Trajectories found again among records whose order and ids are lost.

A record at step t follows one at step t-1 whose observation and action are the last that it shows, whose own history
agrees with the rest, and whose episode ended the same way. Records that agree in all of that are interchangeable to the
policy; which of them a record followed is then taken in the order of the file.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hgpo_datasets.interchange.verl_prompts import Pair, Shown

_WON_ABOVE = 1.0
"""A penalty takes a tenth from an episode's score of 0 or 10."""


@dataclass(slots=True, eq=False)
class Record:
    """One step as it was dumped, and the one that follows it."""

    shown: Shown
    prompt: str
    response: str
    action: str
    valid: bool
    score: float
    following: Record | None = field(default=None, repr=False)

    @property
    def won(self) -> bool:
        """Whether its episode was won."""
        return self.score > _WON_ABOVE


def chains(records: list[Record]) -> tuple[list[list[Record]], int]:
    """Whole trajectories among the records of one iteration.

    Returns:
        The trajectories, and how many records could have followed more than one other.

    Raises:
        InputError: The prompts show no history (history length 0), so that nothing links them.
    """
    by_step: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        by_step[record.shown.step].append(record)
    if set(by_step) == {0} and len(records) > 1:
        raise InputError("the prompts show no history, so that trajectories cannot be found; dump 'traj_uid', too")
    ambiguous = sum(_link(by_step[step - 1], by_step[step]) for step in sorted(by_step) if step > 0)
    found = [_follow(first) for first in by_step[0]]
    limit = max(map(len, found), default=0)
    copied = {(one.prompt, one.response) for one in records if one.following is not None}
    return [chain for chain in found if _is_whole(chain, limit, copied)], ambiguous


def _link(before: Iterable[Record], after: Iterable[Record]) -> int:
    """Lets each record after follow a free one before, where one fits; returns how often several did."""
    free: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    lengths = {len(record.shown.history) - 1 for record in after}
    for record in before:
        for length in lengths:
            free[_key(record, length)].append(record)
    ambiguous = 0
    for record in after:
        *earlier, (observed, done) = record.shown.history or (("", ""),)
        key = (record.shown.benchmark, observed, done, tuple(earlier), record.won)
        fitting = [one for one in free[key] if one.following is None and _same_task(one.shown, record.shown)]
        if fitting:
            fitting[0].following = record
            ambiguous += len({(one.prompt, one.response) for one in fitting}) > 1
    return ambiguous


def _key(record: Record, length: int) -> tuple[object, ...]:
    history: tuple[Pair, ...] = record.shown.history
    earlier = history[len(history) - length :] if length else ()
    return (record.shown.benchmark, record.shown.state, record.action, earlier, record.won)


def _same_task(one: Shown, other: Shown) -> bool:
    return one.task is None or other.task is None or one.task == other.task


def _follow(first: Record) -> list[Record]:
    chain = [first]
    while (following := chain[-1].following) is not None:
        chain.append(following)
    return chain


def _is_whole(chain: list[Record], limit: int, copied: set[tuple[str, str]]) -> bool:
    """Whether a trajectory ends where an episode may: won, bought, or at the step limit; a mere copy goes nowhere."""
    last = chain[-1]
    if (last.prompt, last.response) in copied:
        return False
    bought = last.shown.benchmark == "WebShop" and last.action == "click[buy now]"
    return last.won or bought or len(chain) == limit
