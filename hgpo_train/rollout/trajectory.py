"""A rollout that is being played, and its rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hgpo_envs.hashing import text_hash
from hgpo_train.policies.base import Failure, Request
from hgpo_train.policies.conversation import Turn
from hgpo_train.rollout.row import Row

if TYPE_CHECKING:
    from hgpo_envs.engine import Engine, State
    from hgpo_envs.episode import Episode
    from hgpo_train.policies.base import Reply
    from hgpo_train.rollout.plan import PlannedGroup


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
        self.group = group
        self.member = member
        self.seed = seed
        self.episode = episode
        self.rows: list[Row] = []
        self.characters = 0
        self.aborted = False
        self.action: tuple[str, bool | None] | None = None
        self._clocked = clocked
        self._id = group.trajectory(member)
        self._versions: str | None = None
        self._text: str | None = None  # the state's, of the step that has begun
        self._actions: tuple[str, ...] | None = None
        self._state_hash: int | None = None
        self._prompt: str | None = None
        self._reply: Reply | None = None
        self._policy_version = 0
        self._policy_s = 0.0

    def request(self, number: int = 0, slot: int = 0, engine: Engine | None = None) -> Request:
        """Begin the row of a step with its state and prompt. Return the request to the policy, with this number."""
        episode = self.episode
        settings = self.episode.settings
        step = len(self.rows)
        if not step:
            self._versions = json.dumps(dict(episode.task.versions), sort_keys=True, ensure_ascii=False)
        prompt = episode.prompt()  # first: without a prompt the step has not begun
        self._prompt = prompt
        self._text = episode.state.text
        self._actions = tuple(episode.state.actions)
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
        cut_off = reply.finish_reason == "length"
        command, _ = self.action = self.episode.read(reply.response, reply.message, cut_off=cut_off)
        self._reply = reply
        self._policy_version = version
        self._policy_s = seconds
        return command

    def add_state(self, state: State, seconds: float) -> None:
        """Finish the row with the state that followed the command, in the episode too.

        ``lost`` in the state's info says that the action ended the world: the rollout is lost, not aborted.
        """
        assert self.action is not None
        action = self.action
        self.action = None
        self.episode.observe(*action, state)
        lost = state.info.get("lost")
        error = str(Failure("Lost", str(lost))) if lost else None
        self._add_row(action[0], state, error, aborted=False, environment_s=seconds)

    def abort(self, failure: Failure) -> None:
        """End the rollout because of a failure. Its rows are kept, and the last one is marked as aborted."""
        self.aborted = True
        error = str(failure)
        if self._text is None and self.rows:  # between two steps
            text = self.episode.state.text
            key = self._key_hash()
            self.rows[-1] = self.rows[-1]._replace(aborted=True, error=error, next_state=text, next_state_hash=key)
            return
        command = None if self.action is None else self.action[0]
        self._add_row(command, None, error, aborted=True)

    def _add_row(
        self, command: str | None, state: State | None, error: str | None, *, aborted: bool, environment_s: float = 0.0
    ) -> None:
        """Add the row of the step that has begun.

        Args:
            command: The command that the environment executed; None if the policy has not replied.
            state: The state that followed; None if the rollout failed before it.
            error: Why the rollout failed, or how the action ended the world.
            aborted: Whether the rollout failed.
            environment_s: Seconds that the command took.
        """
        episode = self.episode
        reply = self._reply
        task = episode.task if self._versions is not None else None  # None if the rollout failed before its first state
        ended = state is not None and episode.done
        message = None
        prompt = self._prompt
        if reply is not None and reply.message is not None:
            message = json.dumps(dict(reply.message), ensure_ascii=False)
        if reply is not None and reply.prompt is not None:
            prompt = reply.prompt
        row = Row(
            iteration=self.group.iteration,
            task_id=self.group.task_id,
            group=self.group.group,
            trajectory=self._id,
            task=task.instruction if task else None,
            task_type=task.task_type if task else None,
            split=task.split if task else None,
            env_version=self._versions,
            step=len(self.rows),
            state=self._text or "",
            prompt=prompt,
            admissible_actions=self._actions,
            state_hash=self._state_hash,
            policy_version=self._policy_version,
            response=reply.response if reply else None,
            message=message,
            action=command,
            prompt_token_ids=reply.prompt_token_ids if reply else None,
            response_token_ids=reply.response_token_ids if reply else None,
            response_logprobs=reply.response_logprobs if reply else None,
            finish_reason=reply.finish_reason if reply else None,
            cut_pairs=reply.cut_pairs if reply else None,
            cut_tokens=reply.cut_tokens if reply else None,
            policy_s=self._policy_s if self._clocked and reply else None,
            action_valid=episode.action_valid if state else True,
            action_admissible=state.valid if state else None,
            terminated=episode.terminated if state else False,
            truncated=episode.truncated if state else False,
            won=state.won if state else False,
            reward=state.reward if state else 0.0,
            score=state.score if state else None,
            next_state=state.text if ended and state else None,
            next_state_hash=self._key_hash() if ended else None,
            aborted=aborted,
            error=error,
            environment_s=environment_s if self._clocked and state else None,
        )
        self.rows.append(row)
        self.characters += len(row.prompt or "") + len(row.response or "")
        self._text = self._actions = self._state_hash = self._prompt = self._reply = None
        self._policy_version = 0

    def _key_hash(self) -> int | None:
        """Return the hash of the state's key; None if texts are compared, whose hashes the writer computes."""
        key = self.episode.state_key
        return None if key is None else text_hash(key)
