"""The study of research/docs/study.md: group advantages against true advantages.

    python -m research.benchmarks.study                     everything that is missing, then the tables
    python -m research.benchmarks.study --world webshop     one environment
    python -m research.benchmarks.study --training RUN      the kept iterations of a training run (see `models`)
    python -m research.benchmarks.study --draw              tables of what is there; runs nothing

Each policy is commands that are printed: `hgpo rollout`, then `hgpo truth` and `hgpo compare-estimators` for each
discount of the truth. What exists is not run again. With --keep the figures are benchmarks/results/study.json, from
which the tables of the page are written.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import learning
import numpy as np
import polars as pl
from record import RESULTS, ROOT, add_keep, store
from rich.console import Console

from hgpo_research.comparison.comparison import measures_of
from hgpo_research.comparison.families import intervals
from hgpo_research.comparison.gradients import contexts_of
from hgpo_research.comparison.inputs import TRUTH_REWARDS, draw, read_run
from hgpo_research.comparison.measures import all_sums, row_sums
from hgpo_train.advantages.variants import read_variants
from hgpo_train.analysis.resampling import task_weights
from hgpo_train.models.checkpoint_files import list_checkpoints
from hgpo_train.training.config import load_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

HGPO: Final = (sys.executable, "-c", "from hgpo_train.cli import main; main()")
CONSOLE: Final = Console()
TASKS, MODEL_TASKS, ROLLOUTS, GROUP = 32, 24, 16, 8
"""Tasks of each policy, rollouts of each task, and the group size that the hypotheses are about."""
GAMMAS: Final = (0.95, 1.0)
"""Discounts of the truth: that of the estimators, and undiscounted success, which is what learning is judged by."""
EQUAL: Final = 0.02
"""The largest difference of correlations that counts as none."""
RESAMPLES: Final = 2000
MEASURES: Final = ("correlation", "gradient", "model_gradient")
"""The measures that the result contains; a comparison's folder contains all."""


@dataclass(frozen=True)
class World:
    """An environment of the study.

    Attributes:
        id: Gymnasium's id.
        policies: Options of `softmax` by name, without the variant.
        estimators: Each estimator with the parameters of its paper for this environment, by its name in the tables.
    """

    id: str
    policies: dict[str, tuple[str, ...]]
    estimators: dict[str, str]


def estimators(mode: str, graph: str, gamma: str) -> dict[str, str]:
    """Return the estimators of both environments.

    Args:
        mode: How the papers' scripts normalise the advantages of GiGPO, HGPO and G2PO there. GRPO's and GraphGPO's
            divide by the deviation in both.
        graph: G2PO's further parameters.
        gamma: GraphGPO's discount.
    """
    return {
        "GRPO": "grpo",
        "GRPO without penalty": "grpo:invalid_action_penalty=0",
        "RLOO": "rloo",
        "GiGPO": f"gigpo{mode}",
        "GiGPO, step part": f"gigpo{mode}:episode_weight=0",
        **{f"HGPO (K = {k})": f"hgpo:history_length={k}{mode}" for k in (1, 2, 4)},
        "G2PO": f"g2po{mode}{graph}",
        "G2PO, graph part": f"g2po{mode}{graph}:episode_weight=0",
        "GraphGPO": f"graphgpo{gamma}",
        "shrinkage_gae": "shrinkage_gae",
    }


WORLDS: Final = {
    "alfworld": World(
        "HGPO/ALFWorld-v0",
        {
            "weak": ("skill=0.4",),
            "middle": ("skill=0.6",),
            "strong": ("skill=1",),
            "nearly deterministic": ("skill=1", "temperature=0.3"),
        },
        estimators("", "", "") | {"G2PO, its own nodes": "g2po:state_key=alfworld-nodes"},
    ),
    "webshop": World(
        "HGPO/WebShop-v0",
        {"weak": ("skill=0.5",), "strong": ("skill=1",), "nearly deterministic": ("skill=1", "temperature=0.3")},
        estimators(":mode=mean_norm", ":step_weight=0.8", ":gamma=0.2")
        | {"HGPO (K = 2), z-scores": "hgpo:history_length=2", "G2PO, z-scores": "g2po"},
    ),
}
CONFIRMATORY: Final = (1, 2)
"""Variants of the policies whose results decide."""


class Claim(NamedTuple):
    """A part of a hypothesis: the difference of a measure, first - second, is positive, or nearly 0.

    Attributes:
        hypothesis: Its name in the page.
        first: An estimator.
        second: Another one.
        measure: The measure.
        equal: Whether the claim is that the difference is smaller than `EQUAL` either way.
    """

    hypothesis: str
    first: str
    second: str
    measure: str = "correlation"
    equal: bool = False

    def verdict(self, low: float, high: float) -> str:
        """Return ``confirmed``, ``refuted`` or ``open`` for the interval of a difference."""
        least, most = (-EQUAL, EQUAL) if self.equal else (0.0, float("inf"))
        if least < low and high < most:
            return "confirmed"
        return "refuted" if high < least or low > most else "open"


