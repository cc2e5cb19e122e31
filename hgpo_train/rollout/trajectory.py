"""A rollout that is being played, and its rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hgpo_envs.hashing import text_hash
from hgpo_train.policies.base import Failure, Request
from hgpo_train.policies.conversation import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_envs.engine import Engine, State
    from hgpo_envs.episode import Episode
    from hgpo_train.policies.base import Reply
    from hgpo_train.rollout.groups import PlannedGroup


class Row(NamedTuple):
    """One step: the columns of the step table that the collector fills in; the writer computes the others.

    A tuple takes a fifth of a dictionary's memory, and the garbage collector does not scan it: it contains only texts,
    numbers and tuples of texts.
    """

    iteration: int
    task_id: str
    group: int
    trajectory: str
    task: str | None
    task_type: str | None
    split: str | None
    env_version: str | None
    step: int
    state: str
    prompt: str | None
    admissible_actions: Sequence[str] | None
    state_hash: int | None
    policy_version: int
    response: str | None
    message: str | None
    action: str | None
    prompt_token_ids: Sequence[int] | None
    response_token_ids: Sequence[int] | None
    response_logprobs: Sequence[float] | None
    finish_reason: str | None
    cut_pairs: int | None
    cut_tokens: int | None
    policy_s: float | None
    action_valid: bool
    action_admissible: bool | None
    terminated: bool
    truncated: bool
    won: bool | None
    reward: float
    score: float | None
    next_state: str | None
    next_state_hash: int | None
    aborted: bool
    error: str | None
    environment_s: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return the columns that have a value."""
        return {name: value for name, value in zip(self._fields, self, strict=True) if value is not None}


def columns_of(rows: Sequence[Row]) -> dict[str, Sequence[Any]]:
    """Return the columns of rows by name, as `hgpo_datasets.StepWriter.add_group` takes them."""
    columns = dict(zip(Row._fields, zip(*rows, strict=True), strict=True))
    return {name: values for name, values in columns.items() if values.count(None) < len(values)}


class Trajectory:
    """A member of a group that is played in one slot. A step is `request`, `add_reply` and `add_state`.

    Args:
        group: The group.
        member: Number of the rollout in the group, from 0.
        seed: The member's seed.
        episode: The slot's episode.
        clocked: Whether rows contain timings.

    Attributes:
        rows: One row per finished step.
        characters: Number of characters in the prompts and responses of these rows.
        aborted: Whether the rollout failed.
        action: The command that the environment executes, and whether the response was well formed; None between steps.
    """

    def __init__(self, group: PlannedGroup, member: int, seed: int, episode: Episode, *, clocked: bool) -> None:
        self.group, self.member, self.seed, self.episode, self._clocked = group, member, seed, episode, clocked
        self.rows: list[Row] = []
        self.characters = 0
        self.aborted = False
        self.action: tuple[str, bool | None] | None = None
        self._identity = (group.iteration, group.task_id, group.group, group.trajectory(member))
        self._task: tuple[str | None, ...] = (None, None, None, None)
        self._shown: tuple[str, str | None, Sequence[str] | None] | None = None
        self._state_hash: int | None = None
        self._replied: tuple[Any, ...] = _NO_REPLY

    def request(self, number: int = 0, slot: int = 0, engine: Engine | None = None) -> Request:
        """Begin the row of a step with its state and prompt. Return the request to the policy, with this number."""
        episode, settings, step = self.episode, self.episode.settings, len(self.rows)
        prompt = episode.prompt()
        if not step:
            task = episode.task
            versions = json.dumps(dict(task.versions), sort_keys=True, ensure_ascii=False)
            self._task = (task.instruction, task.task_type, task.split, versions)
        self._shown = (episode.state.text, prompt, tuple(episode.state.actions))
        self._state_hash = self._key_hash()
        turns: list[Turn] = []
        if settings.prompt_style == "chat":
            for row in self.rows:
                tokens = None if row.cut_pairs or row.cut_tokens else row.prompt_token_ids
                turns.append(Turn(row.prompt or "", row.response or "", tokens, row.response_token_ids, row.message))
        return Request(
            id=number,
            prompt=prompt,
            seed=text_hash(f"{self.seed}/{step}") % (1 << 63),
            slot=slot,
            step=step,
            task=episode.task,
            state=episode.state,
            engine=engine,
            with_shorter_history=episode.prompt,
            read_history=episode.history,
            tools=settings.tools,
            system_prompt=settings.system_prompt,
            turns=turns,
        )

    def add_reply(self, reply: Reply, seconds: float, version: int) -> str:
        """Add the policy's reply to the row. Return the command that is parsed from it."""
        assert self._shown is not None
        cut_off = reply.finish_reason == "length"
        command, _ = self.action = self.episode.read(reply.response, reply.message, cut_off=cut_off)
        message = None if reply.message is None else json.dumps(dict(reply.message), ensure_ascii=False)
        if reply.prompt is not None:
            state, _, actions = self._shown
            self._shown = (state, reply.prompt, actions)
        self._replied = (
            *(version, reply.response, message, command),
            *(reply.prompt_token_ids, reply.response_token_ids, reply.response_logprobs),
            *(reply.finish_reason, reply.cut_pairs, reply.cut_tokens),
            seconds if self._clocked else None,
        )
        return command

    def add_state(self, state: State, seconds: float) -> None:
        """Finish the row with the state that followed the command, in the episode too.

        ``lost`` in the state's info says that the action ended the world: the rollout is lost, not aborted.
        """
        assert self.action is not None
        episode = self.episode
        episode.observe(*self.action, state)
        self.action = None
        lost = state.info.get("lost")
        self._add(
            *(episode.action_valid, state.valid, episode.terminated, episode.truncated),
            *(state.won, state.reward, state.score),
            *((state.text, self._key_hash()) if episode.done else (None, None)),
            *(False, str(Failure("Lost", str(lost))) if lost else None),
            seconds if self._clocked else None,
        )

    def abort(self, failure: Failure) -> None:
        """End the rollout because of a failure. Its rows are kept, and the last one is marked as aborted."""
        self.aborted = True
        error = str(failure)
        if self._shown is None and self.rows:  # between two steps
            text, key = self.episode.state.text, self._key_hash()
            self.rows[-1] = self.rows[-1]._replace(aborted=True, error=error, next_state=text, next_state_hash=key)
            return
        if self._shown is None:  # the failure occurred before the first state
            self._shown = ("", None, None)
        self._add(True, None, False, False, False, 0.0, None, None, None, True, error, None)

    def _add(self, *ending: Any) -> None:
        """Add a row from its parts, in the order of the fields of `Row`."""
        assert self._shown is not None
        row = Row._make(
            (*self._identity, *self._task, len(self.rows), *self._shown, self._state_hash, *self._replied, *ending)
        )
        self.rows.append(row)
        self.characters += len(row.prompt or "") + len(row.response or "")
        self._shown, self._state_hash, self._replied = None, None, _NO_REPLY

    def _key_hash(self) -> int | None:
        """Return the hash of the state's key; None if texts are compared, whose hashes the writer computes."""
        key = self.episode.state_key
        return None if key is None else text_hash(key)


_NO_REPLY: Final = (0, *(None,) * 10)
