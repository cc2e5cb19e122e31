"""Copy the model of a warm start into the package, in float16: `python -m tools.bundle_model tiny-alfworld SFT_RUN`.

SFT_RUN is written by `python -m benchmarks learning --world alfworld` (`runs/learning/alfworld/sft`), and likewise for
WebShop. The weights are less than 0.1% of their size away from those of the run.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from hgpo_train.models.checkpoint_files import BUNDLED, newest_valid_checkpoint


def bundle(run: Path, target: Path) -> None:
    """Write a run's newest checkpoint to a folder, without the state of training."""
    checkpoint = newest_valid_checkpoint(run / "checkpoints")
    assert checkpoint is not None, f"{run} has no checkpoint"
    target.mkdir(parents=True, exist_ok=True)
    for file in checkpoint.glob("*.j*"):  # configurations, tokenizer, chat template
        shutil.copyfile(file, target / file.name)
    weights = {
        name: value.to(torch.float16)
        for name, value in load_file(checkpoint / "model.safetensors").items()
    }
    save_file(weights, target / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    bundle(Path(sys.argv[2]), BUNDLED[sys.argv[1]])
