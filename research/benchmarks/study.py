"""The study of docs/study.md: group advantages against true advantages, for policies from weak to nearly deterministic.

    python -m research.benchmarks.study    everything that is missing, then the tables
    python -m research.benchmarks.study --world webshop    one environment
    python -m research.benchmarks.study --exploratory    variant 0 of the policies, from which no conclusion is drawn
    python -m research.benchmarks.study --draw    tables of what is there; runs nothing

Each policy is three commands, which are printed: `hgpo rollout`, `hgpo truth` and `hgpo compare-estimators`. The script
can be interrupted (Ctrl-C); the same command resumes. Results: benchmarks/results/study.json with --keep.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from record import add_keep, store
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HGPO: Final = (sys.executable, "-c", "from hgpo_train.cli import main; main()")
CONSOLE: Final = Console()
TASKS, ROLLOUTS, GROUP = 32, 16, 8
"""Tasks of each policy, rollouts of each task, and the group size that the hypotheses are about."""
EQUAL: Final = 0.02
"""The largest difference of correlations that counts as none."""


@dataclass(frozen=True)
class World:
    """An environment of the study.

    Attributes:
        id: Gymnasium's id.
        policies: Options of `softmax` by name, without the variant.
        estimators: Estimators that only this environment has.
    """

    id: str
    policies: dict[str, tuple[str, ...]]
    estimators: tuple[str, ...] = ()


WORLDS: Final = {
    "alfworld": World(
        "HGPO/ALFWorld-v0",
        {
            "weak": ("skill=0.4",),
            "middle": ("skill=0.6",),
            "strong": ("skill=1",),
            "nearly deterministic": ("skill=1", "temperature=0.3"),
        },
        ("g2po:nodes=alfworld", "g2po:nodes=alfworld:episode_weight=0"),
    ),
    "webshop": World(
        "HGPO/WebShop-v0",
        {"weak": ("skill=0.5",), "strong": ("skill=1",), "nearly deterministic": ("skill=1", "temperature=0.3")},
    ),
}
ESTIMATORS: Final = (
    "grpo",
    "grpo:invalid_action_penalty=0",
    "grpo:mode=mean_norm:invalid_action_penalty=0",
    "rloo",
    "gigpo",
    "gigpo:episode_weight=0",
    "hgpo:history_length=1",
    "hgpo:history_length=2",
    "hgpo:history_length=4",
    "g2po",
    "g2po:episode_weight=0",
    "graphgpo",
    "shrinkage_gae",
)
KEPT: Final = ("correlation", "gradient", "gradient_limit")
"""The measures that the result contains; a comparison's folder contains all."""
PUBLISHED: Final = ("grpo", "gigpo", "hgpo:history_length=2", "g2po", "graphgpo")
CONFIRMATORY: Final = (1, 2)
"""Variants of the policies whose results decide; variant 0 is for exploration."""


@dataclass(frozen=True)
class Claim:
    """A part of a hypothesis: the difference of a measure between two estimators is positive, or nearly 0.

    Attributes:
        hypothesis: Its name in docs/study.md.
        first, second: Estimators; the difference is first - second.
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
    Claim("H1", "gigpo", "grpo"),
    Claim("H2", "hgpo:history_length=2", "gigpo"),
    Claim("H3", "hgpo:history_length=2", "gigpo:episode_weight=0", equal=True),
    Claim("H4", "hgpo:history_length=4", "hgpo:history_length=1", equal=True),
    Claim("H5", "g2po:episode_weight=0", "hgpo:history_length=2"),
    Claim("H6", "grpo:invalid_action_penalty=0", "grpo", "gradient"),
    *(Claim("H7", "shrinkage_gae", published) for published in PUBLISHED),
)


def main() -> None:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--world", choices=list(WORLDS), help="default: both")
    parser.add_argument("--exploratory", action="store_true", help="variant 0 instead of the confirmatory ones")
    parser.add_argument("--folder", type=Path, default=Path("runs/study"))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="processes of hgpo truth")
    parser.add_argument("--rollouts", type=int, default=16, help="Monte Carlo rollouts of each step, for the truth")
    parser.add_argument("--draw", action="store_true", help="run nothing")
    add_keep(parser)
    given = parser.parse_args()
    worlds = [given.world] if given.world else list(WORLDS)
    variants = (0,) if given.exploratory else CONFIRMATORY
    cells = [
        (world, policy, variant, given.folder / f"{world}-{policy.replace(' ', '-')}-{variant}")
        for world in worlds
        for policy in WORLDS[world].policies
        for variant in variants
    ]
    if not given.draw:
        for world, policy, variant, folder in cells:
            play(WORLDS[world], WORLDS[world].policies[policy], variant, folder, given.processes, given.rollouts)
    found = [
        {"world": world, "policy": policy, "variant": variant, **summary(folder)}
        for world, policy, variant, folder in cells
        if (comparison(folder) / "comparison.json").exists()
    ]
    if not found:
        sys.exit("nothing to show: no comparison is finished")
    verdicts = {
        world: [
            together([cell["claims"][place] for cell in found if cell["world"] == world])
            for place in range(len(CLAIMS))
        ]
        for world in dict.fromkeys(cell["world"] for cell in found)
    }
    show(found, verdicts)
    name = "study_exploratory" if given.exploratory else "study"
    CONSOLE.print(store(name, {"cells": found, "verdicts": verdicts}, keep=given.keep), soft_wrap=True)


def comparison(run: Path) -> Path:
    """Return the folder of a run's comparison."""
    return run.parent / f"{run.name}.comparison"


