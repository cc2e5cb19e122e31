"""Advantages given a context: what an estimator can know that sees a state text and some past steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_envs.wording import listed
from hgpo_train.advantages.estimators.hgpo import HGPO
from hgpo_train.advantages.input_columns import CHAINS
from hgpo_train.advantages.registry import prepare
from hgpo_train.advantages.tables import step_table
from hgpo_train.advantages.windows import key, means

if TYPE_CHECKING:
    from hgpo_train.advantages.parameters import Context

_AVERAGED: Final = ("advantage", "advantage_first", "advantage_second", "advantage_error")


def context_advantages(steps: Any, *, depth: int = 0, context: Context = "states") -> pl.DataFrame:  # noqa: ANN401 (`StepTable`)
    """Add the true advantages of actions in contexts, averaged over the hidden states of a run.

    The true advantage A(h, a) belongs to a hidden state h. An estimator that groups steps by their context c sees less:
    the best that any function of context and action can be is A(c, a) = E[A(h, a) | c, a], over the hidden states and
    steps at which the policy meets c. It is estimated by the mean of the truth over the rows of the task that have this
    context and this action, and equals A(h, a) where the context tells everything. If the policy reads no more than the
    context, both have the same expected policy gradient.

    Args:
        steps: A step table with its truth (`hgpo_train.advantages.advantage_tables.join_advantages`).
        depth: The number of past steps in the context; fewer at the start of a rollout. 0 is the state text alone.
        context: ``states``, or ``states_actions`` for past steps with their actions.

    Returns:
        The table with further columns, null where the truth is:

        - `context_advantage`: float64, the mean of `advantage`.
        - `context_advantage_first`, `context_advantage_second`: float64, the means of the halves, which are
            independent.
        - `context_advantage_error`: float64, at most this large is the standard error by the truth's own noise: the
            mean of `advantage_error`. It does not contain that the rows are a sample of the hidden states.
        - `context_rows`: the number of rows. With 1, it is the row's own truth.

    Raises:
        InputError: A column is missing.

    >>> steps = pl.DataFrame({
    ...     "task_id": "t", "trajectory": ["a", "b", "c"], "step": 0, "reward": 0.0, "action_valid": True,
    ...     "state": "a wall", "action": ["left", "left", "right"],
    ... }).with_columns(*(pl.Series(name, [1.0, -0.5, 0.0]) for name in ("advantage", "advantage_first",
    ...     "advantage_second")), advantage_error=0.1)
    >>> context_advantages(steps)["context_advantage"].to_list()
    [0.25, 0.25, 0.0]
    """
    table = step_table(steps).collect()
    if missing := [name for name in (*_AVERAGED, "action") if name not in table.columns]:
        raise InputError(f"the table has no {listed(missing)}; join it with its truth (join_advantages)")
    names = [f"{CHAINS[context]}{level}" for level in range(depth + 1)]
    parameters = HGPO(history_length=depth, context=context)
    found = prepare(table.lazy(), parameters).select("task_key", *names).collect()
    found = found.with_columns(
        table["action"].alias("(action)"),
        pl.coalesce(reversed(names)).alias("(context)"),
        pl.sum_horizontal(pl.col(name).is_not_null() for name in names).alias("(length)"),
        *(table[name].alias(f"({name})") for name in _AVERAGED),
    )
    found = found.with_columns(
        pl.when(pl.col("(advantage)").is_not_null() & pl.col("task_key").is_not_null())
        .then(key(["task_key", "(context)", "(length)", "(action)"]))
        .alias("task_key")
    )
    averaged = means(found.lazy(), {f"context_{name}": f"({name})" for name in _AVERAGED})
    averaged = averaged.with_columns(
        pl.when(pl.col("task_key").is_not_null()).then(pl.len().over("task_key")).alias("context_rows")
    )
    return pl.concat(
        [table, averaged.select(*(f"context_{name}" for name in _AVERAGED), "context_rows").collect()], how="horizontal"
    )
