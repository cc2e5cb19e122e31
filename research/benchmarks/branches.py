"""Branches against independent rollouts at equal environment steps: python -m research.benchmarks.branches [--keep].

Tabular policies, whose gradients are known, play rollouts and branches of graphs. Protocol and results are on
research/docs/branch_study.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from benchmarks.readme import figures
from benchmarks.runner import make_parser, store
from hgpo_research.random_numbers import subkey
from hgpo_research.tabular.graphs import compile_tasks
from hgpo_research.tabular.learning import Learning, learn
from hgpo_research.tabular.methods import Oracle, TableEstimator
from hgpo_research.tabular.policy import Visits
from hgpo_research.tabular.report import markdown_table
from hgpo_research.tabular.rollouts import Rollouts, play, rollouts, step_table
from hgpo_train.advantages import compute, get
from hgpo_train.resampling import student_quantile
from hgpo_train.rollout import branch_rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_research.arrays import Floats
    from hgpo_research.tabular.graphs import TaskSet
    from hgpo_research.tabular.policy import TabularPolicy

WORLDS: Final[dict[str, dict[str, Any]]] = {
    "levers": {
        "env_id": "hgpo_research.levers:LEVERS",
        "env_options": {"split": "train"},
        "policy_options": {"memory": 0},
        "reads": 3,
    },
    "ALFWorld": {
        "env_id": "HGPO/ALFWorld-v0",
        "env_options": {"split": "train", "max_steps": 20},
        "policy_options": {"memory": 0},
    },
}
TASKS: Final = 8
POLICIES: Final = 8
COPIES: Final = 32
TRUTHS: Final = 16
UPDATES: Final = 10
ROOTS: Final = 4
SAMPLES: Final = 16
WIDTHS: Final = (1, 2, 4)

SUCCESS: Final = {
    "reward_scale": 1.0,
    "invalid_action_penalty": 0.0,
    "precision": "float64",
}
PLAIN: Final[dict[str, dict[str, Any]]] = {
    "rloo": {"gamma": 1.0, "cross_steps": False},
    "grpo": {"gamma": 1.0, "cross_steps": False},
    "hgpo": {"gamma": 0.95},
}
TREES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "tree_loo": ("rloo", {"gamma": 1.0}),
    "tree_loo, fresh": ("rloo", {"gamma": 1.0, "fresh": True}),
    "carl": ("rloo", {"gamma": 1.0}),
    "tree_grpo": ("grpo", {"gamma": 1.0}),
    "tree_hgpo": ("hgpo", {"gamma": 0.95}),
}
"""Estimators over trees: what each is compared with, and its parameters."""


class Batch:
    """Rollouts of all tasks, of which some can be branches, and their step table.

    Args:
        policy: The policies.
        rows: The rows of each task.
        origins: For each task, the parent's number and the first step of each branch, whose numbers follow those of
            the rollouts; none by default.
    """

    def __init__(
        self,
        policy: TabularPolicy,
        rows: Sequence[Rollouts],
        origins: Sequence[np.ndarray[Any, Any]] | None = None,
    ) -> None:
        self.rows = rows
        self.visits = Visits(policy, rows)
        self.steps = sum(len(each.step) for each in rows) / len(policy.seeds)
        table = step_table(policy, rows)
        before = 0
        parents = []
        for task, each in enumerate(rows):
            # rollouts are numbered over all seeds
            number = each.rollout - ROOTS * len(policy.seeds)
            is_branch = (
                number >= 0 if origins is not None else np.zeros(len(number), np.bool_)
            )
            origin = np.zeros((len(number), 2), np.int64)
            if origins is not None:
                origin[is_branch] = origins[task][number[is_branch]]
            named = {"parent": before + origin[:, 0], "branch_step": origin[:, 1]}
            kept = pl.lit(pl.Series(is_branch))
            parents.append(pl.DataFrame(named).select(pl.when(kept).then(pl.all())))
            before += int(each.rollout.max()) + 1
        self.table = pl.concat([table, pl.concat(parents)], how="horizontal")

    def advantages(self, estimator: str, parameters: dict[str, Any]) -> list[Floats]:
        """Return an estimator's advantages of each task's rows."""
        chosen = get(estimator).with_parameters(**SUCCESS, **parameters)
        values = compute(self.table, chosen).collect()["advantage"].to_numpy()
        return np.split(values, np.cumsum([len(each.step) for each in self.rows])[:-1])


def branched(
    policy: TabularPolicy, roots: Batch, rule: str, width: int, stream: Sequence[int]
) -> Batch:
    """Return the rollouts of a batch with branches that take as many steps on average as the rollouts do."""
    # 1. What the rule reads; a seed is an iteration to it, so that seeds never mix.
    rows = roots.rows
    own = {
        name: np.concatenate([getattr(each, name) for each in rows])
        for name in ("rollout", "node")
    }
    trajectory = ["run", "task_id", "trajectory"]
    table = roots.table.with_columns(
        **own, iteration="run", group=pl.lit(0)
    ).with_columns(
        episode_return=pl.col("reward").sum().over(trajectory),
        left=(pl.len().over(trajectory) - pl.col("step")).cast(pl.Float64),
    )
    found = (
        branch_rules.get(rule)
        .function(table.lazy())
        .collect()
        .filter(pl.col("step") > 0)
    )

    # 2. The points until the budget is spent; the last one with the probability at which this is so on average.
    rng = np.random.default_rng([*stream, width])
    draws = pl.DataFrame(rng.random((found.height, 2)), ["order", "kept"])
    means = table.group_by("task_id", "step").agg(cost=width * pl.col("left").mean())
    budgets = (
        table.filter(step=0)
        .group_by("task_id")
        .agg(budget=ROOTS * pl.col("left").mean())
    )
    found = (
        found.hstack(draws)
        .join(means, on=["task_id", "step"])
        .join(budgets, on="task_id")
    )
    found = found.sort(
        "run", "task_id", "priority", "order", descending=[False, False, True, False]
    )
    spent = pl.col("cost").cum_sum().over("run", "task_id") - pl.col("cost")
    points = found.filter((pl.col("budget") - spent) / pl.col("cost") > pl.col("kept"))

    # 3. Their branches, numbered after the rollouts.
    together = []
    origins = []
    for task, each in enumerate(rows):
        chosen = points.filter(task_id=task)
        seed, parent, step, node = (
            np.repeat(chosen[n].to_numpy(), width)
            for n in ("run", "rollout", "step", "node")
        )
        origins.append(np.stack([parent, step], 1))
        if not len(seed):
            together.append(each)
            continue
        number = np.arange(len(seed))
        keys = subkey(policy.keys[seed], *stream, task, number)
        moves = play(policy, task, seed, keys, node, step)
        at, steps, nodes, edges, ended = (
            np.concatenate(column) for column in zip(*moves, strict=True)
        )
        won = ended & (policy.tasks.graphs[task].graph.edges.final[edges] > 0)
        new = Rollouts(
            seed[at], ROOTS * len(policy.seeds) + at, steps, nodes, edges, ended, won
        )
        columns = [np.concatenate(pair) for pair in zip(each, new, strict=True)]
        order = np.lexsort((columns[2], columns[1], columns[0]))
        together.append(Rollouts(*(column[order] for column in columns)))
    return Batch(policy, together, origins)


def measured(batch: Batch, gradient: Floats, truth: Floats) -> dict[str, float]:
    """Return the gain of a gradient, and its cost: noise times steps."""
    dense = batch.visits.dense(gradient)
    is_root = batch.table["parent"].is_null().to_numpy()
    ends = np.cumsum([len(each.step) for each in batch.rows])
    kept = np.split(is_root, ends[:-1])
    square = batch.visits.products(gradient, gradient, kept)
    along = (dense * truth[: dense.shape[1]]).sum(1)
    gain = along / np.sqrt(np.where(square > 0, square, np.inf))
    halves = [dense[start::2].mean(0) for start in (0, 1)]
    signal = float((halves[0] * halves[1]).sum())
    noise = float(dense.var(0, ddof=1).sum())
    return {
        "gain": float(gain.mean()),
        "cost": batch.steps * noise / signal,
        "steps": batch.steps,
    }


def of_policy(
    policies: TabularPolicy, position: int, stream: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the measures of all arms at one policy."""
    policy = policies.copies(position, COPIES)
    others = policies.copies(position, TRUTHS)
    further = Visits(others, rollouts(others, 2 * ROOTS, (*stream, 1)))
    independent = Batch(policy, rollouts(policy, 2 * ROOTS, (*stream, 2)))
    roots = Batch(policy, rollouts(policy, ROOTS, (*stream, 3)))
    arms = {
        (rule, width): branched(policy, roots, rule, width, (*stream, 4))
        for rule in ("uniform", "first-visits", "mixed-outcomes")
        for width in WIDTHS
    }
    # Playing discovers parameters, so that the truth, which is the widest array, is last.
    gradient = further.gradient(Oracle(SAMPLES)(others, further, (*stream, 5)))
    truth = np.zeros(policy.table().shape[1])
    mean = further.dense(gradient).mean(0)
    truth[: len(mean)] = mean
    plain = {}
    for name, parameters in PLAIN.items():
        plain[name] = measured(
            independent,
            independent.visits.gradient(independent.advantages(name, parameters)),
            truth,
        )
    rows = []
    for (rule, width), batch in arms.items():
        for name, (compared, parameters) in TREES.items():
            if "fresh" in name and rule != "mixed-outcomes":
                continue
            advantages = batch.advantages(name.partition(",")[0], parameters)
            found = measured(batch, batch.visits.gradient(advantages), truth)
            ratios = {
                f"{key} ratio": found[key] / plain[compared][key] for key in found
            }
            rows.append(
                {"rule": rule, "width": width, "estimator": name, **found, **ratios}
            )
    return rows


