"""A small model trained by reinforcement learning on the bundled games, on a laptop: `hgpo quickstart --train`.

The model is the package's own (`hgpo_train.models.tiny_alfworld`), which has imitated a weak player.

FOLDER/train/            the run: rollouts on the bundled games, HGPO (K = 2), updates
FOLDER/curve.svg         success on held-out games before, during and after the run
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.console import Console

from hgpo_train.evaluation.comparison import Comparison, compare
from hgpo_train.evaluation.reporting_rules import by_seed
from hgpo_train.training.config import load_config, replace
from hgpo_train.training.display import Display
from hgpo_train.training.evaluations import evaluation_episodes
from hgpo_train.training.trainer import Trainer

if TYPE_CHECKING:
    from pathlib import Path

    from hgpo_train.measures import Estimate

ITERATIONS: Final = 10
EVALUATIONS: Final = 2
"""Number of evaluations on held-out games after the one before training."""
_WIDTH: Final = 50
"""Number of characters of the picture's axis, from 0% to 100%."""


@dataclass(frozen=True, slots=True)
class FirstTraining:
    """The result of a first training.

    Attributes:
        run: The run's folder, with its configuration, step table, metrics and checkpoint.
        success: The success on held-out games by iteration, with games as trials.
        change: The last success compared with that before training, game by game.
    """

    run: Path
    success: dict[int, Estimate]
    change: Comparison

    def curve(self) -> str:
        """Return success by iteration as a picture of characters, with 95% intervals that take games as trials."""
        lines = [f"{'iteration':<20}{'0%':<{_WIDTH // 2}}{'50%':<{_WIDTH // 2}}100%"]
        for iteration, (share, low, high) in self.success.items():
            assert low is not None
            assert high is not None
            axis = ["·"] * (_WIDTH + 1)
            first = round(low * _WIDTH)
            last = round(high * _WIDTH)
            axis[first : last + 1] = "─" * (last + 1 - first)
            axis[round(share * _WIDTH)] = "●"
            lines.append(
                f"{iteration:<9}{f'{share:.0%}':<11}{''.join(axis)} {low:.0%}–{high:.0%}"
            )
        return "\n".join(lines)

    def verdict(self) -> str:
        """Return in words whether the policy is better, from the differences of the games' success."""
        change = self.change
        assert change.low is not None
        assert change.high is not None
        rates = (
            f"Success on {change.tasks} held-out games: {100 * change.difference:+.0f} points "
            f"(95%: {100 * change.low:+.0f} to {100 * change.high:+.0f})."
        )
        if change.low > 0:
            return f"{rates} The policy became better."
        if change.high < 0:
            return f"{rates} The policy became worse."
        return (
            f"{rates} This does not show an improvement: {ITERATIONS} iterations are few. "
            "`hgpo train tiny-alfworld` trains for longer (docs/training.md has its learning curves)."
        )


def first_training(
    folder: Path,
    console: Console,
    *,
    seed: int = 0,
    iterations: int = ITERATIONS,
) -> FirstTraining:
    """Train the bundled model by HGPO (K = 2).

    A second call with the same folder resumes the first.

    Args:
        folder: The folder for all output.
        console: The console that shows progress and metrics, in lines if it is not a terminal.
        seed: Seed of the order of games, the rollouts and the batches.
        iterations: Number of iterations of training.
    """
    every = math.ceil(iterations / EVALUATIONS)
    changes = {
        "name": "first-training",
        "seed": seed,
        "iterations": iterations,
        "evaluation": {"every": every},
    }
    config = replace(load_config("tiny-alfworld"), **changes)
    console.print(
        f"HGPO (K = 2) on the bundled games: a line for each of {iterations} iterations, after line 0, the policy "
        "before training.",
        soft_wrap=True,
    )
    display = Display(console, config.iterations)
    run = folder / "train"
    with display.live:
        Trainer(config, run, display, resume=True).run()
    episodes = evaluation_episodes(run)
    assert episodes is not None
    before, *_, after = episodes.partition_by("seed")
    result = FirstTraining(run, by_seed(episodes), compare(after, before))
    picture = Console(record=True, width=90, file=io.StringIO())
    picture.print(result.curve(), highlight=False)
    picture.save_svg(
        str(folder / "curve.svg"), title="Success on held-out games, 95% intervals"
    )
    return result
