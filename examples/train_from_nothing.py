"""Create a small model, train it on demonstrations of a scripted player, then with RL; all on a CPU.

    python -m examples.train_from_nothing examples/own_environment.toml --out runs/babyai

Afterwards, `hgpo train examples/own_environment.toml --set model.path=runs/babyai/sft` starts from the same model.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from hgpo_train.models.tiny import TinyShape
from hgpo_train.training.config import load_config, replace
from hgpo_train.training.display import Display
from hgpo_train.training.trainer import Trainer
from hgpo_train.training.warm_start import WarmStart, warm_start


def main() -> None:
    """Collect demonstrations, run supervised training, then reinforcement learning; resume what exists already."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", help="configuration, as for hgpo train")
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument(
        "--policy",
        default="mixture:expert=0.9,outdated=0.1",
        help="policy of the demonstrations",
    )
    parser.add_argument(
        "--demonstrations", type=int, default=600, help="number of demonstrations"
    )
    parser.add_argument(
        "--epochs", type=int, default=3, help="passes over the demonstrations"
    )
    parser.add_argument("--layers", type=int, default=4, help="layers of the model")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="A.B=C",
        help="override, as for hgpo train",
    )
    given = parser.parse_args()

    config = load_config(given.config, given.set)
    shape = TinyShape(layers=given.layers)
    start = WarmStart(
        policy=given.policy,
        demonstrations=given.demonstrations,
        epochs=given.epochs,
        shape=shape,
    )
    display = Display(Console(), start.epochs)
    with display.live:
        taught = warm_start(given.out, config, start, display)
    config = replace(config, model={"path": str(taught)})
    display = Display(Console(), config.iterations)
    trainer = Trainer(config, given.out / "train", display, resume=True)
    with display.live:
        trainer.run()


if __name__ == "__main__":
    main()
