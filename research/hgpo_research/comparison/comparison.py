"""The comparison of estimators with true advantages: all figures, as two tidy tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_research.comparison.chance import permuted_measures
from hgpo_research.comparison.contexts import contexts_of
from hgpo_research.comparison.families import intervals, resampled
from hgpo_research.comparison.inputs import REFERENCE, TRUTH_REWARDS, descriptions, draw, read_run
from hgpo_research.comparison.measures import denominators, measured, row_sums, task_sums
from hgpo_train.advantages.tables import step_table
from hgpo_train.resampling import task_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from hgpo_research.comparison.inputs import Draw, Run
    from hgpo_train.advantages.parameters import Context, Parameters
    from hgpo_train.advantages.tables import StepTable
    from hgpo_train.advantages.variants import Variant

    Floats = NDArray[np.float64]

DIMENSIONS: Final = ("all", "level", "position")
"""How steps are divided: not at all, by the deepest shared context (``alone`` if there is none), by position."""

_BORDERS: Final = (1, 2, 4, 8, 16, 32)
"""The first steps of the positions' parts after the first."""


@dataclass(frozen=True)
class Comparison:
    """The result of `compare_estimators`.

    Attributes:
        estimates: One row per estimator, group size, part of the steps and measure: `estimator`, `group_size`,
            `dimension` (see `DIMENSIONS`), `part`, `measure`, `steps` (of all redraws), `tasks`, `value`, its 95%
            interval `low` and `high`, the interval that holds for the whole family, `low_all` and `high_all`, and what
            chance gives for all steps of the group size, as the mean and the range of 95% of the permutations:
            `chance`, `chance_low`, `chance_high`. Null where there is none.
        differences: One row per pair of estimators, `first` and `second`: `value` is the difference first - second,
            with the same intervals and `p`, the adjusted p-value.
        sums: One row per estimator, group size and task: the sums over all steps from which measures are computed
            (`measures_of`), so that further comparisons need no run.
        details: Numbers of steps, rollouts, tasks and of what was left out; the estimators' parameters; the settings.
    """

    estimates: pl.DataFrame
    differences: pl.DataFrame
    sums: pl.DataFrame
    details: dict[str, Any]


class _Cell(NamedTuple):
    """The steps whose measures are computed together."""

    group_size: int
    dimension: str
    part: str


def check_numbers(**numbers: int) -> None:
    """Check numbers of `compare_estimators` by name, before anything is read.

    Raises:
        InputError: One is out of range.
    """
    least = {"redraws": 1, "resamples": 100, "depth": 0, "permutations": 0, "seed": 0}
    for name, number in numbers.items():
        if number < least[name]:
            raise InputError(f"{name}: expected an integer of at least {least[name]}, received {number}")


