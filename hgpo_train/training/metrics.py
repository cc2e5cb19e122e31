"""Metrics of one iteration's steps, named as in verl and verl-agent."""

from __future__ import annotations

import re
from typing import Any

import polars as pl

_LEVEL = re.compile(r"advantage_(size|weight)_(\w+)")


def episode_metrics(steps: pl.DataFrame, prefix: str = "episode") -> dict[str, float]:
    """Return success rate, reward, score, length and valid actions of trajectories, and the success rate per task type.

    Aborted trajectories count only in `trajectories`, `aborted` and `valid_action_ratio`.

    Args:
        steps: A step table.
        prefix: ``episode`` for training, ``val`` for held-out tasks.

    Returns:
        Means over trajectories by name, such as ``episode/success_rate``; empty if there are no steps.
    """
    if steps.is_empty():
        return {}
    flags = [
        pl.col("won").any(ignore_nulls=False),
        pl.col("aborted").any(),
        pl.col("score").last(),
        pl.col("reward").sum(),
    ]
    episodes = steps.group_by("trajectory", maintain_order=True).agg(
        *flags, pl.col("task_type").first(), pl.len().alias("length"), pl.col("action_valid").mean()
    )
    whole = episodes.filter(~pl.col("aborted"))
    metrics = {
        f"{prefix}/success_rate": _mean(whole["won"]),
        f"{prefix}/reward/mean": _mean(whole["reward"]),
        f"{prefix}/score/mean": _mean(whole["score"]),
        f"{prefix}/length/mean": _mean(whole["length"]),
        f"{prefix}/valid_action_ratio": _mean(steps["action_valid"]),
        f"{prefix}/trajectories": float(len(episodes)),
        f"{prefix}/aborted": float(episodes["aborted"].sum()),
    }
    for (kind,), rows in sorted(whole.group_by("task_type"), key=str):
        if kind is not None and whole["task_type"].n_unique() > 1:
            metrics[f"{prefix}/{kind}_success_rate"] = _mean(rows["won"])
    return metrics


def batch_metrics(steps: pl.DataFrame, max_prompt_tokens: int, max_response_tokens: int) -> dict[str, float]:
    """Return token lengths, truncation and advantages of the rows that are trained on.

    Args:
        steps: Rows with `advantage`; the statistics of its levels (`advantage_size_k0` …) are included if present.
        max_prompt_tokens: Prompts of at least this length count as truncated.
        max_response_tokens: Responses of at least this length count as truncated.
    """
    metrics: dict[str, float] = {}
    for name, column, most in (
        ("prompt_length", "prompt_token_ids", max_prompt_tokens),
        ("response_length", "response_token_ids", max_response_tokens),
    ):
        length = steps[column].list.len()
        metrics |= {
            f"{name}/mean": _mean(length),
            f"{name}/max": _number(length.max()),
            f"{name}/min": _number(length.min()),
            f"{name}/clip_ratio": _mean(length >= most),
        }
    advantage = steps["advantage"]
    metrics |= {
        "critic/advantages/mean": _mean(advantage),
        "critic/advantages/std": _number(advantage.std()),
        "critic/advantages/max": _number(advantage.max()),
        "critic/advantages/min": _number(advantage.min()),
        "critic/advantages/zero_ratio": _mean(advantage == 0),
        "training/rows": float(len(steps)),
        "training/groups": float(steps.select(pl.struct("task_id", "group").n_unique()).item()),
    }
    return metrics | _level_metrics(steps)


def _level_metrics(steps: pl.DataFrame) -> dict[str, float]:
    """Return group size, share of steps in shared contexts and weight of each level of a hierarchical estimator."""
    metrics: dict[str, float] = {}
    for column in steps.columns:
        match = _LEVEL.fullmatch(column)
        if match is None:
            continue
        statistic, level = match.groups()
        if statistic == "size":
            metrics[f"groups/{level}/eligible_ratio"] = _mean(steps[column].is_not_null())
            metrics[f"groups/{level}/size_mean"] = _mean(steps[column])
            metrics[f"groups/{level}/shared_ratio"] = _mean(steps[column] > 1)
        else:
            metrics[f"groups/{level}/weight_mean"] = _mean(steps[column])
    return metrics


def _mean(column: pl.Series) -> float:
    return _number(column.cast(pl.Float64).mean())


def _number(value: Any) -> float:  # noqa: ANN401 - the result of a Polars aggregation
    return float("nan") if value is None else float(value)
