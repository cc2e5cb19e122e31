"""A small model trained from nothing on the bundled games, on a laptop: `hgpo quickstart --train`.

FOLDER/games.pack        generated games for the demonstrations
FOLDER/demonstrations/   steps of the explorer, mixed with random actions
FOLDER/sft/              the model after imitation
FOLDER/train/            the run: imitated model, rollouts on the bundled games, HGPO (K = 2), updates
FOLDER/curve.svg         success on held-out games before, during and after the run
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from rich.console import Console

from hgpo_datasets import scan_steps
from hgpo_envs.alfworld.data.pack import write_pack
from hgpo_envs.alfworld.generation.store import GeneratedStore
from hgpo_train.proportions import Z, wilson_interval
from hgpo_train.training.config import load_config, replace
from hgpo_train.training.display import Display
from hgpo_train.training.trainer import Trainer
from hgpo_train.training.warm_start import WarmStart, warm_start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GAMES: Final = 4_500
"""Number of generated games; two thirds are demonstrated. The 144 bundled ones are too few to imitate from. After one
pass of 1,800 games, the model wins 8% of the held-out games and training does not improve it; after this, a quarter."""

POLICY: Final = "mixture:explorer=0.6,random=0.35,outdated=0.05"
"""The policy to imitate, as in `benchmarks/learning.py`: a third of its actions are valid but random. A model that has
seen too few valid actions, or too few games, repeats invalid actions, and training then makes it worse."""

ITERATIONS: Final = 6
EVALUATIONS: Final = 2
"""Number of evaluations on held-out games after the one before training."""
_WIDTH: Final = 50
"""Number of characters of the picture's axis, from 0% to 100%."""


@dataclass(frozen=True, slots=True)
class FirstTraining:
    """The result of a first training.

    Attributes:
        run: The run's folder, with its configuration, step table, metrics and checkpoint.
        success: The success on held-out games by iteration: the share of won episodes of each game.
    """

    run: Path
    success: dict[int, list[float]]

    def curve(self) -> str:
        """Return success by iteration as a picture of characters, with 95% intervals that take games as trials."""
        lines = [f"{'iteration':<20}{'0%':<{_WIDTH // 2}}{'50%':<{_WIDTH // 2}}100%"]
        for iteration, games in self.success.items():
            share = sum(games) / len(games)
            low, high = wilson_interval(share, len(games))
            first, at, last = (round(bound * _WIDTH) for bound in (low, share, high))
            axis = "".join("●" if x == at else "─" if first <= x <= last else "·" for x in range(_WIDTH + 1))
            lines.append(f"{iteration:<9}{f'{share:.0%}':<11}{axis} {low:.0%}–{high:.0%}")
        return "\n".join(lines)

    def verdict(self) -> str:
        """Return in words whether the policy is better, from the differences of the games' success."""
        before, *_, after = self.success.values()
        change = [new - old for old, new in zip(before, after, strict=True)]
        mean, noise = fmean(change), Z * stdev(change) / math.sqrt(len(change))
        rates = f"Success on {len(change)} held-out games: {100 * mean:+.0f} points (±{100 * noise:.0f}, 95% interval)."
        if mean > noise:
            return f"{rates} The policy became better."
        if mean < -noise:
            return f"{rates} The policy became worse."
        return (
            f"{rates} This does not show an improvement: {ITERATIONS} iterations are few. "
            "`hgpo train tiny-alfworld` trains for longer (docs/training.md has its learning curves)."
        )


def first_training(
    folder: Path, console: Console, *, seed: int = 0, games: int = GAMES, iterations: int = ITERATIONS
) -> FirstTraining:
    """Create a small model, train it by imitation, and then by HGPO (K = 2).

    A second call with the same folder resumes the first.

    Args:
        folder: The folder for all output.
        console: The console that shows progress and metrics, in lines if it is not a terminal.
        seed: Seed of the games, the demonstrations, the model and the training.
        games: Number of generated games.
        iterations: Number of iterations of training.
    """
    every = math.ceil(iterations / EVALUATIONS)
    changes = {"name": "first-training", "seed": seed, "iterations": iterations, "evaluation": {"every": every}}
    config = replace(load_config("tiny-alfworld"), **changes)
    console.print(f"1. Generate {games:,} games, play two thirds of them, and imitate.")
    pack = folder / "games.pack"
    if not pack.exists():
        store = GeneratedStore(games, seed)
        folder.mkdir(parents=True, exist_ok=True)
        display = Display(console, 1)
        with display.live(), display.stage("generate"):
            write_pack(pack, _generated(store, display))
    start = WarmStart(policy=POLICY, data=(str(pack),), demonstrations=games, epochs=2, seed=seed)
    display = Display(console, start.epochs)
    with display.live():
        model = warm_start(folder, config, start, display)
    console.print(
        f"2. Train on the bundled games with HGPO (K = 2): a line for each of {iterations} iterations, after line 0, "
        "the policy before training.",
        soft_wrap=True,
    )
    config = replace(config, model={"path": str(model)})
    display = Display(console, config.iterations)
    trainer = Trainer(config, folder / "train", display, resume=True)
    with display.live():
        trainer.run()
    result = FirstTraining(trainer.folder, _success(trainer.folder / "evaluation"))
    picture = Console(record=True, width=90, file=io.StringIO())
    picture.print(result.curve(), highlight=False)
    picture.save_svg(str(folder / "curve.svg"), title="Success on held-out games, 95% intervals")
    return result


def _generated(store: GeneratedStore, display: Display) -> Iterator[tuple[str, dict[str, Any], dict[str, Any] | None]]:
    ids = store.ids()
    for number, task_id in enumerate(ids, 1):
        display.progress(number, len(ids), "games")
        yield task_id, store.read(task_id), store.trajectory(task_id)


def _success(evaluation: Path) -> dict[int, list[float]]:
    """Return the share of won episodes of each held-out game, by iteration; games are in the same order."""
    ends = scan_steps(evaluation).filter(pl.col("step") == 0)
    games = (
        ends.group_by("iteration", "task_id")
        .agg(pl.col("episode_won").fill_null(value=False).mean())
        .sort("iteration", "task_id")
        .collect()
    )
    return {
        key: part["episode_won"].to_list() for (key,), part in games.partition_by("iteration", as_dict=True).items()
    }