CLAIMS: Final = (
    Claim("H1", "GiGPO", "GRPO"),
    Claim("H2", "HGPO (K = 2)", "GiGPO"),
    Claim("H3", "HGPO (K = 2)", "GiGPO, step part", equal=True),
    Claim("H4", "HGPO (K = 4)", "HGPO (K = 1)", equal=True),
    Claim("H5", "G2PO, graph part", "HGPO (K = 2)"),
    Claim("H6", "GRPO without penalty", "GRPO", "gradient"),
    Claim("H6, shared features", "GRPO without penalty", "GRPO", "model_gradient"),
    *(Claim("H7", "shrinkage_gae", other) for other in ("GRPO", "GiGPO", "HGPO (K = 2)", "G2PO", "GraphGPO")),
)
"""The planned claims. They are the family of the intervals."""


@dataclass(frozen=True)
class Cell:
    """A policy: its environment, its name in the tables, the folder of its run, and the commands' own options."""

    world: str
    policy: str
    run: Path
    rollout: tuple[str, ...]
    truth: tuple[str, ...] = ("--rollouts", "16")
    model: str = "softmax"

    def table(self, gamma: float) -> Path:
        """Return the path of a truth."""
        return self.run.with_name(f"{self.run.name}.truth") / f"{self.model_name}-{gamma:g}.parquet"

    def comparison(self, gamma: float) -> Path:
        """Return the folder of a comparison."""
        return self.run.with_name(f"{self.run.name}.comparison-{gamma:g}")

    @property
    def model_name(self) -> str:
        """The first part of a truth's name."""
        return "softmax" if self.model == "softmax" else "model"


def main() -> None:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--world", choices=list(WORLDS), help="default: both")
    parser.add_argument("--folder", type=Path, default=Path("runs/study"))
    parser.add_argument("--training", type=Path, help="a training run of --world, whose iterations are the policies")
    parser.add_argument(
        "--tasks", type=int, help=f"tasks of each policy; default: {TASKS}, with --training {MODEL_TASKS}"
    )
    parser.add_argument("--draw", action="store_true", help="run nothing")
    add_keep(parser)
    given = parser.parse_args()
    worlds = [given.world] if given.world else list(WORLDS)
    if given.training:
        cells = models(given.world, given.training, given.folder, given.tasks or MODEL_TASKS)
    else:
        cells = [cell for world in worlds for cell in scripted(world, given.folder, given.tasks or TASKS)]
    if not given.draw:
        for cell in cells:
            play(cell)
    done = [cell for cell in cells if all((cell.comparison(gamma) / "sums.parquet").exists() for gamma in GAMMAS)]
    if not done:
        sys.exit("nothing to show: no comparison is finished")
    found = {world: figures([cell for cell in done if cell.world == world]) for world in worlds}
    for world, result in found.items():
        CONSOLE.print(f"\n{tables(world, result)}", markup=False, soft_wrap=True)
    name = "study_models" if given.training else "study"
    if given.keep and not given.training:
        old = json.loads((RESULTS / f"{name}.json").read_text())["figures"] if given.world else {}
        found = old | found
    CONSOLE.print(store(name, found, keep=given.keep), soft_wrap=True)
    if given.keep and not given.training:
        write_page(found)


def scripted(world: str, folder: Path, tasks: int) -> list[Cell]:
    """Return the `softmax` policies of an environment."""
    return [
        Cell(
            world,
            f"{policy} {variant}",
            folder / f"{world}-{policy.replace(' ', '-')}-{variant}",
            (
                *("--env", WORLDS[world].id, "--policy", "softmax", "--tasks", str(tasks)),
                *("--group-size", str(ROLLOUTS), "--seed", str(100 + variant)),
                *(word for option in (*options, f"variant={variant}") for word in ("--policy-option", option)),
            ),
        )
        for policy, options in WORLDS[world].policies.items()
        for variant in CONFIRMATORY
    ]


def models(world: str, training: Path, folder: Path, tasks: int) -> list[Cell]:
    """Return the language models of the iterations of a training run whose checkpoints were kept.

    Such a run is that of ``python benchmarks/learning.py --world WORLD --estimators hgpo --seeds 0 --name study --set
    iterations=40 --set environment_steps=10000000 --set checkpoint.every=10 --set checkpoint.keep=0``.
    """
    config = load_config(str(training / "config.toml"))
    environment = config.environment
    return [
        Cell(
            world,
            f"iteration {int(path.name)}",
            folder / f"{world}-model-{int(path.name):02d}",
            (
                *learning.played(config, path),
                *(
                    "--split",
                    environment.split,
                    *(("--data", environment.data) if environment.data != "bundled" else ()),
                ),
                *("--tasks", str(tasks), "--group-size", str(GROUP), "--seed", "201"),
            ),
            ("--rollouts", "4", "--exact-nodes", "0", "--policy-option", "max_batch_tokens=65536"),
            str(path),
        )
        for path in list_checkpoints(training / "checkpoints")
    ]


