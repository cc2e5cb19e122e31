"""A checkpoint of a run as a model of Hugging Face, with a model card: `hgpo push`."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.atomic import new_folder
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

BAR: int = 30
"""Characters of a success of 100% in the card's curve."""


def push(
    run: Path, out: Path | None = None, repo: str | None = None, *, iteration: int | None = None, public: bool = False
) -> str:
    """Write a checkpoint as a model with a card to a folder, or upload it to the Hugging Face hub.

    The model has the checkpoint's weights, or adapters, its tokenizer and the run's configuration; the optimiser's
    state stays.

    Args:
        run: The folder of a training run.
        out: The folder to create.
        repo: The hub's repository to upload to instead, such as ``me/alfworld``; created if it is missing.
        iteration: The iteration whose checkpoint is meant. Default: the one with the highest success on held-out tasks
            if it is there, or else the newest.
        public: Whether a new repository is public.

    Returns:
        The folder, or the address of the repository.

    Raises:
        InputError: There is no such checkpoint, it is damaged, `out` exists, or the hub refuses the upload.
    """
    if (out is None) == (repo is None):
        raise InputError("expected a folder (--out) or a repository of the hub (--repo), and not both")
    checkpoint = _checkpoint(run, iteration)
    try:
        config = stored_config(run / CONFIG)
    except InputError as error:  # such as the settings of `hgpo sft`
        raise InputError(f"{run}: expected the folder of a run of hgpo train ({error})") from None
    state = read_json(checkpoint / STATE, TrainingState)
    card = model_card(config, state, evaluations(run), adapters=(checkpoint / ADAPTER_SETTINGS).exists())
    if out is not None:
        with new_folder(out) as folder:
            _fill(folder, checkpoint, run, card)
        return str(out)
    with tempfile.TemporaryDirectory() as scratch:
        _fill(Path(scratch), checkpoint, run, card)
        return _upload(Path(scratch), str(repo), f"{config.name}, iteration {state.iteration}", public=public)


def _checkpoint(run: Path, iteration: int | None) -> Path:
    newest = Path(resolve_model(str(run)))
    if newest == run:
        raise InputError(f"{run} has no checkpoint; expected the folder of a run of hgpo train")
    if iteration is None:
        best = newest.parent / f"{read_json(newest / STATE, TrainingState).best:06d}"
        return best if best.is_dir() else newest
    checkpoint, known = newest.parent / f"{iteration:06d}", list_checkpoints(newest.parent)
    if checkpoint not in known:
        expected = ", ".join(str(int(path.name)) for path in known)
        raise InputError(f"--iteration: expected one with a checkpoint ({expected}), received {iteration}")
    problems = verify_checkpoint(checkpoint, weights_only=True).problems
    if problems:
        raise InputError(f"checkpoint {checkpoint} cannot be used ({problems[0].message}); choose another --iteration")
    return checkpoint


def _fill(folder: Path, checkpoint: Path, run: Path, card: str) -> None:
    for file in (path for path in checkpoint.iterdir() if path.is_file()):
        shutil.copyfile(file, folder / file.name)
    shutil.copyfile(run / CONFIG, folder / CONFIG)  # written without secrets
    (folder / "README.md").write_text(card, encoding="utf-8")


def _upload(folder: Path, repo: str, message: str, *, public: bool) -> str:
    from huggingface_hub import HfApi

    try:
        hub = HfApi()
        url = hub.create_repo(repo, private=not public, exist_ok=True)
        hub.upload_folder(folder_path=folder, repo_id=repo, commit_message=message)
    except Exception as error:  # of the hub, or of the HTTP library below it
        status = getattr(getattr(error, "response", None), "status_code", None)
        advice = "see `hf auth login`" if status in (401, 403) else "--out writes it to a folder"
        raise InputError(f"the hub did not take {repo!r} ({one_line(error, 200)}); {advice}") from error
    return str(url)


