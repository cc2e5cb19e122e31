"""The training loop: collect, commit, estimate, update, publish, evaluate, checkpoint.

Each stage reads what the one before it left on disk, and all randomness comes from (seed, iteration, …). So a run that
was killed goes on from its last checkpoint: what it had collected beyond that is in the step table and is used again,
what it had not is collected again, and on a CPU the weights are the same bytes as those of an unbroken run.

    RUN/config.toml     the configuration, after all overrides
    RUN/origin.json     fingerprints of the data, the prompt template and the model (`hgpo_train.training.run_folder`)
    RUN/steps/          the step table that was trained on
    RUN/evaluation/     the step table of held-out tasks, `iteration` being the number of iterations before
    RUN/checkpoints/    weights and optimiser
    RUN/metrics.jsonl   one line an iteration
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.atomic import remove_abandoned
from hgpo_train.advantages import compute
from hgpo_train.advantages.registry import get
from hgpo_train.models.checkpoint_files import TrainingState, checkpoint_to_resume, list_checkpoints
from hgpo_train.models.loading import check_context, load_model, load_tokenizer, vocabulary
from hgpo_train.policies.generation import GenerationOptions
from hgpo_train.policies.registry import TrainableContext, check_trainable, make_trainable
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.failures import failures_of_steps, raise_if_too_many
from hgpo_train.rollout.fingerprints import fingerprint_model, fingerprint_tasks, fingerprint_texts
from hgpo_train.rollout.outcomes import groups_with_mixed_outcomes
from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec, collect
from hgpo_train.training.checkpoint import load_checkpoint, remove_superseded, resumed_state, save_checkpoint, versions
from hgpo_train.training.config import template_path
from hgpo_train.training.metrics import batch_metrics, episode_metrics
from hgpo_train.training.run_folder import Origin, RunFolder, fixed_values
from hgpo_train.training.tracking import log_to, make_trackers
from hgpo_train.training.update.batches import row_faults, samples_from_steps
from hgpo_train.training.update.learner import Learner
from hgpo_train.training.update.optimiser import learning_rate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hgpo_train.models.hf import Model, Tokenizer
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.training.config import Config
    from hgpo_train.training.display import Display

_ONE_BATCH: Final = 1_000_000
_FREE: Final = frozenset(
    {
        "iterations",
        "environment_steps",
        "evaluation",
        "checkpoint",
        "tracking",
        "update.micro_batch_tokens",
        "update.logit_chunk",
        "update.gap_warning",
        "rollout.slots",
        "rollout.engine_options",
        "rollout.max_failed",
        "model.device",
        "model.gradient_checkpointing",
    }
)
"""What may change between a run and its resumption: it does not decide what is learnt, but for rounding."""


class TrainingWarning(UserWarning):
    """Something that training goes on in spite of."""


def start_run(config: Config, folder: Path, *, resume: bool) -> RunFolder[Config]:
    """Opens a run's folder for training; no other process may train there until it is released.

    Raises:
        InputError: Another process trains there; the folder holds a run and is not to be resumed; or it holds a run of
            another configuration.
    """
    # A schedule that falls to 0 over the iterations makes each of them depend on how many there are.
    free = _FREE if config.optimiser.schedule == "constant" else _FREE - {"iterations"}
    return RunFolder(folder, config, free, purpose="training", resume=resume)


def is_finished(config: Config, iteration: int, environment_steps: float) -> bool:
    """Whether a run is over after so many iterations and environment steps."""
    budget = config.environment_steps
    return iteration >= config.iterations or (budget is not None and environment_steps >= budget)


class Trainer:
    """Trains a policy by a configuration.

    Args:
        run: What `start_run` opened. It is resumed from its newest sound checkpoint, and released when `run` returns.
        display: Shows what happens.

    Raises:
        InputError: Something in the configuration cannot be used, or the run was begun with another model, prompt
            template or data.
    """

    def __init__(self, run: RunFolder[Config], display: Display) -> None:
        config, folder = run.config, run.folder
        self.config, self.folder, self._run, self._display = config, folder, run, display
        get(config.advantage.estimator).parameters.of(config.advantage.parameters)
        check_trainable(config.rollout.engine)
        self._world = open_training_env(config, config.environment.split)
        remove_abandoned(folder / "checkpoints")
        self.tokenizer: Tokenizer = load_tokenizer(config.model.path)
        self.model: Model = load_model(config.model, config.seed)
        run.pin(_origins(config, self._world))
        check_context(self.model, config.rollout.max_prompt_tokens + config.rollout.max_response_tokens)
        self.learner = Learner(self.model, config, temperature=config.rollout.temperature)
        self.state = TrainingState(versions=versions(), run=run.id)
        if (newest := checkpoint_to_resume(folder / "checkpoints", run.id)) is not None:
            self.state = resumed_state(load_checkpoint(newest, self.model, self.learner.optimiser), self.state)
            remove_superseded(folder / "checkpoints", newest, config.checkpoint.keep)
        self.policy = make_trainable(config.rollout.engine, self.model, self.tokenizer, _trainable_context(config))
        self.policy.publish(self.model, self.state.iteration)
        done = self.state.iteration  # line 0 is the evaluation before training, which is then made again
        self._trackers = make_trackers(config, folder, done + 1 if done else 0)

    def run(self) -> TrainingState:
        """Trains until all iterations are done, or all environment steps are taken."""
        try:
            if self.state.iteration == 0 and self.config.evaluation.every:
                metrics = self.evaluate()
                self._track(metrics)
            while not is_finished(self.config, self.state.iteration, self.state.environment_steps):
                self.iterate()
        finally:
            self.policy.close()
            for tracker in self._trackers:
                tracker.close()
            self._run.release()
        return self.state

    def iterate(self) -> dict[str, float]:
        """One iteration; its checkpoint, if one is due, is its last act."""
        clock = StageTimer()
        iteration = self.state.iteration
        with clock("gen"), self._display.stage("collect"):
            steps, drawn = self._collect(iteration)
        metrics = episode_metrics(steps)
        with clock("adv"), self._display.stage("estimate"):
            rows, left_out = self._usable(self._compute_advantages(steps))
        metrics["training/rows_left_out"] = float(left_out)
        metrics |= batch_metrics(rows, self.config.rollout.max_prompt_tokens, self.config.rollout.max_response_tokens)
        with clock("update_actor"), self._display.stage("update"):
            rate = learning_rate(self.config.optimiser, iteration, self.config.iterations)
            rng = np.random.default_rng([self.config.seed, iteration, 2])
            metrics |= self.learner.update(samples_from_steps(rows), rng, rate, self._display.progress)
        self.state = dataclasses.replace(
            self.state,
            iteration=iteration + 1,
            tasks_drawn=self.state.tasks_drawn + drawn,
            environment_steps=self.state.environment_steps + len(steps),
        )
        with clock("publish"), self._display.stage("publish"):
            self.policy.publish(self.model, self.state.iteration)
        if self._due(self.config.evaluation.every):
            with clock("testing"):
                metrics |= self.evaluate()
        tokens = rows.select(
            pl.sum_horizontal(pl.col("prompt_token_ids", "response_token_ids").list.len()).sum()
        ).item()
        metrics |= clock.metrics() | {"perf/throughput": tokens / clock.total()}
        self._warn(metrics)
        self._track(metrics)
        if self._due(self.config.checkpoint.every):
            self.checkpoint()
        return metrics

    def evaluate(self) -> dict[str, float]:
        """Plays held-out tasks once each and returns metrics named ``val/…``."""
        config = self.config
        handle = open_training_env(config, config.evaluation.split)
        training = self.policy.options
        self.policy.options = dataclasses.replace(training, temperature=config.evaluation.temperature)
        spec = RolloutSpec(
            tasks=min(config.evaluation.tasks, len(handle.tasks)),
            group_size=config.evaluation.group_size,
            seed=config.seed + config.evaluation.seed,
            order="sweep",
            iteration=self.state.iteration,
        )
        try:
            with self._display.stage("evaluate"):
                return episode_metrics(self._played("evaluation", handle, spec), "val")
        finally:
            self.policy.options = training

    def newest_checkpoint(self) -> Path | None:
        """The newest checkpoint, or None before the first."""
        whole = list_checkpoints(self.folder / "checkpoints")
        return whole[-1] if whole else None

    def checkpoint(self) -> Path:
        """Writes a checkpoint of the run as it is."""
        with self._display.stage("checkpoint"):
            return save_checkpoint(
                self.folder / "checkpoints",
                self.state,
                self.model,
                self.tokenizer,
                self.learner.optimiser,
                keep=self.config.checkpoint.keep,
            )

    def _collect(self, iteration: int) -> tuple[pl.DataFrame, int]:
        """The iteration's steps, from the table, and how many tasks were drawn for them."""
        rollout = self.config.rollout
        spec = RolloutSpec(
            tasks=rollout.tasks,
            group_size=rollout.group_size,
            seed=self.config.seed,
            iteration=iteration,
            skip=self.state.tasks_drawn,
            max_groups=rollout.tasks * rollout.max_generation_batches if rollout.filter_groups else None,
            outcome=self._outcome(),
        )
        steps = self._played("steps", self._world, spec)
        return steps, steps.select(pl.struct("task_id", "group").n_unique()).item()

    def _compute_advantages(self, steps: pl.DataFrame) -> pl.DataFrame:
        """The rows to train on, with their advantages; aborted trajectories have none."""
        config = self.config.advantage
        rows = compute(steps, config.estimator, details=True, **config.parameters).collect()
        if self.config.rollout.filter_groups:
            mixed = groups_with_mixed_outcomes(steps.lazy(), self._outcome()).collect()
            rows = rows.join(mixed, on=mixed.columns, how="semi", maintain_order="left")
        return rows.filter(pl.col("advantage").is_not_null() & (pl.col("response_token_ids").list.len() > 0))

    def _usable(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        """The rows that can be trained on, and how many cannot: one odd row costs no other."""
        if rows.is_empty():
            return rows, 0
        faults = row_faults(rows, vocabulary(self.model))
        left_out = len(faults) - faults.null_count()
        if left_out:
            warnings.warn(
                f"{left_out} of {len(rows)} rows cannot be trained on and are left out: {faults.drop_nulls()[0]}",
                TrainingWarning,
                stacklevel=3,
            )
        return rows.filter(faults.is_null()), left_out

    def _outcome(self) -> str:
        """The outcome that the estimator reads rewards from; groups in which it differs are informative."""
        return str(self.config.advantage.parameters.get("reward", "reward"))

    def _played(self, table: str, handle: EnvHandle, spec: RolloutSpec) -> pl.DataFrame:
        """An iteration's rows in a table, after what was missing or had failed was played.

        Raises:
            RolloutError: Too many rollouts failed. They are committed, and played again on the next call.
        """
        with self._writer(table) as writer:
            collect(
                handle, self.policy, writer, spec, self._execution(), retry_failed=True, progress=self._display.tally
            )
        steps = scan_steps(self.folder / table).filter(pl.col("iteration") == spec.iteration).collect()
        raise_if_too_many(failures_of_steps(steps.lazy()), self.config.rollout.max_failed, "Resuming plays them again")
        return steps

    def _writer(self, table: str) -> StepWriter:
        return StepWriter(self.folder / table, run=self.config.name, config=fixed_values(self.config, _FREE))

    def _execution(self) -> ExecutionOptions:
        # One shard an iteration: a killed collection is then played again as a whole, in batches of the same shapes.
        return ExecutionOptions(slots=self.config.rollout.slots, groups_per_shard=_ONE_BATCH)

    def _due(self, every: int) -> bool:
        done = self.state.iteration
        return every > 0 and (done % every == 0 or is_finished(self.config, done, self.state.environment_steps))

    def _track(self, metrics: dict[str, float]) -> None:
        metrics = metrics | {"training/environment_steps": float(self.state.environment_steps)}
        log_to(self._trackers, metrics, self.state.iteration)
        self._display.row(self.state.iteration, metrics)

    def _warn(self, metrics: dict[str, float]) -> None:
        gap = metrics.get("training/rollout_logprobs_abs_diff_mean", 0.0)
        if gap > self.config.update.gap_warning:
            warnings.warn(
                f"the engine's log-probabilities are {gap:.3f} off the trainer's on average (update.gap_warning = "
                f"{self.config.update.gap_warning}): the update is off-policy; look at dtypes and at stale caches",
                TrainingWarning,
                stacklevel=2,
            )
        if metrics.get("actor/skipped", 0.0) > 0:
            warnings.warn(
                "an update with a loss or gradient that is not finite was left out", TrainingWarning, stacklevel=2
            )
        if metrics.get("prompt_length/clip_ratio", 0.0) > 0.01:
            warnings.warn(
                f"{metrics['prompt_length/clip_ratio']:.1%} of prompts are as long as rollout.max_prompt_tokens and "
                "were probably cut",
                TrainingWarning,
                stacklevel=2,
            )


def _trainable_context(config: Config) -> TrainableContext:
    rollout = config.rollout
    options = GenerationOptions(
        temperature=rollout.temperature,
        max_prompt_tokens=rollout.max_prompt_tokens,
        max_response_tokens=rollout.max_response_tokens,
        overflow=rollout.overflow,
    )
    return TrainableContext(config.model, options, rollout.engine_options)


def _origins(config: Config, handle: EnvHandle) -> dict[str, Origin]:
    """What a run depends on and its configuration only names."""
    environment, template = config.environment, handle.settings.template
    named = f"environment.prompt_template = {environment.prompt_template!r}"
    return {
        "prompt template": Origin(named, fingerprint_texts([template.text]), template.text),
        "set of tasks": Origin(
            f"environment.options = {environment.options}", fingerprint_tasks(handle, environment.options)
        ),
        "model": Origin(f"model.path = {config.model.path!r}", fingerprint_model(config.model.path)),
    }


def open_training_env(config: Config, split: str) -> EnvHandle:
    """The environment of a configuration, for one of its splits."""
    environment = config.environment
    options: dict[str, Any] = dict(environment.options)
    if (template := template_path(environment)) is not None:
        options["prompt_template"] = template
    return open_env(
        environment.id,
        split=split,
        max_steps=environment.max_steps,
        history_length=environment.history_length,
        action_format=environment.action_format,
        **options,
    )


class StageTimer:
    """Seconds a stage took."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._stages: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Times the block."""
        begin = time.perf_counter()
        yield
        self._stages[stage] = self._stages.get(stage, 0.0) + time.perf_counter() - begin

    def total(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self._begin

    def metrics(self) -> dict[str, float]:
        """Named ``timing_s/…``, as verl does."""
        return {f"timing_s/{stage}": seconds for stage, seconds in self._stages.items()} | {
            "timing_s/step": self.total()
        }
