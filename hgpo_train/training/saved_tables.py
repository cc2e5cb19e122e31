"""Training on saved rollouts: one update on a step table with the advantages that `hgpo advantages` wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from hgpo_datasets import manifest, scan_steps
from hgpo_datasets.sources import parts_of, run_at, run_of_file
from hgpo_envs.errors import InputError
from hgpo_train.advantages import get
from hgpo_train.advantages.advantage_tables import (
    fingerprint,
    join_advantages,
    read_metadata,
)
from hgpo_train.models.checkpoint_files import stored_model
from hgpo_train.models.loading import load_tokenizer
from hgpo_train.rollout.collection import removed_if_unused
from hgpo_train.training import stages
from hgpo_train.training.checkpoint import save_checkpoint
from hgpo_train.training.config import AdvantageConfig
from hgpo_train.training.progress import after_iteration
from hgpo_train.training.run_folder import (
    CHECKPOINTS,
    CONFIG,
    check_new,
    open_run,
    write_config,
)
from hgpo_train.training.scoring import sampling_temperature
from hgpo_train.training.tracking import Trackers
from hgpo_train.training.trainer import load_run

if TYPE_CHECKING:
    from hgpo_datasets.manifest import Header
    from hgpo_train.training.config import Config
    from hgpo_train.training.display import Display


def train_on_table(
    config: Config,
    steps: Path,
    advantages: Path,
    folder: Path,
    display: Display,
    *,
    resume: bool = False,
) -> None:
    """Update the policy on a table with its advantages, as `hgpo advantages` writes them, and save a checkpoint.

    These are the stages score and update of one iteration; `hgpo rollout` and `hgpo advantages` are those before. With
    `resume` it continues from the folder's checkpoint. The configuration's environment is not used, and the estimator
    that is stored is that of the advantages.

    Raises:
        InputError: The advantages are of another table or several estimators, the rollouts have no token ids or were
            sampled at another temperature, or as `Trainer`.
    """
    # 1. The rows with their advantages.
    check_new(folder, resume=resume, from_table=True)
    metadata = read_metadata(advantages)
    if metadata["run_fingerprint"] != fingerprint(steps):
        raise InputError(
            f"{advantages} has the advantages of another table than {steps}"
        )
    estimated = pl.scan_parquet(advantages, glob=False)
    rows = (
        join_advantages(scan_steps(steps), estimated)
        .sort("trajectory", "step")
        .collect()
    )
    if "advantage" not in rows.columns:
        raise InputError(
            f"{advantages} has the columns of several estimators; write one with `hgpo advantages {steps}`"
        )
    if rows["response_token_ids"].is_null().all():
        raise InputError(
            f"{steps} has no token ids, which training needs; collect it with transformers:MODEL"
        )
    for part in parts_of([steps]):
        run_of_steps = run_at(Path(part.path)) or run_of_file(Path(part.path))
        header = None if run_of_steps is None else manifest.read(run_of_steps).header
        if header is None:
            continue
        _check_sampling(config, steps, folder, header)
        if has_raw_logprobs(header):
            check_loss_ignores_engine(config, steps)
            unknown = pl.lit(None, pl.List(pl.Float32))
            rows = rows.with_columns(response_logprobs=unknown)

    # 2. The configuration as it is stored, with the estimator of these advantages.
    used = metadata["columns"]["advantage"]
    config = replace(
        config,
        advantage=AdvantageConfig(
            estimator=used["estimator"], parameters=used["parameters"]
        ),
    )
    # What it read is in the advantages already: only the scores of the loss are computed.
    estimator = replace(
        get(used["estimator"]).with_parameters(**used["parameters"]), scores=()
    )
    tokenizer = load_tokenizer(config.model.path, config.rollout.chat_template)
    inputs = {"model": stored_model(config.model.path)}

    # 3. Score and update, as in one iteration of `Trainer`.
    with removed_if_unused(folder, CONFIG), open_run(folder, config, inputs):
        run = load_run(config, folder, display, tokenizer, estimator)
        write_config(folder, config)
        with Trackers(config, folder, run.state.iteration + 1) as trackers:
            with display.stage("score"):
                scored = stages.score(run, rows)
            with display.stage("update"):
                metrics = stages.update(run, scored)
            run.state = after_iteration(run.state, rows)
            environment_steps = float(run.state.environment_steps)
            metrics["training/environment_steps"] = environment_steps
            trackers.log(metrics, run.state.iteration)
            display.row(run.state.iteration, metrics)
        save_checkpoint(
            folder / CHECKPOINTS,
            run.state,
            run.learner.model,
            tokenizer,
            run.learner.optimiser,
            config.checkpoint,
        )


def _check_sampling(config: Config, steps: Path, folder: Path, header: Header) -> None:
    """Warn if rollouts were sampled from another model; raise `InputError` if it was at another temperature."""
    temperature = sampling_temperature(header)
    if temperature != config.rollout.temperature:
        raise InputError(
            f"{steps} was sampled at temperature {temperature}, and rollout.temperature is "
            f"{config.rollout.temperature}; add --set rollout.temperature={temperature}"
        )
    model = header.section("policy").get("weights", header.config.get("model"))
    expected = {
        config.model.path,
        stored_model(config.model.path),
        stored_model(str(folder)),
    }
    if model is not None and Path(model).resolve() not in {
        Path(name).resolve() for name in expected
    }:
        stages.warn(
            f"{steps} was sampled from {model}, and {config.model.path} is updated; if it is another, set model.path"
        )


def has_raw_logprobs(header: Header) -> bool:
    """Return whether a run has log-probabilities at temperature 1 of responses that a server sampled otherwise."""
    policy = header.section("policy")
    is_server = str(policy.get("name")).startswith("openai:")
    is_processed = policy.get("logprobs_mode", "raw") == "processed"
    is_plain = sampling_temperature(header) == 1 and policy.get("top_p", 1) == 1
    return is_server and not is_processed and not is_plain


def check_loss_ignores_engine(config: Config, steps: Path) -> None:
    """Raise `InputError` if the loss reads the log-probabilities of the engine, which are raw."""
    if config.update.old_logprobs == "rollout" or config.update.rollout_is:
        raise InputError(
            f"{steps} has a server's log-probabilities at temperature 1, of responses that were sampled otherwise; set "
            'update.old_logprobs = "recompute" and update.rollout_is = "none", or collect it from vllm serve with '
            "--logprobs-mode processed_logprobs and the policy option logprobs_mode=processed"
        )
