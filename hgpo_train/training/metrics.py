"""Metrics of one iteration's steps, named as in verl and verl-agent."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from hgpo_datasets.branches import roots
from hgpo_datasets.derived_columns import any_won
from hgpo_train.measures import TASK, figures

_MEASURES: Final = ("success", "score", "mean_return", "mean_length")
_SIZE: Final = "advantage_size_"
_WEIGHT: Final = "advantage_weight_"


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
    found = figures(episodes, names=_MEASURES, task=task).row(0, named=True)
    metrics = {
        f"{prefix}/success_rate": _number(found["success"]),
        f"{prefix}/reward/mean": _number(found["mean_return"]),
        f"{prefix}/score/mean": _number(found["score"]),
        f"{prefix}/length/mean": _number(found["mean_length"]),
        f"{prefix}/valid_action_ratio": _mean(steps["action_valid"]),
        f"{prefix}/trajectories": float(found["episodes"]),
        f"{prefix}/aborted": float(found["aborted"]),
    }
    if found["success"] is not None:
        for end in ("success_95_low", "success_95_high"):
            metrics[f"{prefix}/{end}"] = found[end]

    whole = episodes.filter(~pl.col("aborted"))
    if whole["task_type"].n_unique() > 1:
        types = whole.drop_nulls("task_type")
        of_types = figures(types, ["task_type"], names=["success"], task=task)
        for task_type, success in of_types.select("task_type", "success").iter_rows():
            metrics[f"{prefix}/{task_type}_success_rate"] = _number(success)
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
    metrics: dict[str, float] = {}
    for name, most in (
        ("prompt", max_prompt_tokens),
        ("response", max_response_tokens),
    ):
        length = steps[f"{name}_token_ids"].list.len()
        metrics |= {
            f"{name}_length/mean": _mean(length),
            f"{name}_length/max": _number(length.max()),
            f"{name}_length/min": _number(length.min()),
            f"{name}_length/clip_ratio": _mean(length >= most),
        }

    advantage = steps["advantage"]
    metrics |= {
        "critic/advantages/mean": _mean(advantage),
        "critic/advantages/std": _number(advantage.std()),
        "critic/advantages/max": _number(advantage.max()),
        "critic/advantages/min": _number(advantage.min()),
        "critic/advantages/zero_ratio": _mean(advantage == 0),
        "training/rows": float(len(steps)),
        "training/groups": float(
            steps.select(pl.struct("task_id", "group").n_unique()).item()
        ),
    }

    # Levels of a hierarchical estimator: group sizes, the share of steps in shared contexts, and weights.
    for column in steps.columns:
        values = steps[column]
        if column.startswith(_WEIGHT):
            name = f"groups/{column.removeprefix(_WEIGHT)}"
            metrics[f"{name}/weight_mean"] = _mean(values)
        elif column.startswith(_SIZE):
            name = f"groups/{column.removeprefix(_SIZE)}"
            metrics[f"{name}/eligible_ratio"] = _mean(values.is_not_null())
            metrics[f"{name}/size_mean"] = _mean(values)
            metrics[f"{name}/shared_ratio"] = _mean(values > 1)
    return metrics


def _mean(column: pl.Series) -> float:
    return _number(column.cast(pl.Float64).mean())


def _number(value: Any) -> float:  # noqa: ANN401 - the result of a Polars aggregation
    return float("nan") if value is None else float(value)
