"""`hgpo check env`: find an adapter's mistakes before they cost a run."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from hgpo_train.cli import collection  # typer reads the annotations
from hgpo_train.cli.command_types import RedactedApp

app = RedactedApp(name="check", no_args_is_help=True, help="Check an environment before it is trained on.")

_MARKS: Final = {"pass": "✓", "warning": "!", "fail": "✗"}


@app.callback()
def check() -> None:
    """Check an environment before it is trained on."""


@app.command("env")
def check_env(
    env: Annotated[str, typer.Argument(help="Gymnasium id of the environment, or module:EnvironmentSpec.")],
    episodes: Annotated[int, typer.Option(help="Number of rollouts to play; four of each task.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the random actions.")] = 0,
    split: Annotated[str, typer.Option(help="Split of the tasks; 'all' includes every split.")] = "train",
    data: collection.Data = None,
    max_steps: collection.MaxSteps = None,
    env_option: collection.EnvOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Play rollouts again in other ways, compare them, and look for what would spoil groups and success.

    The exit code is 1 if a check fails.
    """
    from dataclasses import asdict

    import gymnasium
    import orjson

    from hgpo_envs.env_checker import check_environment
    from hgpo_envs.environment_spec import environment_ids
    from hgpo_envs.errors import InputError
    from hgpo_envs.unicode_text import clean_text
    from hgpo_train.rollout.env_handle import open_env

    if episodes < 1:
        raise InputError(f"--episodes: expected at least 1, received {episodes}")
    options = collection.environment_options(split, data, 2, max_steps, None, env_option)
    handle = open_env(env, **options)
    made = gymnasium.make(handle.env_id, **options).unwrapped if handle.env_id in environment_ids() else None
    findings = []
    for finding in check_environment(
        handle.shared, handle.settings, handle.tasks, episodes=episodes, seed=seed, env=made
    ):
        findings.append(finding)
        if not as_json:
            typer.echo(f"{_MARKS[finding.verdict]} {finding.check:<19} {clean_text(finding.message)}")
    if as_json:
        typer.echo(orjson.dumps([asdict(finding) for finding in findings], option=orjson.OPT_INDENT_2).decode())
    if any(finding.verdict == "fail" for finding in findings):
        raise typer.Exit(1)
