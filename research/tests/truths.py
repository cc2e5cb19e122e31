"""The truth of a run beside its rows, and whether estimates are within their errors."""

import foreign  # noqa: F401 - registers Foreign/Guess-v0
import numpy as np
import polars as pl

from hgpo_research.truth import (
    Budget,
    Rewards,
    plan_truth,
    write_truth,
)
from hgpo_train.advantages.advantage_tables import join_advantages

GUESS = "foreign:Foreign/Guess-v0"
UNIT = Rewards(reward_scale=1, gamma=0.9)


def truth_of(run, out, rewards=UNIT, *, policy=None, **budget):
    """Return the rows of a run, joined with their truth."""
    write_truth(
        plan_truth(
            run.path,
            rewards,
            Budget(**budget),
            policy=policy,
            allow=[GUESS],
        ),
        out,
    )
    return join_advantages(run.steps, pl.scan_parquet(out)).collect()


def within_errors(table, name, expected, errors=4.0):
    away = np.abs(table[name].to_numpy() - expected)
    return (away <= errors * table[f"{name}_error"].to_numpy() + 1e-9).all()
