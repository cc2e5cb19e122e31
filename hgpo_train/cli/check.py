"""`hgpo check env` and `hgpo check gpu`: find an adapter's mistakes, and a GPU's, before they cost a run."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from hgpo_train.cli import common  # typer reads the annotations
from hgpo_train.cli.command_types import RedactedApp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

app = RedactedApp(name="check", no_args_is_help=True)

_MARKS: Final = {"pass": "✓", "warning": "!", "fail": "✗"}


@app.callback()
def check() -> None:
    """Check an environment, or a GPU, before a run depends on it."""


@app.command("env")
def check_env(
    env: Annotated[str, typer.Argument(help="Gymnasium id of the environment, or module:EnvironmentSpec.")],
    episodes: Annotated[int, typer.Option(min=1, help="Number of rollouts to play; four of each task.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the random actions.")] = 0,
    split: common.Split = "train",
    data: common.Data = None,
    max_steps: common.MaxSteps = None,
    policy: Annotated[
        str | None, typer.Option(help="Play this policy's actions instead of random ones: expert, openai:MODEL, …")
    ] = None,
    env_option: common.EnvOption = None,
    as_json: common.Json = False,
) -> None:
    """Play rollouts again in other ways, compare them, and look for what would spoil groups and success.

    The exit code is 1 if a check fails.
    """
    import gymnasium

    from hgpo_envs.env_checker import ROLLOUTS, check_environment
    from hgpo_envs.environment_spec import environment_ids
    from hgpo_train.rollout.env_handle import open_env

    options = common.environment_options(env_option, split=split, data=data, max_steps=max_steps)
    handle = open_env(env, **options)
    adapter = gymnasium.make(handle.env_id, **options).unwrapped if handle.env_id in environment_ids() else None
    tasks = min(len(handle.tasks), max(1, episodes // ROLLOUTS))
    commands = None if policy is None else _played(env, policy, tasks, ROLLOUTS, seed, options)
    checks = check_environment(
        handle.shared, handle.settings, handle.tasks, episodes=episodes, seed=seed, env=adapter, commands=commands
    )
    with closing(handle):
        _report(
            checks, lambda finding: f"{_MARKS[finding.verdict]} {finding.check:<19} {finding.message}", as_json=as_json
        )


def _played(
    env: str, policy: str, tasks: int, group_size: int, seed: int, options: dict[str, Any]
) -> dict[str, list[list[str]]]:
    """Return the commands of a policy's rollouts by task."""
    from tempfile import TemporaryDirectory

    from hgpo_train.rollout import collect

    commands: dict[str, list[list[str]]] = {}
    with TemporaryDirectory() as folder:
        run = collect(env, policy, folder, tasks=tasks, group_size=group_size, seed=seed, max_failed=1, **options)
        rows = run.steps.sort("task_id", "trajectory", "step").group_by("task_id", "trajectory", maintain_order=True)
        for task_id, taken in rows.agg("action").select("task_id", "action").collect().iter_rows():
            commands.setdefault(task_id, []).append(taken)
    return commands


@app.command("gpu")
def check_gpu(
    config: Annotated[str | None, typer.Argument(help="A TOML file, or a shipped configuration.")] = None,
    overrides: common.Overrides = None,
    as_json: common.Json = False,
) -> None:
    """Check the GPU, its memory, log-probabilities, one update and vLLM, with random weights.

    It takes about a minute, and two with vLLM, and downloads nothing. The exit code is 1 if a check fails.
    """
    from hgpo_envs.unicode_text import clean_text
    from hgpo_train.training import gpu_check
    from hgpo_train.training.config import Config, load_config

    settings = load_config(config, overrides or (), Config) if config or overrides else None
    _report(gpu_check.check_gpu(settings), lambda finding: clean_text(finding.line()), as_json=as_json)


def _report(checks: Iterable[Any], describe: Callable[[Any], str], *, as_json: bool) -> None:
    """Print findings as they come, or all of them as JSON. Exit with 1 if a check fails."""
    from hgpo_train.cli.display import print_json

    findings = []
    for finding in checks:
        findings.append(finding)
        if not as_json:
            typer.echo(describe(finding))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    if any(finding.verdict == "fail" for finding in findings):
        raise typer.Exit(1)
