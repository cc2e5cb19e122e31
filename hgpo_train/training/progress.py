"""The progress of a training run: its state after an iteration and after an evaluation, and when it ends."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from hgpo_train.models.checkpoint_files import TrainingState
    from hgpo_train.training.config import Config


def after_iteration(state: TrainingState, steps: pl.DataFrame) -> TrainingState:
    """Return the state after an iteration that was trained on these steps."""
    return replace(
        state,
        iteration=state.iteration + 1,
        tasks_drawn=state.tasks_drawn + steps.select("task_id", "group").n_unique(),
        environment_steps=state.environment_steps + len(steps),
    )


def after_evaluation(state: TrainingState, success: float) -> TrainingState:
    """Return the state after an evaluation with this success rate on held-out tasks."""
    if not success > state.best_success:
        return replace(state, stalled=state.stalled + 1)
    return replace(state, best=state.iteration, best_success=success, stalled=0)


def is_finished(config: Config, state: TrainingState) -> bool:
    """Return whether a run has reached its end: of iterations, of environment steps, or of evaluations without gain."""
    is_stalled = 0 < config.evaluation.patience <= state.stalled
    is_long = state.environment_steps >= (config.environment_steps or math.inf)
    return is_stalled or is_long or state.iteration >= config.iterations
