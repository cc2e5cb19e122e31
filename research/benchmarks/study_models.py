"""The language models of docs/study.md: group advantages against true advantages, at iterations of a training run.

    python -m research.benchmarks.study_models    both environments: trains, then all that is missing
    python -m research.benchmarks.study_models --world webshop --iterations 0,40
    python -m research.benchmarks.study_models --world webshop --training RUN --iterations 0,45
    python -m research.benchmarks.study_models --draw    tables of what is there; runs nothing

The training run is one of benchmarks/learning.py (warm start included, shared with it): HGPO with K = 2, seed 0. Each
iteration is then three commands, which are printed: `hgpo rollout` with the checkpoint, `hgpo truth` and `hgpo
compare-estimators --model`. The script can be interrupted (Ctrl-C); the same command resumes. Results:
benchmarks/results/study_models.json with --keep.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import learning
import polars as pl
from record import RESULTS, add_keep, store
from rich.console import Console

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_research.comparison.model_gradients import MODEL_MEASURES
from hgpo_research.truth import context_advantages
from hgpo_train.advantages.advantage_tables import join_advantages
from hgpo_train.advantages.registry import compute_many
from hgpo_train.advantages.variants import read_variants
from hgpo_train.analysis.resampling import ratio_interval
from hgpo_train.models.checkpoint_files import list_checkpoints
from hgpo_train.training.config import Config, load_config, template_path
from research.benchmarks.study import (
    CLAIMS,
    ESTIMATORS,
    GROUP,
    KEPT,
    WORLDS,
    Claim,
    comparison,
    judged,
    show,
    summary,
    together,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

CONSOLE: Final = Console()
ITERATIONS: Final = (0, 10, 20, 40)
TRAINING: Final = (
    "iterations=40",
    "environment_steps=10000000",
    "checkpoint.every=10",
    "checkpoint.keep=0",
    "checkpoint.optimiser=last",
    "evaluation.every=0",
)
TASKS: Final = 24
"""Tasks of each iteration, with one group of `GROUP` rollouts each."""
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1"}
"""Models are so small that a second thread mostly waits."""
ROLLOUTS: Final = 4
"""Monte Carlo rollouts of each step, for the truth."""
SEED: Final = 201
"""Seed of the tasks: the same for all iterations, another one than those of training and of the scripted policies."""
MODEL_CLAIMS: Final = (
    *CLAIMS,
    Claim("H9", "g2po:episode_weight=0", "hgpo:history_length=2", "model_gradient"),
    Claim("H9", "grpo:invalid_action_penalty=0", "grpo", "model_gradient"),
    Claim("H9", "shrinkage_gae", "hgpo:history_length=2", "model_gradient"),
)
HISTORY: Final = ("hgpo:history_length=4", "gigpo:episode_weight=0")
"""What H8 compares: four past states, and none."""
LOOKED_AT: Final = (
    "hgpo:history_length=2",
    "g2po:episode_weight=0",
    "shrinkage_gae",
    "shrinkage_gae:context=states_actions",
)
"""Estimators of which the share of last steps is reported."""
DEPTHS: Final = (0, 1, 2, 4)


def main() -> None:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--world", choices=list(WORLDS), help="default: both")
    parser.add_argument("--iterations", type=learning.integers, default=ITERATIONS, help="comma-separated")
    parser.add_argument("--training", type=Path, help="a finished training run; by default it is made")
    parser.add_argument("--learning", type=Path, default=Path("runs/learning"), help="the folder of learning.py")
    parser.add_argument("--folder", type=Path, default=Path("runs/study_models"))
    parser.add_argument(
        "--exploratory", action="store_true", help="2 tasks of another seed, from which nothing follows"
    )
    parser.add_argument("--draw", action="store_true", help="run nothing")
    add_keep(parser)
    given = parser.parse_args()
    worlds = [given.world] if given.world else list(WORLDS)
    prefix = "exploratory-" if given.exploratory else ""
    cells = [
        (world, number, given.folder / f"{prefix}{world}-{number:02d}")
        for world in worlds
        for number in given.iterations
    ]
    if not given.draw:
        given.folder.mkdir(parents=True, exist_ok=True)
        for world in worlds:
            training = given.training or trained(world, given.folder, given.learning)
            config = load_config(str(training / "config.toml"))
            for _, number, run in (cell for cell in cells if cell[0] == world):
                play(world, config, checkpoint(training, config, number), run, exploratory=given.exploratory)
    found = [
        {"world": world, "policy": "iteration", "variant": number, **summary(run, MODEL_CLAIMS, MEASURED), **about(run)}
        for world, number, run in cells
        if (comparison(run) / "comparison.json").exists()
    ]
    if not found:
        sys.exit("nothing to show: no comparison is finished")
    if given.world and given.keep:
        found = others(given.world) + found
    of_world = {world: [cell for cell in found if cell["world"] == world] for world in WORLDS}
    of_world = {world: mine for world, mine in of_world.items() if mine}
    verdicts = {
        world: [together([cell["claims"][place] for cell in mine]) for place in range(len(MODEL_CLAIMS))]
        for world, mine in of_world.items()
    }
    histories = {world: history(mine) for world, mine in of_world.items()}
    show(found, verdicts, MODEL_CLAIMS)
    CONSOLE.print(histories)
    name = "study_models_exploratory" if given.exploratory else "study_models"
    kept = {"cells": found, "verdicts": verdicts, "history": histories}
    CONSOLE.print(store(name, kept, keep=given.keep), soft_wrap=True)


MEASURED: Final = (*KEPT, *MODEL_MEASURES)


def trained(world: str, folder: Path, shared: Path) -> Path:
    """Train the model, or resume its training, and return the run's folder."""
    base = load_config(f"tiny-{world}", list(TRAINING))
    (shared / world).mkdir(parents=True, exist_ok=True)
    warm = learning.taught(world, shared / world, base, CONSOLE)
    (estimator,) = read_variants(["hgpo:history_length=2"])
    config = learning.configuration(base, warm, estimator, {}, 0)
    run = folder / f"{world}-training"
    if not learning.train(run, config, learning.Work(CONSOLE, os.cpu_count() or 1)):  # so that it gets one thread
        sys.exit(1)
    return run


