"""Inner products of tabular policy gradients, from sums per visible context and action.

The gradient of Σ_t x_t log π(a_t | c_t) with respect to a table of logits, one row per visible context c, is for each c

    g_c(x) = Σ_{t: c_t = c} x_t (onehot(a_t) - π_c) = C_c(x) - S_c(x) π_c

where S_c is the sum of x over the steps at c, and C_c its vector of sums per action. Products need no such vectors:

    <g_c(x), g_c(y)> = Σ_a C_ca(x) C_ca(y) - S_c(x) P_c(y) - P_c(x) S_c(y) + S_c(x) S_c(y) Σ_a π_ca²
    P_c(x)           = Σ_{t: c_t = c} x_t π_c(a_t)

Products within a subgroup (`same`) are summed over subgroups. Products between the disjoint subgroups of a redraw
(`other`) are those of the whole redraw minus those within its subgroups, divided by the number of other subgroups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_research.comparison.inputs import Draw

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]


@dataclass(frozen=True)
class _Scope:
    """Numbers of the visible contexts, and of their actions, in which the steps of a scope are summed.

    Attributes:
        context: Number of each step's context.
        action: Number of each step's context and action.
        redraw_of_context: The redraw of each context.
        redraw_of_action: The redraw of each action.
        square: Σ_a π_ca² of each context.
    """

    context: Integers
    action: Integers
    redraw_of_context: Integers
    redraw_of_action: Integers
    square: Floats


@dataclass(frozen=True)
class Contexts:
    """The visible contexts of redrawn groups.

    Attributes:
        usable: Whether each step has action probabilities; all other arrays have only those steps.
        chosen: Probability of the action taken.
        same: Contexts of each subgroup.
        whole: Contexts of each redraw.
        task_of_redraw: The task of each redraw.
        others: For each redraw, the number of subgroups that each subgroup is compared with; at least 0.
    """

    usable: NDArray[np.bool_]
    chosen: Floats
    same: _Scope
    whole: _Scope
    task_of_redraw: Integers
    others: Floats


def contexts_of(found: Draw) -> Contexts:
    """Number the visible contexts of redrawn groups."""
    usable = found.prompt >= 0
    prompt, choice = found.prompt[usable], found.choice[usable]
    redraw = numbered(found.redraw[usable])
    groups = np.unique(np.stack([redraw, found.group[usable]]), axis=1)[0]
    redraws = int(redraw.max(initial=-1)) + 1
    task_of_redraw = np.zeros(redraws, np.int64)
    task_of_redraw[redraw] = found.task[usable]
    scopes = []
    for scope in (found.group[usable], redraw):
        context = numbered(scope, prompt)
        action = numbered(context, choice)
        count = int(context.max(initial=-1)) + 1
        redraw_of_context, square = np.zeros(count, np.int64), np.zeros(count)
        redraw_of_context[context], square[context] = redraw, found.square[usable]
        redraw_of_action = np.zeros(int(action.max(initial=-1)) + 1, np.int64)
        redraw_of_action[action] = redraw
        scopes.append(_Scope(context, action, redraw_of_context, redraw_of_action, square))
    others = np.bincount(groups, minlength=redraws).astype(np.float64) - 1
    return Contexts(usable, found.chosen[usable], scopes[0], scopes[1], task_of_redraw, others)


def gradient_sums(
    contexts: Contexts, estimate: tuple[Floats, Floats], truth: tuple[Floats, Floats], tasks: int
) -> dict[str, Floats]:
    """Return the inner products of each task: `ee`, `ea` and `aa`, each `_same` and `_other`; arrays of shape (tasks,).

    Args:
        contexts: The visible contexts.
        estimate: Two halves of the estimate; see `row_sums`.
        truth: Two halves of the true advantages.
        tasks: Number of tasks.
    """
    e, f, a, b = (values[contexts.usable] for values in (*estimate, *truth))
    halves = {"ee": [(e, f)], "ea": [(e, b), (f, a)], "aa": [(a, b)]}
    sums = {}
    for name, pairs in halves.items():
        same = np.mean([_products(contexts, contexts.same, *pair) for pair in pairs], axis=0)
        whole = np.mean([_products(contexts, contexts.whole, *pair) for pair in pairs], axis=0)
        other = np.where(contexts.others > 0, (whole - same) / np.maximum(contexts.others, 1), 0.0)
        sums[f"{name}_same"] = summed(contexts.task_of_redraw, same, tasks)
        sums[f"{name}_other"] = summed(contexts.task_of_redraw, other, tasks)
    return sums


def _products(contexts: Contexts, scope: _Scope, x: Floats, y: Floats) -> Floats:
    """Return <g(x), g(y)> of each redraw, summed over the contexts of a scope."""
    n, redraws = len(scope.square), len(contexts.task_of_redraw)
    s_x, s_y = (summed(scope.context, values, n) for values in (x, y))
    p_x, p_y = (summed(scope.context, values * contexts.chosen, n) for values in (x, y))
    c_x, c_y = (summed(scope.action, values, len(scope.redraw_of_action)) for values in (x, y))
    rest = s_x * s_y * scope.square - s_x * p_y - p_x * s_y
    return summed(scope.redraw_of_action, c_x * c_y, redraws) + summed(scope.redraw_of_context, rest, redraws)


def summed(number: Integers, values: Floats, count: int) -> Floats:
    """Return the sum of the values with each number from 0 to at least `count` - 1."""
    return np.bincount(number, values, count).astype(np.float64, copy=False)


def numbered(*columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of each row's combination of values, from 0."""
    found = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, values = np.unique(column, return_inverse=True)
        _, found = np.unique(found * (values.max(initial=0) + 1) + values, return_inverse=True)
    return found
