"""The comparison of estimators with true advantages: all figures, as two tidy tables."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_research.comparison.chance import KEYS, chance_table
from hgpo_research.comparison.families import intervals, resampled
from hgpo_research.comparison.inputs import (
    REFERENCE,
    TRUTH_REWARDS,
    descriptions,
    draw,
    read_run,
)
from hgpo_research.comparison.measures import (
    MEASURES,
    denominators,
    measured,
    row_sums,
    task_sums,
)
from hgpo_research.resampling import task_weights
from hgpo_train.advantages.tables import step_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hgpo_research.arrays import Booleans, Floats
    from hgpo_research.comparison.inputs import Draw, Run
    from hgpo_train.advantages.parameters import Context, Parameters
    from hgpo_train.advantages.tables import StepTable
    from hgpo_train.advantages.variants import Variant

DIMENSIONS: Final = ("all", "level", "position")
"""How steps are divided: not at all, by the deepest shared context (``alone`` if there is none), by position."""

_BORDERS: Final = (0, 1, 2, 4, 8, 16, 32)
"""The first steps of the positions' parts."""

_LEAST: Final = {
    "redraws": 1,
    "resamples": 100,
    "depth": 0,
    "permutations": 0,
    "seed": 0,
}


@dataclass(frozen=True)
class Comparison:
    """The result of `compare_estimators`.

    Attributes:
        estimates: One row per estimator, group size, part of the steps and measure: `estimator`, `group_size`,
            `dimension` (see `DIMENSIONS`), `part`, `measure`, `steps` (of all redraws), `tasks`, `value`, its 95%
            interval `low` and `high`, the interval that holds for the whole family, `low_all` and `high_all`, and what
            chance gives for all steps of the group size, as the mean and the range of 95% of the permutations:
            `chance`, `chance_low`, `chance_high`. Null where there is none. A family is all estimators of one measure
            and part at one group size.
        differences: One row per pair of estimators, `first` and `second`: `value` is the difference first - second,
            with the same intervals and `p`, the adjusted p-value. A family is all pairs of one measure and part at one
            group size.
        sums: One row per estimator, group size and task: the sums over all steps from which measures are computed
            (`measures_of`), so that further comparisons need no run.
        details: Numbers of steps, rollouts, tasks and of what was left out; the estimators' parameters; the settings.
    """

    estimates: pl.DataFrame
    differences: pl.DataFrame
    sums: pl.DataFrame
    details: dict[str, Any]


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
    settings: dict[str, Any] = {
        "redraws": redraws,
        "resamples": resamples,
        "permutations": permutations,
        "seed": seed,
        "rewards": asdict(rewards),
        "depth": depth,
        "context": context,
    }
    for name, least in _LEAST.items():
        if settings[name] < least:
            raise InputError(f"{name}: expected an integer of at least {least}, received {settings[name]}")
    progress("reading the run and its truth")
    run = read_run(step_table(steps), step_table(truth), variants, depth, rewards)
    sizes = _sizes(run, group_sizes)
    names = [*(variant.name for variant in variants), REFERENCE]
    # All measures of all estimators are computed from the same resamples, so that differences are paired.
    weights = task_weights(run.tasks, resamples, seed)
    estimates: list[pl.DataFrame] = []
    differences: list[pl.DataFrame] = []
    kept: list[pl.DataFrame] = []
    chance: list[pl.DataFrame] = []
    # Each size has redraws of its own, and all estimators are computed in the same groups.
    for size in sizes:
        progress(f"groups of {size}")
        found = draw(
            run,
            size,
            redraws,
            seed,
            depth=depth,
            context=context,
            rewards=rewards,
        )
        rows = {name: row_sums(found, found.estimates[name]) for name in names}
        for dimension, part, chosen in _parts(found):
            sums = {name: task_sums(rows[name], found.task, run.tasks, chosen) for name in names}
            cell = {
                "group_size": size,
                "dimension": dimension,
                "part": part,
            }
            for tables, table in zip(
                (estimates, differences),
                _tables(cell, sums, weights),
                strict=True,
            ):
                tables.append(table)
            if dimension == "all":
                for name, each in sums.items():
                    table = pl.DataFrame({"task_id": run.task_ids, **each})
                    kept.append(table.with_columns(estimator=pl.lit(name), group_size=size))
        chance.append(chance_table(found, names, run.tasks, permutations, seed))
    details = {
        **run.counts,
        **_facts(found),  # of the run's own size, which is the last one
        "group_size": run.size,
        "group_sizes": sizes,
        **settings,
        "estimators": descriptions(variants),
    }
    # Chance is known for all steps alone; other parts get nulls.
    with_chance = pl.concat(estimates).join(pl.concat(chance), on=KEYS, how="left", maintain_order="left")
    return Comparison(with_chance, pl.concat(differences), pl.concat(kept), details)


