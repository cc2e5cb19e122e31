"""What chance alone gives: the measures of estimates that are permuted within their groups.

A permutation keeps the values of each group of rollouts, and so their scale and their mean, and removes what they say
about the group's steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hgpo_research.comparison.measures import MEASURES, measured, row_sums, task_sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_research.comparison.contexts import Contexts
    from hgpo_research.comparison.inputs import Draw

    Floats = NDArray[np.float64]


def permuted_measures(
    found: Draw,
    contexts: Contexts,
    names: list[str],
    tasks: int,
    permutations: int,
    seed: int,
) -> dict[str, Floats]:
    """Return each measure of permuted estimates, arrays of shape (permutations, estimators).

    Args:
        found: The steps of redrawn groups.
        contexts: Their visible contexts.
        names: The estimators.
        tasks: Number of tasks.
        permutations: Number of permutations, each of all groups. All estimators share them.
        seed: Seed of the permutations.
    """
    rng = np.random.Generator(np.random.PCG64([seed, found.size, 1]))
    made = {measure: np.full((permutations, len(names)), np.nan) for measure in MEASURES}
    by_group = np.argsort(found.group, kind="stable")
    for number in range(permutations):
        order = np.empty(len(by_group), np.int64)
        order[by_group] = np.lexsort((rng.random(len(by_group)), found.group))
        permuted = [(one[order], two[order]) for one, two in (found.estimates[name] for name in names)]
        for place, estimate in enumerate(permuted):
            sums = task_sums(row_sums(found, contexts, estimate), found.task, tasks)
            for measure, value in measured({key: values.sum() for key, values in sums.items()}).items():
                made[measure][number, place] = value
    return made
