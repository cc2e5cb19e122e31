"""The training loop: collect groups, commit them, compute advantages, update the policy, publish its weights.

Rollouts are written to the step table before they are trained on, and all random numbers are derived from the seed and
the iteration. An interrupted run is therefore resumed from its last checkpoint: rollouts that were committed after the
checkpoint are used again, others are collected again. On a CPU the resulting weights are byte for byte those of an
uninterrupted run.

    RUN/config.toml     the configuration, after all overrides
    RUN/manifest.jsonl  what the run was started with (`hgpo_train.training.run_folder`), and the committed shards
    RUN/steps/          the shards
    RUN/evaluation/     the step table of held-out tasks; `iteration` is the number of iterations trained before
    RUN/checkpoints/    weights and optimiser
    RUN/metrics.jsonl   one line per iteration
"""

from __future__ import annotations

import math
import time
import warnings
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
import torch

from hgpo_datasets import StepWriter, scan_steps
from hgpo_datasets.sources import is_run
from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute
from hgpo_train.advantages.advantage_tables import fingerprint, join_advantages, read_metadata
from hgpo_train.advantages.registry import get
from hgpo_train.models.loading import check_context, load_model, load_tokenizer, vocabulary
from hgpo_train.policies.generation import GenerationOptions
from hgpo_train.policies.registry import TrainableContext, trainable_factory
from hgpo_train.rollout.collection import removed_if_unused
from hgpo_train.rollout.failures import failures_of_steps, raise_if_too_long, raise_if_too_many
from hgpo_train.rollout.fingerprints import environment_identity, fingerprint_model
from hgpo_train.rollout.outcomes import groups_with_mixed_outcomes
from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec, collect_groups
from hgpo_train.training.checkpoint import resume_checkpoint, save_checkpoint
from hgpo_train.training.data import env_options, open_training_env
from hgpo_train.training.gpu_memory import check_memory, free_gpu, gpu_for_update, memory_metrics
from hgpo_train.training.metrics import batch_metrics, episode_metrics
from hgpo_train.training.run_folder import FREE, check_new, open_run, write_config
from hgpo_train.training.tracking import Trackers
from hgpo_train.training.update.batches import row_faults, samples_from_steps
from hgpo_train.training.update.learner import Learner
from hgpo_train.training.update.optimiser import learning_rate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hgpo_train.models.checkpoint_files import TrainingState
    from hgpo_train.models.hf import Model
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


