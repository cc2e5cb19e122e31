"""A rollout that is being played, and its rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hgpo_envs.hashing import text_hash
from hgpo_train.policies.base import Failure, Request
from hgpo_train.policies.conversation import Turn
from hgpo_train.rollout.row import Row

if TYPE_CHECKING:
    from hgpo_envs.engine import Engine, State, Task
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
        point: Where it starts, if it is a branch; None if it starts its task.
        aborted: Whether the rollout failed.
        action: The command that the environment executes, and whether the response was well formed; None between steps.
    """

    def __init__(
        self,
        group: PlannedGroup,
        member: int,
        seed: int,
        episode: Episode,
        *,
        clocked: bool,
    ) -> None:
        self.group = group
        self.member = member
        self.seed = seed
        self.episode = episode
        self.point = group.branches[member][1] if group.branches else None
        self.rows: list[Row] = []
        self.aborted = False
        self.action: tuple[str, bool | None] | None = None
        self._clocked = clocked
        # what all rows have in common, in a row that is copied for each step
        self._blank = Row(
            iteration=group.iteration,
            task_id=group.task_id,
            group=group.group,
            trajectory=group.trajectory(member),
            step=0,
            state="",
        )
        if self.point is not None:
            at = self.point.rows[self.point.step]
            self._blank.parent = at.trajectory
            self._blank.branch_step = at.step
            self._blank.step = at.step
            self._blank.state = at.state
            self._blank.state_hash = at.state_hash
        self._first_step = self._blank.step
        self._row: Row | None = None  # of the step that has begun; None between steps

    def begin(self, task: Task, state: State) -> None:
        """Start the episode from its first state; of a branch, with the parent's steps in its memory."""
        if self.point is None:
            self.episode.begin(task, state)
            return
        self.episode.resume(self.point.episode)
        self.episode.task = task
        self.episode.state = state

    def request(
        self, number: int = 0, slot: int = 0, engine: Engine | None = None
    ) -> Request:
        """Begin the row of a step with its state and prompt. Return the request to the policy, with this number."""
        episode = self.episode
        settings = episode.settings
        state = episode.state
        step = self._first_step + len(self.rows)
        if not self.rows:
            # The task is known from the first state on: a rollout may fail before it.
            task = episode.task
            self._blank.task = task.instruction
            self._blank.task_type = task.task_type
            self._blank.split = task.split
            self._blank.env_version = json.dumps(
                dict(task.versions), sort_keys=True, ensure_ascii=False
            )
        prompt = episode.prompt()  # first: without a prompt the step has not begun
        self._row = replace(
            self._blank,
            step=step,
            state=state.text,
            prompt=prompt,
            admissible_actions=tuple(state.actions),
            state_hash=episode.key_hash,  # the writer computes those of texts
        )
        turns: list[Turn] = []
        if settings.prompt_style == "chat":
            before = () if self.point is None else self.point.rows[: self.point.step]
            for past in (*before, *self.rows):
                tokens = (
                    None if past.cut_pairs or past.cut_tokens else past.prompt_token_ids
                )
                turns.append(
                    Turn(
                        past.prompt or "",
                        past.response or "",
                        tokens,
                        past.response_token_ids,
                        past.message,
                    )
                )
        # by position, in the order of the fields: their names would take longer than the request itself
        return Request(
            number,
            prompt,
            text_hash(f"{self.seed}/{step}") % (1 << 63),
            slot,
            step,
            episode.task,
            state,
            engine,
            episode.prompt,
            episode.history,
            settings.tools,
            settings.system_prompt,
            turns,
            self._first_step,
        )

    def add_reply(self, reply: Reply, seconds: float, version: int) -> str:
        """Add the policy's reply to the row. Return the command that is parsed from it."""
        cut_off = reply.finish_reason == "length"
        command, _ = self.action = self.episode.read(
            reply.response,
            reply.message,
            cut_off=cut_off,
        )
        row = self._row
        assert row is not None
        row.policy_version = version
        row.response = reply.response
        row.action = command
        row.prompt_token_ids = reply.prompt_token_ids
        row.response_token_ids = reply.response_token_ids
        row.response_logprobs = reply.response_logprobs
        row.finish_reason = reply.finish_reason
        row.cut_pairs = reply.cut_pairs
        row.cut_tokens = reply.cut_tokens
        if reply.prompt is not None:
            row.prompt = reply.prompt
        if reply.message is not None:
            row.message = json.dumps(dict(reply.message), ensure_ascii=False)
        if self._clocked:
            row.policy_s = seconds
        return command

    def add_state(self, state: State, seconds: float) -> None:
        """Finish the row with the state that followed the command, in the episode too.

        ``lost`` in the state's info says that the action ended the world: the rollout is lost, not aborted.
        """
        action = self.action
        row = self._row
        assert action is not None
        assert row is not None
        self.action = None
        episode = self.episode
        episode.observe(*action, state)
        # first: it may fail, and then the step is aborted
        next_hash = episode.key_hash if episode.done else None
        row.action_valid = episode.action_valid
        row.action_admissible = state.valid
        row.terminated = episode.terminated
        row.truncated = episode.truncated
        row.won = state.won
        row.reward = state.reward
        row.score = state.score
        row.next_state = state.text if episode.done else None
        row.next_state_hash = next_hash
        if lost := state.info.get("lost"):
            row.error = str(Failure("Lost", str(lost)))
        if self._clocked:
            row.environment_s = seconds
        self.rows.append(row)
        self._row = None

    def abort(self, failure: Failure) -> None:
        """End the rollout because of a failure. Its rows are kept, and the last one is marked as aborted."""
        self.aborted = True
        if self.rows and self._row is None:  # between two steps
            row = self.rows[-1]
            row.next_state = self.episode.state.text
            row.next_state_hash = self.episode.key_hash
        else:
            row = self._row or self._blank  # the latter before the first step
            self.rows.append(row)
            self._row = None
        row.aborted = True
        row.error = str(failure)
