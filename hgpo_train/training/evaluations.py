"""Evaluations of a training run on held-out tasks: their results, and the command that repeats one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from hgpo_datasets import manifest, scan_steps
from hgpo_datasets.sources import is_run
from hgpo_envs.wording import counted
from hgpo_train.evaluation.report import (
    EvaluationReport,
    episode_table,
    evaluation_reports,
)
from hgpo_train.training.config import Config
from hgpo_train.training.run_folder import EVALUATION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import polars as pl

_FLAGS: Final = ("history_length", "max_steps", "action_format")
"""The options of episodes that are options of `hgpo eval`; it takes the others as `--env-option`."""


def evaluation_command(config: Config, policy: str) -> list[str]:
    """Return the arguments of `hgpo` that play a policy with the prompts, format and limits of its training."""
    environment = config.environment
    flags: dict[str, object] = {
        "env": environment.id,
        "policy": policy,
        "split": config.evaluation.split,
    }
    if environment.data != "bundled":
        flags["data"] = "DATA"
    for name in _FLAGS:
        flags[name.replace("_", "-")] = getattr(environment, name)
    flags["temperature"] = config.evaluation.temperature
    arguments = ["eval"]
    for name, value in flags.items():
        arguments += [f"--{name}", str(value)]

    # options without a flag, where they differ from the defaults
    chosen = environment.episode_options()
    defaults = Config().environment.episode_options()
    shown = {
        name: value
        for name, value in chosen.items()
        if value != defaults[name] and name not in _FLAGS
    }
    limits = {
        name: getattr(config.rollout, name)
        for name in ("max_prompt_tokens", "max_response_tokens", "overflow")
    }
    for kind, values in (("env", shown | environment.options), ("policy", limits)):
        for name, value in values.items():
            text = value if isinstance(value, str) else json.dumps(value)
            arguments += [f"--{kind}-option", f"{name}={text}"]
    return arguments


def evaluation_episodes(run: Path) -> pl.DataFrame | None:
    """Return the episodes on held-out tasks, with their iteration as `seed`; None if a training run has none."""
    folder = run / EVALUATION
    if not is_run(folder) or not manifest.read(folder).shards:
        return None
    return episode_table(scan_steps(folder))


def evaluations(run: Path) -> dict[int, EvaluationReport]:
    """Return the evaluations of a training run on held-out tasks, by iteration."""
    episodes = evaluation_episodes(run)
    parts = {} if episodes is None else episodes.partition_by("seed", as_dict=True)
    reports = {
        int(str(seed)): evaluation_reports(part) for (seed,), part in parts.items()
    }
    return {seed: reports[seed][0] for seed in sorted(reports) if reports[seed]}


def evaluation_result(
    config: Config,
    found: Mapping[int, EvaluationReport],
    iteration: int,
) -> str:
    """Return a checkpoint's success on held-out tasks with its interval, and whether it is the highest of several."""
    shares = {number: report.success.share or 0.0 for number, report in found.items()}
    if iteration not in found:
        return f"Iteration {iteration} was not evaluated on held-out tasks."
    size = (
        f"{counted(found[iteration].tasks, 'task')} of split {config.evaluation.split}"
    )
    line = f"Iteration {iteration}: success {_success(found[iteration])} on {size}."
    last = max(found)
    is_chosen = min(shares.values()) < shares[iteration] == max(shares.values())
    if not is_chosen:
        return line
    line += f" It is the highest of {len(found)} evaluations on these tasks: chosen for that, it is too high."
    return (
        line
        if last == iteration
        else f"{line} The last, iteration {last}: {_success(found[last])}."
    )


def _success(report: EvaluationReport) -> str:
    measure = report.measures["success"]
    return (
        "unknown"
        if measure is None
        else f"{measure.mean:.1%} ({measure.low:.1%} to {measure.high:.1%})"
    )
