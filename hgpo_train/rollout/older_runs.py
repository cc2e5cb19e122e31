"""Whether a run in a folder can be resumed with a configuration.

All values that its rows depend on must be equal. Runs of version 0.1 stored no fingerprints of tasks and weights, but
the options of a policy that do not affect its replies, such as a server's address. Instead of a fingerprint, the tasks
in the run's rows are compared with those of the task source. Weights cannot be compared. The options are ignored.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from hgpo_datasets import manifest, scan_steps
from hgpo_datasets.shard_folder import check_same_config
from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import redact, redact_json
from hgpo_train.policies.base import Failure
from hgpo_train.policies.registry import execution_options
from hgpo_train.policies.validation import checked_task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hgpo_train.rollout.env_handle import EnvHandle

_TASKS: Final = 1_000
"""Maximum number of the run's tasks that are compared."""


def comparable(
    folder: Path, config: Mapping[str, Any], handle: EnvHandle, say: Callable[[str], object] = lambda _: None
) -> dict[str, Any]:
    """Return the configuration as the run in a folder would store it, so that the run can be resumed with it.

    Args:
        folder: The run's folder, which may not exist.
        config: The configuration of `hgpo_train.rollout.run.run_config`.
        handle: The environment.
        say: Called with one line that names the missing fingerprints, if any.

    Raises:
        InputError: A value differs from the stored one, or the run stores no fingerprint of its tasks and its rows
            contain other tasks.
    """
    before = stored_config(folder)
    if before is None:
        return dict(config)
    kept, missing = dict(config), []
    if "tasks" in config and "tasks" not in before:
        del kept["tasks"]
        _compare_tasks(folder, handle)
        missing.append("data")
    acting, acted = config.get("policy"), before.get("policy")
    if isinstance(acting, dict) and isinstance(acted, dict):
        unstored = {"weights"} & (acting.keys() - acted.keys())
        ignored = execution_options(str(acting.get("name", ""))) & acted.keys()
        kept["policy"] = {
            **{name: value for name, value in acting.items() if name not in unstored},
            **{name: acted[name] for name in ignored},
        }
        missing += unstored
    with suppress(TypeError):  # a value is not JSON: opening the run raises the error
        check_same_config(folder, manifest.plain(kept), redact_json(before))  # runs of 0.1 may contain secrets
    if missing:
        say(
            f"{folder} stores no fingerprints of its {' and '.join(missing)} (version 0.1): they may have changed since"
        )
    return kept


def stored_config(folder: Path) -> Mapping[str, Any] | None:
    """Return the configuration of the run in a folder; None if there is none or it cannot be read."""
    try:
        header = manifest.read(folder).header
    except InputError:
        return None  # opening the run raises the error
    return None if header is None else header.config


def _compare_tasks(folder: Path, handle: EnvHandle) -> None:
    try:
        played = scan_steps(folder).select("task_id", "task", "env_version").drop_nulls("task")
        rows = played.unique().sort("task_id").head(_TASKS).collect().rows()
    except InputError:
        return  # there are no rows yet, or opening the run raises the error
    for task_id, text, versions in rows:
        task = _task(handle, task_id)
        if task != (redact(text, patterns=False), versions):
            raise InputError(
                f"{folder} was written with another task {task_id!r}; use another folder, or the data with which the "
                "run began"
            )


def _task(handle: EnvHandle, task_id: str) -> tuple[str, str] | None:
    try:
        task = checked_task(handle.shared.source.task(task_id))
    except (InputError, KeyError):
        return None
    if isinstance(task, Failure):
        return None
    return task.instruction, json.dumps(dict(task.versions), sort_keys=True, ensure_ascii=False)
