"""The card of a training run's checkpoint, for `hgpo card`: results on held-out tasks, and how it was trained."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hgpo_datasets import manifest, scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.evaluation.card import (
    file_sums,
    finished,
    points,
    read_manifest,
    results,
    rollout_counts,
)
from hgpo_train.evaluation.reporting_rules import MEANT
from hgpo_train.models.checkpoint_files import (
    BUNDLED,
    STATE,
    TrainingState,
    checksums,
    list_checkpoints,
    read_json,
    resolve_model,
    verify_checkpoint,
)
from hgpo_train.models.preflight import ADAPTER_SETTINGS
from hgpo_train.rollout.plan import independent_rollouts
from hgpo_train.training.config import (
    Config,
    code_named,
    configured_estimator,
    stored_config,
)
from hgpo_train.training.evaluations import (
    evaluation_command,
    evaluation_episodes,
    evaluation_result,
)
from hgpo_train.training.run_folder import CHECKPOINTS, CONFIG, EVALUATION
from hgpo_train.training.tracking import METRICS, read_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def checkpoint_of(run: Path, iteration: int | None = None) -> Path:
    """Return a checkpoint of a training run.

    Args:
        run: The folder of the run.
        iteration: The iteration of the checkpoint. Default: the one with the highest success on held-out tasks if it
            is there, or else the newest.

    Raises:
        InputError: There is no such checkpoint, or it is damaged.
    """
    newest = Path(resolve_model(str(run)))
    if newest == run:
        raise InputError(
            f"{run} has no checkpoint; expected the folder of a run of hgpo train"
        )
    if iteration is None:
        best = newest.parent / f"{read_json(newest / STATE, TrainingState).best:06d}"
        return best if best.is_dir() else newest

    checkpoint = newest.parent / f"{iteration:06d}"
    known = list_checkpoints(newest.parent)
    if checkpoint not in known:
        expected = ", ".join(str(int(path.name)) for path in known)
        raise InputError(
            f"--iteration: expected one with a checkpoint ({expected}), received {iteration}"
        )
    problems = verify_checkpoint(checkpoint, weights_only=True).problems
    if problems:
        raise InputError(
            f"checkpoint {checkpoint} cannot be used ({problems[0].message}); choose another --iteration"
        )
    return checkpoint


def training_card(
    run: Path, checkpoint: Path, question: str | None = None
) -> dict[str, Any]:
    """Return the card of a checkpoint of a training run, a document as `hgpo_train.evaluation.card` describes it.

    Rollouts, compute and learning curve are those of the whole run, from which the checkpoint was chosen.

    Args:
        run: The run's folder.
        checkpoint: The checkpoint (`checkpoint_of`).
        question: What the run was to find out.

    Raises:
        InputError: The folder is not that of a training run, or files in it are damaged.
    """
    # 1. The files.
    try:
        config = stored_config(run / CONFIG)
    except InputError as error:  # such as the settings of `hgpo sft`
        raise InputError(
            f"{run}: expected the folder of a run of hgpo train ({error})"
        ) from None
    has_rollouts = bool(read_manifest(run).shards)
    state = read_json(checkpoint / STATE, TrainingState)
    metrics = read_metrics(run / METRICS)
    base = config.model.path
    is_hub_name = base.count("/") == 1 and base[0] not in "./~"
    files = file_sums(
        run, CONFIG, METRICS, manifest.NAME, f"{EVALUATION}/{manifest.NAME}"
    )
    for name, digest in checksums(checkpoint).items():
        if not name.startswith("trainer/"):  # what is published
            files[f"{CHECKPOINTS}/{checkpoint.name}/{name}"] = digest

    # 2. Rollouts for training, which a run on saved tables has none of, and how many were trained on.
    rollouts = {}
    if has_rollouts:
        rollouts["training"] = _trained(config, scan_steps(run), metrics)

    # 3. Held-out tasks. The initial policy is a point of the curve, and no checkpoint that can be chosen.
    success: dict[str, Any] = {
        name: {} for name in ("rules", "spread", "by_seed", "measures")
    }
    success |= {"reporting_rule": MEANT, "tasks": []}
    episodes = evaluation_episodes(run)
    if episodes is not None:
        trained = episodes.filter(pl.col("seed") > 0)
        chosen_from = episodes if trained.is_empty() else trained
        success = results(
            episodes.filter(pl.col("seed") == state.iteration), chosen_from
        )
        success["by_seed"] = points(episodes)
        success["notes"] = [evaluation_result(config, episodes, state.iteration)]
        tasks = episodes["task_id"].n_unique()
        planned = tasks * config.evaluation.group_size * episodes["seed"].n_unique()
        rollouts["evaluation"] = rollout_counts(scan_steps(run / EVALUATION), planned)

    # 4. The document.
    missing = {
        "rollouts": not has_rollouts,
        "evaluation": episodes is None,
        "training seeds": True,
        "GPU": _gpu_hours(config, metrics) is not None,
        "base model": not is_hub_name and base not in BUNDLED,
    }
    head = {
        "library_name": "peft"
        if (checkpoint / ADAPTER_SETTINGS).exists()
        else "transformers",
        "pipeline_tag": "text-generation",
    }
    if is_hub_name and not Path(base).exists():
        head["base_model"] = base
    settings = _settings(config, state, metrics)
    settings["base model"] = base if is_hub_name else _local(base)
    title = f"A policy for {config.environment.id}, trained with the estimator {config.advantage.estimator}."
    # trained on a saved table: the configuration's environment and groups were not used
    if not has_rollouts:
        title = f"A policy, trained on saved rollouts with the estimator {config.advantage.estimator}."
        del settings["environment"]
        del settings["training"]
    return finished(
        missing,
        kind="training",
        name=config.name,
        title=title,
        question=question,
        iteration=state.iteration,
        head=head,
        settings=settings,
        config=asdict(config),
        rollouts=rollouts,
        files=files,
        commands=_commands(config),
        **success,
    )


def _trained(
    config: Config, steps: pl.LazyFrame, metrics: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the counts of the rollouts for training, and what of them the updates used.

    Groups are left out by `rollout.filter_groups`, rows by `update.overlong` and `update.max_policy_lag`.
    """
    iterations = int(steps.select(pl.col("iteration").max()).collect().item()) + 1
    size = independent_rollouts(config.rollout.group_size, config.rollout.branch)
    counts = rollout_counts(steps, iterations * config.rollout.tasks * size)
    for name in ("groups", "rows"):
        counts[f"{name}_trained_on"] = _total(metrics, f"training/{name}")
    return counts


