"""A small model trained from nothing on the bundled games, on a laptop: `hgpo quickstart --train`.

FOLDER/games.pack        generated games for the demonstrations
FOLDER/demonstrations/   steps of the explorer, mixed with random actions
FOLDER/sft/              the model after imitation
FOLDER/train/            the run: imitated model, rollouts on the bundled games, HGPO (K = 2), updates
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hgpo_envs.alfworld.data.pack import write_pack
from hgpo_envs.alfworld.generation.store import GeneratedStore
from hgpo_train.training.config import load_config, replace
from hgpo_train.training.display import Display
from hgpo_train.training.tracking import read_metrics
from hgpo_train.training.trainer import Trainer
from hgpo_train.training.warm_start import WarmStart, warm_start

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

GAMES: Final = 4_500
"""Number of generated games; two thirds are demonstrated. The 144 bundled ones are too few to imitate from."""

POLICY: Final = "mixture:explorer=0.6,random=0.35,outdated=0.05"
"""The policy to imitate, as in `benchmarks/learning.py`: a third of its actions are valid but random. A model that has
seen too few valid actions, or too few games, repeats invalid actions, and training then makes it worse."""

ITERATIONS: Final = 10


@dataclass(frozen=True, slots=True)
class FirstTraining:
    """The result of a first training.

    Attributes:
        run: The run's folder, with its configuration, step table, metrics and checkpoint.
        before: The success rate on held-out games before training, in [0, 1].
        after: The same after training.
        episodes: The number of held-out episodes behind each of them.
    """

    run: Path
    before: float
    after: float
    episodes: int

    def verdict(self) -> str:
        """Return in words whether the policy is better, given the noise of the measurement."""
        mean = (self.before + self.after) / 2
        noise = 1.96 * math.sqrt(2 * mean * (1 - mean) / self.episodes)
        rates = (
            f"Success on held-out games: {self.before:.0%} before training, {self.after:.0%} after ({self.episodes} "
            f"episodes each, so a difference of less than {100 * noise:.0f} points may be chance)."
        )
        if self.after - self.before > noise:
            return rates
        if self.before - self.after > noise:
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
    changes = {"name": "first-training", "seed": seed, "iterations": iterations, "evaluation": {"every": iterations}}
    config = replace(load_config("tiny-alfworld"), **changes)
    console.print(f"1. Generate {games:,} games, play two thirds of them, and imitate: a line per pass.")
    pack = folder / "games.pack"
    if not pack.exists():
        store = GeneratedStore(games, seed)
        folder.mkdir(parents=True, exist_ok=True)
        write_pack(pack, ((task_id, store.read(task_id), store.trajectory(task_id)) for task_id in store.ids()))
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
    lines = read_metrics(trainer.folder / "metrics.jsonl")
    rates = [line["val/success_rate"] for line in lines if line.get("val/success_rate") is not None]
    return FirstTraining(trainer.folder, rates[0], rates[-1], config.evaluation.tasks * config.evaluation.group_size)
