"""The training loop: collect groups, commit them, compute advantages, update the policy, publish its weights.

Rollouts are written to the step table before they are trained on, and all random numbers are derived from the seed and
the iteration. An interrupted run is therefore resumed from its last checkpoint: rollouts that were committed after the
checkpoint are used again, others are collected again. On a CPU the resulting weights are byte for byte those of an
uninterrupted run.

    RUN/config.toml     all settings, after all overrides; `hgpo train --resume` reads it
    RUN/manifest.jsonl  what the run was started with, and the committed shards: its settings, and fingerprints of the
                        tasks, the prompt template and the model. A run is resumed only with the same ones.
    RUN/steps/          the shards
    RUN/evaluation/     the step table of held-out tasks; `iteration` is the number of iterations trained before
    RUN/checkpoints/    weights and optimiser
    RUN/metrics.jsonl   one line per iteration
"""

from __future__ import annotations

import math
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
import torch

from hgpo_datasets import StepWriter, manifest, scan_steps
from hgpo_datasets.reader import step_files
from hgpo_datasets.sources import is_run, run_at, run_of_file
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import new_folder
from hgpo_envs.wording import counted
from hgpo_train.advantages import compute
from hgpo_train.advantages.advantage_tables import fingerprint, join_advantages, read_metadata
from hgpo_train.models.checkpoint_files import list_checkpoints, stored_model
from hgpo_train.models.loading import check_context, load_model, load_tokenizer, vocabulary
from hgpo_train.policies.generation import GenerationOptions, generation_options
from hgpo_train.policies.registry import TrainableContext, trainable_factory
from hgpo_train.rollout.collection import removed_if_unused
from hgpo_train.rollout.failures import failures_of_steps, raise_if_too_long, raise_if_too_many
from hgpo_train.rollout.outcomes import groups_with_mixed_outcomes
from hgpo_train.rollout.plan import ExecutionOptions, RolloutSpec
from hgpo_train.rollout.run import collect_groups
from hgpo_train.training.checkpoint import resume_checkpoint, save_checkpoint
from hgpo_train.training.config import AdvantageConfig, configured_estimator, stored_config
from hgpo_train.training.data import env_options, open_training_env
from hgpo_train.training.memory_plan import check_memory, memory_advice, memory_metrics
from hgpo_train.training.metrics import batch_metrics, episode_metrics
from hgpo_train.training.run_folder import CONFIG, FREE, check_new, open_run, write_config
from hgpo_train.training.tracking import METRICS, Trackers, read_metrics
from hgpo_train.training.update.batches import check_rows, samples_from_steps
from hgpo_train.training.update.learner import Learner
from hgpo_train.training.update.optimiser import learning_rate, move_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hgpo_train.advantages.registry import Estimate
    from hgpo_train.models.checkpoint_files import TrainingState
    from hgpo_train.models.hf import Model
    from hgpo_train.policies.generation import TrainablePolicy
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.tally import Tally
    from hgpo_train.training.config import Config, RolloutConfig, UpdateConfig
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
        configured_estimator(config)
        make_policy = trainable_factory(config.rollout.engine, config.rollout.engine_options)
        plan = check_memory(config, display)
        if plan is not None:
            _check_machine(config, display)
            self.config = plan.config
        self._env = open_training_env(config, config.environment.split)
        if config.evaluation.every:
            _ = self._held_out  # a split that does not exist is an error before training
        self.tokenizer = load_tokenizer(config.model.path, config.rollout.chat_template)
        inputs = {
            **self._env.identity(env_options(config, config.environment.split)),
            "model": stored_model(config.model.path),
            # The path is a setting; the file behind it must be the same, too, when the run is resumed.
            **({"chat_template": self.tokenizer.chat_template} if config.rollout.chat_template else {}),
        }
        with removed_if_unused(folder, CONFIG), ExitStack() as resources:
            resources.callback(self._close_environments)
            self._table = resources.enter_context(open_run(folder, config, inputs, free_settings(config)))
            with display.stage("load the model"):
                self.model, self.learner, self.state = load_policy(self.config, folder)
            free_gpu(config.rollout, self.learner.optimiser)
            # The engine is last: its share is fixed by the plan, and what the learner holds by then is not its own.
            options = dict(config.rollout.engine_options if plan is None else plan.engine_options())
            with display.stage(f"start {config.rollout.engine}"):  # vLLM takes a minute or two
                self.policy = make_policy(self.model, self.tokenizer, _engine_context(config, options))
            resources.enter_context(closing(self.policy))
            self._ahead: Future[tuple[pl.DataFrame, float]] | None = None
            self._beside = resources.enter_context(ThreadPoolExecutor(1, "hgpo-rollouts"))
            self._is_closing = Event()
            resources.callback(self._is_closing.set)
            with memory_advice(config):
                self.policy.publish(self.model, self.state.iteration)
            # Line 0 is the evaluation before training, which is repeated if no iteration is complete.
            first_line = self.state.iteration + 1 if self.state.iteration else 0
            self._trackers = resources.enter_context(closing(Trackers(config, folder, first_line)))
            self._estimate = self._estimator()
            self._drop_outdated_evaluations(first_line)
            write_config(folder, config)
            self._resources = resources.pop_all()

    def run(self) -> TrainingState:
        """Train until the configured number of iterations or environment steps is reached; return the final state."""
        with closing(self):
            evaluation = self.config.evaluation
            if self.state.iteration == 0 and evaluation.every and evaluation.before_training:
                with self._display.stage("evaluate"):
                    metrics = self.evaluate()
                self._track(metrics)
            if self._is_finished():
                done = counted(self.state.iteration, "iteration")
                self._display.show(f"Nothing is left to do: the run has reached its end after {done}.")
            while not self._is_finished():
                self.iterate()
        return self.state

    def _close_environments(self) -> None:
        self._env.close()
        if "_held_out" in vars(self):
            self._held_out.close()

    def close(self) -> None:
        """End the engine and the trackers, and unlock the folder; `run` does this in any case."""
        self._resources.close()

    def iterate(self) -> None:
        """Run one iteration: collect, estimate, update, publish; then evaluate, log and save.

        Raises:
            InputError: The data, the rows or the device's memory do not allow training.
            RolloutError: As `collect`.
        """
        config, begin = self.config, time.perf_counter()
        seconds: dict[str, float] = {}
        if self.learner.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.learner.device)

        steps = self._collected(seconds)
        with self._stage("estimate", "adv", seconds):
            rows, estimated = self._estimate(trained_groups(config, steps))
        with (
            self._stage("update", "update_actor", seconds),
            memory_advice(config),
            gpu_for_update(config.rollout, self.policy, self.learner.optimiser, self.learner.device),
        ):
            metrics = update(config, self.learner, rows, self.state.iteration, self._display)
        self.state = advanced(self.state, steps)
        if self._ahead is not None:  # its rollouts end before the engine receives other weights
            with self._stage("collect", "gen_wait", seconds):
                self._ahead.result()
        with self._stage("publish", "publish", seconds), memory_advice(config):
            self.policy.publish(self.model, self.state.iteration)

        is_best = False
        if self._due(config.evaluation.every):
            with self._stage("evaluate", "testing", seconds):
                metrics |= self.evaluate()
            self.state = judged(self.state, metrics.get("val/success_rate", math.nan))
            is_best = self.state.stalled == 0 and config.checkpoint.keep > 0
        seconds["step"] = time.perf_counter() - begin
        metrics |= estimated | episode_metrics(steps) | memory_metrics(self.learner.device)
        lag = steps.select((pl.col("iteration") - pl.col("policy_version")).mean()).item()
        metrics["training/policy_lag"] = lag or 0.0
        metrics |= {f"timing_s/{stage}": duration for stage, duration in seconds.items()}
        metrics["perf/throughput"] = metrics["perf/total_num_tokens"] / seconds["step"]
        generated = int(steps["response_token_ids"].list.len().sum())
        metrics["perf/rollout_tokens_per_s"] = generated / max(seconds["gen"], 1e-9)
        self._track(metrics)
        # The checkpoint is last: an iteration that it counts has its metrics and its evaluation on disk.
        if is_best or self._due(config.checkpoint.every):
            with self._display.stage("checkpoint"):
                weights = self.model, self.tokenizer, self.learner.optimiser
                save_checkpoint(self.folder / "checkpoints", self.state, *weights, config.checkpoint)

    def _estimator(self) -> Estimate:
        """Return the function that adds the advantages to an iteration's steps."""
        estimator = configured_estimator(self.config)
        trained = None
        if estimator.in_training is not None:
            trained = estimator.in_training(estimator.parameters, self.model, read_metrics(self.folder / METRICS))

        def estimate(steps: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, float]]:
            if steps.is_empty():  # all groups were left out
                return steps.with_columns(advantage=pl.lit(None, pl.Float64)), {}
            if trained is not None:
                return trained(steps)
            return compute(steps, estimator, details=True).collect(engine="in-memory"), {}

        return estimate

    def _collected(self, seconds: dict[str, float]) -> pl.DataFrame:
        """Return the iteration's steps; with `rollout.ahead`, those of the next iteration are collected from now on."""
        if self._ahead is None:
            with self._stage("collect", "gen", seconds):
                steps = self.collect(self.state, self._display.tally)
        else:
            steps, seconds["gen"] = self._ahead.result()
            self._ahead = None
        following = advanced(self.state, steps)
        if self.config.rollout.ahead and not is_finished(self.config, following.iteration, following.environment_steps):
            self._ahead = self._beside.submit(_timed, self.collect, following)
        return steps

    def collect(self, state: TrainingState, progress: Callable[[Tally], None] = lambda _: None) -> pl.DataFrame:
        """Collect the groups of the iteration after a state, commit them as a shard and return its steps.

        Raises:
            RolloutError: Too many rollouts failed. They are committed, and repeated on the next call.
        """
        rollout = self.config.rollout
        spec = RolloutSpec(
            tasks=rollout.tasks,
            group_size=rollout.group_size,
            seed=self.config.seed,
            iteration=state.iteration,
            skip=state.tasks_drawn,
            max_groups=rollout.tasks * rollout.max_generation_batches if rollout.filter_groups else None,
            outcome=_outcome(self.config),
        )
        return self._play(self._env, self._table, spec, progress)

    @cached_property
    def _held_out(self) -> EnvHandle:
        return open_training_env(self.config, self.config.evaluation.split)

    def _evaluations(self, folder: Path) -> StepWriter:
        stored = None if is_run(folder) else self._table.header.config  # `open_run` has compared that
        return StepWriter(folder, run=self.config.name, config=stored)

    def _drop_outdated_evaluations(self, begin: int) -> None:
        """Drop the evaluations from iteration `begin` on, which follow, if their settings have changed."""
        folder, stored = self.folder / "evaluation", self.folder / CONFIG
        if is_run(folder) and stored.exists() and stored_config(stored).evaluation != self.config.evaluation:
            with new_folder(folder, replace=is_run) as kept, self._evaluations(kept) as table:
                for shard in step_files(folder):
                    table.add_group(scan_steps(shard).filter(pl.col("iteration") < begin).collect())

    def evaluate(self) -> dict[str, float]:
        """Evaluate the policy on held-out tasks and return metrics named ``val/…``."""
        config, training, env = self.config.evaluation, self.policy.options, self._held_out
        spec = RolloutSpec(
            tasks=min(config.tasks, len(env.tasks)),
            group_size=config.group_size,
            seed=self.config.seed + config.seed,
            order="sweep",
            iteration=self.state.iteration,
        )
        self.policy.options = replace(training, temperature=config.temperature)
        try:
            with self._evaluations(self.folder / "evaluation") as table:
                return episode_metrics(self._play(env, table, spec, self._display.tally), "val")
        finally:
            self.policy.options = training

    def _play(
        self, env: EnvHandle, writer: StepWriter, spec: RolloutSpec, progress: Callable[[Tally], None]
    ) -> pl.DataFrame:
        """Collect an iteration's missing or failed rollouts into a table, and return all rows of the iteration."""
        rollout = self.config.rollout
        # One shard per iteration: an interrupted collection is repeated completely, so its batches have the same shapes
        # and its log-probabilities the same bytes.
        groups = max(spec.tasks, spec.max_groups or 0)
        execution = ExecutionOptions(
            slots=rollout.slots, groups_per_shard=groups, shard_s=None, shard_characters=128 << 20
        )
        stops = self._is_closing.is_set
        collect_groups(
            env, self.policy, writer, spec, execution, retry_failed=True, progress=progress, should_stop=stops
        )
        rows = scan_steps(writer.folder).filter(pl.col("iteration") == spec.iteration)
        steps = rows.sort("trajectory", "step").collect()  # groups are stored in the order in which they finished
        if rollout.overflow == "error":
            raise_if_too_long(steps)
        advice = f"Repeat them with: hgpo train --resume --out {self.folder}"
        raise_if_too_many(failures_of_steps(steps.lazy()), rollout.max_failed, advice)
        return steps

    def _due(self, every: int) -> bool:
        return every > 0 and (self.state.iteration % every == 0 or self._is_finished())

    def _is_finished(self) -> bool:
        is_stalled = 0 < self.config.evaluation.patience <= self.state.stalled
        return is_stalled or is_finished(self.config, self.state.iteration, self.state.environment_steps)

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


