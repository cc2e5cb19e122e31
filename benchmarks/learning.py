"""Does it learn? Success on held-out tasks against environment steps, an estimator and a seed a run.

    python benchmarks/learning.py --world alfworld                      GRPO, GiGPO, HGPO (K = 2), G2PO; 3 seeds each
    python benchmarks/learning.py --world webshop                       GRPO, HGPO; 2 seeds each
    python benchmarks/learning.py --world alfworld --estimators hgpo --seeds 0     one run
    python benchmarks/learning.py --world alfworld --draw               only the table and the picture of what is there

A model of about a million parameters is made and warm-started on demonstrations, once for all runs: what the explorer
does, with other actions mixed in (`WORLDS`), in games or shops generated for this with other seeds than the bundled
ones. Then each run trains on the bundled training tasks and is evaluated on the bundled held-out ones, the policy
before training included. Runs go on where they were broken off, so the whole may be stopped (Ctrl-C) and started again
at any time. Everything a run leaves is in --folder; the curves are kept in benchmarks/results/learning_<world>.json and
drawn beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import altair as alt
import numpy as np
import polars as pl
from record import RESULTS, keep
from rich.console import Console
from rich.table import Table

from hgpo_envs.errors import InputError
from hgpo_envs.webshop import bundled
from hgpo_train.advantages import get
from hgpo_train.config import Config, load_config, replace
from hgpo_train.display import Display
from hgpo_train.settings import to_dict, to_toml
from hgpo_train.tiny import TinyShape
from hgpo_train.tracking import read_metrics
from hgpo_train.trainer import ended
from hgpo_train.warm_start import WarmStart, warm_start

PARAMETERS: Final[dict[str, dict[str, Any]]] = {"hgpo": {"history_length": 2}}
"""What an estimator has of its own; the others are the configuration's."""
WORLDS: Final[dict[str, dict[str, Any]]] = {
    "alfworld": {
        "estimators": ("grpo", "gigpo", "hgpo", "g2po"),
        "seeds": (0, 1, 2),
        "warm_start": (
            WarmStart(
                policy="mixture:explorer=0.6,random=0.35,stale=0.05",  # knows the commands, not yet what they are for
                demonstrations=3_000,
                epochs=2,
            ),
        ),
    },
    "webshop": {
        "estimators": ("grpo", "hgpo"),
        "seeds": (0, 1),
        "warm_start": (
            WarmStart(
                policy="mixture:explorer=0.92,random=0.04,stale=0.04",
                demonstrations=12_800,
                epochs=2,
                learning_rate=4e-3,
                shape=TinyShape(initial=0.07),
            ),
            WarmStart(  # then everything of a player a third of whose actions are random, failures too
                policy="mixture:explorer=0.65,random=0.3,stale=0.05",
                demonstrations=1_600,
                rows="all",
                epochs=1,
                learning_rate=1.5e-3,
            ),
        ),
    },
}
CATALOGUES: Final = 16
HGPO: Final = (sys.executable, "-c", "from hgpo_train.cli import main; main()")


