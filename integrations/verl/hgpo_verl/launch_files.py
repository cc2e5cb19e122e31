"""The launch files of the papers' 7B runs: `python -m hgpo_verl.launch_files FOLDER` writes them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from hgpo_train.training.config import load_config
from hgpo_verl.command import launch_text
from hgpo_verl.translate import Cluster

NAMES: Final = tuple(
    f"{world}-7b-{method}"
    for world in ("alfworld", "webshop")
    for method in ("hgpo-k2", "hgpo-k4", "gigpo", "grpo", "g2po")
)
"""Configurations of `hgpo train` with launch files, for one machine with 4 GPUs."""


def text_of(name: str) -> str:
    """Return the launch file of a configuration; its run's folder is `runs/NAME` of the working directory."""
    return launch_text(name, load_config(name), Cluster(gpus=4), Path("runs") / name)


def main(folder: Path) -> None:
    """Write all launch files to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / f"{name}.yaml").write_text(text_of(name), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