def _settings(
    config: Config, state: TrainingState, metrics: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the settings that the page shows: those of environment and estimator, and others that were changed."""
    environment = asdict(config.environment)
    chosen = asdict(config)
    defaults = asdict(Config())
    changed: dict[str, Any] = {}
    for section in ("model", "rollout", "update", "optimiser", "evaluation"):
        for name, value in chosen[section].items():
            if value != defaults[section][name] and (section, name) != (
                "model",
                "path",
            ):
                changed[f"{section}.{name}"] = value
    return {
        "environment": {
            name: value for name, value in environment.items() if value not in ("", {})
        },
        "base model": "",
        "estimator": config.advantage.estimator,
        "its parameters": _parameters(config),
        "training": {
            "iterations of the checkpoint": state.iteration,
            "of the run": max((line["iteration"] for line in metrics), default=None),
            "planned": config.iterations,
            "tasks": config.rollout.tasks,
            "group size": config.rollout.group_size,
        },
        "other settings that are not defaults": changed,
        "seeds": {
            "training": config.seed,
            "evaluation": config.seed + config.evaluation.seed,
        },
        "compute": {
            "device": config.model.device,
            "seconds of iterations": _total(metrics, "timing_s/step", 1),
            "GPU hours": _gpu_hours(config, metrics),
            "environment steps of the checkpoint": state.environment_steps,
            "tokens trained on": _total(metrics, "perf/total_num_tokens"),
        },
        "versions": state.versions,
    }


def _parameters(config: Config) -> dict[str, Any]:
    """Return all parameters of the estimator; only those that are stored, if it is not of this package or a plugin."""
    named = code_named(config)
    stored = config.advantage.parameters
    # code that a stranger's run names is not imported
    if named["the estimator"] or named["the state key"]:
        return stored
    try:
        return asdict(configured_estimator(config).parameters)
    except InputError:
        return stored


def _total(
    metrics: Sequence[Mapping[str, Any]], name: str, digits: int | None = None
) -> float | None:
    """Return the sum of a metric over the iterations, rounded; None if no iteration has it."""
    values = [line[name] for line in metrics if line.get(name) is not None]
    total = sum(values)
    return round(total, digits) if values and math.isfinite(total) else None


def _gpu_hours(config: Config, metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the GPU hours of the iterations; None if they were not trained on a GPU.

    Not in it: the evaluation before training, and what was repeated after an interruption.
    """
    seconds = _total(
        [line for line in metrics if "perf/max_memory_allocated_gb" in line],
        "timing_s/step",
    )
    gpus = config.rollout.engine_options.get("tensor_parallel_size", 1)
    if seconds is None or not isinstance(gpus, int):
        return None
    return round(gpus * seconds / 3600, 3)


def _local(base: str) -> str:
    """Return the name of a base model that is not on the hub; its folder on this machine is not told."""
    return (
        f"{base}, of the package hgpo" if base in BUNDLED else "a model of the author"
    )


def _commands(config: Config) -> list[str]:
    """Return the commands that evaluate the model, and that train it again."""
    command = shlex.join(evaluation_command(config, "transformers:FOLDER"))
    template = config.environment.prompt_template
    if template:  # a file of this machine, without its folder
        command = command.replace(template, Path(template).name)
    return [
        f"{command} --out runs/eval # evaluate this folder",
        "train config.toml --out runs/again # train again, with this configuration",
    ]
