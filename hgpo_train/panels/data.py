"""The data of a panel: where they are, and whether they are those that it was made with."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.environment_spec import environment_spec
from hgpo_envs.episode import settings_for
from hgpo_envs.errors import InputError
from hgpo_envs.listing import official_data
from hgpo_envs.registration import resolve_id

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from hgpo_envs.engine import TaskSource
    from hgpo_train.panels.panel import Panel

OWN_DATA: Final = "the data that the environment opens without a path"


class NoDataError(InputError):
    """A panel's data are not on this machine."""


def task_checksum(source: TaskSource, ids: Sequence[str]) -> str:
    """Return the SHA-256 of tasks, in hexadecimal digits: equal on every machine, whatever the files' place and format.

    It is taken over one JSON line a task: id, instruction, type, and the source's ``contents``
    (`hgpo_envs.engine.TaskSource`) or, if it has none, the versions and the first state.

    Raises:
        KeyError: The source does not have a task (`hgpo_envs.errors.UnknownTask`).
    """
    contents = getattr(source, "contents", None)
    engine = source.engine() if contents is None else None
    digest = hashlib.sha256()
    for task_id in ids:
        task = source.task(task_id)
        line: list[Any] = [task.id, task.instruction, task.task_type]
        if contents is not None:
            line.append(contents(task_id))
        else:
            assert engine is not None
            state = engine.start(task_id)
            line += [dict(task.versions), state.text, list(state.actions), state.key]
        digest.update(json.dumps(line, sort_keys=True).encode() + b"\n")
    if (close := getattr(engine, "close", None)) is not None:
        close()
    return digest.hexdigest()


def find_data(
    panel: Panel, data: str | os.PathLike[str] | None = None
) -> tuple[dict[str, Any], str]:
    """Find a panel's data and compare their checksums.

    Args:
        panel: The panel.
        data: Where the data are. Default: the bundled data, or the environment's usual places.

    Returns:
        The keyword arguments of `hgpo_train.evaluation.evaluate` that select the environment, and the tasks' checksum.

    Raises:
        NoDataError: There are no data.
        InputError: A task is missing, or they are not those of the panel.
    """
    # What is pinned is the panel before any override: of another wording of a game, the checksum would be another one.
    base = panel.base or panel
    spec = environment_spec(resolve_id(base.environment["env"]))
    place = None if data is None else str(data)
    if place is None and panel.data:
        place, looked = official_data(spec, base.environment["split"])
        if place is None:
            tried = ", ".join(looked) or "the usual places"
            advice = f"get them with `{panel.data}`, or give their place (--data)"
            raise NoDataError(f"panel {panel.title}: no data at {tried}; {advice}")
    place_argument = {} if place is None else {"data": place}
    names = set(spec.parameters())
    arguments = {
        name: value for name, value in base.environment.items() if name in names
    } | place_argument
    shared = spec.open_source(**arguments)
    where = f"panel {panel.title}: {place or OWN_DATA}"
    template = settings_for(
        spec.name, prompt_template=panel.environment.get("prompt_template")
    ).template
    if template.fingerprint != panel.prompt_hash:
        raise InputError(
            f"panel {panel.title}: expected a prompt template with hash {panel.prompt_hash}, found "
            f"{template.fingerprint}, {template.name}; use the panel's template, or make a panel of your own"
        )
    for name, expected in base.files.items():
        found = getattr(shared.source, "files", {}).get(name, "none")
        if found != expected:
            raise InputError(
                f"{where}: expected {name} with SHA-256 {expected}, found {found}; {_advice(panel)}"
            )
    try:
        checksum = task_checksum(shared.source, base.tasks)
    except KeyError as error:
        message = error.args[0] if error.args else "a task is missing"
        raise InputError(f"{where}: {message}; {_advice(panel)}") from None
    if base.checksum and checksum != base.checksum:
        raise InputError(
            f"{where}: expected tasks with checksum {base.checksum}, found {checksum}; {_advice(panel)}"
        )
    return panel.environment | place_argument, checksum


def _advice(panel: Panel) -> str:
    return (
        f"get the panel's data with `{panel.data}`"
        if panel.data
        else "use the data that the panel was made with"
    )