def main() -> None:
    """Runs what is missing and draws what is there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--world", choices=list(WORLDS), default="alfworld")
    parser.add_argument("--estimators", type=named, help="comma-separated; all of the world's without")
    parser.add_argument("--seeds", type=integers, help="comma-separated; all of the world's without")
    parser.add_argument("--folder", type=Path, default=Path("runs/learning"))
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="section.field=value")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; each has its share of the cores")
    parser.add_argument("--draw", action="store_true", help="run nothing")
    given = parser.parse_args()
    world = WORLDS[given.world]
    estimators, seeds = given.estimators or world["estimators"], given.seeds or world["seeds"]
    folder, console = given.folder / given.world, Console()
    base = load_config(f"tiny-{given.world}", given.overrides)
    if not given.draw:
        folder.mkdir(parents=True, exist_ok=True)
        warm = taught(given.world, folder, base, console)
        runs = {f"{name}-{seed}": configuration(base, warm, name, seed) for seed in seeds for name in estimators}
        if not all_trained(folder, runs, console, given.jobs):
            sys.exit(1)
    report(given.world, folder, console)


def named(text: str) -> list[str]:
    """Registered estimators, by name."""
    try:
        return [get(name).name for name in text.split(",")]
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def integers(text: str) -> list[int]:
    """Seeds."""
    return [int(seed) for seed in text.split(",")]


def taught(world: str, folder: Path, config: Config, console: Console) -> Path:
    """The model that all runs start from: taught stage by stage, the last one in the folder itself."""
    stages, data = WORLDS[world]["warm_start"], GENERATED[world](folder)
    model = None
    for number, stage in enumerate(stages, 1):
        place = folder if number == len(stages) else folder / f"warm-start-{number}"
        start = dataclasses.replace(stage, data=data)
        model = warm_start(place, config, start, Display(console, start.epochs), model)
    return model


def configuration(base: Config, warm: Path, estimator: str, seed: int) -> Config:
    """One run's configuration."""
    values = to_dict(base)
    common = {name: value for name, value in base.advantage.parameters.items() if name != "history_length"}
    values["advantage"] = {"estimator": estimator, "parameters": common | PARAMETERS.get(estimator, {})}
    return replace(Config(), **{**values, "name": f"{estimator}-{seed}", "seed": seed, "model": {"path": str(warm)} | {
        name: value for name, value in values["model"].items() if name != "path"
    }})  # fmt: skip


def generated_games(folder: Path) -> tuple[str, ...]:
    """A pack of games; two thirds of them are training games, those that are demonstrated."""
    path = folder / "games.pack"
    if not path.exists():
        sizes = ("--games", "4500", "--seed", "7")
        subprocess.run([*HGPO, "data", "synth", "alfworld", *sizes, "--out", str(path)], check=True)
    return (str(path),)


def generated_goals(folder: Path) -> tuple[str, ...]:
    """Catalogues of the bundled one's kind, with other products and instructions."""
    paths = [folder / "catalogues" / str(seed) for seed in range(1, CATALOGUES + 1)]
    for seed, path in enumerate(paths, 1):
        if not path.exists():
            bundled.make(path, seed=seed)
    return tuple(map(str, paths))


GENERATED: Final = {"alfworld": generated_games, "webshop": generated_goals}
"""What is demonstrated: makes it in the folder, where it is not there yet."""


def all_trained(folder: Path, runs: dict[str, Config], console: Console, jobs: int) -> bool:
    """Trains what is missing; after one that fails, or Ctrl-C, no other is begun."""
    pool = ThreadPoolExecutor(jobs)
    try:
        going = [pool.submit(train, folder / name, run, console, jobs) for name, run in runs.items()]
        return all(run.result() for run in as_completed(going))
    finally:
        pool.shutdown(cancel_futures=True)


def train(folder: Path, config: Config, console: Console, jobs: int) -> bool:
    """One run in a process of its own, from where it was; one of several prints to a file beside its folder."""
    lines = read_metrics(folder / "metrics.jsonl")
    if lines and ended(config, lines[-1]["iteration"], lines[-1]["training/environment_steps"]):
        return True
    folder.mkdir(parents=True, exist_ok=True)
    source = folder.with_suffix(".toml")
    source.write_text(to_toml(config))
    console.print(f"{folder.name} begins")
    began = time.perf_counter()
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))}
    with ExitStack() as stack:
        output = stack.enter_context(folder.with_suffix(".log").open("a")) if jobs > 1 else None
        command = [*HGPO, "train", str(source), "--out", str(folder), "--resume"]
        code = subprocess.call(command, env=os.environ | threads, stdout=output, stderr=output)
    if code:
        said = f": {folder.with_suffix('.log')} says why" if jobs > 1 else ""
        console.print(f"{folder.name} ended with {code}{said}", soft_wrap=True)
        return False
    console.print(f"{folder.name}: {time.perf_counter() - began:,.0f} s")
    return True


def curves(folder: Path) -> pl.DataFrame:
    """Every evaluation of every run: estimator, seed, iteration, environment steps, success, score."""
    rows = []
    for path in sorted(folder.glob("*-*/metrics.jsonl")):
        estimator, _, seed = path.parent.name.rpartition("-")
        rows += [
            {
                "estimator": estimator,
                "seed": int(seed),
                "iteration": line["iteration"],
                "environment_steps": line["training/environment_steps"],
                "success": line["val/success_rate"],
                "score": line["val/score/mean"],
                "seconds": line.get("timing_s/step"),
            }
            for line in read_metrics(path)
            if line.get("val/success_rate") is not None
        ]
    return pl.DataFrame(rows)


