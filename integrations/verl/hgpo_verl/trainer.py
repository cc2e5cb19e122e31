"""verl's trainer with HGPO's advantages, which are computed from the step table that the rollouts are stored in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo.v1 import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from hgpo_train.rollout.failures import (
    failures_of,
    raise_if_too_long,
    raise_if_too_many,
)
from hgpo_train.rollout.outcomes import rollout_table
from hgpo_train.training.metrics import episode_metrics
from hgpo_verl.run_settings import read_settings
from hgpo_verl.step_rows import StepTable, advantages

if TYPE_CHECKING:
    import polars as pl
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    from hgpo_verl.workers import ReplacingAgentLoopManager

_FIELDS: Final = ["prompts", "responses", "rollout_log_probs", "extra_fields"]


@register_trainer("hgpo")
class HgpoTrainer(PPOTrainerSync):
    """verl's synchronous trainer, with the estimators and step tables of HGPO.

    Each iteration's steps are committed to the run's folder before they are trained on, like those of `hgpo train`.
    Rows that verl adds for padding are neither stored nor in any group; rows without an advantage, which belong to
    rollouts that failed, have no part in the loss.
    """

    def __init__(self, config: DictConfig) -> None:
        section = OmegaConf.to_container(config.hgpo, resolve=True)
        assert isinstance(section, dict)
        self.settings = read_settings(section)
        self._steps = StepTable(
            self.settings.folder,
            self.settings.config,
            self.settings.config.environment.split,
        )
        self._evaluation: StepTable | None = None
        super().__init__(config)

    def _build_replay_buffer(self) -> ReplayBuffer:
        self.trainer_mode = "sync"  # verl treats every other name as asynchronous
        return super()._build_replay_buffer()

    def fit(self, agent_loop_manager: ReplacingAgentLoopManager) -> None:
        """Train to the end; see verl's method."""
        self.replay_buffer.on_wait = agent_loop_manager.replace_dead_workers
        self.replay_buffer.on_sampled = self._store_evaluation
        try:
            super().fit(agent_loop_manager)
        finally:
            self._steps.close()
            if self._evaluation is not None:
                self._evaluation.close()

    def _compute_advantage(
        self, batch: KVBatchMeta, metrics: dict[str, Any]
    ) -> KVBatchMeta:
        rows = _rows(batch)
        steps = self._steps.store(list(rows.values()))
        self._check(steps)
        metrics.update(episode_metrics(steps))
        metrics["training/workers_replaced"] = self.agent_loop_manager.replaced
        found = advantages(steps, self.settings.config.advantage)
        masks = tq.kv_batch_get(
            keys=batch.keys,
            partition_id=batch.partition_id,
            select_fields=["response_mask"],
        )
        values = []
        trained = []
        for key, mask in zip(batch.keys, masks["response_mask"].unbind(), strict=True):
            row = rows.get(key)
            advantage = (
                None if row is None else found.get((row["trajectory"], row["step"]))
            )
            trained.append(mask if advantage is not None else torch.zeros_like(mask))
            values.append(trained[-1] * (0.0 if advantage is None else advantage))
        nested = torch.nested.as_nested_tensor(
            [value.float() for value in values], layout=torch.jagged
        )
        mask = torch.nested.as_nested_tensor(trained, layout=torch.jagged)
        fields = {
            "advantages": nested,
            "returns": nested.clone(),
            "response_mask": mask,
            "loss_mask": mask.clone(),
        }
        return tq.kv_batch_put(
            keys=batch.keys,
            partition_id=batch.partition_id,
            fields=TensorDict(fields, batch_size=len(batch)),
        )

    def _store_evaluation(self, batch: KVBatchMeta) -> None:
        if batch.partition_id != "val":
            return
        if self._evaluation is None:
            config = self.settings.config
            self._evaluation = StepTable(
                self.settings.folder / "evaluation", config, config.evaluation.split
            )
        self._check(self._evaluation.store(list(_rows(batch).values())))

    def _check(self, steps: pl.DataFrame) -> None:
        """Stop as `hgpo train` does: if a prompt was too long and may not be shortened, or too many rollouts failed."""
        rollout = self.settings.config.rollout
        if rollout.overflow == "error":
            raise_if_too_long(steps)
        failures = failures_of(rollout_table(steps.lazy()).collect())
        raise_if_too_many(failures, rollout.max_failed, "Resuming repeats them")


def _rows(batch: KVBatchMeta) -> dict[str, dict[str, Any]]:
    """Return the row of the step table of each key, without verl's padding."""
    keys = [
        key
        for key, tag in zip(batch.keys, batch.tags, strict=True)
        if not tag.get("is_padding", False)
    ]
    data = tq.kv_batch_get(
        keys=keys, partition_id=batch.partition_id, select_fields=_FIELDS
    )
    tokens = [[one.tolist() for one in data[name].unbind()] for name in _FIELDS[:3]]
    rows = {}
    for key, prompt, response, logprobs, extra in zip(
        keys, *tokens, list(data["extra_fields"]), strict=True
    ):
        fields = getattr(extra, "data", extra)
        row = dict(fields["hgpo"])
        if not fields["hgpo_without_tokens"]:
            row |= {
                "prompt_token_ids": prompt,
                "response_token_ids": response,
                "response_logprobs": logprobs,
            }
        rows[key] = row
    return rows
