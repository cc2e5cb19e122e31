"""A small policy trained from scratch: demonstrations, a tokenizer and a model, and supervised training.

For machines without a large model; nothing is downloaded. A second call resumes what is unfinished, and is an error if
settings or data have changed.

    FOLDER/demonstrations/   the player's steps: a run for each data source
    FOLDER/model/            a small Qwen-style model with a tokenizer trained on those texts
    FOLDER/sft/              the model after supervised training; use this folder as model.path of `hgpo train`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from hgpo_datasets import scan_steps
from hgpo_envs.files.atomic import new_folder
from hgpo_train.models.tiny import TinyShape, save_tiny
from hgpo_train.rollout.collection import collect
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.training.config import SftConfig, replace
from hgpo_train.training.data import env_options
from hgpo_train.training.sft import run_sft

if TYPE_CHECKING:
    from pathlib import Path

    from hgpo_train.training.config import Config
    from hgpo_train.training.display import Display


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Settings of a warm start by imitation.

    Attributes:
        policy: The policy to imitate. The default is the explorer, which acts on observations alone, mixed with 15% of
            outdated actions, so that demonstrations also show how to recover from mistakes
            (`hgpo_train.policies.scripted`).
        data: Games or catalogues for the demonstrations; by default those of the training configuration.
        demonstrations: Number of tasks to demonstrate, divided equally among `data`.
        rows: Steps to imitate: ``won``, the valid steps of solved tasks, or ``all``.
        epochs: Passes over the steps.
        batch: Rows per optimiser step.
        learning_rate: The peak learning rate of a cosine schedule that falls to 0.
        shape: The model's sizes.
        seed: Seed of the task order, the weights and the batches.
    """

    policy: str = "mixture:explorer=0.85,outdated=0.15"
    data: tuple[str, ...] = ()
    demonstrations: int = 600
    rows: Literal["won", "all"] = "won"
    epochs: int = 3
    batch: int = 32
    learning_rate: float = 2e-3
    shape: TinyShape = field(default_factory=TinyShape)
    seed: int = 0


_MARK: Final = ".warm-start"
"""An empty file in a model of this module, which a later call may replace."""


def warm_start(
    folder: Path,
    config: Config,
    start: WarmStart,
    display: Display,
    model: Path | None = None,
) -> Path:
    """Create a small model and train it by imitation.

    Args:
        folder: The folder for all output.
        config: The configuration of the run to prepare for; it sets the prompts and the action format.
        start: Settings of the imitation.
        display: Shows the progress.
        model: Folder of a model to train; by default a new model is created.

    Returns:
        The folder to use as `model.path`.

    Raises:
        InputError: The folder contains parts that were created from other inputs, or is in use by another process.
        RolloutError: Too many demonstrations failed. They are repeated on the next call.
    """
    steps = folder / "demonstrations"
    with display.stage("demonstrate"):
        _demonstrate(steps, config, start, display)
    if model is None:
        model = folder / "model"
        with (
            display.stage("create the model"),
            new_folder(model, replace=_is_ours) as scratch,
        ):
            # The same demonstrations, sizes and seed give the same bytes, which `run_sft` compares when it resumes.
            rows = (
                scan_steps(steps)
                .sort("run", "trajectory", "step")
                .select(pl.format("{}\n{}", "prompt", "action"))
            )
            save_tiny(
                scratch,
                rows.collect().to_series().to_list(),
                start.shape,
                start.seed,
            )
            (scratch / _MARK).touch()
    settings = replace(
        SftConfig(),
        seed=start.seed,
        rows=start.rows,
        max_prompt_tokens=config.rollout.max_prompt_tokens,
        prompt_loss=True,
        model={
            "path": str(model),
            "device": config.model.device,
            "compute_dtype": config.model.compute_dtype,
            "gradient_checkpointing": False,
        },
        update={
            "mini_batch_size": start.batch,
            "epochs": start.epochs,
            "logit_chunk": 0,
            "micro_batch_tokens": config.update.micro_batch_tokens,
        },
        optimiser={
            "learning_rate": start.learning_rate,
            "schedule": "cosine",
            "warmup_iterations": 30,
        },
        tracking={"tensorboard": False},
    )
    run_sft(settings, steps, folder / "sft", display)
    return folder / "sft"


def _is_ours(model: Path) -> bool:
    return (model / _MARK).is_file()


def _demonstrate(
    folder: Path,
    config: Config,
    start: WarmStart,
    display: Display,
) -> None:
    """Collect demonstrations, one run for each data source; existing ones are not repeated."""
    sources = [{"data": path} for path in start.data] or [{}]
    for number, source in enumerate(sources):
        changed = replace(
            config, environment={"options": config.environment.options | source}
        )
        options = env_options(changed, config.environment.split)
        known = len(open_env(config.environment.id, **options).tasks)
        collect(
            config.environment.id,
            start.policy,
            folder / f"{number:02d}",
            tasks=min(start.demonstrations // len(sources), known),
            group_size=1,
            seed=start.seed,
            progress=display.tally,
            **options,
        )
