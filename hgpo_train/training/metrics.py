"""Metrics of one iteration's steps, named as in verl and verl-agent."""

from __future__ import annotations

import math
from typing import Final

import polars as pl

from hgpo_datasets.branches import roots
from hgpo_datasets.derived_columns import any_won
from hgpo_train.measures import TASK, figures

_MEASURES: Final = ("success", "score", "mean_return", "mean_length")
_SIZE: Final = "advantage_size_"
_WEIGHT: Final = "advantage_weight_"
_NUMBERS: Final = pl.all().cast(pl.Float64).fill_null(math.nan)
"""What is unknown, such as the mean of no rows, is NaN."""


def episode_metrics(steps: pl.DataFrame, prefix: str = "episode") -> dict[str, float]:
    """Return success rate, reward, score, length and valid actions of trajectories, and the success rate per task type.

    ``success_95_low`` and ``success_95_high`` are the 95% interval of the success rate: Wilson's, with tasks as trials.

    Aborted trajectories count only in `trajectories`, `aborted` and `valid_action_ratio`, and branches nowhere.

    Args:
        steps: A step table.
        prefix: ``episode`` for training, ``val`` for held-out tasks.

    Returns:
        Means over trajectories by name, such as ``episode/success_rate``; empty if there are no steps.
    """
    steps = roots(steps.lazy()).collect()
    if steps.is_empty():
        return {}
    task = [name for name in TASK if name in steps.columns]
    episodes = steps.group_by("trajectory", maintain_order=True).agg(
        pl.col(*task, "task_type").first(),
        any_won(pl.col("won")),
        pl.col("aborted").any(),
        pl.col("score").last(),
        pl.col("reward").sum().alias("episode_return"),
        pl.len().alias("length"),
    )
    measured = figures(episodes, names=_MEASURES, task=task)
    measured = measured.with_columns(valid=steps["action_valid"].mean())
    found = measured.select(_NUMBERS).row(0, named=True)
    metrics = {
        f"{prefix}/success_rate": found["success"],
        f"{prefix}/reward/mean": found["mean_return"],
        f"{prefix}/score/mean": found["score"],
        f"{prefix}/length/mean": found["mean_length"],
        f"{prefix}/valid_action_ratio": found["valid"],
        f"{prefix}/trajectories": found["episodes"],
        f"{prefix}/aborted": found["aborted"],
    }
    if not math.isnan(found["success"]):
        for end in ("success_95_low", "success_95_high"):
            metrics[f"{prefix}/{end}"] = found[end]

    whole = episodes.filter(~pl.col("aborted"))
    if whole["task_type"].n_unique() > 1:
        types = whole.drop_nulls("task_type")
        of_types = figures(types, ["task_type"], names=["success"], task=task)
        success = pl.col("success").fill_null(math.nan)
        for task_type, rate in of_types.select("task_type", success).iter_rows():
            metrics[f"{prefix}/{task_type}_success_rate"] = rate
    return metrics


def batch_metrics(
    steps: pl.DataFrame,
    max_prompt_tokens: int,
    max_response_tokens: int,
) -> dict[str, float]:
    """Return token lengths, truncation and advantages of the rows that are trained on.

    Args:
        steps: Rows with `advantage`; the statistics of its levels (`advantage_size_k0` …) are included if present.
        max_prompt_tokens: Prompts of at least this length count as truncated.
        max_response_tokens: Responses of at least this length count as truncated.
    """
    # Lengths, and the share of those that reached the limit.
    metrics: dict[str, pl.Expr] = {}
    for name, most in (
        ("prompt", max_prompt_tokens),
        ("response", max_response_tokens),
    ):
        length = pl.col(f"{name}_token_ids").list.len()
        metrics |= {
            f"{name}_length/mean": length.mean(),
            f"{name}_length/max": length.max(),
            f"{name}_length/min": length.min(),
            f"{name}_length/clip_ratio": (length >= most).mean(),
        }

    advantage = pl.col("advantage")
    metrics |= {
        "critic/advantages/mean": advantage.mean(),
        "critic/advantages/std": advantage.std(),
        "critic/advantages/max": advantage.max(),
        "critic/advantages/min": advantage.min(),
        "critic/advantages/zero_ratio": (advantage == 0).mean(),
        "training/rows": pl.len(),
        "training/groups": pl.struct("task_id", "group").n_unique(),
    }

    # Levels of a hierarchical estimator: group sizes, the share of steps in shared contexts, and weights.
    for column in steps.columns:
        values = pl.col(column)
        if column.startswith(_WEIGHT):
            name = f"groups/{column.removeprefix(_WEIGHT)}"
            metrics[f"{name}/weight_mean"] = values.mean()
        elif column.startswith(_SIZE):
            name = f"groups/{column.removeprefix(_SIZE)}"
            metrics[f"{name}/eligible_ratio"] = values.is_not_null().mean()
            metrics[f"{name}/size_mean"] = values.mean()
            metrics[f"{name}/shared_ratio"] = (values > 1).mean()
    return steps.select(**metrics).select(_NUMBERS).row(0, named=True)