def _sizes(run: Run, wanted: Sequence[int] | None) -> list[int]:
    """Return the group sizes in ascending order; the run's own is the last."""
    if wanted is None:
        wanted = [2**power for power in range(2, 12) if 2**power < run.size] + [run.size]
    for size in wanted:
        if not 2 <= size <= run.size:
            raise InputError(f"group_sizes: expected numbers from 2 to the run's {run.size}, received {size}")
    return sorted(set(wanted))


def _parts(found: Draw) -> Iterator[tuple[str, str, Booleans | None]]:
    """Return the parts of the steps: dimension, name, and which steps are in it; None for all."""
    yield "all", "all", None
    yield "level", "alone", found.level < 0
    for level in range(int(found.level.max(initial=-1)) + 1):
        yield "level", str(level), found.level == level
    for first, following in zip(_BORDERS, (*_BORDERS[1:], None), strict=True):
        if following is None:
            name = f"steps {first}…"
            chosen = found.step >= first
        else:
            name = f"step {first}" if following == first + 1 else f"steps {first}–{following - 1}"
            chosen = (found.step >= first) & (found.step < following)
        if chosen.any():
            yield "position", name, chosen


def measures_of(sums: Mapping[str, Floats], weights: Floats) -> tuple[dict[str, float], dict[str, Floats]]:
    """Return the measures of sums per task, and those of every resample; NaN where one is not defined.

    Args:
        sums: Arrays of shape (tasks,).
        weights: How often each task is in each resample, of shape (resamples, tasks).
    """
    whole = {name: np.asarray(array.sum()) for name, array in sums.items()}
    again = resampled(sums, weights)
    # Undefined ratios are NaN here, and null in the tables.
    with np.errstate(all="ignore"):
        values = measured(whole)
        draws = measured(again)
        lower = denominators(whole)
        noise = denominators(again)
    # The measure itself is left out where it is not known; its resamples are not.
    found = {}
    for measure, value in values.items():
        factors = zip(lower.get(measure, ()), noise.get(measure, ()), strict=True)
        # A denominator within two standard errors of 0 can make any number.
        clear = all(size > 2 * np.nanstd(draw) for size, draw in factors)
        found[measure] = float(value) if clear else np.nan
    return found, draws


def _tables(
    cell: dict[str, Any],
    sums: Mapping[str, Mapping[str, Floats]],
    weights: Floats,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of estimates and of differences of one part of the steps.

    Args:
        cell: Their common columns.
        sums: The sums of each estimator by task.
        weights: How often each task is in each resample, of shape (resamples, tasks).
    """
    names = list(sums)
    found = [measures_of(each, weights) for each in sums.values()]
    tasks = weights.shape[1]
    n = sums[names[0]]["n"]
    counts = {"steps": int(n.sum()), "tasks": int((n > 0).sum())}
    first, second = np.triu_indices(len(names), 1)
    estimates = []
    differences = []
    for measure in MEASURES:
        values = np.array([whole[measure] for whole, _ in found])
        draws = np.stack([again[measure] for _, again in found], axis=1)
        named = [{"estimator": name, **cell, "measure": measure, **counts} for name in names]
        estimates.append(_frame(named, values, draws, tasks).drop("p"))
        pairs = [
            {
                "first": names[one],
                "second": names[two],
                **cell,
                "measure": measure,
            }
            for one, two in zip(first, second, strict=True)
        ]
        differences.append(
            _frame(
                pairs,
                values[first] - values[second],
                draws[:, first] - draws[:, second],
                tasks,
            )
        )
    return pl.concat(estimates), pl.concat(differences)


def _frame(keys: list[dict[str, Any]], values: Floats, draws: Floats, tasks: int) -> pl.DataFrame:
    """Return rows of a table, with the intervals of one family."""
    columns = {"value": values, **intervals(values, draws, tasks)._asdict()}
    return pl.DataFrame(keys).with_columns(pl.Series(name, array).fill_nan(None) for name, array in columns.items())


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
