"""The stages of an iteration. Each is a function that reads files of the run and writes one, or is skipped.

    collect  ->  score  ->  estimate  ->  update  ->  publish  ->  evaluate

`hgpo train` is a loop over them (`trainer.py`); which file each writes is in `run_folder.py`. A stage whose output is
there reads it instead of computing it, so that an interrupted iteration resumes where it was interrupted.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_datasets.row_tables import (
    KEYS,
    path_of,
    read_metadata,
    read_table,
    write_table,
)
from hgpo_envs.errors import InputError
from hgpo_train.advantages import advantage_tables as advantages
from hgpo_train.advantages import compute
from hgpo_train.advantages.input_columns import row_keys
from hgpo_train.rollout.failures import (
    failures_of,
    raise_if_too_long,
    raise_if_too_many,
)
from hgpo_train.rollout.outcomes import groups_with_mixed_outcomes, rollout_table
from hgpo_train.rollout.plan import ExecutionOptions, RolloutSpec
from hgpo_train.rollout.run import collect_groups
from hgpo_train.scores import tables as scores
from hgpo_train.training.metrics import batch_metrics, episode_metrics
from hgpo_train.training.tracking import METRICS, read_metrics
from hgpo_train.training.update.batches import check_rows, samples_from_steps
from hgpo_train.training.update.learner import LossInputs
from hgpo_train.training.update.optimiser import learning_rate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from hgpo_datasets import StepWriter
    from hgpo_train.advantages import Estimator
    from hgpo_train.models.checkpoint_files import TrainingState
    from hgpo_train.models.hf import Tokenizer
    from hgpo_train.policies.generation import TrainablePolicy
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.tally import Tally
    from hgpo_train.training.config import Config, UpdateConfig
    from hgpo_train.training.display import Display
    from hgpo_train.training.update.learner import Learner

MINI_BATCHES: Final = 2
"""Separates the random numbers of mini-batches from others that are derived from the same seed."""
VERL_STAGES: Final = {"logprobs": "old_log_prob", "reference_logprobs": "ref"}
"""verl's names of the durations of scores."""


class TrainingWarning(UserWarning):
    """A problem that does not stop training."""


@dataclass
class Run:
    """What the stages of a training run share.

    Attributes:
        config: The run's configuration.
        folder: The run's folder.
        display: Shows the progress.
        learner: The policy and its optimiser.
        tokenizer: The policy's tokenizer.
        estimator: The estimator with its parameters.
        state: The progress, which the trainer advances after each iteration.
        seconds: The durations of the current iteration, under verl's names.
    """

    config: Config
    folder: Path
    display: Display
    learner: Learner
    tokenizer: Tokenizer
    estimator: Estimator
    state: TrainingState
    seconds: dict[str, float] = field(default_factory=dict)


# -------------------------------------------------------------------------------------------------- collect, evaluate


