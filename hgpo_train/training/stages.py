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
from hgpo_train.models.hf import vocabulary_size
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
) -> pl.DataFrame:
    """Collect the groups of the iteration after a state, commit them as a shard, and return its steps.

    Raises:
        RolloutError: Too many rollouts failed. They are committed, and repeated on the next call.
    """
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
        outcome=outcome_of(run.config),
        branch=rollout.branch,
        width=rollout.branch_width,
    )
    # The failed rollouts of an iteration with advantages were accepted, and are not repeated.
    if path_of(run.folder, advantages.FOLDER, state.iteration + 1).exists():
        return _rows(table, state.iteration)
    return _play(run, env, policy, table, spec, progress, should_stop)


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
) -> pl.DataFrame:
    """Collect an iteration's missing or failed rollouts into a table, and return all rows of the iteration."""
    rollout = run.config.rollout
    # One shard per iteration: an interrupted collection is repeated completely, so its batches have the same shapes
    # and its log-probabilities the same bytes.
    groups = max(spec.tasks, spec.dynamic or 0)
    execution = ExecutionOptions(
        slots=rollout.slots,
        groups_per_shard=groups,
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
    steps = _rows(table, spec.iteration)
    if rollout.overflow == "error":
        raise_if_too_long(steps)
    advice = f"Repeat them with: hgpo train --resume --out {run.folder}"
    rollouts = rollout_table(steps.lazy()).collect()
    raise_if_too_many(failures_of(rollouts), rollout.max_failed, advice)
    return steps


def _rows(table: StepWriter, iteration: int) -> pl.DataFrame:
    """Return an iteration's steps. Groups are stored in the order in which they finished, so they are sorted."""
    rows = table.scan().filter(pl.col("iteration") == iteration)
    return rows.sort("trajectory", "step").collect()


# ---------------------------------------------------------------------------------------------------- score, estimate


def outcome_of(config: Config) -> str:
    """Return the name of the outcome that the estimator uses as reward; informative groups differ in it."""
    return str(config.advantage.parameters.get("reward", "reward"))


def trained_groups(config: Config, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of the groups that are trained on: with `rollout.filter_groups`, those with different outcomes.

    Scores and advantages are computed of these steps alone, because some estimators normalise over the batch.
    """
    if not config.rollout.filter_groups:
        return steps
    mixed = groups_with_mixed_outcomes(steps.lazy(), outcome_of(config)).collect()
    return steps.join(mixed, on=mixed.columns, how="semi", maintain_order="left")


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
    if not run.estimator.scores:
        steps = trained_groups(run.config, steps)
        return _joined(steps, _scores(run, steps, needed)) if needed else steps
    # All groups have the scores of an estimator, which can later be computed of all of them (`hgpo advantages`).
    return trained_groups(run.config, _joined(steps, _scores(run, steps, needed)))


def _scores(run: Run, steps: pl.DataFrame, needed: list[str]) -> pl.DataFrame:
    """Return the scores of steps: those that are stored, or what the learner computes, which is then stored."""
    path = path_of(run.folder, scores.FOLDER, run.state.iteration + 1)
    about = scores.description(
        needed,
        model="the policy",
        temperature=run.learner.temperature,
        reference="the first policy",
    )
    stored = scores.stored_scores(path, steps, about)
    if stored is not None:
        return stored.select(*KEYS, *about)

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
    return scored


def estimate(run: Run, steps: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, float]]:
    """Add the advantages, and store them in `RUN/advantages`. Return the steps, and the estimator's metrics.

    The steps of aborted trajectories have no advantage.

    Raises:
        InputError: The estimator refuses the steps, or the stored advantages are not theirs.
    """
    path = path_of(run.folder, advantages.FOLDER, run.state.iteration + 1)
    if path.exists():
        estimated = read_table(path)
        metrics = read_metadata(path, "metrics") or {}
        if not _is_of(estimated, steps):
            raise InputError(
                f"{path}: expected the advantages of all steps that are trained on; delete the file"
            )
    else:
        estimated, metrics = _estimated(run, steps)
        write_table(
            path,
            estimated,
            {
                advantages.METADATA: advantages.description([run.estimator]),
                "metrics": metrics,
            },
        )
    return _joined(steps, estimated.select(*KEYS, pl.exclude(steps.columns))), metrics


def _estimated(run: Run, steps: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, float]]:
    """Return the keys of the rows with what the estimator adds, and its metrics."""
    keys = row_keys(steps.columns)
    if steps.is_empty():  # all groups were left out
        return steps.select(*keys, advantage=pl.lit(None, pl.Float64)), {}

    estimator = run.estimator
    metrics: dict[str, float] = {}
    if estimator.in_training is None:
        rows = compute(steps, estimator, details=True).collect(engine="in-memory")
    else:
        earlier = read_metrics(run.folder / METRICS)
        rows, metrics = estimator.in_training(
            steps,
            estimator.parameters,
            run.learner.model,
            earlier,
        )
    return rows.select(*keys, pl.exclude(steps.columns)), metrics


def _is_of(estimated: pl.DataFrame, steps: pl.DataFrame) -> bool:
    """Return whether a table has the advantage of each step."""
    expected = dict(steps.select(KEYS).schema) | {"advantage": pl.Float64()}
    if any(estimated.schema.get(column) != dtype for column, dtype in expected.items()):
        return False
    return steps.join(estimated, on=list(KEYS), how="semi").height == steps.height


def _joined(steps: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    return steps.join(
        table,
        on=list(KEYS),
        how="left",
        maintain_order="left",
    )


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
    check_rows(rows, vocabulary_size(run.learner.model))
    samples = samples_from_steps(rows, share_prefixes=config.update.share_prefixes)
    inputs = LossInputs(old=_flat(rows, "logprobs"))
    if config.update.kl_weight > 0:
        inputs = inputs._replace(reference=_flat(rows, "reference_logprobs"))

    # 2. The optimiser steps.
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

    # 3. Metrics.
    # with the passes that scored the tokens before
    if "perf/update_tokens_per_s" in metrics:
        scoring = sum(run.seconds.get(name, 0.0) for name in VERL_STAGES.values())
        metrics["perf/update_tokens_per_s"] *= seconds / (seconds + scoring)
    metrics |= left_out
    metrics["perf/total_num_tokens"] = float(samples.start[-1])
    metrics |= batch_metrics(
        rows, config.rollout.max_prompt_tokens, config.rollout.max_response_tokens
    )
    _warn_of(run, steps, metrics)
    return metrics


def _flat(rows: pl.DataFrame, column: str) -> NDArray[np.float32] | None:
    """Return a score of the response tokens, one row after another; None without the column."""
    if column not in rows.columns:
        return None
    values = rows.select(pl.col(column).explode()).to_series()
    if (
        values.null_count()
        or len(values) != rows["response_token_ids"].list.len().sum()
    ):
        raise InputError(
            f"expected {column} for every response token, received none for some; delete the run's scores"
        )
    return values.to_numpy()


def _warn_of(
    run: Run,
    steps: pl.DataFrame,
    metrics: dict[str, float],
) -> None:
    """Warn where metrics tell of a problem."""
    rollout = run.config.rollout
    gap = metrics.get("training/rollout_logprobs_abs_diff_mean", 0.0)
    # with `ahead` the policies differ, as intended
    if not rollout.ahead and gap > run.config.update.gap_warning:
        warn(
            f"the engine's log-probabilities differ from the trainer's by {gap:.3f} on average (update.gap_warning = "
            f"{run.config.update.gap_warning}), so the update is off-policy; check the dtypes and whether the engine "
            "uses the current weights"
        )
    if metrics.get("actor/skipped", 0.0) > 0:
        warn("skipped an optimiser step whose loss or gradient was not finite")
    is_truncated = steps["prompt_token_ids"].list.len() >= rollout.max_prompt_tokens
    share = is_truncated.sum() / max(is_truncated.count(), 1)
    if share > 0.01:
        warn(
            f"{share:.1%} of prompts are as long as rollout.max_prompt_tokens and were probably truncated"
        )


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