def report(world: str, folder: Path, console: Console) -> None:
    """The table, the JSON and the picture."""
    found = curves(folder)
    if found.is_empty():
        console.print(f"no run in {folder} has been evaluated yet")
        return
    ends = found.sort("iteration").group_by("estimator", "seed", maintain_order=True).agg(
        pl.col("success").first().alias("start"), pl.col("success").last().alias("end"), pl.col("iteration").last(),
        pl.col("environment_steps").last(), pl.col("success").max().alias("best"),
    )  # fmt: skip
    table = Table(title=f"{world}: success on held-out tasks")
    for name in ("estimator", "seed", "iterations", "steps", "warm start", "end", "lift", "best"):
        table.add_column(name, justify="right")
    for row in ends.sort("estimator", "seed").iter_rows(named=True):
        table.add_row(
            row["estimator"], str(row["seed"]), str(row["iteration"]), f"{row['environment_steps']:,.0f}",
            f"{row['start']:.1%}", f"{row['end']:.1%}", f"{100 * (row['end'] - row['start']):+.1f}",
            f"{row['best']:.1%}",
        )  # fmt: skip
    console.print(table)
    means = ends.group_by("estimator").agg(pl.col("start", "end", "environment_steps").mean()).sort("estimator")
    configs = {
        path.stem: re.sub(r'(?m)^path = ".*/', 'path = "', path.read_text())  # where the warm start lay says nothing
        for path in sorted(folder.glob("*-*.toml"))
    }
    kept = {
        "ends": {estimator: figures for estimator, *figures in means.iter_rows()},
        "curves": found.to_dicts(),
        "configurations": configs,
    }
    path = keep(f"learning_{world}", kept)
    picture = draw(found, world)
    console.print(f"kept in {path} and {picture}")


def at_equal_steps(found: pl.DataFrame) -> pl.DataFrame:
    """Each run's success at the same environment steps: on a line between the evaluations before and after.

    As many points as the run with the fewest evaluations has, evenly spaced up to the shortest run's end.
    """
    runs = found.sort("environment_steps").partition_by("estimator", "seed", as_dict=True)
    end = min(run["environment_steps"].max() for run in runs.values())
    steps = np.linspace(0, end, min(run.height for run in runs.values()))
    points = []
    for (estimator, _), run in runs.items():
        success = np.interp(steps, run["environment_steps"], run["success"])
        points.append(pl.DataFrame({"estimator": estimator, "environment_steps": steps, "success": success}))
    return pl.concat(points)


def draw(found: pl.DataFrame, world: str) -> Path:
    """Mean over seeds with the seeds' range, as a PNG."""
    spread = at_equal_steps(found).group_by("estimator", "environment_steps").agg(
        pl.col("success").mean(), pl.col("success").min().alias("low"), pl.col("success").max().alias("high"),
    )  # fmt: skip
    names = {"grpo": "GRPO", "gigpo": "GiGPO", "hgpo": "HGPO (K = 2)", "g2po": "G2PO"}
    spread = spread.with_columns(pl.col("estimator").replace(names)).sort("estimator", "environment_steps")
    base = alt.Chart(alt.Data(values=spread.to_dicts())).encode(
        x=alt.X("environment_steps:Q", title="environment steps of training"),
        color=alt.Color("estimator:N", title=None),
    )
    success = alt.Y("success:Q", title="success on held-out tasks", axis=alt.Axis(format="%"))
    line = base.mark_line(point=True).encode(y=success)
    ranges = base.mark_rule(opacity=0.5).encode(y="low:Q", y2="high:Q")
    path = RESULTS / f"learning_{world}.png"
    title = f"{world}: mean of {found['seed'].n_unique()} seeds, and their range"
    (ranges + line).properties(width=520, height=320, title=title).save(path, scale_factor=2)
    return path


if __name__ == "__main__":
    main()