def collect(
    run: Run,
    state: TrainingState,
    progress: Callable[[Tally], None] = lambda _: None,
    *,
    env: EnvHandle,
    policy: TrainablePolicy,
    table: StepWriter,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[pl.DataFrame, float]:
    """Collect the groups of the iteration after a state, and commit them as a shard.

    Returns:
        The steps, and the seconds that their rollouts took.

    Raises:
        RolloutError: Too many rollouts failed. They are committed, and repeated on the next call.
    """
    begin = time.perf_counter()
    rollout = run.config.rollout
    spec = RolloutSpec(
        tasks=rollout.tasks,
        group_size=rollout.group_size,
        seed=run.config.seed,
        iteration=state.iteration,
        skip=state.tasks_drawn,
        dynamic=rollout.tasks * rollout.max_generation_batches
        if rollout.filter_groups
        else None,
        outcome=run.estimator.parameters.reward,
        branch=rollout.branch,
        width=rollout.branch_width,
    )
    # The failed rollouts of an iteration with advantages were accepted, and are not repeated.
    accepted = path_of(run.folder, advantages.FOLDER, state.iteration + 1).exists()
    steps = _play(
        run, env, policy, table, spec, progress, should_stop, is_complete=accepted
    )
    return steps, time.perf_counter() - begin


def evaluate(
    run: Run,
    env: EnvHandle,
    policy: TrainablePolicy,
    table: StepWriter,
) -> dict[str, float]:
    """Evaluate the policy on held-out tasks, commit the rollouts, and return metrics named ``val/…``.

    Raises:
        RolloutError: As `collect`.
    """
    config = run.config.evaluation
    spec = RolloutSpec(
        tasks=min(config.tasks, len(env.tasks)),
        group_size=config.group_size,
        seed=run.config.seed + config.seed,
        order="sweep",
        iteration=run.state.iteration,
    )
    progress = partial(run.display.tally, expected=spec.tasks * spec.group_size)
    training = policy.options
    policy.options = replace(training, temperature=config.temperature)
    try:
        steps = _play(run, env, policy, table, spec, progress)
        return episode_metrics(steps, "val")
    finally:
        policy.options = training


def _play(
    run: Run,
    env: EnvHandle,
    policy: TrainablePolicy,
    table: StepWriter,
    spec: RolloutSpec,
    progress: Callable[[Tally], None],
    should_stop: Callable[[], bool] = lambda: False,
    *,
    is_complete: bool = False,
) -> pl.DataFrame:
    """Return all rows of an iteration; its missing or failed rollouts are collected first, unless it is complete."""
    rollout = run.config.rollout
    if not is_complete:
        # One shard per iteration: an interrupted collection is repeated completely, so its batches have the same shapes
        # and its log-probabilities the same bytes.
        execution = ExecutionOptions(
            slots=rollout.slots,
            groups_per_shard=max(spec.tasks, spec.dynamic or 0),
            shard_s=None,
            shard_characters=128 << 20,
            max_failed=rollout.max_failed,
        )
        collect_groups(
            env,
            policy,
            table,
            spec,
            execution,
            retry_failed=True,
            progress=progress,
            should_stop=should_stop,
        )
    # Groups are stored in the order in which they finished.
    rows = table.scan().filter(pl.col("iteration") == spec.iteration)
    steps = rows.sort("trajectory", "step").collect()
    if is_complete:
        return steps
    if rollout.overflow == "error":
        raise_if_too_long(steps)
    advice = f"Repeat them with: hgpo train --resume --out {run.folder}"
    rollouts = rollout_table(steps.lazy()).collect()
    raise_if_too_many(failures_of(rollouts), rollout.max_failed, advice)
    return steps


# ---------------------------------------------------------------------------------------------------- score, estimate


def score(run: Run, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that are trained on, with the scores that the estimator and the loss read, stored in RUN/scores.

    Raises:
        InputError: The rows have no token ids or some that the model lacks, or the device ran out of memory.
    """
    needed = list(run.estimator.scores)
    if run.config.update.old_logprobs == "recompute":
        needed.append("logprobs")
    if run.config.update.kl_weight > 0:
        needed.append("reference_logprobs")
    needed = list(dict.fromkeys(needed))

    # All groups have the scores of an estimator, which can later be computed of all of them (`hgpo advantages`). Those
    # of the loss, and advantages, are of the groups that are trained on: some estimators normalise over the batch.
    is_of_all = bool(run.estimator.scores)
    if is_of_all:
        steps = _with_scores(run, steps, needed)
    if run.config.rollout.filter_groups:
        outcome = run.estimator.parameters.reward
        mixed = groups_with_mixed_outcomes(steps.lazy(), outcome).collect()
        steps = steps.join(mixed, on=mixed.columns, how="semi", maintain_order="left")
    if needed and not is_of_all:
        steps = _with_scores(run, steps, needed)
    return steps


def _with_scores(run: Run, steps: pl.DataFrame, needed: list[str]) -> pl.DataFrame:
    """Add scores to steps: those that are stored, or what the learner computes, which is then stored."""
    path = path_of(run.folder, scores.FOLDER, run.state.iteration + 1)
    about = scores.description(
        needed,
        model="the policy",
        temperature=run.learner.temperature,
        reference="the first policy",
    )
    scored = scores.stored_scores(path, steps, about)
    if scored is None:
        tokens = steps.filter(~pl.col("aborted"))["response_token_ids"]
        if len(tokens) and tokens.is_null().all():
            engine = run.config.rollout.engine
            raise InputError(
                f"the engine {engine!r} reported no token ids, which training needs"
            )
        scored, seconds = scores.score_table(
            steps, needed, run.learner, lambda: run.tokenizer
        )
        scores.store_scores(path, scored, about)
        run.seconds |= {
            VERL_STAGES.get(name, f"score_{name}"): duration
            for name, duration in seconds.items()
        }
    return steps.join(
        scored.select(*KEYS, *about),
        on=list(KEYS),
        how="left",
        maintain_order="left",
    )


def estimate(run: Run, steps: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, float]]:
    """Add the advantages, and store them in `RUN/advantages`. Return the steps, and the estimator's metrics.

    The steps of aborted trajectories have no advantage.

    Raises:
        InputError: The estimator refuses the steps, or the stored advantages are not theirs.
    """
    path = path_of(run.folder, advantages.FOLDER, run.state.iteration + 1)
    metrics: dict[str, float] = {}
    if path.exists():
        # 1. What is stored, if it has the advantage of each step.
        estimated = read_table(path)
        metrics = read_metadata(path, "metrics") or {}
        expected = dict(steps.select(KEYS).schema) | {"advantage": pl.Float64()}
        is_whole = all(
            estimated.schema.get(column) == dtype for column, dtype in expected.items()
        )
        if is_whole:
            found = steps.join(estimated, on=list(KEYS), how="semi")
            is_whole = found.height == steps.height
        if not is_whole:
            raise InputError(
                f"{path}: expected the advantages of all steps that are trained on; delete the file"
            )
    else:
        # 2. Or what the estimator adds to the steps, without which there is nothing to estimate: all groups can be
        # left out.
        estimator = run.estimator
        if steps.is_empty():
            rows = steps.with_columns(advantage=pl.lit(None, pl.Float64))
        elif estimator.in_training is None:
            rows = compute(steps, estimator, details=True).collect(engine="in-memory")
        else:
            earlier = read_metrics(run.folder / METRICS)
            rows, metrics = estimator.in_training(
                steps, estimator.parameters, run.learner.model, earlier
            )
        keys = row_keys(steps.columns)
        estimated = rows.select(*keys, pl.exclude(steps.columns))
        description = advantages.description([estimator])
        write_table(
            path,
            estimated,
            {advantages.METADATA: description, "metrics": metrics},
        )
    added = estimated.select(*KEYS, pl.exclude(steps.columns))
    rows = steps.join(added, on=list(KEYS), how="left", maintain_order="left")
    return rows, metrics


# ------------------------------------------------------------------------------------------------------------- update


def update(run: Run, steps: pl.DataFrame) -> dict[str, float]:
    """Update the policy on scored steps with advantages; return metrics, and warn where they tell of a problem.

    Raises:
        InputError: The rows do not fit the model, or the device ran out of memory.
    """
    # 1. The rows, as samples. Those of aborted trajectories have no advantage.
    config = run.config
    iteration = run.state.iteration
    rows = steps.filter(
        pl.col("advantage").is_not_null()
        & (pl.col("response_token_ids").list.len() > 0)
    )
    rows, left_out = trained_rows(config.update, rows, iteration)
    check_rows(rows, run.learner.vocabulary_size)
    samples = samples_from_steps(rows, share_prefixes=config.update.share_prefixes)

    # 2. Their scores, the values of one row after another.
    names = ["logprobs"]
    if config.update.kl_weight > 0:
        names.append("reference_logprobs")
    scored: dict[str, NDArray[np.float32]] = {}
    for name in names:
        if name not in rows.columns:
            continue
        values = rows[name].explode()
        if values.null_count() or len(values) != samples.response_start[-1]:
            raise InputError(
                f"expected {name} for every response token, received none for some; delete the run's scores"
            )
        scored[name] = values.to_numpy()
    inputs = LossInputs(scored.get("logprobs"), scored.get("reference_logprobs"))

    # 3. The optimiser steps.
    rng = np.random.default_rng([config.seed, iteration, MINI_BATCHES])
    rate = learning_rate(config.optimiser, iteration, config.iterations)
    begin = time.perf_counter()
    metrics = run.learner.update(
        samples,
        rng,
        rate,
        run.display.progress,
        inputs=inputs,
    )
    seconds = time.perf_counter() - begin

    # 4. Metrics. The rate of tokens includes the passes that scored them before.
    if "perf/update_tokens_per_s" in metrics:
        scoring = sum(run.seconds.get(name, 0.0) for name in VERL_STAGES.values())
        metrics["perf/update_tokens_per_s"] *= seconds / (seconds + scoring)
    metrics |= left_out
    metrics["perf/total_num_tokens"] = float(samples.start[-1])
    rollout = config.rollout
    metrics |= batch_metrics(
        rows, rollout.max_prompt_tokens, rollout.max_response_tokens
    )

    # 5. Warnings, where they tell of a problem.
    gap = metrics.get("training/rollout_logprobs_abs_diff_mean", 0.0)
    # with `ahead` the policies differ, as intended
    if not rollout.ahead and gap > config.update.gap_warning:
        warn(
            f"the engine's log-probabilities differ from the trainer's by {gap:.3f} on average (update.gap_warning = "
            f"{config.update.gap_warning}), so the update is off-policy; check the dtypes and whether the engine "
            "uses the current weights"
        )
    if metrics.get("actor/skipped", 0.0) > 0:
        warn("skipped an optimiser step whose loss or gradient was not finite")
    share = metrics["prompt_length/clip_ratio"]
    if share > 0.01:
        warn(
            f"{share:.1%} of prompts are as long as rollout.max_prompt_tokens and were probably truncated"
        )
    return metrics


def trained_rows(
    config: UpdateConfig,
    rows: pl.DataFrame,
    iteration: int,
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Return the rows that are neither overlong nor stale, and the shares of those that are left out as metrics."""
    reasons: dict[str, pl.Expr] = {}
    if config.overlong == "mask":
        reasons["overlong"] = pl.col("finish_reason").eq_missing("length")
    if config.max_policy_lag is not None:
        reasons["stale"] = iteration - pl.col("policy_version") > config.max_policy_lag
    if not reasons:
        return rows, {}

    # A row without the value that a reason needs is kept.
    flags = rows.select(
        flag.fill_null(value=False).alias(name) for name, flag in reasons.items()
    )
    shares = {
        f"training/{flag.name}_ratio": float(flag.sum()) / max(len(flag), 1)
        for flag in flags
    }
    kept = flags.select(~pl.any_horizontal(pl.all())).to_series()
    return rows.filter(kept), shares


def warn(message: str) -> None:
    """Emit a `TrainingWarning`."""
    warnings.warn(message, TrainingWarning, stacklevel=3)