def checkpoint(training: Path, config: Config, iteration: int) -> Path:
    """Return the folder of the model after a number of iterations; 0 is the warm start."""
    if iteration == 0:
        return Path(config.model.path)
    kept = {int(path.name): path for path in list_checkpoints(training / "checkpoints")}
    if iteration not in kept:
        raise InputError(f"{training}: expected a checkpoint of iteration {iteration}, received {sorted(kept)}")
    return kept[iteration]


def play(world: str, config: Config, model: Path, run: Path, *, exploratory: bool) -> None:
    """Run the three commands of one iteration, without those that are finished."""
    truth = run.parent / f"{run.name}.truth" / "model.parquet"
    commands = [
        [*rollout(config, model), "--tasks", str(2 if exploratory else TASKS), "--group-size", str(GROUP),
         "--seed", str(7 if exploratory else SEED), "--out", str(run)],
        ["truth", str(run), "--rollouts", str(ROLLOUTS), "--exact-nodes", "0", "--reward", "success",
         "--policy-option", "max_batch_tokens=65536", "--out", str(truth)],
        ["compare-estimators", str(run), "--truth", str(truth), "--model", str(model), "--device", config.model.device,
         "--group-sizes", str(GROUP), "--estimators", ",".join((*ESTIMATORS, *WORLDS[world].estimators)),
         "--out", str(comparison(run))],
    ]  # fmt: skip
    for command, made in zip(commands, (None, truth, comparison(run)), strict=True):
        if made is not None and made.exists():
            continue
        CONSOLE.print(f"$ hgpo {shlex.join(command)}", soft_wrap=True, highlight=False)
        code = subprocess.call([*learning.HGPO, *command], stdout=subprocess.DEVNULL, env=ONE_THREAD | os.environ)
        if code:
            sys.exit(code)


def rollout(config: Config, model: Path) -> list[str]:
    """Return the command that plays a model as training does, without tasks, groups, seed and folder."""
    environment, played = config.environment, config.rollout
    options = dict(environment.options) | {"prompt_template": template_path(environment)}
    policy = {"device": config.model.device, "compute_dtype": config.model.compute_dtype} | played.engine_options
    policy |= {"max_prompt_tokens": played.max_prompt_tokens, "max_response_tokens": played.max_response_tokens}
    arguments = {
        "env": environment.id,
        "split": environment.split,
        "history-length": environment.history_length,
        "max-steps": environment.max_steps,
        "action-format": environment.action_format,
        "policy": f"transformers:{model}",
    }
    if environment.data != "bundled":
        arguments["data"] = environment.data
    return [
        "rollout",
        *(f"--{name}={value}" for name, value in arguments.items()),
        *(f"--env-option={name}={value}" for name, value in options.items() if value is not None),
        *(f"--policy-option={name}={value}" for name, value in policy.items()),
    ]


