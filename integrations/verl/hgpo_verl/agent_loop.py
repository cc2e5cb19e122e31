"""verl's agent loop: one rollout of an environment, with one output per step."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    register,
)

from hgpo_envs.episode import Episode
from hgpo_train.rollout.plan import PlannedGroup
from hgpo_train.rollout.trajectory import Trajectory
from hgpo_train.training.data import open_training_env
from hgpo_verl.episodes import Generated, play, with_retries
from hgpo_verl.run_settings import RunSettings, read_settings

if TYPE_CHECKING:
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.row import Row

_TOKENS = ("prompt_token_ids", "response_token_ids", "response_logprobs")
"""Columns that are not sent with the row, because verl keeps the tokens."""


@cache
def _opened(section: str) -> tuple[RunSettings, EnvHandle, EnvHandle]:
    """Return the settings and the environments of training and evaluation; a process opens them once."""
    settings = read_settings(OmegaConf.to_container(OmegaConf.create(section)))
    config = settings.config
    return (
        settings,
        open_training_env(config, config.environment.split),
        open_training_env(config, config.evaluation.split),
    )


@register("hgpo_steps")
class StepsAgentLoop(AgentLoopBase):
    """Plays a rollout with verl's generating servers and returns one output per step.

    Each output has the step's row of the step table in ``extra_fields["hgpo"]``. A rollout that fails is returned as
    well, with a response mask of zeros, so that it is stored and not trained on.
    """

    async def run(
        self, sampling_params: dict[str, Any], **task: Any
    ) -> list[AgentLoopOutput]:
        """Play the rollout. See verl's `AgentLoopBase.run`; `task` is a row of `hgpo_verl.tasks.TaskDataset`."""
        settings, train, evaluation = _opened(
            OmegaConf.to_yaml(self.config.hgpo, resolve=True)
        )
        config = settings.config
        is_evaluation = bool(task["evaluation"])
        member = int(task["session_id"])
        handle = evaluation if is_evaluation else train
        sampling = {**sampling_params, "max_tokens": config.rollout.max_response_tokens}
        if config.rollout.stop:
            sampling["stop"] = list(config.rollout.stop)
        # one for the whole rollout: its prompts share a prefix, and verl keeps it on a server
        request_id = uuid4().hex

        async def generate(tokens: list[int]) -> Generated:
            made = await self.server_manager.generate(
                request_id=request_id, prompt_ids=tokens, sampling_params=dict(sampling)
            )
            if not made.token_ids or made.stop_reason in ("abort", "aborted"):
                raise RuntimeError(
                    f"the engine ended the request with {made.stop_reason!r}"
                )
            return Generated(
                list(made.token_ids),
                made.log_probs,
                made.extra_fields.get("global_steps"),
            )

        group = PlannedGroup(
            position=int(task["position"]),
            iteration=int(task["global_steps"])
            if is_evaluation
            else int(task["iteration"]),
            task_id=str(task["task_id"]),
            group=int(task["group"]),
            size=config.evaluation.group_size
            if is_evaluation
            else config.rollout.group_size,
        )
        seed = group.seed(
            config.seed + config.evaluation.seed if is_evaluation else config.seed,
            member,
        )
        trajectory = Trajectory(
            group, member, seed, Episode(handle.shared, handle.settings), clocked=True
        )
        await play(
            trajectory, with_retries(generate), self.tokenizer, settings.generation
        )
        return self._outputs(trajectory, int(task["global_steps"]))

    def _outputs(
        self, trajectory: Trajectory, global_steps: int
    ) -> list[AgentLoopOutput]:
        rows = trajectory.rows
        won = any(row.won for row in rows)
        total = float(sum(row.reward for row in rows))
        shown = {
            "acc": float(won and not trajectory.aborted),
            "steps": len(rows),
            "failed": float(trajectory.aborted),
        }
        outputs = [
            self._output(row, trained=not trajectory.aborted, global_steps=global_steps)
            for row in rows
        ]
        for output in outputs:
            output.num_turns = len(rows)
            output.extra_fields["reward_extra_info"] = shown
        # verl copies it to all steps, for its metrics; advantages do not use it
        outputs[-1].reward_score = total
        return outputs

    def _output(self, row: Row, *, trained: bool, global_steps: int) -> AgentLoopOutput:
        response = row.response_token_ids
        # the rollout failed before the step's response: verl needs a token
        missing = not response
        prompt = row.prompt_token_ids or [self.tokenizer.eos_token_id]
        response = response or [self.tokenizer.eos_token_id]
        version = (
            max(0, global_steps - 1) if row.response is None else row.policy_version
        )
        return AgentLoopOutput(
            prompt_ids=list(prompt),
            response_ids=list(response),
            response_mask=[int(trained)] * len(response),
            response_logprobs=list(row.response_logprobs or [0.0] * len(response)),
            metrics=AgentLoopMetrics(
                generate_sequences=row.policy_s or 0.0,
                tool_calls=row.environment_s or 0.0,
            ),
            extra_fields={
                "hgpo": {
                    name: value
                    for name, value in row.as_dict().items()
                    if name not in _TOKENS
                },
                "hgpo_without_tokens": missing,
                "min_global_steps": version,
                "max_global_steps": version,
            },
        )
