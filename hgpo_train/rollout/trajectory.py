"""A rollout that is being played, and its rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

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
        characters: Number of characters in the prompts and responses of these rows.
        point: Where it starts, if it is a branch; None if it starts its task.
        aborted: Whether the rollout failed.
        action: The command that the environment executes, and whether the response was well formed; None between steps.
    """

    def __init__(
        self, group: PlannedGroup, member: int, seed: int, episode: Episode, *, clocked: bool
    ) -> None:
        self.group = group
        self.member = member
        self.seed = seed
        self.episode = episode
        self.point = group.point(member)
        self.rows: list[Row] = []
        self.characters = 0
        self.aborted = False
        self.action: tuple[str, bool | None] | None = None
        self._clocked = clocked
        self._identity: dict[str, Any] = {
            "iteration": group.iteration,
            "task_id": group.task_id,
            "group": group.group,
            "trajectory": group.trajectory(member),
        }
        self._first_step = 0
        if self.point is not None:
            self._first_step = self.point.step
            self._identity |= {"parent": self.point.parent, "branch_step": self.point.step}
        self._columns: dict[str, Any] = {}  # of the step that has begun; empty between steps

    def begin(self, task: Task, state: State) -> None:
        """Start the episode from its first state; of a branch, with the parent's steps in its memory."""
        point = self.point
        if point is None:
            self.episode.begin(task, state)
            return
        self.episode.begin(task, point.states[0])
        is_response = self.episode.settings.action_format == "response"
        for row, following in zip(point.rows, [*point.states[1:-1], state], strict=False):
            self.episode.observe(
                row.action or "", row.action_valid if is_response else None, following
            )

    def request(self, number: int = 0, slot: int = 0, engine: Engine | None = None) -> Request:
        """Begin the row of a step with its state and prompt. Return the request to the policy, with this number."""
        episode = self.episode
        settings = episode.settings
        state = episode.state
        step = self._first_step + len(self.rows)
        if not self.rows:
            # The task is known from the first state on: a rollout may fail before it.
            task = episode.task
            self._identity |= {
                "task": task.instruction,
                "task_type": task.task_type,
                "split": task.split,
                "env_version": json.dumps(dict(task.versions), sort_keys=True, ensure_ascii=False),
            }
        prompt = episode.prompt()  # first: without a prompt the step has not begun
        self._columns = {
            **self._identity,
            "step": step,
            "state": state.text,
            "prompt": prompt,
            "admissible_actions": tuple(state.actions),
            "state_hash": self._key_hash(),
        }
        turns: list[Turn] = []
        if settings.prompt_style == "chat":
            before = () if self.point is None else self.point.rows[:-1]
            for row in (*before, *self.rows):
                tokens = None if row.cut_pairs or row.cut_tokens else row.prompt_token_ids
                turns.append(
                    Turn(
                        row.prompt or "",
                        row.response or "",
                        tokens,
                        row.response_token_ids,
                        row.message,
                    )
                )
        return Request(
            id=number,
            prompt=prompt,
            seed=text_hash(f"{self.seed}/{step}") % (1 << 63),
            slot=slot,
            step=step,
            first_step=self._first_step,
            task=episode.task,
            state=state,
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
        command, _ = self.action = self.episode.read(
            reply.response,
            reply.message,
            cut_off=cut_off,
        )
        columns = self._columns
        columns["policy_version"] = version
        columns["response"] = reply.response
        columns["action"] = command
        columns["prompt_token_ids"] = reply.prompt_token_ids
        columns["response_token_ids"] = reply.response_token_ids
        columns["response_logprobs"] = reply.response_logprobs
        columns["finish_reason"] = reply.finish_reason
        columns["cut_pairs"] = reply.cut_pairs
        columns["cut_tokens"] = reply.cut_tokens
        if reply.prompt is not None:
            columns["prompt"] = reply.prompt
        if reply.message is not None:
            columns["message"] = json.dumps(dict(reply.message), ensure_ascii=False)
        if self._clocked:
            columns["policy_s"] = seconds
        return command

    def add_state(self, state: State, seconds: float) -> None:
        """Finish the row with the state that followed the command, in the episode too.

        ``lost`` in the state's info says that the action ended the world: the rollout is lost, not aborted.
        """
        assert self.action is not None
        action = self.action
        self.action = None
        episode = self.episode
        episode.observe(*action, state)
        # first: it may fail, and then the step is aborted
        next_hash = self._key_hash() if episode.done else None
        columns = self._columns
        columns["action_valid"] = episode.action_valid
        columns["action_admissible"] = state.valid
        columns["terminated"] = episode.terminated
        columns["truncated"] = episode.truncated
        columns["won"] = state.won
        columns["reward"] = state.reward
        columns["score"] = state.score
        columns["next_state"] = state.text if episode.done else None
        columns["next_state_hash"] = next_hash
        if lost := state.info.get("lost"):
            columns["error"] = str(Failure("Lost", str(lost)))
        if self._clocked:
            columns["environment_s"] = seconds
        self._add_row()

    def abort(self, failure: Failure) -> None:
        """End the rollout because of a failure. Its rows are kept, and the last one is marked as aborted."""
        self.aborted = True
        error = str(failure)
        if self.rows and not self._columns:  # between two steps
            text = self.episode.state.text
            key = self._key_hash()
            self.rows[-1] = self.rows[-1]._replace(
                aborted=True,
                error=error,
                next_state=text,
                next_state_hash=key,
            )
            return
        if not self._columns:  # before the first step
            at = (
                Row(**self._identity, step=0, state="")
                if self.point is None
                else self.point.rows[-1]
            )
            self._columns = {
                **self._identity,
                "step": at.step,
                "state": at.state,
                "state_hash": at.state_hash,
            }
        self._columns |= {"aborted": True, "error": error}
        self._add_row()

    def _add_row(self) -> None:
        """Add the row of the step that has begun."""
        row = Row(**self._columns)
        self.rows.append(row)
        self.characters += len(row.prompt or "") + len(row.response or "")
        self._columns = {}

    def _key_hash(self) -> int | None:
        """Return the hash of the state's key; None if texts are compared, whose hashes the writer computes."""
        key = self.episode.state_key
        return None if key is None else text_hash(key)
