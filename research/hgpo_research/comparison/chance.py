"""What chance alone gives: the measures of estimates that are permuted within their groups.

A permutation keeps the values of each group of rollouts, and so their scale and their mean, and removes what they say
about the group's steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_research.comparison.measures import (
    MEASURES,
    measured,
    row_sums,
    task_sums,
)

if TYPE_CHECKING:
    from hgpo_research.comparison.inputs import Draw

KEYS: Final = ("estimator", "group_size", "dimension", "measure")
"""The columns that a table of chance shares with that of estimates."""


def chance_table(
    found: Draw,
    names: list[str],
    tasks: int,
    permutations: int,
    seed: int,
) -> pl.DataFrame:
    """Return the measures of permuted estimates over all steps.

    Args:
        found: The steps of redrawn groups.
        names: The estimators.
        tasks: Number of tasks.
        permutations: Number of permutations, each of all groups. All estimators share them.
        seed: Seed of the permutations.

    Returns:
        Rows of `KEYS`, with the mean `chance` and the range of 95% of the permutations, `chance_low` and `chance_high`;
        null where no permutation has the measure.
    """
    rng = np.random.Generator(np.random.PCG64([seed, found.size, 1]))
    values = np.full((len(names), len(MEASURES), permutations), np.nan)
    by_group = np.argsort(found.group, kind="stable")
    for number in range(permutations):
        # A random order within each group, at the places of the group's rows.
        order = np.empty(len(by_group), np.int64)
        order[by_group] = np.lexsort((rng.random(len(by_group)), found.group))
        for place, name in enumerate(names):
            one, two = found.estimates[name]
            sums = task_sums(
                row_sums(found, (one[order], two[order])),
                found.task,
                tasks,
            )
            permuted = measured({key: each.sum() for key, each in sums.items()})
            values[place, :, number] = [permuted[measure] for measure in MEASURES]
    rows = []
    for name, of_name in zip(names, values, strict=True):
        for measure, draws in zip(MEASURES, of_name, strict=True):
            known = draws[np.isfinite(draws)]
            if not len(known):
                rows.append([name, found.size, "all", measure, None, None, None])
                continue
            low, high = np.quantile(known, [0.025, 0.975])
            rows.append([name, found.size, "all", measure, known.mean(), low, high])
    kinds: dict[str, Any] = dict.fromkeys(KEYS, pl.String) | {"group_size": pl.Int64}
    kinds |= dict.fromkeys(("chance", "chance_low", "chance_high"), pl.Float64)
    return pl.DataFrame(rows, kinds, orient="row")
