"""What chance alone gives: the measures of estimates that are permuted within their groups.

A permutation keeps the values of each group of rollouts, and so their scale and their mean, and removes what they say
about the group's steps. The expected gradient of permuted estimates is 0 up to differences between groups and has no
direction, so `gradient_limit` and `model_gradient_limit` have no value by chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hgpo_research.comparison.measures import MEASURES, all_sums, measured, row_sums
from hgpo_research.comparison.model_gradients import MODEL_MEASURES, model_sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_research.comparison.gradients import Contexts
    from hgpo_research.comparison.inputs import Draw
    from hgpo_research.comparison.row_gradients import RowGradients

    Floats = NDArray[np.float64]


def permuted_measures(
    found: Draw,
    contexts: Contexts,
    names: list[str],
    tasks: int,
    permutations: int,
    seed: int,
    gradients: RowGradients | None = None,
) -> dict[str, Floats]:
    """Return each measure of permuted estimates, arrays of shape (permutations, estimators).

    Args:
        found: The steps of redrawn groups.
        contexts: Their visible contexts.
        names: The estimators.
        tasks: Number of tasks.
        permutations: Number of permutations, each of all groups. All estimators share them.
        seed: Seed of the permutations.
        gradients: The gradients of a language model's log-probabilities, for `model_gradient`.
    """
    rng = np.random.Generator(np.random.PCG64([seed, found.size, 1]))
    measures = MEASURES if gradients is None else (*MEASURES, *MODEL_MEASURES)
    made = {measure: np.full((permutations, len(names)), np.nan) for measure in measures}
    by_group = np.argsort(found.group, kind="stable")
    for number in range(permutations):
        order = np.empty(len(by_group), np.int64)
        order[by_group] = np.lexsort((rng.random(len(by_group)), found.group))
        permuted = [(one[order], two[order]) for one, two in (found.estimates[name] for name in names)]
        more = [{} for _ in names] if gradients is None else model_sums(found, gradients.sketches, permuted, tasks)
        for place, estimate in enumerate(permuted):
            sums = all_sums(found, contexts, estimate, row_sums(found, contexts, estimate), tasks) | more[place]
            values = measured({key: values.sum() for key, values in sums.items()})
            for measure in set(values) - {"gradient_limit", "model_gradient_limit"}:
                made[measure][number, place] = values[measure]
    return made
