"""The gradient of log π of each step of a run, with respect to the weights of the policy `softmax`.

Its logits are Σ_f w_f φ_f, so the gradient of log π(a) with respect to w is φ(a) - Σ_b π(b) φ(b). Unlike a table of
logits, these parameters are shared by all states and tasks, as a language model's are.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from hgpo_envs.engine import State, Task
from hgpo_envs.memory import Pair
from hgpo_research.comparison.row_gradients import RowGradients, fisher_of
from hgpo_train.policies.base import Request

if TYPE_CHECKING:
    from hgpo_research.arrays import Floats
    from hgpo_research.comparison.row_gradients import Sketches
    from hgpo_research.policies.softmax import SoftmaxPolicy


def feature_gradients(steps: pl.LazyFrame, policy: SoftmaxPolicy, history_length: int) -> RowGradients:
    """Compute the gradients of a run's steps; those whose response the policy never gives are left out.

    Args:
        steps: A step table with the columns `trajectory`, `step`, `task`, `state`, `admissible_actions`, `action` and
            `response`.
        policy: The policy that played the run.
        history_length: The number of past steps that the prompts show.
    """
    names = (
        "trajectory",
        "step",
        "task",
        "state",
        "admissible_actions",
        "action",
        "response",
    )
    table = steps.select(names).sort("trajectory", "step").collect()
    rows: list[tuple[str, int, int]] = []
    vectors: list[Floats] = []
    choices: list[tuple[Floats, Floats]] = []  # probabilities and features of the responses
    past: list[Pair] = []
    for (
        trajectory,
        step,
        task,
        text,
        actions,
        action,
        response,
    ) in table.iter_rows():
        if step == 0:
            past = []
        # The policy is asked again with what its prompt showed.
        shown = past[max(0, len(past) - history_length) :]
        now = Request(
            id=0,
            prompt="",
            seed=0,
            slot=0,
            step=step,
            task=Task("", "", task, ""),
            state=State(text, actions),
            engine=None,
            with_shorter_history=lambda _: "",
            read_history=partial(tuple, shown),
        )
        (distribution,) = policy.distributions([now])
        features = policy.features(now)
        if response in distribution.responses:
            chosen = features[distribution.responses.index(response)]
            rows.append((trajectory, step, len(rows)))
            vectors.append(chosen - distribution.probabilities @ features)
            choices.append((distribution.probabilities, features))
        past.append(Pair(step + 1, text, action))

    def changes(directions: Sketches, number: int) -> tuple[Floats, Floats]:
        probabilities, features = choices[number]
        return probabilities, features @ directions.T

    gradients = np.array(vectors, np.float32)
    keys = pl.DataFrame(rows, ["trajectory", "step", "sketch"], orient="row")
    keys = keys.with_columns(pl.col("step").cast(table.schema["step"]))
    return RowGradients(keys, gradients, gradients.shape[1], 0.0, fisher_of(changes))