def compare_estimators(
    steps: StepTable,
    truth: StepTable,
    variants: Sequence[Variant],
    *,
    group_sizes: Sequence[int] | None = None,
    redraws: int = 4,
    depth: int = 4,
    context: Context = "states",
    rewards: Parameters = TRUTH_REWARDS,
    resamples: int = 2000,
    permutations: int = 50,
    seed: int = 0,
    progress: Callable[[str], object] = lambda _: None,
) -> Comparison:
    """Compare estimators with the true advantages of a run's steps.

    Args:
        steps: A step table, in any form that `hgpo_train.advantages.compute` accepts.
        truth: A truth table of this run (`hgpo truth`): a path or a Polars frame.
        variants: The estimators (`read_variants`).
        group_sizes: Numbers of rollouts per group. By default, 4, 8, 16 … up to the run's, and the run's own.
        redraws: How often the groups of each smaller size are redrawn.
        depth: The deepest context by which steps are classified.
        context: The content of these contexts.
        rewards: The definition of the truth's rewards and their discount (`truth_rewards`).
        resamples: Number of resamples of the tasks.
        permutations: Number of permutations that show what chance gives.
        seed: Seed of redraws, resamples and permutations.
        progress: Called with a text at the start of each part of the work.

    Raises:
        InputError: A column is missing, no step has a truth, or a number is out of range.
    """
    check_numbers(redraws=redraws, resamples=resamples, depth=depth, permutations=permutations, seed=seed)
    progress("reading the run and its truth")
    run = read_run(step_table(steps), step_table(truth), variants, depth, rewards)
    sizes = _sizes(run, group_sizes)
    names = [*(variant.name for variant in variants), REFERENCE]
    weights = task_weights(run.tasks, resamples, seed)
    cells: dict[_Cell, _Measured] = {}
    chance: dict[int, dict[str, Floats]] = {}
    facts: dict[str, Any] = {}
    kept: list[pl.DataFrame] = []
    for size in sizes:
        progress(f"groups of {size}")
        found = draw(run, size, redraws, seed, depth=depth, context=context, rewards=rewards)
        contexts = contexts_of(found)
        sums = {name: row_sums(found, contexts, found.estimates[name]) for name in names}
        whole = [task_sums(sums[name], found.task, run.tasks) for name in names]
        cells[_Cell(size, "all", "all")] = _measure(whole, weights)
        kept += [
            pl.DataFrame({"task_id": run.task_ids, **each}).with_columns(estimator=pl.lit(name), group_size=size)
            for name, each in zip(names, whole, strict=True)
        ]
        for dimension, part, chosen in _parts(found):
            parts = [task_sums(sums[name], found.task, run.tasks, chosen) for name in names]
            cells[_Cell(size, dimension, part)] = _measure(parts, weights)
        chance[size] = permuted_measures(found, contexts, names, run.tasks, permutations, seed)
        if size == sizes[-1]:
            facts = _facts(found)
    progress("intervals")
    details = {
        **run.counts,
        **facts,
        "group_size": run.size,
        "group_sizes": sizes,
        "redraws": redraws,
        "resamples": resamples,
        "permutations": permutations,
        "seed": seed,
        "rewards": asdict(rewards),
        "depth": depth,
        "context": context,
        "estimators": descriptions(variants),
    }
    estimates = _with_chance(_estimates(cells, names, run.tasks), chance, names)
    return Comparison(estimates, _differences(cells, names, run.tasks), pl.concat(kept), details)


def _sizes(run: Run, wanted: Sequence[int] | None) -> list[int]:
    """Return the group sizes in ascending order; the run's own is the last."""
    if wanted is None:
        wanted = [2**power for power in range(2, 12) if 2**power < run.size] + [run.size]
    for size in wanted:
        if not 2 <= size <= run.size:
            raise InputError(f"group_sizes: expected numbers from 2 to the run's {run.size}, received {size}")
    return sorted(set(wanted))


def _parts(found: Draw) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
    """Return the parts of the steps: dimension, name, and which steps are in it."""
    yield "level", "alone", found.level < 0
    for level in range(int(found.level.max(initial=-1)) + 1):
        yield "level", str(level), found.level == level
    borders = (0, *_BORDERS)
    for place, first in enumerate(borders):
        last = borders[place + 1] - 1 if place + 1 < len(borders) else None
        chosen = found.step >= first if last is None else (found.step >= first) & (found.step <= last)
        if chosen.any():
            name = f"step {first}" if first == last else f"steps {first}–{last}" if last else f"steps {first}…"
            yield "position", name, chosen


class _Measured(NamedTuple):
    """The measures of a cell: arrays of shape (estimators,), and of the resamples (resamples, estimators)."""

    values: dict[str, Floats]
    draws: dict[str, Floats]
    steps: int
    tasks: int