def trained_groups(config: Config, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of the groups that are trained on: with `rollout.filter_groups`, those with different outcomes.

    Advantages are computed of these steps alone, because some estimators normalise over the batch.
    """
    if not config.rollout.filter_groups:
        return steps
    mixed = groups_with_mixed_outcomes(steps.lazy(), _outcome(config)).collect()
    return steps.join(mixed, on=mixed.columns, how="semi", maintain_order="left")


def update(config: Config, learner: Learner, rows: pl.DataFrame, iteration: int, display: Display) -> dict[str, float]:
    """Update the policy on steps with advantages; return metrics, and warn where they tell of a problem.

    Rows of aborted trajectories have no advantage.

    Raises:
        InputError: The engine reported no token ids or some that the model lacks, or the device ran out of memory.
    """
    tokens = rows.filter(~pl.col("aborted"))["response_token_ids"]
    if len(tokens) and tokens.is_null().all():
        raise InputError(f"the engine {config.rollout.engine!r} reported no token ids, which training needs")
    truncated = (rows["prompt_token_ids"].list.len() >= config.rollout.max_prompt_tokens).mean()
    rows = rows.filter(pl.col("advantage").is_not_null() & (pl.col("response_token_ids").list.len() > 0))
    rows, left_out = trained_rows(config.update, rows, iteration)
    check_rows(rows, vocabulary(learner.model))
    rate = learning_rate(config.optimiser, iteration, config.iterations)
    # The last number separates this stream from others that are derived from the same seed.
    rng = np.random.default_rng([config.seed, iteration, 2])
    samples = samples_from_steps(rows, share_prefixes=config.update.share_prefixes)
    metrics = learner.update(samples, rng, rate, display.progress)
    metrics |= left_out
    metrics["perf/total_num_tokens"] = float(samples.start[-1])
    metrics |= batch_metrics(rows, config.rollout.max_prompt_tokens, config.rollout.max_response_tokens)
    gap = 0.0 if config.rollout.ahead else metrics.get("training/rollout_logprobs_abs_diff_mean", 0.0)
    if gap > config.update.gap_warning:
        _warn(
            f"the engine's log-probabilities differ from the trainer's by {gap:.3f} on average (update.gap_warning = "
            f"{config.update.gap_warning}), so the update is off-policy; check the dtypes and whether the engine uses "
            "the current weights"
        )
    if metrics.get("actor/skipped", 0.0) > 0:
        _warn("skipped an optimiser step whose loss or gradient was not finite")
    if isinstance(truncated, float) and truncated > 0.01:
        _warn(f"{truncated:.1%} of prompts are as long as rollout.max_prompt_tokens and were probably truncated")
    return metrics


def trained_rows(config: UpdateConfig, rows: pl.DataFrame, iteration: int) -> tuple[pl.DataFrame, dict[str, float]]:
    """Return the rows that are neither overlong nor stale, and the shares of those that are left out as metrics."""
    reasons: dict[str, pl.Expr] = {}
    if config.overlong == "mask":
        reasons["overlong"] = pl.col("finish_reason").eq_missing("length")
    if config.max_policy_lag is not None:
        reasons["stale"] = iteration - pl.col("policy_version") > config.max_policy_lag
    if not reasons:
        return rows, {}
    flags = rows.select(flag.fill_null(value=False).alias(name) for name, flag in reasons.items())
    shares = {f"training/{flag.name}_ratio": float(flag.sum()) / max(len(flag), 1) for flag in flags}
    return rows.filter(~flags.select(pl.any_horizontal(pl.all())).to_series()), shares


def free_gpu(config: RolloutConfig, optimiser: torch.optim.Optimizer) -> None:
    """Give the engine what the learner does not need during the rollout."""
    if config.offload_optimiser:
        move_state(optimiser, torch.device("cpu"))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def gpu_for_update(
    config: RolloutConfig, policy: TrainablePolicy, optimiser: torch.optim.Optimizer, device: torch.device
) -> Iterator[None]:
    """Within the block, the optimiser's state is on the device, and the engine sleeps if it can."""
    sleeper: Any = policy if config.sleep and hasattr(policy, "sleep") else None
    if sleeper is not None:
        sleeper.sleep()
    if config.offload_optimiser:
        move_state(optimiser, device)
    yield
    if sleeper is not None or config.offload_optimiser:
        free_gpu(config, optimiser)
    if sleeper is not None:
        sleeper.wake_up()


def _check_machine(config: Config, display: Display) -> None:
    """Show what the short part of `hgpo check gpu` finds; raise `InputError` if memory is in use by other programs."""
    from hgpo_train.training import gpu_check

    for finding in gpu_check.check_gpu(config, short=True):
        if finding.verdict == "fail":
            if finding.check == gpu_check.FREE_MEMORY and config.check_memory:
                raise InputError(f"{finding.line()}; check_memory = false starts nevertheless")
            display.show(finding.line())


def _timed(collect: Callable[[TrainingState], pl.DataFrame], state: TrainingState) -> tuple[pl.DataFrame, float]:
    """Return the collected steps, and the seconds that they took."""
    begin = time.perf_counter()
    return collect(state), time.perf_counter() - begin


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


def judged(state: TrainingState, success: float) -> TrainingState:
    """Return the state after an evaluation with this success rate on held-out tasks."""
    if not success > state.best_success:
        return replace(state, stalled=state.stalled + 1)
    return replace(state, best=state.iteration, best_success=success, stalled=0)


def is_finished(config: Config, iteration: int, environment_steps: float) -> bool:
    """Return whether a run is finished after this number of iterations and environment steps."""
    return iteration >= config.iterations or environment_steps >= (config.environment_steps or math.inf)


def describe_interrupted(folder: Path) -> str:
    """Return what an interrupted run has kept, and what is repeated when it is resumed, as sentences."""
    checkpoints, steps = list_checkpoints(folder / "checkpoints"), folder / "steps"
    saved = int(checkpoints[-1].name) if checkpoints else 0
    trained = max((line["iteration"] for line in read_metrics(folder / METRICS)), default=0)
    running = max(saved, trained)
    kept = 0
    if steps.is_dir() and step_files(steps):
        here = scan_steps(steps).filter(pl.col("iteration") == running)  # its number in the table, from 0
        kept = here.select("trajectory", "group", "task_id").unique().collect().height
    updates = f"the updates of iterations {saved + 1} to {running} from their rollouts, and " if running > saved else ""
    return (
        f"Kept: {f'checkpoint {saved}, ' if saved else ''}the rollouts of finished groups, {kept} of iteration "
        f"{running + 1}. Resuming repeats {updates}the rest of iteration {running + 1}."
    )


def update_alone(
    config: Config, steps: Path, advantages: Path, folder: Path, display: Display, *, resume: bool = False
) -> None:
    """Update the policy on a table with its advantages, as `hgpo advantages` writes them, and save a checkpoint.

    This is the update stage of one iteration; `hgpo rollout` and `hgpo advantages` are those before it. With `resume`
    it continues from the folder's checkpoint. The configuration's environment is not used, and the estimator that is
    stored is that of the advantages.

    Raises:
        InputError: The advantages are of another table or several estimators, the rollouts have no token ids or were
            sampled at another temperature, or as `Trainer`.
    """
    check_new(folder, resume=resume, alone=True)
    metadata = read_metadata(advantages)
    if metadata["run_fingerprint"] != fingerprint(steps):
        raise InputError(f"{advantages} has the advantages of another table than {steps}")
    estimated = pl.scan_parquet(advantages, glob=False)
    rows = join_advantages(scan_steps(steps), estimated).sort("trajectory", "step").collect()
    if "advantage" not in rows.columns:
        raise InputError(
            f"{advantages} has the columns of several estimators; write one with `hgpo advantages {steps}`"
        )
    if rows["response_token_ids"].is_null().all():
        raise InputError(f"{steps} has no token ids, which training needs; collect it with transformers:MODEL")
    if _check_sampling(config, steps, folder):
        rows = rows.with_columns(response_logprobs=pl.lit(None, pl.List(pl.Float32)))
    used = metadata["columns"]["advantage"]
    config = replace(config, advantage=AdvantageConfig(estimator=used["estimator"], parameters=used["parameters"]))
    tokenizer = load_tokenizer(config.model.path, config.rollout.chat_template)
    inputs = {"model": stored_model(config.model.path)}
    with removed_if_unused(folder, CONFIG), open_run(folder, config, inputs, free_settings(config)):
        model, learner, state = load_policy(config, folder)
        write_config(folder, config)
        with closing(Trackers(config, folder, state.iteration + 1)) as trackers:
            with display.stage("update"):
                metrics = update(config, learner, trained_groups(config, rows), state.iteration, display)
            state = advanced(state, rows)
            trackers.log(metrics, state.iteration)
            display.row(state.iteration, metrics)
        save_checkpoint(folder / "checkpoints", state, model, tokenizer, learner.optimiser, config.checkpoint)


def _check_sampling(config: Config, steps: Path, folder: Path) -> bool:
    """Check a run's temperature, and warn if it names another model. Return whether its log-probabilities are raw.

    Raises:
        InputError: It was sampled at another temperature, or the update would use raw log-probabilities.
    """
    run = run_at(steps) or run_of_file(steps)
    header = None if run is None else manifest.read(run).header
    if header is None:
        return False
    policy, training = header.config.get("policy", {}), header.config.get("training", {})
    temperature = training.get("rollout.temperature", policy.get("temperature", GenerationOptions().temperature))
    if temperature != config.rollout.temperature:
        raise InputError(
            f"{steps} was sampled at temperature {temperature}, and rollout.temperature is "
            f"{config.rollout.temperature}; add --set rollout.temperature={temperature}"
        )
    model = policy.get("weights", header.config.get("model"))
    expected = {config.model.path, stored_model(config.model.path), stored_model(str(folder))}
    if model is not None and Path(model).resolve() not in {Path(name).resolve() for name in expected}:
        _warn(f"{steps} was sampled from {model}, and {config.model.path} is updated; if it is another, set model.path")
    is_server = str(policy.get("name")).startswith("openai:") and policy.get("logprobs_mode", "raw") == "raw"
    is_raw = is_server and (temperature != 1 or policy.get("top_p", 1) != 1)
    if is_raw and (config.update.old_logprobs == "rollout" or config.update.rollout_is):
        raise InputError(
            f"{steps} has a server's log-probabilities at temperature 1, of responses that were sampled otherwise; set "
            'update.old_logprobs = "recompute" and update.rollout_is = "none", or collect it from vllm serve with '
            "--logprobs-mode processed_logprobs and the policy option logprobs_mode=processed"
        )
    return is_raw


def free_settings(config: Config) -> frozenset[str]:
    """Return the settings that may change when a run of `hgpo train` is resumed."""
    # With a schedule that falls to 0, every iteration's learning rate depends on the number of iterations.
    return _FREE if config.optimiser.schedule == "constant" else _FREE - {"iterations"}


def load_policy(config: Config, folder: Path) -> tuple[Model, Learner, TrainingState]:
    """Load the model and its learner, as the newest checkpoint of a run's folder left them."""
    with memory_advice(config):
        model = load_model(config.model, config.seed)
    check_context(model, config.rollout.max_prompt_tokens + config.rollout.max_response_tokens)
    learner = Learner(model, config, temperature=config.rollout.temperature)
    with memory_advice(config):
        state = resume_checkpoint(folder / "checkpoints", model, learner.optimiser, config.checkpoint)
    return model, learner, state


def _engine_context(config: Config, engine_options: dict[str, Any]) -> TrainableContext:
    if config.rollout.sleep and config.rollout.engine == "vllm":
        engine_options["enable_sleep_mode"] = True
    return TrainableContext(config.model, generation_options(config.rollout), engine_options)


def _outcome(config: Config) -> str:
    """Return the name of the outcome that the estimator uses as reward; informative groups differ in it."""
    return str(config.advantage.parameters.get("reward", "reward"))