def of_world(name: str, tasks: TaskSet) -> list[dict[str, Any]]:
    """Return the measures at the policies of a world, before and after they learn."""
    how = Learning(seeds=POLICIES, iterations=UPDATES)
    method = TableEstimator(get("rloo").with_parameters(**SUCCESS, **PLAIN["rloo"]))
    rows = []
    for updates, (policies, _) in enumerate(learn(tasks, method, how, range(POLICIES))):
        if updates in (0, UPDATES):
            for position in range(POLICIES):
                found = of_policy(policies, position, (7, updates))
                rows += [
                    {"world": name, "updates": updates, "policy": position, **row}
                    for row in found
                ]
    return rows


def cells(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each world, number of updates and arm, with the ratios of all policies."""
    keys = ["world", "updates", "rule", "width", "estimator"]
    ratios = [
        pl.col(f"{name} ratio").round_sig_figs(4).alias(name)
        for name in ("steps", "gain", "cost")
    ]
    return pl.DataFrame(rows).group_by(keys, maintain_order=True).agg(ratios).to_dicts()


def table(measure: str) -> str:
    """Return the kept ratios of a measure as a table of Markdown, for the smallest and the largest width."""
    kept = pl.DataFrame(figures("branches")["cells"])
    kept = kept.filter(pl.col("width") != WIDTHS[1])
    lines = []
    for key, part in kept.group_by(
        "world", "updates", "rule", "width", maintain_order=True
    ):
        steps = float(np.mean(part["steps"][0].to_numpy()))
        found = {
            row["estimator"]: _interval(np.array(row[measure]))
            for row in part.iter_rows(named=True)
        }
        lines.append(
            [*map(str, key), f"{steps:.2f}", *(found.get(name, "") for name in TREES)]
        )
    return markdown_table(["world", "updates", "rule", "width", "steps", *TREES], lines)


def _interval(ratios: Floats) -> str:
    """Return the geometric mean with its 95% interval; nothing if a ratio could not be measured."""
    if not (ratios > 0).all():
        return "–"
    logs = np.log(ratios)
    half = student_quantile(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    low, middle, high = np.exp(logs.mean() + half * np.array([-1, 0, 1]))
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


if __name__ == "__main__":
    given = make_parser(__doc__).parse_args()
    results: list[dict[str, Any]] = []
    for world, arguments in WORLDS.items():
        compiled, _ = compile_tasks(tasks=TASKS, **arguments)
        results += of_world(world, compiled)
    print(store("branches", {"cells": cells(results)}, keep=given.keep))