def evaluation_command(config: Config, policy: str) -> list[str]:
    """Return the arguments of `hgpo` that play a policy with the prompts, format and limits of its training."""
    environment, rollout, plain = config.environment, config.rollout, Config().environment
    flags: dict[str, object] = {"env": environment.id, "policy": policy, "split": config.evaluation.split}
    flags |= {} if environment.data == "bundled" else {"data": "DATA"}
    flags |= {"history-length": environment.history_length, "max-steps": environment.max_steps}
    flags |= {"action-format": environment.action_format, "temperature": config.evaluation.temperature}
    arguments = ["eval", *(text for name, value in flags.items() for text in (f"--{name}", str(value)))]
    shown = {name: getattr(environment, name) for name in ("prompt_template", "prompt_style", "system_prompt")}
    options = {name: value for name, value in shown.items() if value != getattr(plain, name)} | environment.options
    limits = {name: getattr(rollout, name) for name in ("max_prompt_tokens", "max_response_tokens", "overflow")}
    for kind, values in (("env", options), ("policy", limits)):
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
        arguments += [part for name, text in texts.items() for part in (f"--{kind}-option", f"{name}={text}")]
    return arguments


def evaluations(run: Path) -> dict[int, EvaluationReport]:
    """Return the evaluations of a training run on held-out tasks, by iteration."""
    if not (run / "evaluation").is_dir():
        return {}
    parts = episode_table(scan_steps(run / "evaluation")).partition_by("seed", as_dict=True)
    reports = {int(str(seed)): evaluation_reports(part) for (seed,), part in parts.items()}
    return {seed: reports[seed][0] for seed in sorted(reports) if reports[seed]}


def evaluation_result(config: Config, found: Mapping[int, EvaluationReport], iteration: int) -> str:
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
    config: Config, state: TrainingState, found: Mapping[int, EvaluationReport], *, adapters: bool = False
) -> str:
    """Return the card of a model: environment, estimator, its success on held-out tasks (`evaluations`), commands."""
    environment, evaluation, base = config.environment, config.evaluation, config.model.path
    is_on_hub = base.count("/") == 1 and not Path(base).exists() and not base.startswith(".")
    header = {"library_name": "peft" if adapters else "transformers", "pipeline_tag": "text-generation"}
    header |= {"base_model": base} if is_on_hub else {}
    lines = ["---", *(f"{name}: {value}" for name, value in header.items())]
    lines += ["tags:", "- hgpo", "- reinforcement-learning", "- llm-agent", "---", ""]
    lines += [f"# {config.name}", ""]
    lines += [f"A policy for {environment.id}, trained with the estimator `{config.advantage.estimator}`.", ""]
    rollout = config.rollout
    shown = base if is_on_hub else f"{base}, of the package hgpo" if base in BUNDLED else "a model of the author"
    facts = {
        "base model": f"{shown}{', with adapters' if adapters else ''}",
        "environment": f"{environment.id}, split {environment.split}, at most {environment.max_steps} steps",
        "prompt": f"{environment.prompt_style}, K = {environment.history_length}, {environment.action_format}",
        "estimator": f"{config.advantage.estimator} {json.dumps(config.advantage.parameters, default=str)}",
        "training": f"{counted(state.iteration, 'iteration')} of {counted(rollout.tasks, 'task')} × "
        f"{counted(rollout.group_size, 'rollout')}, "
        f"{state.environment_steps:,} environment steps, seed {config.seed}",
        "versions": ", ".join(f"{name} {version}" for name, version in state.versions.items()),
    }
    lines += ["| | |", "|---|---|", *(f"| {name} | {value.replace('|', '/')} |" for name, value in facts.items()), ""]
    if found:
        lines += ["## Success on held-out tasks", "", evaluation_result(config, found, state.iteration)]
        lines += [f"Sampled at temperature {evaluation.temperature}; 95% intervals with the tasks as trials.", ""]
        lines += ["| iteration | tasks | success | |", "|---|---|---|---|"]
        for iteration, report in found.items():
            mark = " this model" if iteration == state.iteration else ""
            bar = "█" * round(BAR * (report.success.share or 0))
            lines.append(f"| {iteration} | {report.tasks} | {_success(report)} | {bar}{mark} |")
        lines.append("")
    command = shlex.join(evaluation_command(config, "transformers:FOLDER"))
    if environment.prompt_template:  # a file of this machine, without its folder
        command = command.replace(environment.prompt_template, Path(environment.prompt_template).name)
    commands = [
        f"hgpo {command} --out runs/eval  # evaluate this folder",
        "hgpo train config.toml --out runs/again  # train again, with this configuration",
    ]
    lines += ["## Commands", "", *(f"    {command}" for command in commands), ""]
    lines += ["The license of the weights is that of the base model.", ""]
    return "\n".join(lines)