class Trainer:
    """A training run: the policy, its learner and the folder that everything is written to.

    Args:
        config: The run's configuration.
        folder: The run's folder, locked until `run` returns or raises. A run in it is resumed from its newest valid
            checkpoint.
        display: Shows the progress.
        resume: Whether to resume a run that the folder already contains.

    Raises:
        InputError: The configuration cannot be used, another process trains in the folder, or the run in it was started
            with another configuration, model, prompt template or data.
    """

    def __init__(self, config: Config, folder: Path, display: Display, *, resume: bool = False) -> None:
        self.config, self.folder, self._display = config, folder, display
        check_new(folder, resume=resume)
        get(config.advantage.estimator).with_parameters(**config.advantage.parameters)
        make_policy = trainable_factory(config.rollout.engine)
        plan = check_memory(config, display)
        self._env = open_training_env(config, config.environment.split)
        self.tokenizer = load_tokenizer(config.model.path)
        inputs = {
            **environment_identity(self._env, env_options(config, config.environment.split)),
            "model": fingerprint_model(config.model.path),
        }
        with removed_if_unused(folder), ExitStack() as resources:
            self._table = resources.enter_context(open_run(folder, config, inputs, free_settings(config)))
            self.model, self.learner, self.state = load_policy(config, folder)
            free_gpu(config.rollout, self.learner.optimiser)
            # The engine is last: its share is fixed by the plan, and what the learner holds by then is not its own.
            options = dict(config.rollout.engine_options if plan is None else plan.engine_options())
            self.policy = make_policy(self.model, self.tokenizer, _engine_context(config, options))
            resources.enter_context(closing(self.policy))
            self.policy.publish(self.model, self.state.iteration)
            # Line 0 is the evaluation before training, which is repeated if no iteration is complete.
            first_line = self.state.iteration + 1 if self.state.iteration else 0
            self._trackers = resources.enter_context(closing(Trackers(config, folder, first_line)))
            write_config(folder, config)
            self._resources = resources.pop_all()

    def run(self) -> TrainingState:
        """Train until the configured number of iterations or environment steps is reached; return the final state."""
        with closing(self):
            evaluation = self.config.evaluation
            if self.state.iteration == 0 and evaluation.every and evaluation.before_training:
                self._track(self.evaluate())
            while not is_finished(self.config, self.state.iteration, self.state.environment_steps):
                self.iterate()
        return self.state

    def close(self) -> None:
        """End the engine and the trackers, and unlock the folder; `run` does this in any case."""
        self._resources.close()

    def iterate(self) -> None:
        """Run one iteration: collect, estimate, update, publish; then evaluate, log and save.

        Raises:
            InputError: The data, the rows or the device's memory do not allow training.
            RolloutError: Too many rollouts failed.
        """
        config, begin = self.config, time.perf_counter()
        seconds: dict[str, float] = {}
        if self.learner.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.learner.device)

        with self._stage("collect", "gen", seconds):
            steps = self.collect()
        with self._stage("estimate", "adv", seconds):
            estimator, parameters = config.advantage.estimator, config.advantage.parameters
            rows = compute(steps, estimator, details=True, **parameters).collect(engine="in-memory")
        with (
            self._stage("update", "update_actor", seconds),
            gpu_for_update(config.rollout, self.policy, self.learner.optimiser, self.learner.device),
        ):
            metrics = update(config, self.learner, rows, self.state.iteration, self._display)
        self.state = advanced(self.state, steps)
        with self._stage("publish", "publish", seconds):
            self.policy.publish(self.model, self.state.iteration)

        if self._due(config.evaluation.every):
            with self._stage("evaluate", "testing", seconds):
                metrics |= self.evaluate()
        seconds["step"] = time.perf_counter() - begin
        metrics |= episode_metrics(steps) | memory_metrics(self.learner.device)
        metrics |= {f"timing_s/{stage}": duration for stage, duration in seconds.items()}
        metrics["perf/throughput"] = metrics["perf/total_num_tokens"] / seconds["step"]
        generated = int(steps["response_token_ids"].list.len().sum())
        metrics["perf/rollout_tokens_per_s"] = generated / max(seconds["gen"], 1e-9)
        self._track(metrics)
        # The checkpoint is last: an iteration that it counts has its metrics and its evaluation on disk.
        if self._due(config.checkpoint.every):
            with self._display.stage("checkpoint"):
                weights = self.model, self.tokenizer, self.learner.optimiser
                save_checkpoint(self.folder / "checkpoints", self.state, *weights, config.checkpoint)

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
            outcome=_outcome(self.config),
        )
        return self._play(self._env, self._table, spec)

    def evaluate(self) -> dict[str, float]:
        """Evaluate the policy on held-out tasks and return metrics named ``val/…``."""
        config, training, folder = self.config.evaluation, self.policy.options, self.folder / "evaluation"
        env = open_training_env(self.config, config.split)
        spec = RolloutSpec(
            tasks=min(config.tasks, len(env.tasks)),
            group_size=config.group_size,
            seed=self.config.seed + config.seed,
            order="sweep",
            iteration=self.state.iteration,
        )
        stored = None if is_run(folder) else self._table.header.config  # `open_run` has compared that
        self.policy.options = replace(training, temperature=config.temperature)
        try:
            with StepWriter(folder, run=self.config.name, config=stored) as table:
                return episode_metrics(self._play(env, table, spec), "val")
        finally:
            self.policy.options = training

    def _play(self, env: EnvHandle, writer: StepWriter, spec: RolloutSpec) -> pl.DataFrame:
        """Collect an iteration's missing or failed rollouts into a table, and return all rows of the iteration.

        Raises:
            RolloutError: Too many rollouts failed. They are committed, and repeated on the next call.
        """
        rollout = self.config.rollout
        # One shard per iteration: an interrupted collection is repeated completely, so its batches have the same shapes
        # and its log-probabilities the same bytes.
        groups = max(spec.tasks, spec.max_groups or 0)
        execution = ExecutionOptions(slots=rollout.slots, groups_per_shard=groups, shard_characters=128 << 20)
        collect_groups(env, self.policy, writer, spec, execution, retry_failed=True, progress=self._display.tally)
        rows = scan_steps(writer.folder).filter(pl.col("iteration") == spec.iteration)
        steps = rows.sort("trajectory", "step").collect()  # groups are stored in the order in which they finished
        if rollout.overflow == "error":
            raise_if_too_long(steps)
        advice = f"Repeat them with: hgpo train --resume --out {self.folder}"
        raise_if_too_many(failures_of_steps(steps.lazy()), rollout.max_failed, advice)
        return steps

    def _due(self, every: int) -> bool:
        done = self.state.iteration
        return every > 0 and (done % every == 0 or is_finished(self.config, done, self.state.environment_steps))

    @contextmanager
    def _stage(self, name: str, metric: str, seconds: dict[str, float]) -> Iterator[None]:
        """Show a stage's name while the block runs, and measure its duration under verl's name."""
        begin = time.perf_counter()
        with self._display.stage(name):
            yield
        seconds[metric] = time.perf_counter() - begin

    def _track(self, metrics: dict[str, float]) -> None:
        metrics = metrics | {"training/environment_steps": float(self.state.environment_steps)}
        self._trackers.log(metrics, self.state.iteration)
        self._display.row(self.state.iteration, metrics)


