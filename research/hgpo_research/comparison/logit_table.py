"""The gradient of log π of each step of a run, for a policy with one logit for each task, state and response.

These are the parameters of the policies of `hgpo learn-tabular`. The gradient of log π(a | s) has 1{a = b} - π(b | s)
for the logit of (s, b) and 0 elsewhere, so that sums over steps need no vector of all parameters for any step: the
memory is that of the responses' probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_research.comparison.known_steps import known_steps
from hgpo_train.advantages.input_columns import group_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_research.arrays import Array, Floats, Integers
    from hgpo_research.comparison.known_steps import Known
    from hgpo_research.comparison.row_gradients import RowGradients

_BLOCK: Final = 4096
"""The number of steps whose responses are in memory for all estimators at once."""


@dataclass(frozen=True)
class LogitTable:
    """The gradients of a run's steps, with the methods of `RowGradients`.

    Attributes:
        rows: One row per step whose probabilities are known: `trajectory`, `step` and `sketch`, its number.
        parameter: The parameters of the responses of all steps, one step after the other, int64.
        probability: The probabilities of these responses, float64.
        first: For each step, the place of its first response in the two arrays, and their length at the end.
        taken: For each step, the place of the response that it took.
        parameters: The number of parameters.
    """

    rows: pl.DataFrame
    parameter: Integers
    probability: Floats
    first: Integers
    taken: Integers
    parameters: int

    exact: Final = True

    def summed(self, weights: Floats, numbers: Integers) -> Array:
        """See `RowGradients`."""
        sizes = np.diff(self.first)
        found = np.zeros((len(weights), self.parameters))
        # Σ w (1{a = b} - π(b | s)) in two sums, because a step has a single response taken, and many expected.
        for row, given in enumerate(weights):
            weight = np.zeros(len(sizes))
            weight[numbers] = given
            taken = np.bincount(self.parameter[self.taken], weight, self.parameters)
            expected = np.repeat(weight, sizes) * self.probability
            found[row] = taken - np.bincount(self.parameter, expected, self.parameters)
        return found

    def slopes(self, directions: Array, numbers: Integers) -> Floats:
        """See `RowGradients`."""
        found = np.zeros((len(self.taken), len(directions)))
        for steps, places, change in self._changes(directions):
            found[steps] = change[:, self.taken[steps] - places.start].T
        return found[numbers]

    def products(self, directions: Array, numbers: Integers, weights: Floats) -> Floats:
        """See `RowGradients`."""
        weight = np.zeros(len(self.taken))
        np.add.at(weight, numbers, weights)
        total = np.zeros((len(directions), len(directions)))
        for steps, places, change in self._changes(directions):
            sizes = np.diff(self.first)[steps]
            shares = self.probability[places] * np.repeat(weight[steps], sizes)
            total += (change * shares) @ change.T
        return total

    def _changes(self, directions: Array) -> Iterator[tuple[slice, slice, Floats]]:
        """Yield blocks of steps, their places, and the changes of log π of their responses along directions."""
        for start in range(0, len(self.taken), _BLOCK):
            steps = slice(start, min(start + _BLOCK, len(self.taken)))
            first = self.first[steps]
            places = slice(int(first[0]), int(self.first[steps.stop]))
            change = directions[:, self.parameter[places]].astype(np.float64)
            # A change of all logits of a step by the same number changes no probability.
            means = np.add.reduceat(
                change * self.probability[places], first - first[0], axis=1
            )
            change -= np.repeat(means, np.diff(self.first)[steps], axis=1)
            yield steps, places, change


def logit_table(steps: pl.LazyFrame, policy: Known, history_length: int) -> LogitTable:
    """Compute the gradients of a run's steps; those whose response the policy never gives are left out.

    Args:
        steps: A step table with the columns `known_steps.COLUMNS`.
        policy: The policy that played the run.
        history_length: The number of past steps that the prompts show.

    Raises:
        InputError: The policy gives none of the responses.
    """
    schema = steps.collect_schema()
    # A name of a task is one of its run's: a logit never depends on another task, as in `hgpo learn-tabular`.
    keys = [name for name in group_keys(schema) if name != "group"]
    tasks = dict(
        steps.select("trajectory", task=pl.struct(keys))
        .unique("trajectory")
        .collect()
        .iter_rows()
    )
    task_numbers: dict[str, int] = {}
    numbers: dict[tuple[int, str, str], int] = {}
    rows: list[tuple[str, int, int]] = []
    parameters: list[int] = []
    probabilities: list[Floats] = []
    first = [0]
    taken = []
    for known in known_steps(steps, policy, history_length):
        task = task_numbers.setdefault(str(tasks[known.trajectory]), len(task_numbers))
        state = known.request.state.text
        parameters.extend(
            numbers.setdefault((task, state, response), len(numbers))
            for response in known.distribution.responses
        )
        probabilities.append(known.distribution.probabilities)
        rows.append((known.trajectory, known.step, len(rows)))
        taken.append(first[-1] + known.choice)
        first.append(len(parameters))
    if not rows:
        raise InputError(
            "expected a run of the policy that its manifest names; it gives none of the run's responses"
        )
    table = pl.DataFrame(rows, ["trajectory", "step", "sketch"], orient="row")
    return LogitTable(
        table.with_columns(pl.col("step").cast(schema["step"])),
        np.array(parameters),
        np.concatenate(probabilities),
        np.array(first),
        np.array(taken),
        len(numbers),
    )


if TYPE_CHECKING:
    Gradients = RowGradients | LogitTable