def about(run: Path) -> dict[str, Any]:
    """Return the entropy of a policy, how deeply its contexts are shared, and how exact the truth is."""
    truth = pl.read_parquet(run.parent / f"{run.name}.truth" / "model.parquet")
    p = pl.element()
    entropy = pl.col("probabilities").list.eval(-(p * p.log()).fill_nan(0.0)).list.sum()
    levels = pl.read_parquet(comparison(run) / "estimates.parquet").filter(
        estimator="grpo", group_size=GROUP, dimension="level", measure="correlation"
    )
    steps = pl.read_parquet(run / "steps" / "*.parquet", columns=["action_valid"])
    depth = pl.col("part").cast(pl.Int64)
    differences = pl.read_parquet(comparison(run) / "differences.parquet").filter(dimension="all", group_size=GROUP)
    (deeper,) = judged(differences, [Claim("H8", *HISTORY)])
    return {
        "entropy": truth.select(entropy.mean()).item(),
        "invalid": 1 - steps["action_valid"].mean(),
        "without_probabilities": truth["choice"].null_count() / truth.height,
        "history": {key: deeper[key] for key in ("value", "low", "high")},
        "shared": {k: levels.filter(depth >= k)["steps"].sum() / truth.height for k in DEPTHS},
        "last_steps": last_steps(run, truth),
        "told": told(run, truth),
        "unscored": unscored(run, truth),
        "truth_error": float((truth["advantage_error"] ** 2).mean() ** 0.5),
        "truth_spread": float(truth["advantage"].std()),
    }


def last_steps(run: Path, truth: pl.DataFrame) -> dict[str, float]:
    """Return the share of the sum of squared advantages that is at the last steps of episodes: true and estimated."""
    steps = scan_steps(run)
    variants = read_variants(LOOKED_AT, {"reward": "success", "reward_scale": 10.0})
    estimates = compute_many(steps, [variant.spec for variant in variants])
    named = {variant.name: variant.spec.column for variant in variants}
    table = estimates.select("trajectory", "step", *named.values()).collect()
    table = table.join(truth.select("trajectory", "step", true="advantage"), on=["trajectory", "step"])
    last = pl.col("step") == pl.col("step").max().over("trajectory")
    return {
        name: table.select(pl.col(column).pow(2).filter(last).sum() / pl.col(column).pow(2).sum()).item()
        for name, column in {"true": "true", **named}.items()
    }


def told(run: Path, truth: pl.DataFrame) -> dict[str, tuple[float, float | None, float | None]]:
    """Return the share of the mean square of true advantages that the state's text and the action tell, with intervals.

    Among steps that share both with another one (`context_advantages`): of all, and of those that are last.
    """
    table = context_advantages(join_advantages(scan_steps(run), truth.lazy()))
    last = pl.col("step") == pl.col("step").max().over("trajectory")
    shared = table.with_columns(last=last).filter(pl.col("context_rows") > 1)
    sums = {
        part: rows.group_by("task_id", maintain_order=True).agg(
            above=(pl.col("context_advantage_first") * pl.col("context_advantage_second")).sum(),
            below=(pl.col("advantage_first") * pl.col("advantage_second")).sum(),
        )
        for part, rows in {"all": shared, "last": shared.filter("last")}.items()
    }
    return {part: ratio_interval(each["above"].to_numpy(), each["below"].to_numpy()) for part, each in sums.items()}


def unscored(run: Path, truth: pl.DataFrame) -> dict[str, float | None]:
    """Return the mean probability of responses that were not scored: at all steps, and where a query was searched."""
    steps = scan_steps(run).select("trajectory", "step", "action", "action_valid").collect()
    table = truth.join(steps, on=["trajectory", "step"])
    rest = pl.col("probabilities").list.last().mean()
    searches = pl.col("action_valid") & pl.col("action").str.starts_with("search[")
    return {"all": table.select(rest).item(), "searches": table.filter(searches).select(rest).item()}


def history(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the difference of H8 at each iteration, and its change since the first one, with intervals.

    The interval of the change takes the iterations as independent, which their common tasks make rather too wide.
    """
    found: list[dict[str, Any]] = []
    for cell in cells:
        here = {"iteration": cell["variant"], **cell["history"]}
        first = found[0] if found else None
        if first is not None:
            change = here["value"] - first["value"]
            half = (((here["high"] - here["low"]) / 2) ** 2 + ((first["high"] - first["low"]) / 2) ** 2) ** 0.5
            verdict = Claim("H8", *HISTORY).verdict(change - half, change + half)
            here["change"] = {"value": change, "low": change - half, "high": change + half, "verdict": verdict}
        found.append(here)
    return found


def others(world: str) -> list[dict[str, Any]]:
    """Return the kept cells of the other environments."""
    path = RESULTS / "study_models.json"
    cells = json.loads(path.read_text())["figures"]["cells"] if path.exists() else []
    return [cell for cell in cells if cell["world"] != world]


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted: the same command resumes.")
    except InputError as error:
        sys.exit(f"error: {error}")
