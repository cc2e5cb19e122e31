"""`hgpo check env` and `hgpo check gpu`: find an adapter's mistakes, and a GPU's, before they cost a run."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any, Final

from cyclopts.types import PositiveInt  # noqa: TC002 - cyclopts reads the annotations

from hgpo_train.cli import options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_WORDS: Final = {"pass": "ok", "warning": "warn", "fail": "FAIL"}
"""The verdicts in words, because a terminal without UTF-8 prints other marks as question marks."""


def check_env(
    env: options.Env,
    /,
    *,
    episodes: PositiveInt = 20,
    seed: int = 0,
    environment: options.EnvironmentOptions = options.EnvironmentOptions(),
    policy: str | None = None,
    as_json: options.Json = False,
) -> None:
    """Play rollouts again in other ways, compare them, and look for what would spoil groups and success.

    The exit code is 1 if a check fails.

    Args:
        env: The environment.
        episodes: Number of rollouts to play: four of each task, rounded up, and at most of every task.
        seed: Seed of the random actions.
        environment: The options of the environment.
        policy: Play this policy's actions instead of random ones: expert, openai:MODEL, …
        as_json: Whether to print JSON.
    """
    import gymnasium

    from hgpo_envs.env_checker import check_environment
    from hgpo_envs.env_checks.rollouts import ROLLOUTS, number_of_tasks
    from hgpo_envs.environment_spec import environment_ids
    from hgpo_train.rollout.env_handle import open_env

    arguments = environment.arguments()
    handle = open_env(env, **arguments)
    adapter = (
        gymnasium.make(handle.env_id, **arguments).unwrapped
        if handle.env_id in environment_ids()
        else None
    )
    tasks = min(len(handle.tasks), number_of_tasks(episodes))
    commands = (
        None
        if policy is None
        else _played(env, policy, tasks, ROLLOUTS, seed, arguments)
    )
    checks = check_environment(
        handle.shared,
        handle.settings,
        handle.tasks,
        episodes=episodes,
        seed=seed,
        env=adapter,
        commands=commands,
    )
    with closing(handle):
        _report(
            checks,
            lambda finding: (
                f"{_WORDS[finding.verdict]:<4} {finding.check:<19} {finding.message}"
            ),
            25,
            as_json=as_json,
        )


def _played(
    env: str,
    policy: str,
    tasks: int,
    group_size: int,
    seed: int,
    options: dict[str, Any],
) -> dict[str, list[list[str]]]:
    """Return the commands of a policy's rollouts by task."""
    from tempfile import TemporaryDirectory

    from hgpo_train.rollout import collect

    commands: dict[str, list[list[str]]] = {}
    with TemporaryDirectory() as folder:
        run = collect(
            env,
            policy,
            folder,
            tasks=tasks,
            group_size=group_size,
            seed=seed,
            max_failed=1,
            **options,
        )
        rows = run.steps.sort("task_id", "trajectory", "step").group_by(
            "task_id", "trajectory", maintain_order=True
        )
        for task_id, taken in (
            rows.agg("action").select("task_id", "action").collect().iter_rows()
        ):
            commands.setdefault(task_id, []).append(taken)
    return commands


def check_gpu(
    config: str | None = None,
    /,
    *,
    overrides: options.Overrides = None,
    as_json: options.Json = False,
) -> None:
    """Check the GPU, its memory, log-probabilities, one update and vLLM, with random weights.

    It takes about a minute, and two with vLLM, and downloads nothing. The exit code is 1 if a check fails.

    Args:
        config: A TOML file, or a shipped configuration.
        overrides: Settings.
        as_json: Whether to print JSON.
    """
    from hgpo_envs.unicode_text import clean_text
    from hgpo_train.training import gpu_check
    from hgpo_train.training.config import Config, load_config

    settings = (
        load_config(config, overrides or (), Config) if config or overrides else None
    )
    _report(
        gpu_check.check_gpu(settings),
        lambda finding: clean_text(finding.line()),
        30,
        as_json=as_json,
    )


def _report(
    checks: Iterable[Any], describe: Callable[[Any], str], indent: int, *, as_json: bool
) -> None:
    """Print findings as they come, or all of them as JSON. Exit with 1 if a check fails.

    Args:
        checks: The findings.
        describe: Returns the text of a finding.
        indent: Where its second line begins.
        as_json: Whether to print JSON.
    """
    from hgpo_train.cli.display import print_json, terminal

    lines = TextWrapper(
        terminal().width,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    findings = []
    for finding in checks:
        findings.append(finding)
        if not as_json:
            print(lines.fill(describe(finding)))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    failed = [finding for finding in findings if finding.verdict == "fail"]
    if len(failed) > 1 and not as_json:
        print(f"Repair {failed[0].check!r} first: other failures can follow from it.")
    if failed:
        sys.exit(1)
