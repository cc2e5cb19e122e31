"""Evaluations of a training run on held-out tasks: their results, and the command that repeats one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from hgpo_datasets import manifest, scan_steps
from hgpo_datasets.sources import is_run
from hgpo_envs.wording import counted
from hgpo_train.evaluation.report import episode_table
from hgpo_train.evaluation.reporting_rules import by_seed
from hgpo_train.training.config import Config
from hgpo_train.training.run_folder import EVALUATION

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from hgpo_train.measures import Estimate

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


def evaluation_result(
    config: Config, episodes: pl.DataFrame | None, iteration: int
) -> str:
    """Return a checkpoint's success on held-out tasks with its interval, and whether it is the highest of several.

    Args:
        config: The configuration of the training run.
        episodes: Its `evaluation_episodes`.
        iteration: The checkpoint's iteration.
    """
    if episodes is None or iteration not in episodes["seed"]:
        return f"Iteration {iteration} was not evaluated on held-out tasks."
    found = by_seed(episodes)
    tasks = episodes.filter(seed=iteration)["task_id"].n_unique()
    size = f"{counted(tasks, 'task')} of split {config.evaluation.split}"
    if iteration not in found:
        return f"Iteration {iteration}: success unknown on {size}."
    line = f"Iteration {iteration}: success {_success(found[iteration])} on {size}."
    last = max(found)
    shares = [estimate.value for estimate in found.values()]
    is_chosen = min(shares) < found[iteration].value == max(shares)
    if not is_chosen:
        return line
    line += f" It is the highest of {len(found)} evaluations on these tasks: chosen for that, it is too high."
    return (
        line
        if last == iteration
        else f"{line} The last, iteration {last}: {_success(found[last])}."
    )


def _success(found: Estimate) -> str:
    return f"{found.value:.1%} ({found.low:.1%} to {found.high:.1%})"
