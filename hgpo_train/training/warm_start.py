"""A small policy trained from scratch: demonstrations, a tokenizer and a model, and supervised training.

For machines without a large model; nothing is downloaded. A second call resumes or reuses each part that exists. A part
that was created from other inputs is an error.

    FOLDER/demonstrations/   the explorer's steps
    FOLDER/model/            a small Qwen-style model with a tokenizer trained on those texts
    FOLDER/sft/              the model after supervised training; use this folder as model.path of `hgpo train`
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import new_folder
from hgpo_envs.files.secrets import redact_json
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_train.models.tiny import TinyShape, save_tiny
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout.failures import failures_of_run, raise_if_too_many
from hgpo_train.rollout.fingerprints import fingerprint_path, fingerprint_texts
from hgpo_train.rollout.run import RolloutSpec, collect_groups
from hgpo_train.training.config import SftConfig, replace, template_path
from hgpo_train.training.data import open_training_env
from hgpo_train.training.sft import run_sft

if TYPE_CHECKING:
    from hgpo_train.training.config import Config
    from hgpo_train.training.display import Display

MADE_FROM: Final = "made_from"
"""The file in a model's folder that contains the fingerprint of the model's inputs."""


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


def warm_start(folder: Path, config: Config, start: WarmStart, display: Display, model: Path | None = None) -> Path:
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
        RolloutError: Too many demonstrations failed.
    """
    steps = collect_demonstrations(folder / "demonstrations", config, start, display)
    settings = replace(
        SftConfig(),
        seed=start.seed,
        rows=start.rows,
        max_prompt_tokens=config.rollout.max_prompt_tokens,
        prompt_loss=True,
        model={
            "path": str(model or new_model(folder / "model", steps, start)),
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
        optimiser={"learning_rate": start.learning_rate, "schedule": "cosine", "warmup_iterations": 30},
        tracking={"tensorboard": False},
    )
    run_sft(settings, steps, folder / "sft", display)
    return folder / "sft"


def new_model(folder: Path, steps: Path, start: WarmStart) -> Path:
    """Create a small model with a tokenizer trained on a step table's prompts and actions, or reuse the existing one.

    Raises:
        InputError: The existing model was created from other inputs.
    """
    rows = scan_steps(steps).select("trajectory", "step", "prompt", "action").sort("trajectory", "step").collect()
    texts = rows.select(pl.format("{}\n{}", "prompt", "action")).to_series().to_list()
    fingerprint = fingerprint_texts([*texts, repr(start.shape), str(start.seed)])
    if not (folder / MADE_FROM).exists():
        with new_folder(folder) as scratch:
            save_tiny(scratch, texts, start.shape, start.seed)
            (scratch / MADE_FROM).write_bytes(fingerprint.encode())
    elif read_bytes(folder / MADE_FROM, 1 << 10) != fingerprint.encode():
        raise InputError(
            f"{folder} was created from other demonstrations, sizes or another seed; remove it or choose another folder"
        )
    return folder


def collect_demonstrations(folder: Path, config: Config, start: WarmStart, display: Display) -> Path:
    """Collect demonstrations into a step table, one iteration per data source; existing ones are not repeated.

    Raises:
        InputError: The existing table was collected with other settings.
        RolloutError: Too many rollouts failed. They are repeated on the next call.
    """
    environment, template = config.environment, template_path(config.environment)
    inputs = {
        "policy": start.policy,
        "demonstrations": start.demonstrations,
        "seed": start.seed,
        "environment": {**asdict(environment), "prompt_template": template and fingerprint_path(Path(template))},
        "data": [fingerprint_path(Path(path)) for path in start.data],
    }
    sources = [{"data": path} for path in start.data] or [{}]
    with (
        display.stage("demonstrate"),
        StepWriter(folder, run="demonstrations", config=redact_json(inputs)) as writer,
    ):
        for number, source in enumerate(sources):
            variant = replace(config, environment={"options": environment.options | source})
            env = open_training_env(variant, environment.split)
            policy = make_policy(start.policy, PolicyContext(env.shared.source.name, environment.action_format))
            tasks = min(start.demonstrations // len(sources), len(env.tasks))
            spec = RolloutSpec(tasks=tasks, seed=start.seed, iteration=number)
            collect_groups(env, policy, writer, spec, retry_failed=True, progress=display.tally)
    raise_if_too_many(failures_of_run(folder))
    return folder