def play(cell: Cell) -> None:
    """Run the commands of a policy, without those that are finished."""
    cell.run.parent.mkdir(parents=True, exist_ok=True)
    listed = ",".join(WORLDS[cell.world].estimators.values())
    commands = [(cell.run, ["rollout", *cell.rollout, "--out", str(cell.run)])]
    for gamma in GAMMAS:
        truth, out = str(cell.table(gamma)), cell.comparison(gamma)
        options = ["--reward", "success", "--gamma", f"{gamma:g}", *cell.truth]
        commands += [
            (cell.table(gamma), ["truth", str(cell.run), *options, "--out", truth]),
            (out, ["compare-estimators", str(cell.run), "--truth", truth, "--model", cell.model, "--group-sizes",
                   str(GROUP), "--estimators", listed, "--permutations", "20", "--out", str(out)]),
        ]  # fmt: skip
    for made, command in commands:
        if made.exists():
            continue
        CONSOLE.print(f"$ hgpo {shlex.join(command)}", soft_wrap=True, highlight=False)
        code = subprocess.call([*HGPO, *command], stdout=subprocess.DEVNULL)
        if code:
            sys.exit(code)


def figures(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the figures of an environment's policies: success, every estimator's measures, the claims."""
    texts = WORLDS[cells[0].world].estimators
    result: dict[str, Any] = {"policies": {}, "claims": {}}
    for cell in cells:
        steps = pl.read_parquet(cell.run / "steps" / "*.parquet", columns=["trajectory", "won"])
        won = steps.group_by("trajectory").agg(pl.col("won").fill_null(value=False).any())["won"].mean()
        result["policies"][cell.policy] = {
            "steps": steps.height,
            "success": won,
            "cosine of the true gradients": true_gradients(cell),
            **{f"γ = {gamma:g}": estimates(cell, gamma, texts) for gamma in GAMMAS},
        }
    for gamma in GAMMAS:
        result["claims"][f"γ = {gamma:g}"] = judged(cells, gamma, texts)
    return result


def estimates(cell: Cell, gamma: float, texts: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return the measures of each estimator, with intervals and chance."""
    table = pl.read_parquet(cell.comparison(gamma) / "estimates.parquet").filter(dimension="all", group_size=GROUP)
    columns = ("value", "low", "high", "chance_low", "chance_high")
    return {
        name: {
            row["measure"]: [None if row[key] is None else round(row[key], 4) for key in columns]
            for row in table.filter(estimator=text).iter_rows(named=True)
            if row["measure"] in MEASURES
        }
        for name, text in {**texts, "return - true value": "return - true value"}.items()
    }


def true_gradients(cell: Cell) -> float | None:
    """Return the tabular cosine of the true gradients of discounted and of undiscounted success, of the same steps."""
    drawn = []
    for gamma in GAMMAS:
        rewards = replace(TRUTH_REWARDS, gamma=gamma)
        steps, truth = pl.scan_parquet(cell.run / "steps" / "*.parquet"), pl.scan_parquet(cell.table(gamma))
        run = read_run(steps, truth, read_variants(["grpo"]), 0)
        drawn.append(draw(run, ROLLOUTS, 1, 0, depth=0, context="states", rewards=rewards))
    discounted, whole = drawn
    estimate, contexts = (discounted.first, discounted.second), contexts_of(whole)
    tasks = int(whole.task.max()) + 1
    sums = all_sums(whole, contexts, estimate, row_sums(whole, contexts, estimate), tasks)
    cosine = measures_of(sums, task_weights(tasks, 200, 0))[0]["gradient"]
    return None if np.isnan(cosine) else round(cosine, 4)


def judged(cells: Sequence[Cell], gamma: float, texts: dict[str, str]) -> list[dict[str, Any]]:
    """Return each claim's difference on each policy and pooled over policies, with the pooled one's verdict.

    The family of the intervals is the planned claims: those of one policy, and those that are pooled. Tasks are
    resampled together for all policies, because these play some of the same tasks. The pooled difference is the mean
    over the policies on which both estimators have the measure.
    """
    tables = [pl.read_parquet(cell.comparison(gamma) / "sums.parquet").filter(group_size=GROUP) for cell in cells]
    ids = sorted(set().union(*(table["task_id"] for table in tables)))
    weights = task_weights(len(ids), RESAMPLES, 0)
    values = np.full((len(cells), len(CLAIMS)), np.nan)
    draws = np.full((RESAMPLES, len(cells), len(CLAIMS)), np.nan)
    named = {name for claim in CLAIMS for name in (claim.first, claim.second)}
    for place, table in enumerate(tables):
        measured = {name: of_estimator(table.filter(estimator=texts[name]), weights, ids) for name in named}
        for number, claim in enumerate(CLAIMS):
            (one, ones), (two, twos) = measured[claim.first], measured[claim.second]
            values[place, number] = one[claim.measure] - two[claim.measure]
            draws[:, place, number] = ones[claim.measure] - twos[claim.measure]
    known = np.isfinite(values)
    pooled = np.nanmean(np.where(known, values, np.nan), axis=0)
    pooled_draws = np.nanmean(np.where(known, draws, np.nan), axis=1)
    families = [(values[place], draws[:, place]) for place in range(len(cells))] + [(pooled, pooled_draws)]
    found = [intervals(value, draw, len(ids)) for value, draw in families]
    rows = []
    for number, claim in enumerate(CLAIMS):
        numbers = [
            [float(value[number]), float(each.low_all[number]), float(each.high_all[number])]
            for (value, _), each in zip(families, found, strict=True)
        ]
        shown = [[None if np.isnan(end) else round(end, 4) for end in each] for each in numbers]
        verdict = claim.verdict(*numbers[-1][1:]) if known[:, number].any() else "open"
        per_policy = dict(zip([cell.policy for cell in cells], shown[:-1], strict=True))
        rows.append({**claim._asdict(), "policies": per_policy, "pooled": shown[-1], "verdict": verdict})
    return rows


def of_estimator(
    table: pl.DataFrame, weights: NDArray[np.float64], ids: list[str]
) -> tuple[dict[str, float], dict[str, NDArray[np.float64]]]:
    """Return the measures of an estimator's sums, and those of resamples of all tasks."""
    columns = weights[:, [ids.index(task) for task in table["task_id"]]]
    sums = table.drop("task_id", "estimator", "group_size")
    return measures_of({name: sums[name].to_numpy() for name in sums.columns}, columns)


# Tables


def tables(world: str, result: dict[str, Any]) -> str:
    """Return the tables of an environment as Markdown."""
    policies = result["policies"]
    title = {"alfworld": "ALFWorld", "webshop": "WebShop"}[world]
    head = [f"{title}, correlation", *policies]
    rows = [["*success*", *(f"*{each['success']:.0%}*" for each in policies.values())]]
    cosines = (number(each["cosine of the true gradients"]) for each in policies.values())
    rows.append(["*cosine of the true gradients, γ = 0.95 and 1*", *cosines])
    first = f"γ = {GAMMAS[0]:g}"
    rows += [
        [name, *(interval(each[first][name]["correlation"][:3]) for each in policies.values())]
        for name in next(iter(policies.values()))[first]
    ]
    parts = [markdown(head, rows)]
    rows = []
    for discounted, whole in zip(*(result["claims"][f"γ = {gamma:g}"] for gamma in GAMMAS), strict=True):
        ends = [each for each in discounted["policies"].values() if each[0] is not None]
        same = sum(each[0] > 0 for each in ends)
        rows.append(
            [
                f"{discounted['hypothesis']}: {discounted['first']} − {discounted['second']}",
                interval(discounted["pooled"], sign=True),
                f"{same} of {len(ends)}",
                discounted["verdict"],
                interval(whole["pooled"], sign=True),
                whole["verdict"],
            ]
        )
    head = [f"{title}, difference", "γ = 0.95", "positive on", "verdict", "γ = 1", "verdict"]
    return "\n\n".join([*parts, markdown(head, rows)])


def number(value: float | None, *, sign: bool = False) -> str:
    """Return a number with two decimals, or a dash."""
    if value is None:
        return "–"
    return f"{value:+.3f}" if sign else f"{value:.2f}"


def interval(ends: Sequence[float | None], *, sign: bool = False) -> str:
    """Return a number with its interval."""
    value, low, high = ends
    if value is None:
        return "–"
    return f"{number(value, sign=sign)} ({number(low, sign=sign)}…{number(high, sign=sign)})"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def write_page(found: dict[str, Any]) -> None:
    """Replace the tables of the page."""
    page = ROOT / "research/docs/study.md"
    text = "\n\n".join(tables(world, result) for world, result in found.items())
    begin, end = "<!-- results: written by python -m research.benchmarks.study --keep -->", "<!-- end of results -->"
    pattern = f"{re.escape(begin)}.*{re.escape(end)}"
    page.write_text(re.sub(pattern, lambda _: f"{begin}\n\n{text}\n\n{end}", page.read_text("utf-8"), flags=re.DOTALL))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted: the same command resumes.")
