"""Resuming rollouts that version 0.1 began: it stored no fingerprints of tasks and weights.

What it did store must be equal, as for every run. Instead of the fingerprint, the tasks that the run's rows name are
compared with the tasks of the world. Of weights nothing is known.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from hgpo_datasets import manifest, scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.secrets import redact
from hgpo_train.policies.base import Failure
from hgpo_train.policies.validation import checked_task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hgpo_train.rollout.env_handle import EnvHandle

_TASKS: Final = 1_000
"""How many of the run's tasks are compared."""


def comparable(
    folder: Path, config: Mapping[str, Any], handle: EnvHandle, say: Callable[[str], object] = lambda _: None
) -> dict[str, Any]:
    """The configuration with which a run is opened: without the fingerprints that the run in the folder does not have.

    Args:
        folder: The run's, which may not exist.
        config: What `hgpo_train.rollout.run.run_config` gives.
        handle: What is played.
        say: Called with a line that says what could not be compared, if anything.

    Raises:
        InputError: The run has no fingerprint of its tasks, and its rows were played with other tasks.
    """
    before = _stored(folder)
    if before is None:
        return dict(config)
    kept, missing = dict(config), []
    if "tasks" in config and "tasks" not in before:
        del kept["tasks"]
        _compare_tasks(folder, handle)
        missing.append("data")
    acting, acted = config.get("policy"), before.get("policy")
    if isinstance(acting, dict) and isinstance(acted, dict) and "weights" in acting and "weights" not in acted:
        kept["policy"] = {name: value for name, value in acting.items() if name != "weights"}
        missing.append("weights")
    if missing:
        say(
            f"{folder} stores no fingerprints of its {' and '.join(missing)} (version 0.1): they may have changed since"
        )
    return kept


def _stored(folder: Path) -> Mapping[str, Any] | None:
    """The configuration of the run in a folder; None where there is none, or it cannot be read."""
    try:
        header = manifest.read(folder).header
    except InputError:
        return None  # opening the run says why
    return None if header is None else header.config


def _compare_tasks(folder: Path, handle: EnvHandle) -> None:
    try:
        played = scan_steps(folder).select("task_id", "task", "env_version").drop_nulls("task")
        rows = played.unique().sort("task_id").head(_TASKS).collect().rows()
    except InputError:
        return  # there are no rows yet, or opening the run says what is wrong with them
    for task_id, text, versions in rows:
        task = _task(handle, task_id)
        if task != (redact(text, patterns=False), versions):
            raise InputError(
                f"{folder} was written with another task {task_id!r}; give another folder, or the data that it was "
                "begun with"
            )


def _task(handle: EnvHandle, task_id: str) -> tuple[str, str] | None:
    try:
        task = checked_task(handle.shared.source.task(task_id))
    except (InputError, KeyError):
        return None
    if isinstance(task, Failure):
        return None
    return task.instruction, json.dumps(dict(task.versions), sort_keys=True, ensure_ascii=False)
