"""A rollout that is being played, and its rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hgpo_envs.hashing import text_hash
from hgpo_train.policies.base import Failure

if TYPE_CHECKING:
    from hgpo_envs.episode import Episode
    from hgpo_train.policies.base import Reply
    from hgpo_train.rollout.group_plan import PlannedGroup

Row = dict[str, Any]


class Trajectory:
    """A member of a group that is played in one slot.

    Args:
        group: The group.
        member: Number of the rollout in the group, from 0.
        seed: The member's seed.
        episode: The slot's episode.
        clocked: Whether rows contain timings.

    Attributes:
        rows: One row per finished step, without the columns that are constant in a run.
    """

    def __init__(self, group: PlannedGroup, member: int, seed: int, episode: Episode, *, clocked: bool) -> None:
        self.group, self.member, self.seed, self.episode, self._clocked = group, member, seed, episode, clocked
        self.rows: list[Row] = []
        self._open: Row = {}
        self._common: Row = {
            "iteration": group.iteration,
            "task_id": group.task_id,
            "group": group.group,
            "trajectory": group.trajectory(member),
        }

    def step_seed(self) -> int:
        """Return the seed of the next step."""
        return text_hash(f"{self.seed}/{len(self.rows)}") % (1 << 63)

    def open_row(self, prompt: str) -> None:
        """Begin the row of a step with its state and prompt, when the policy receives the request."""
        state = self.episode.state
        if not self.rows:
            task = self.episode.task
            self._common |= {
                "task": task.instruction,
                "task_type": task.task_type,
                "split": task.split,
                "env_version": json.dumps(dict(task.versions), sort_keys=True, ensure_ascii=False),
            }
        self._open = {
            **self._common,
            "step": len(self.rows),
            "state": state.text,
            "prompt": prompt,
            "admissible_actions": list(state.actions),
        }
        if self.episode.state_key is not None:  # otherwise, the writer hashes the text
            self._open["state_hash"] = self.episode.state_hash

    def add_reply(self, reply: Reply, command: str, seconds: float, version: int) -> None:
        """Add the policy's reply and the command that was parsed from it to the open row."""
        self._open |= {
            "policy_version": version,
            "response": reply.response,
            "action": command,
            "prompt_token_ids": reply.prompt_token_ids,
            "response_token_ids": reply.response_token_ids,
            "response_logprobs": reply.response_logprobs,
            "finish_reason": reply.finish_reason,
            "cut_pairs": reply.cut_pairs,
            "cut_tokens": reply.cut_tokens,
        }
        if reply.prompt is not None:
            self._open["prompt"] = reply.prompt
        if self._clocked:
            self._open["policy_s"] = seconds

    def close_row(self, seconds: float) -> None:
        """Finish the row after the episode has taken the step.

        ``lost`` in the state's info says that the action ended the world: the rollout is lost, not aborted.
        """
        episode = self.episode
        self._open |= {
            "action_valid": episode.action_valid,
            "action_admissible": episode.state.valid,
            "terminated": episode.terminated,
            "truncated": episode.truncated,
            "won": episode.state.won,
            "reward": episode.state.reward,
            "score": episode.state.score,
        }
        if lost := episode.state.info.get("lost"):
            self._open["error"] = str(Failure("Lost", str(lost)))
        if self._clocked:
            self._open["environment_s"] = seconds
        if episode.done:
            self._open |= self._next_state()
        self.rows.append(self._open)
        self._open = {}

    def abort(self, failure: Failure) -> None:
        """End the rollout because of a failure. Its rows are kept, and the last one is marked as aborted."""
        failed = {"aborted": True, "error": str(failure)}
        if not self._open and self.rows:  # between two steps
            self.rows[-1] |= {**failed, **self._next_state()}
            return
        if not self._open:  # the failure occurred before the first state
            self._open = {**self._common, "step": 0, "state": ""}
        self.rows.append({**self._open, **failed, "reward": 0.0, "won": False})
        self._open = {}

    def _next_state(self) -> Row:
        row = {"next_state": self.episode.state.text}
        return row if self.episode.state_key is None else {**row, "next_state_hash": self.episode.state_hash}

    @property
    def aborted(self) -> bool:
        """Whether the rollout failed."""
        return bool(self.rows) and "aborted" in self.rows[-1]
