"""One whole iteration of training on the bundled games, small enough for a laptop: `hgpo quickstart --train`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hgpo_train.models.tiny import TinyShape
from hgpo_train.training.config import load_config, replace
from hgpo_train.training.display import Display
from hgpo_train.training.trainer import Trainer, start_run
from hgpo_train.training.warm_start import WarmStart, warm_start

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console


def first_training(folder: Path, console: Console, *, seed: int = 0) -> Path:
    """Makes a small model, teaches it a little, and trains it for one iteration of HGPO (K = 2).

    It takes about a minute on two cores; the policy it leaves has seen too little to play well. Called again with the
    same folder it resumes.

    Args:
        folder: Where everything goes.
        console: Where progress and figures are shown.
        seed: Of everything.

    Returns:
        The run's folder: configuration, step table, metrics, checkpoint.
    """
    config = replace(
        load_config("tiny-alfworld"),
        name="first-training",
        seed=seed,
        iterations=1,
        environment={"max_steps": 15},
        rollout={"tasks": 4, "group_size": 4, "filter_groups": False},
        evaluation={"every": 1, "tasks": 12, "group_size": 1},
    )
    start = WarmStart(demonstrations=144, epochs=6, batch=16, shape=TinyShape(layers=2), seed=seed)
    display = Display(console, start.epochs)
    with display.live():
        warm = warm_start(folder, config, start, display)
    config = replace(config, model={"path": str(warm)})
    display = Display(console, config.iterations)
    with start_run(config, folder / "train", resume=True) as run, display.live():
        Trainer(run, display).run()
    return run.folder
