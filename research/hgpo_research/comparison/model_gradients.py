"""Inner products of policy gradients with respect to the parameters of a language model, as sums of tasks.

g(x) = Σ_t x_t ∇ log π(a_t | s_t) over the steps of a batch with one group of each task. Unlike a table of logits, a
model shares its parameters between tasks, so products of different tasks count:

    <g(x), g(y)> = Σ_k own_k + Σ_{k ≠ l} cross_kl

own_k is the product within a group of task k, on average over the redrawn groups, and cross_kl the product of the mean
gradients of tasks k and l. `batch` has both parts, `within` the first one alone, and `tasks` the second one alone,
whose factors are independent: products of the expected gradients, as from very many tasks.

Resampled tasks need one number per task. It is the task's own product, twice its products with all others, and its
share of what is then counted twice:

    s_k = own_k + 2 Σ_{l ≠ k} cross_kl - Σ_{i ≠ j} cross_ij / T

The sum over tasks is the product, and a resample's sum is its linear approximation (the projection of the second part,
W. Hoeffding, A Class of Statistics with Asymptotically Normal Distribution, 1948). Copies of one task are thus not
counted as products of different tasks. Where the second part is mostly noise, intervals are too wide rather than too
narrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hgpo_research.comparison.inputs import Draw

    Floats = NDArray[np.float64]

MODEL_MEASURES: Final = {
    "model_gradient": "batch",
    "model_gradient_within": "within",
    "model_gradient_limit": "tasks",
}
"""The measures of a model's gradients, and which sums they are cosines of."""


def model_sums(
    found: Draw, sketches: NDArray[np.float32], estimates: Sequence[tuple[Floats, Floats]], tasks: int
) -> list[dict[str, Floats]]:
    """Return the sums `ee`, `ea` and `aa`, each `_batch`, `_within` and `_tasks`, of each estimate; of shape (tasks,).

    Args:
        found: The steps of redrawn groups; those without a sketch are left out.
        sketches: The gradients of log π, of shape (gradients, size); `Draw.sketch` has the number of each step's.
        estimates: Two halves of each estimate, equal unless it contains those of the truth.
        tasks: Number of tasks.
    """
    halves = [half for pair in (*estimates, (found.first, found.second)) for half in pair]
    vectors = np.stack(halves).astype(np.float32)
    usable = np.flatnonzero(found.sketch >= 0)
    usable = usable[np.argsort(found.group[usable], kind="stable")]
    groups = np.split(usable, np.flatnonzero(np.diff(found.group[usable])) + 1) if len(usable) else []
    of_task = np.bincount([found.task[rows[0]] for rows in groups], minlength=tasks)
    mean = np.zeros((tasks, len(vectors), sketches.shape[1]), np.float32)
    own = np.zeros((tasks, len(vectors), len(vectors)))
    for rows in groups:
        task = found.task[rows[0]]
        gradient = vectors[:, rows] @ sketches[found.sketch[rows]]
        mean[task] += gradient / of_task[task]
        own[task] += gradient @ gradient.T / of_task[task]
    first, second = len(vectors) - 2, len(vectors) - 1

    def summed(pairs: Sequence[tuple[int, int]]) -> tuple[Floats, Floats]:
        within = np.mean([own[:, x, y] for x, y in pairs], axis=0)
        between = np.mean([mean[:, x].astype(np.float64) @ mean[:, y].T for x, y in pairs], axis=0)
        across = per_task(between)
        return within, across

    made = []
    for one in range(0, first, 2):
        two = one + 1
        pairs = {"ee": [(one, two)], "ea": [(one, second), (two, first)], "aa": [(first, second)]}
        sums: dict[str, Floats] = {}
        for name, each in pairs.items():
            within, across = summed(each)
            sums |= {f"{name}_batch": within + across, f"{name}_within": within, f"{name}_tasks": across}
        made.append(sums)
    return made


def per_task(products: Floats) -> Floats:
    """Return each task's number for the sum of the products of different tasks; see the module.

    Args:
        products: Products of shape (tasks, tasks); the diagonal does not count.
    """
    others = products - np.diag(np.diag(products))
    found: Floats = others.sum(0) + others.sum(1) - others.sum() / len(others)
    return found