def update(config: Config, learner: Learner, rows: pl.DataFrame, iteration: int, display: Display) -> dict[str, float]:
    """Update the policy on steps with advantages; return metrics, and warn where they tell of a problem.

    Rows of aborted trajectories have no advantage; with `rollout.filter_groups`, groups with equal outcomes are left
    out. Other rows that cannot be trained on are left out with a warning.

    Raises:
        InputError: The engine reported no token ids, or the device ran out of memory.
    """
    if config.rollout.filter_groups:
        mixed = groups_with_mixed_outcomes(rows.lazy(), _outcome(config)).collect()
        rows = rows.join(mixed, on=mixed.columns, how="semi", maintain_order="left")
    tokens = rows.filter(~pl.col("aborted"))["response_token_ids"]
    if len(tokens) and tokens.is_null().all():
        raise InputError(f"the engine {config.rollout.engine!r} reported no token ids, which training needs")
    rows = rows.filter(pl.col("advantage").is_not_null() & (pl.col("response_token_ids").list.len() > 0))
    faults = row_faults(rows, vocabulary(learner.model))
    if left_out := len(faults) - faults.null_count():
        _warn(f"left out {left_out} of {len(rows)} rows that cannot be trained on: {faults.drop_nulls()[0]}")
    rows = rows.filter(faults.is_null())
    rate = learning_rate(config.optimiser, iteration, config.iterations)
    # The last number separates this stream from others that are derived from the same seed.
    rng = np.random.default_rng([config.seed, iteration, 2])
    samples = samples_from_steps(rows, share_prefixes=config.update.share_prefixes)
    metrics = learner.update(samples, rng, rate, display.progress)
    metrics |= {"training/rows_left_out": float(left_out), "perf/total_num_tokens": float(samples.start[-1])}
    metrics |= batch_metrics(rows, config.rollout.max_prompt_tokens, config.rollout.max_response_tokens)
    if (gap := metrics.get("training/rollout_logprobs_abs_diff_mean", 0.0)) > config.update.gap_warning:
        _warn(
            f"the engine's log-probabilities differ from the trainer's by {gap:.3f} on average (update.gap_warning = "
            f"{config.update.gap_warning}), so the update is off-policy; check the dtypes and whether the engine uses "
            "the current weights"
        )
    if metrics.get("actor/skipped", 0.0) > 0:
        _warn("skipped an optimiser step whose loss or gradient was not finite")
    if (truncated := metrics["prompt_length/clip_ratio"]) > 0.01:
        _warn(f"{truncated:.1%} of prompts are as long as rollout.max_prompt_tokens and were probably truncated")
    return metrics