def measures_of(sums: Mapping[str, Floats], weights: Floats) -> tuple[dict[str, float], dict[str, Floats]]:
    """Return the measures of sums per task, and those of every resample; NaN where one is not defined.

    Args:
        sums: Arrays of shape (tasks,).
        weights: How often each task is in each resample, of shape (resamples, tasks).
    """
    whole = {name: np.asarray(array.sum()) for name, array in sums.items()}
    again = resampled(sums, weights)
    with np.errstate(all="ignore"):
        values = measured(whole)
        draws = measured(again)
        lower = denominators(whole)
        noise = denominators(again)
    found = {}
    for measure, value in values.items():
        factors = zip(lower.get(measure, ()), noise.get(measure, ()), strict=True)
        clear = all(size > 2 * np.nanstd(draw) for size, draw in factors)
        found[measure] = float(value) if clear else np.nan
    return found, draws


def _measure(sums: list[dict[str, Floats]], weights: Floats) -> _Measured:
    found = [measures_of(each, weights) for each in sums]
    names = list(found[0][0])
    return _Measured(
        {measure: np.array([values[measure] for values, _ in found]) for measure in names},
        {measure: np.stack([draws[measure] for _, draws in found], axis=1) for measure in names},
        int(sums[0]["n"].sum()),
        int((sums[0]["n"] > 0).sum()),
    )


def _facts(found: Draw) -> dict[str, float]:
    """Return what the truth itself says: its mean square, and the share of its spread that is not noise."""
    one = found.first
    two = found.second
    spread = float(np.mean(one * two) - one.mean() * two.mean())
    total = float(np.var((one + two) / 2))
    return {
        "mean_square_of_truth": float(np.mean(one * two)),
        "reliability_of_truth": spread / total if total else 1.0,
        "steps_of_known_sign": float(found.sure.mean()),
    }


def _estimates(cells: dict[_Cell, _Measured], names: list[str], tasks: int) -> pl.DataFrame:
    """Return the table of estimates. A family is all estimators of one measure and part at one group size."""
    return pl.concat(
        _frame(
            [
                {"estimator": name, **cell._asdict(), "measure": measure, "steps": found.steps, "tasks": found.tasks}
                for name in names
            ],
            values,
            found.draws[measure],
            tasks,
        ).drop("p")
        for cell, found in cells.items()
        for measure, values in found.values.items()
    )


def _differences(cells: dict[_Cell, _Measured], names: list[str], tasks: int) -> pl.DataFrame:
    """Return the table of differences. A family is all pairs of one measure and part at one group size."""
    first, second = np.triu_indices(len(names), 1)
    return pl.concat(
        _frame(
            [
                {"first": names[i], "second": names[j], **cell._asdict(), "measure": measure}
                for i, j in zip(first, second, strict=True)
            ],
            values[first] - values[second],
            found.draws[measure][:, first] - found.draws[measure][:, second],
            tasks,
        )
        for cell, found in cells.items()
        for measure, values in found.values.items()
    )


def _frame(keys: list[dict[str, Any]], values: Floats, draws: Floats, tasks: int) -> pl.DataFrame:
    """Return rows of a table, with the intervals of one family."""
    found = intervals(values, draws, tasks)
    columns = {"value": values, **found._asdict()}
    return pl.DataFrame(keys).with_columns(
        pl.Series(name, array.reshape(-1)).fill_nan(None) for name, array in columns.items()
    )


def _with_chance(estimates: pl.DataFrame, chance: dict[int, dict[str, Floats]], names: list[str]) -> pl.DataFrame:
    """Add what permuted estimates give, over all steps of a group size."""
    rows = []
    for size, measures in chance.items():
        for measure, values in measures.items():
            for place, name in enumerate(names):
                known = values[:, place][np.isfinite(values[:, place])]
                low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (None, None)
                rows.append(
                    {
                        "estimator": name,
                        "group_size": size,
                        "dimension": "all",
                        "measure": measure,
                        "chance": float(known.mean()) if len(known) else None,
                        "chance_low": low,
                        "chance_high": high,
                    }
                )
    kinds = {"chance": pl.Float64, "chance_low": pl.Float64, "chance_high": pl.Float64}
    table = pl.DataFrame(rows, schema_overrides=kinds)
    return estimates.join(
        table, on=["estimator", "group_size", "dimension", "measure"], how="left", maintain_order="left"
    )
