"""From nothing to a small policy that can play a little: demonstrations, a tokenizer and a model, supervised training.

For machines without a large model: everything is made here, nothing is downloaded. Each part that is there already is
resumed or used again, if it was made from the same; if not, it is refused.

    FOLDER/demonstrations/   the explorer's steps
    FOLDER/model/            a small Qwen-style model, its tokenizer trained on those texts
    FOLDER/sft/              the model after supervised training; give this folder to `hgpo train` as model.path
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.atomic import new_folder
from hgpo_envs.errors import InputError
from hgpo_envs.secrets import redact_json
from hgpo_envs.untrusted_files import read_bytes
from hgpo_train.models.config import ModelConfig
from hgpo_train.models.tiny import TinyShape, save_tiny
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout.failures import failures_of_run, raise_if_too_many
from hgpo_train.rollout.fingerprints import fingerprint_path, fingerprint_texts
from hgpo_train.rollout.run import RolloutSpec, collect
from hgpo_train.training.config import Config, OptimiserConfig, SftConfig, TrackingConfig, UpdateConfig, template_path
from hgpo_train.training.sft import run_sft
from hgpo_train.training.trainer import open_training_env

if TYPE_CHECKING:
    from hgpo_train.training.display import Display

MADE_FROM: Final = "made_from"
"""The file in a model's folder that holds the fingerprint of what it was made from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """How much is learnt by imitation.

    Attributes:
        policy: Whom to imitate: the explorer acts on what it is shown, as a policy must, and now and then is led into a
            mistake, so that it shows how to go on from one (`hgpo_train.policies.outdated`).
        data: Games or catalogues for the demonstrations, if not those that are trained on.
        demonstrations: Tasks that are demonstrated, as many in each of them.
        rows: Which of their steps are imitated: ``won``, the valid ones of tasks that were solved, or ``all``.
        epochs: Passes over them.
        batch: Rows of an optimiser step.
        learning_rate: The peak; cosine to 0.
        shape: The model's sizes.
        seed: Seeds the order of tasks, the weights and the batches.
    """

    policy: str = "mixture:explorer=0.85,stale=0.15"
    data: tuple[str, ...] = ()
    demonstrations: int = 600
    rows: Literal["won", "all"] = "won"
    epochs: int = 3
    batch: int = 32
    learning_rate: float = 2e-3
    shape: TinyShape = dataclasses.field(default_factory=TinyShape)
    seed: int = 0


def warm_start(folder: Path, config: Config, start: WarmStart, display: Display, model: Path | None = None) -> Path:
    """Makes a small model and teaches it to imitate.

    Args:
        folder: Where everything goes.
        config: The run that is to follow; its environment's prompts and action format are what is taught.
        start: How much is learnt.
        display: Shows the progress.
        model: Teaches this one instead of a new one.

    Returns:
        The folder to be used as `model.path`.
    """
    steps = collect_demonstrations(folder / "demonstrations", config, start, display)
    if model is None:
        model = new_model(folder / "model", steps, start)
    settings = SftConfig(
        seed=start.seed,
        rows=start.rows,
        max_prompt_tokens=config.rollout.max_prompt_tokens,
        prompt_loss=True,
        model=ModelConfig(
            path=str(model),
            device=config.model.device,
            compute_dtype=config.model.compute_dtype,
            gradient_checkpointing=False,
        ),
        update=UpdateConfig(
            mini_batch_size=start.batch,
            epochs=start.epochs,
            logit_chunk=0,
            kl_weight=0.0,
            entropy_weight=0.0,
            dual_clip=None,
            micro_batch_tokens=config.update.micro_batch_tokens,
        ),
        optimiser=OptimiserConfig(learning_rate=start.learning_rate, schedule="cosine", warmup_iterations=30),
        tracking=TrackingConfig(tensorboard=False),
    )
    run_sft(settings, steps, folder / "sft", display)
    return folder / "sft"


def new_model(folder: Path, steps: Path, start: WarmStart) -> Path:
    """Makes a small model with a tokenizer of a step table's texts; one that is there is used again.

    Raises:
        InputError: The model that is there was made from something else.
    """
    rows = scan_steps(steps).select("trajectory", "step", "prompt", "action").sort("trajectory", "step").collect()
    texts = rows.select(pl.format("{}\n{}", "prompt", "action")).to_series().to_list()
    made_from = fingerprint_texts([*texts, repr(start.shape), str(start.seed)])
    if (folder / MADE_FROM).exists():
        if (was := read_bytes(folder / MADE_FROM, 1 << 10).decode(errors="replace").strip()) != made_from:
            raise InputError(
                f"{folder} was made from other demonstrations, sizes or another seed (fingerprint {was[:16]}, now "
                f"{made_from[:16]}); remove it, or choose another folder"
            )
        return folder
    with new_folder(folder) as made:
        save_tiny(made, texts, start.shape, start.seed)
        (made / MADE_FROM).write_text(made_from + "\n", encoding="utf-8")
    return folder


def collect_demonstrations(folder: Path, config: Config, start: WarmStart, display: Display) -> Path:
    """Collects demonstrations into a step table, an iteration a place; those that are there are not played again.

    Raises:
        InputError: The table that is there was made otherwise.
        RolloutError: Too many rollouts failed. They are played again on the next call.
    """
    environment = config.environment
    places = [{"data": place} for place in start.data] or [{}]
    template = template_path(environment)
    made_with = {
        "policy": start.policy,
        "demonstrations": start.demonstrations,
        "seed": start.seed,
        "environment": {
            **dataclasses.asdict(environment),
            "prompt_template": template and fingerprint_path(Path(template)),
        },
        "data": [fingerprint_path(Path(place)) for place in start.data],
    }
    with (
        display.stage("demonstrate"),
        StepWriter(folder, run="demonstrations", config=redact_json(made_with)) as writer,
    ):
        for number, place in enumerate(places):
            options = environment.options | place
            shown = dataclasses.replace(config, environment=dataclasses.replace(environment, options=options))
            handle = open_training_env(shown, environment.split)
            policy = make_policy(start.policy, PolicyContext(handle.shared.source.name, environment.action_format))
            tasks = min(start.demonstrations // len(places), len(handle.tasks))
            spec = RolloutSpec(tasks=tasks, seed=start.seed, iteration=number)
            collect(handle, policy, writer, spec, retry_failed=True, progress=display.tally)
    raise_if_too_many(failures_of_run(folder))
    return folder