def _warn(message: str) -> None:
    warnings.warn(message, TrainingWarning, stacklevel=4)


def advanced(state: TrainingState, steps: pl.DataFrame) -> TrainingState:
    """Return the state after an iteration that was trained on these steps."""
    return replace(
        state,
        iteration=state.iteration + 1,
        tasks_drawn=state.tasks_drawn + steps.select("task_id", "group").n_unique(),
        environment_steps=state.environment_steps + len(steps),
    )


def is_finished(config: Config, iteration: int, environment_steps: float) -> bool:
    """Return whether a run is finished after this number of iterations and environment steps."""
    return iteration >= config.iterations or environment_steps >= (config.environment_steps or math.inf)


def update_alone(
    config: Config, steps: Path, advantages: Path, folder: Path, display: Display, *, resume: bool = False
) -> None:
    """Update the policy on a table with its advantages, as `hgpo advantages` writes them, and save a checkpoint.

    This is the update stage of one iteration; `hgpo rollout` and `hgpo advantages` are those before it. The next one
    continues from the folder's checkpoint, with its optimiser.

    Args:
        config: The run's configuration, of which the environment and the estimator are not used.
        steps: The step table.
        advantages: Its advantages.
        folder: The run's folder.
        display: Shows the progress.
        resume: Whether to continue from the folder's checkpoint.

    Raises:
        InputError: The advantages are of another table or several estimators, there are no tokens, the model cannot be
            loaded, or the folder contains a run with another configuration or model.
    """
    check_new(folder, resume=resume)
    if read_metadata(advantages)["run_fingerprint"] != fingerprint(steps):
        raise InputError(f"{advantages} has the advantages of another table than {steps}")
    rows = join_advantages(scan_steps(steps), pl.scan_parquet(advantages)).sort("trajectory", "step").collect()
    if "advantage" not in rows.columns:
        raise InputError(
            f"{advantages} has the columns of several estimators; write one with `hgpo advantages {steps}`"
        )
    tokenizer = load_tokenizer(config.model.path)
    with open_run(folder, config, {"model": fingerprint_model(config.model.path)}, free_settings(config)):
        model, learner, state = load_policy(config, folder)
        write_config(folder, config)
        with closing(Trackers(config, folder, state.iteration + 1)) as trackers:
            with display.stage("update"):
                metrics = update(config, learner, rows, state.iteration, display)
            state = advanced(state, rows)
            trackers.log(metrics, state.iteration)
            display.row(state.iteration, metrics)
        save_checkpoint(folder / "checkpoints", state, model, tokenizer, learner.optimiser, config.checkpoint)


def free_settings(config: Config) -> frozenset[str]:
    """Return the settings that may change when a run of `hgpo train` is resumed."""
    # With a schedule that falls to 0, every iteration's learning rate depends on the number of iterations.
    return _FREE if config.optimiser.schedule == "constant" else _FREE - {"iterations"}


def load_policy(config: Config, folder: Path) -> tuple[Model, Learner, TrainingState]:
    """Load the model and its learner, as the newest checkpoint of a run's folder left them.

    Raises:
        InputError: The model or every checkpoint cannot be used.
    """
    model = load_model(config.model, config.seed)
    check_context(model, config.rollout.max_prompt_tokens + config.rollout.max_response_tokens)
    learner = Learner(model, config, temperature=config.rollout.temperature)
    state = resume_checkpoint(folder / "checkpoints", model, learner.optimiser, config.checkpoint)
    return model, learner, state


def _engine_context(config: Config, engine_options: dict[str, Any]) -> TrainableContext:
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


def _outcome(config: Config) -> str:
    """Return the name of the outcome that the estimator uses as reward; informative groups differ in it."""
    return str(config.advantage.parameters.get("reward", "reward"))