def play(world: World, options: tuple[str, ...], variant: int, run: Path, processes: int, rollouts: int) -> None:
    """Run the three commands of one policy, without those that are finished."""
    run.parent.mkdir(parents=True, exist_ok=True)
    truth = run.parent / f"{run.name}.truth" / "softmax.parquet"
    chosen = [word for option in (*options, f"variant={variant}") for word in ("--policy-option", option)]
    commands = [
        ["rollout", "--env", world.id, "--policy", "softmax", *chosen, "--tasks", str(TASKS), "--group-size",
         str(ROLLOUTS), "--seed", str(100 + variant), "--out", str(run)],
        ["truth", str(run), "--rollouts", str(rollouts), "--reward", "success", "--processes",
         str(processes), "--out", str(truth)],
        ["compare-estimators", str(run), "--truth", str(truth), "--estimators",
         ",".join((*ESTIMATORS, *world.estimators)), "--out", str(comparison(run))],
    ]  # fmt: skip
    for command, made in zip(commands, (None, truth, comparison(run)), strict=True):
        if made is not None and made.exists():
            continue
        CONSOLE.print(f"$ hgpo {shlex.join(command)}", soft_wrap=True, highlight=False)
        code = subprocess.call([*HGPO, *command], stdout=subprocess.DEVNULL)
        if code:
            sys.exit(code)


def summary(run: Path, claims: Sequence[Claim] = CLAIMS, kept: Sequence[str] = KEPT) -> dict[str, Any]:
    """Return the figures of one policy: success, every estimator's measures, every claim's difference."""
    estimates = pl.read_parquet(comparison(run) / "estimates.parquet").filter(dimension="all", group_size=GROUP)
    steps = pl.read_parquet(run / "steps" / "*.parquet", columns=["trajectory", "won"])
    won = steps.group_by("trajectory").agg(pl.col("won").fill_null(value=False).any())["won"].mean()
    return {
        "steps": steps.height,
        "success": won,
        "estimators": {
            name: {
                row["measure"]: {key: row[key] for key in ("value", "low", "high", "chance_low", "chance_high")}
                for row in estimates.filter(estimator=name).iter_rows(named=True)
                if row["measure"] in kept
            }
            for name in estimates["estimator"].unique(maintain_order=True)
        },
        "claims": list(judged(pl.read_parquet(comparison(run) / "differences.parquet"), claims)),
    }


def judged(differences: pl.DataFrame, claims: Sequence[Claim]) -> Iterator[dict[str, Any]]:
    """Yield each claim with its difference, its simultaneous interval and the verdict.

    There is no difference, and the verdict is ``open``, if an estimator has no correlation because its advantages are
    all 0: those of GRPO where all rollouts succeed.
    """
    chosen = differences.filter(dimension="all", group_size=GROUP)
    for claim in claims:
        rows = chosen.filter(measure=claim.measure)
        direct = rows.filter(first=claim.first, second=claim.second)
        row = (direct if direct.height else rows.filter(first=claim.second, second=claim.first)).row(0, named=True)
        value, low, high = row["value"], row["low_all"], row["high_all"]
        known = low is not None and high is not None
        if known and not direct.height:
            value, low, high = -value, -high, -low
        yield {
            "hypothesis": claim.hypothesis,
            "first": claim.first,
            "second": claim.second,
            "measure": claim.measure,
            "value": value,
            "low": low,
            "high": high,
            "verdict": claim.verdict(low, high) if known else "open",
        }


def show(cells: list[dict[str, Any]], verdicts: dict[str, list[str]], judgements: Sequence[Claim] = CLAIMS) -> None:
    """Print the correlations of each policy, and the verdict of each claim."""
    for world in dict.fromkeys(cell["world"] for cell in cells):
        chosen = [cell for cell in cells if cell["world"] == world]
        names = [f"{cell['policy']} {cell['variant']}\n{cell['success']:.0%} won" for cell in chosen]
        correlations = Table("correlation", *names, title=f"\n{world}", title_justify="left", box=None)
        for name in chosen[0]["estimators"]:
            found = [cell["estimators"][name]["correlation"]["value"] for cell in chosen]
            correlations.add_row(name, *("–" if value is None else f"{value:.3f}" for value in found))
        claims = Table("claim", *names, "verdict", box=None)
        for place, claim in enumerate(judgements):
            found = [cell["claims"][place] for cell in chosen]
            texts = [
                "–" if each["low"] is None else f"{each['value']:+.3f}\n{each['low']:+.3f} … {each['high']:+.3f}"
                for each in found
            ]
            claims.add_row(f"{claim.hypothesis} {claim.first} - {claim.second}", *texts, verdicts[world][place])
        CONSOLE.print(correlations, claims)


def together(judged: list[dict[str, Any]]) -> str:
    """Return the verdict of several policies: confirmed on all, refuted on any, otherwise open."""
    verdicts = {each["verdict"] for each in judged}
    return "refuted" if "refuted" in verdicts else "confirmed" if verdicts == {"confirmed"} else "open"


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted: the same command resumes.")
