"""Evaluations of a training run, and the model card of a checkpoint: `hgpo card`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.wording import counted
from hgpo_train.evaluation.report import EvaluationReport, episode_table, evaluation_reports
from hgpo_train.models.checkpoint_files import (
    BUNDLED,
    STATE,
    TrainingState,
    list_checkpoints,
    read_json,
    resolve_model,
    verify_checkpoint,
)
from hgpo_train.models.preflight import ADAPTER_SETTINGS
from hgpo_train.training.config import Config, stored_config
from hgpo_train.training.run_folder import CONFIG

if TYPE_CHECKING:
    from collections.abc import Mapping

BAR: Final = 30
"""Characters of a success of 100% in the card's curve."""

_FLAGS: Final = ("history_length", "max_steps", "action_format")
"""The options of episodes that are options of `hgpo eval`; it takes the others as `--env-option`."""


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
        raise InputError(f"{run} has no checkpoint; expected the folder of a run of hgpo train")
    if iteration is None:
        best = newest.parent / f"{read_json(newest / STATE, TrainingState).best:06d}"
        return best if best.is_dir() else newest

    checkpoint = newest.parent / f"{iteration:06d}"
    known = list_checkpoints(newest.parent)
    if checkpoint not in known:
        expected = ", ".join(str(int(path.name)) for path in known)
        raise InputError(f"--iteration: expected one with a checkpoint ({expected}), received {iteration}")
    problems = verify_checkpoint(checkpoint, weights_only=True).problems
    if problems:
        raise InputError(f"checkpoint {checkpoint} cannot be used ({problems[0].message}); choose another --iteration")
    return checkpoint


def run_card(run: Path, checkpoint: Path) -> str:
    """Return the model card of a checkpoint of a training run.

    Raises:
        InputError: The folder is not that of a training run.
    """
    try:
        config = stored_config(run / CONFIG)
    except InputError as error:  # such as the settings of `hgpo sft`
        raise InputError(f"{run}: expected the folder of a run of hgpo train ({error})") from None
    state = read_json(checkpoint / STATE, TrainingState)
    return model_card(
        config,
        state,
        evaluations(run),
        adapters=(checkpoint / ADAPTER_SETTINGS).exists(),
    )


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
    shown = {name: value for name, value in chosen.items() if value != defaults[name] and name not in _FLAGS}
    limits = {name: getattr(config.rollout, name) for name in ("max_prompt_tokens", "max_response_tokens", "overflow")}
    for kind, values in (("env", shown | environment.options), ("policy", limits)):
        for name, value in values.items():
            text = value if isinstance(value, str) else json.dumps(value)
            arguments += [f"--{kind}-option", f"{name}={text}"]
    return arguments


def evaluations(run: Path) -> dict[int, EvaluationReport]:
    """Return the evaluations of a training run on held-out tasks, by iteration."""
    if not (run / "evaluation").is_dir():
        return {}
    parts = episode_table(scan_steps(run / "evaluation")).partition_by("seed", as_dict=True)
    reports = {int(str(seed)): evaluation_reports(part) for (seed,), part in parts.items()}
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
    size = f"{counted(found[iteration].tasks, 'task')} of split {config.evaluation.split}"
    line = f"Iteration {iteration}: success {_success(found[iteration])} on {size}."
    last = max(found)
    if len(found) == 1 or shares[iteration] < max(shares.values()):
        return line
    line += f" It is the highest of {len(found)} evaluations on these tasks: chosen for that, it is too high."
    return line if last == iteration else f"{line} The last, iteration {last}: {_success(found[last])}."


def _success(report: EvaluationReport) -> str:
    measure = report.measures["success"]
    return "unknown" if measure is None else f"{measure.mean:.1%} ({measure.low:.1%} to {measure.high:.1%})"


def model_card(
    config: Config,
    state: TrainingState,
    found: Mapping[int, EvaluationReport],
    *,
    adapters: bool = False,
) -> str:
    """Return the card of a model: environment, estimator, its success on held-out tasks (`evaluations`), commands."""
    environment = config.environment
    base = config.model.path
    is_on_hub = base.count("/") == 1 and not Path(base).exists() and not base.startswith(".")

    # the head that Hugging Face reads
    header = {"library_name": "peft" if adapters else "transformers", "pipeline_tag": "text-generation"}
    if is_on_hub:
        header["base_model"] = base
    lines = ["---", *(f"{name}: {value}" for name, value in header.items())]
    lines += ["tags:", "- hgpo", "- reinforcement-learning", "- llm-agent", "---", ""]

    lines += [f"# {config.name}", ""]
    lines += [f"A policy for {environment.id}, trained with the estimator `{config.advantage.estimator}`.", ""]
    lines += ["| | |", "|---|---|"]
    for name, value in _facts(config, state, base if is_on_hub else _local(base), adapters=adapters).items():
        lines.append(f"| {name} | {value.replace('|', '/')} |")
    lines.append("")
    if found:
        lines += _curve(config, found, state.iteration)

    command = shlex.join(evaluation_command(config, "transformers:FOLDER"))
    if environment.prompt_template:  # a file of this machine, without its folder
        command = command.replace(environment.prompt_template, Path(environment.prompt_template).name)
    lines += ["## Commands", ""]
    lines.append(f"    hgpo {command} --out runs/eval  # evaluate this folder")
    lines.append("    hgpo train config.toml --out runs/again  # train again, with this configuration")
    lines += ["", "The license of the weights is that of the base model.", ""]
    return "\n".join(lines)


def _local(base: str) -> str:
    """Return the name of a base model that is not on the hub; its folder on this machine is not told."""
    return f"{base}, of the package hgpo" if base in BUNDLED else "a model of the author"


def _facts(
    config: Config,
    state: TrainingState,
    base: str,
    *,
    adapters: bool,
) -> dict[str, str]:
    environment = config.environment
    tasks = counted(config.rollout.tasks, "task")
    rollouts = counted(config.rollout.group_size, "rollout")
    steps = f"{state.environment_steps:,} environment steps"
    return {
        "base model": f"{base}, with adapters" if adapters else base,
        "environment": f"{environment.id}, split {environment.split}, at most {environment.max_steps} steps",
        "prompt": f"{environment.prompt_style}, K = {environment.history_length}, {environment.action_format}",
        "estimator": f"{config.advantage.estimator} {json.dumps(config.advantage.parameters, default=str)}",
        "training": f"{counted(state.iteration, 'iteration')} of {tasks} × {rollouts}, {steps}, seed {config.seed}",
        "versions": ", ".join(f"{name} {version}" for name, version in state.versions.items()),
    }


def _curve(
    config: Config,
    found: Mapping[int, EvaluationReport],
    chosen: int,
) -> list[str]:
    lines = ["## Success on held-out tasks", "", evaluation_result(config, found, chosen)]
    temperature = config.evaluation.temperature
    lines += [f"Sampled at temperature {temperature}; 95% intervals with the tasks as trials.", ""]
    lines += ["| iteration | tasks | success | |", "|---|---|---|---|"]
    for iteration, report in found.items():
        bar = "█" * round(BAR * (report.success.share or 0))
        mark = " this model" if iteration == chosen else ""
        lines.append(f"| {iteration} | {report.tasks} | {_success(report)} | {bar}{mark} |")
    return [*lines, ""]
