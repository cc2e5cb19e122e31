"""The training loop: collect, commit, estimate, update, publish, evaluate, checkpoint.

Rollouts are written to the step table before they are trained on, and all random numbers are derived from the seed and
the iteration. An interrupted run is therefore resumed from its last checkpoint: rollouts that were committed after the
checkpoint are used again, others are collected again. On a CPU the resulting weights are byte for byte those of an
uninterrupted run.

    RUN/config.toml     the configuration, after all overrides
    RUN/origin.json     fingerprints of the data, the prompt template and the model (`hgpo_train.training.run_folder`)
    RUN/manifest.jsonl  the committed shards of the step table that is trained on
    RUN/steps/          the shards
    RUN/evaluation/     the step table of held-out tasks; `iteration` is the number of iterations trained before
    RUN/checkpoints/    weights and optimiser
    RUN/metrics.jsonl   one line per iteration
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
import torch

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import remove_abandoned
from hgpo_train.advantages import compute
from hgpo_train.advantages.registry import get
from hgpo_train.models.checkpoint_files import TrainingState, checkpoint_to_resume, list_checkpoints
from hgpo_train.models.loading import check_context, load_model, load_tokenizer, vocabulary
from hgpo_train.policies.generation import GenerationOptions
from hgpo_train.policies.registry import TrainableContext, trainable_factory
from hgpo_train.rollout.failures import failures_of_steps, raise_if_too_long, raise_if_too_many
from hgpo_train.rollout.fingerprints import fingerprint_model, fingerprint_tasks, fingerprint_texts
from hgpo_train.rollout.outcomes import groups_with_mixed_outcomes
from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec, collect_groups
from hgpo_train.training.checkpoint import load_checkpoint, remove_superseded, resumed_state, save_checkpoint, versions
from hgpo_train.training.data import data_options, open_training_env
from hgpo_train.training.gpu_memory import check_memory, free_gpu, gpu_for_update, memory_metrics
from hgpo_train.training.metrics import batch_metrics, episode_metrics
from hgpo_train.training.run_folder import FREE, Origin, RunFolder, fixed_values
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

_FREE: Final = FREE | {
    "iterations",
    "environment_steps",
    "check_memory",
    "evaluation",
    "checkpoint",
    "rollout.slots",
    "rollout.sleep",
    "rollout.offload_optimiser",
    "rollout.engine_options",
    "rollout.max_failed",
}
"""Settings that may change when a run is resumed; they affect the weights only by rounding, or by training longer."""


class TrainingWarning(UserWarning):
    """A problem that does not stop training."""


def start_run(config: Config, folder: Path, *, resume: bool) -> RunFolder[Config]:
    """Open a run's folder for training and lock it against other training processes.

    Args:
        config: The run's configuration.
        folder: The run's folder; created if it is missing.
        resume: Whether to resume a run that the folder already contains.

    Raises:
        InputError: Another process trains in the folder, the folder contains a run and `resume` is False, or it
            contains a run of another configuration.
    """
    # With a schedule that falls to 0, every iteration's learning rate depends on the number of iterations.
    free = _FREE if config.optimiser.schedule == "constant" else _FREE - {"iterations"}
    return RunFolder(folder, config, free, resume=resume)


def is_finished(config: Config, iteration: int, environment_steps: float) -> bool:
    """Return whether a run is finished after this number of iterations and environment steps."""
    return iteration >= config.iterations or environment_steps >= (config.environment_steps or math.inf)


class Trainer:
    """A training run: the policy, its learner and the folder that everything is written to.

    An iteration is `collect`, `rows`, `update` and `publish`, each of which works on what the one before it returned.

    Args:
        run: A folder opened with `start_run`. The run is resumed from its newest valid checkpoint. The folder is
            released when `Trainer.run` returns or raises.
        display: Shows the progress.

    Raises:
        InputError: The configuration cannot be used, or the run was started with another model, prompt template or
            data.
    """

    def __init__(self, run: RunFolder[Config], display: Display) -> None:
        config, folder = run.config, run.folder
        self.config, self.folder, self._run, self._display = config, folder, run, display
        get(config.advantage.estimator).parameters.of(config.advantage.parameters)
        make_policy = trainable_factory(config.rollout.engine)
        plan = check_memory(config, display)
        self._env = open_training_env(config, config.environment.split)
        remove_abandoned(folder / "checkpoints")
        self.tokenizer: Tokenizer = load_tokenizer(config.model.path)
        self.model: Model = load_model(config.model, config.seed)
        run.pin(_origins(config, self._env))
        check_context(self.model, config.rollout.max_prompt_tokens + config.rollout.max_response_tokens)
        self.learner = Learner(self.model, config, temperature=config.rollout.temperature)
        self.state = TrainingState(versions=versions(), run=run.id)
        if (newest := checkpoint_to_resume(folder / "checkpoints", run.id)) is not None:
            self.state = resumed_state(load_checkpoint(newest, self.model, self.learner.optimiser), self.state)
            remove_superseded(folder / "checkpoints", newest, config.checkpoint.keep, config.checkpoint.optimiser)
        free_gpu(config.rollout, self.learner.optimiser)
        # The engine is created last: its share is fixed by the plan, and what the learner holds by then is not its own.
        engine_options = dict(config.rollout.engine_options if plan is None else plan.engine_options())
        self.policy = make_policy(self.model, self.tokenizer, _trainable_context(config, engine_options))
        self.policy.publish(self.model, self.state.iteration)
        done = self.state.iteration  # line 0 is the evaluation before training, which is repeated if done is 0
        self._trackers = make_trackers(config, folder, done + 1 if done else 0)
        self._seconds: dict[str, float] = {}

    def run(self) -> TrainingState:
        """Train until the configured number of iterations or environment steps is reached; return the final state."""
        try:
            evaluation = self.config.evaluation
            if self.state.iteration == 0 and evaluation.every and evaluation.before_training:
                self._track(self.evaluate())
            while not is_finished(self.config, self.state.iteration, self.state.environment_steps):
                self.iterate()
        finally:
            self.policy.close()
            for tracker in self._trackers:
                tracker.close()
            self._run.release()
        return self.state

    def iterate(self) -> dict[str, float]:
        """Run one iteration and return its metrics.

        Raises:
            InputError: The data, the rows or the device's memory do not allow training.
            RolloutError: Too many rollouts failed.
        """
        begin, self._seconds = time.perf_counter(), {}
        if self.learner.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.learner.device)
        with self._stage("collect", "gen"):
            steps = self.collect()
        with self._stage("estimate", "adv"):
            rows, left_out = self.rows(steps)
        with self._stage("update", "update_actor"):
            metrics = self.update(rows)
        self.state = dataclasses.replace(
            self.state,
            iteration=self.state.iteration + 1,
            tasks_drawn=self.state.tasks_drawn + steps.select(pl.struct("task_id", "group").n_unique()).item(),
            environment_steps=self.state.environment_steps + len(steps),
        )
        with self._stage("publish", "publish"):
            self.policy.publish(self.model, self.state.iteration)
        if self._due(self.config.evaluation.every):
            with self._stage("evaluate", "testing"):
                metrics |= self.evaluate()
        seconds = time.perf_counter() - begin
        metrics |= {f"timing_s/{stage}": duration for stage, duration in self._seconds.items()}
        metrics |= episode_metrics(steps) | {"timing_s/step": seconds} | memory_metrics(self.learner.device)
        metrics |= batch_metrics(rows, self.config.rollout.max_prompt_tokens, self.config.rollout.max_response_tokens)
        tokens = rows.select(pl.sum_horizontal(pl.col("prompt_token_ids", "response_token_ids").list.len()).sum())
        generated = int(steps["response_token_ids"].list.len().sum())
        metrics["training/rows_left_out"] = float(left_out)
        metrics["perf/throughput"] = tokens.item() / seconds
        metrics["perf/rollout_tokens_per_s"] = generated / max(self._seconds["gen"], 1e-9)
        self._warn(metrics)
        self._track(metrics)
        # The checkpoint is last: an iteration that it counts has its metrics and its evaluation on disk.
        if self._due(self.config.checkpoint.every):
            self.checkpoint()
        return metrics

    def collect(self) -> pl.DataFrame:
        """Collect the iteration's groups, commit them as a shard and return its steps.

        Raises:
            RolloutError: Too many rollouts failed.
        """
        rollout = self.config.rollout
        spec = RolloutSpec(
            tasks=rollout.tasks,
            group_size=rollout.group_size,
            seed=self.config.seed,
            iteration=self.state.iteration,
            skip=self.state.tasks_drawn,
            max_groups=rollout.tasks * rollout.max_generation_batches if rollout.filter_groups else None,
            outcome=self._outcome(),
        )
        with StepWriter(self.folder, lock=self._run.lock, **self._table()) as writer:
            return self._play(self._env, writer, spec)

    def rows(self, steps: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        """Return the steps to train on with their advantages, and the number of those left out with a warning.

        Aborted trajectories have no advantage; with `rollout.filter_groups`, neither have groups with equal outcomes.
        """
        config = self.config.advantage
        rows = compute(steps, config.estimator, details=True, **config.parameters).collect(engine="in-memory")
        if self.config.rollout.filter_groups:
            mixed = groups_with_mixed_outcomes(steps.lazy(), self._outcome()).collect()
            rows = rows.join(mixed, on=mixed.columns, how="semi", maintain_order="left")
        rows = rows.filter(pl.col("advantage").is_not_null() & (pl.col("response_token_ids").list.len() > 0))
        if rows.is_empty() and steps["response_token_ids"].is_null().all() and not steps["aborted"].all():
            raise InputError(f"the engine {self.config.rollout.engine!r} reported no token ids, which training needs")
        faults = row_faults(rows, vocabulary(self.model))
        if left_out := len(faults) - faults.null_count():
            message = f"left out {left_out} of {len(rows)} rows that cannot be trained on: {faults.drop_nulls()[0]}"
            warnings.warn(message, TrainingWarning, stacklevel=3)
        return rows.filter(faults.is_null()), left_out

    def update(self, rows: pl.DataFrame) -> dict[str, float]:
        """Update the policy on rows with advantages and return the update's metrics."""
        rate = learning_rate(self.config.optimiser, self.state.iteration, self.config.iterations)
        # The last number separates this stream from others that are derived from the same seed.
        rng = np.random.default_rng([self.config.seed, self.state.iteration, 2])
        with gpu_for_update(self.config.rollout, self.policy, self.learner.optimiser, self.learner.device):
            return self.learner.update(samples_from_steps(rows), rng, rate, self._display.progress)

    def evaluate(self) -> dict[str, float]:
        """Evaluate the policy on held-out tasks and return metrics named ``val/…``."""
        config, training = self.config.evaluation, self.policy.options
        env = open_training_env(self.config, config.split)
        spec = RolloutSpec(
            tasks=min(config.tasks, len(env.tasks)),
            group_size=config.group_size,
            seed=self.config.seed + config.seed,
            order="sweep",
            iteration=self.state.iteration,
        )
        self.policy.options = dataclasses.replace(training, temperature=config.temperature)
        try:
            with StepWriter(self.folder / "evaluation", **self._table()) as writer:
                return episode_metrics(self._play(env, writer, spec), "val")
        finally:
            self.policy.options = training

    def newest_checkpoint(self) -> Path | None:
        """Return the newest checkpoint's folder, or None before the first checkpoint."""
        checkpoints = list_checkpoints(self.folder / "checkpoints")
        return checkpoints[-1] if checkpoints else None

    def checkpoint(self) -> Path:
        """Write a checkpoint of the run's present state and return its folder."""
        config = self.config.checkpoint
        with self._display.stage("checkpoint"):
            return save_checkpoint(
                self.folder / "checkpoints",
                self.state,
                self.model,
                self.tokenizer,
                self.learner.optimiser,
                keep=config.keep,
                moments=config.optimiser,
            )

    def _play(self, env: EnvHandle, writer: StepWriter, spec: RolloutSpec) -> pl.DataFrame:
        """Collect an iteration's missing or failed rollouts into a table, and return all rows of the iteration.

        Raises:
            RolloutError: Too many rollouts failed. They are committed, and repeated on the next call.
        """
        # One shard per iteration: an interrupted collection is repeated completely, so its batches have the same shapes
        # and its log-probabilities the same bytes.
        execution = ExecutionOptions(
            slots=self.config.rollout.slots, groups_per_shard=max(spec.tasks, spec.max_groups or 0)
        )
        progress = self._display.tally
        collect_groups(env, self.policy, writer, spec, execution, retry_failed=True, progress=progress)
        rows = scan_steps(writer.folder).filter(pl.col("iteration") == spec.iteration)
        steps = rows.sort("trajectory", "step").collect()  # groups are stored in the order in which they finished
        if self.config.rollout.overflow == "error":
            raise_if_too_long(steps)
        raise_if_too_many(failures_of_steps(steps.lazy()), self.config.rollout.max_failed, "Resuming repeats them")
        return steps

    def _table(self) -> dict[str, Any]:
        return {"run": self.config.name, "config": fixed_values(self.config, _FREE)}

    def _outcome(self) -> str:
        """Return the name of the outcome that the estimator uses as reward; informative groups differ in it."""
        return str(self.config.advantage.parameters.get("reward", "reward"))

    def _due(self, every: int) -> bool:
        done = self.state.iteration
        return every > 0 and (done % every == 0 or is_finished(self.config, done, self.state.environment_steps))

    @contextmanager
    def _stage(self, name: str, metric: str) -> Iterator[None]:
        """Show a stage's name while the block runs, and measure its duration under verl's name."""
        begin = time.perf_counter()
        with self._display.stage(name):
            yield
        self._seconds[metric] = time.perf_counter() - begin

    def _track(self, metrics: dict[str, float]) -> None:
        metrics = metrics | {"training/environment_steps": float(self.state.environment_steps)}
        log_to(self._trackers, metrics, self.state.iteration)
        self._display.row(self.state.iteration, metrics)

    def _warn(self, metrics: dict[str, float]) -> None:
        messages = []
        if (gap := metrics.get("training/rollout_logprobs_abs_diff_mean", 0.0)) > self.config.update.gap_warning:
            messages.append(
                f"the engine's log-probabilities differ from the trainer's by {gap:.3f} on average "
                f"(update.gap_warning = {self.config.update.gap_warning}), so the update is off-policy; check the "
                "dtypes and whether the engine uses the current weights"
            )
        if metrics.get("actor/skipped", 0.0) > 0:
            messages.append("skipped an optimiser step whose loss or gradient was not finite")
        if (truncated := metrics["prompt_length/clip_ratio"]) > 0.01:
            messages.append(
                f"{truncated:.1%} of prompts are as long as rollout.max_prompt_tokens and were probably truncated"
            )
        for message in messages:
            warnings.warn(message, TrainingWarning, stacklevel=2)


def _trainable_context(config: Config, engine_options: dict[str, Any]) -> TrainableContext:
    rollout = config.rollout
    options = GenerationOptions(
        temperature=rollout.temperature,
        max_prompt_tokens=rollout.max_prompt_tokens,
        max_response_tokens=rollout.max_response_tokens,
        overflow=rollout.overflow,
    )
    if rollout.sleep and rollout.engine == "vllm":
        engine_options["enable_sleep_mode"] = True
    return TrainableContext(config.model, options, engine_options)


def _origins(config: Config, env: EnvHandle) -> dict[str, Origin]:
    """Return the inputs that a configuration refers to by name, with their fingerprints."""
    environment, template = config.environment, env.settings.template
    options = data_options(environment)
    named = f"environment.prompt_template = {environment.prompt_template!r}"
    return {
        "prompt template": Origin(named, fingerprint_texts([template.text]), template.text),
        "set of tasks": Origin(f"environment.options = {options}", fingerprint_tasks(env, options)),
        "model": Origin(f"model.path = {config.model.path!r}", fingerprint_model(config.model.path)),
    }
