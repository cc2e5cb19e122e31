"""What `hgpo envs` lists: every benchmark with its arguments, its splits and the data that is on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from hgpo_envs.environment_spec import (
    NotInstalled,
    environment_ids,
    environment_spec,
    provider,
)
from hgpo_envs.errors import one_line
from hgpo_envs.registration import default_arguments
from hgpo_envs.task_wordings import wording_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hgpo_envs.environment_spec import EnvironmentSpec


@dataclass(frozen=True)
class FoundData:
    """One set of data of a benchmark.

    Attributes:
        path: The path to pass as ``data``. None is the data that the benchmark opens without one.
        splits: The number of tasks in each split.
        wordings: The wordings (`hgpo_envs.task_wordings`) of the first task of each split, each once.
        error: Why the data cannot be used, in one line; empty if it can.
    """

    path: str | None
    splits: Mapping[str, int] = field(default_factory=dict)
    wordings: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class ListedEnvironment:
    """A benchmark, with what is known of it on this machine.

    Attributes:
        id: The Gymnasium id.
        provider: The distribution that declares it, such as ``hgpo``.
        arguments: The keyword arguments of ``gymnasium.make`` with their defaults. Required ones have the default
            ``inspect.Parameter.empty``.
        data: The data that can be opened: the default first, then what was found in `EnvironmentSpec.data_places`.
        looked: The places where official data was looked for.
        install: The command that installs the benchmark; empty if it is installed.
        error: Why the benchmark cannot be used, in one line; empty if it can.
    """

    id: str
    provider: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    data: tuple[FoundData, ...] = ()
    looked: tuple[str, ...] = ()
    install: str = ""
    error: str = ""


def list_environments() -> list[ListedEnvironment]:
    """Return all benchmarks (`environment_ids`). One that cannot be imported is listed with its error."""
    return [_listed(env_id) for env_id in environment_ids()]


def _listed(env_id: str) -> ListedEnvironment:
    try:
        spec = environment_spec(env_id)
        arguments = default_arguments(spec)
        places = _data_places(spec)
    except NotInstalled as error:
        return ListedEnvironment(env_id, provider(env_id), install=error.command)
    except Exception as error:  # noqa: BLE001 - the package of someone else must not hide the other benchmarks
        return ListedEnvironment(env_id, provider(env_id), error=one_line(error, 300))
    own = [] if spec.needs_data else [None]
    found = [
        _found(spec, place)
        for place in [*own, *(place for place in places if place.exists())]
    ]
    return ListedEnvironment(
        env_id, provider(env_id), arguments, tuple(found), tuple(map(str, places))
    )


def official_data(
    spec: EnvironmentSpec, split: str
) -> tuple[str | None, tuple[str, ...]]:
    """Return the first of a benchmark's usual places whose data has tasks in a split, or None; and all places."""
    places = _data_places(spec)
    looked = tuple(map(str, places))
    for place in (place for place in places if place.exists()):
        try:
            if len(spec.open_source(data=str(place)).source.ids(split)):
                return str(place), looked
        except Exception:  # noqa: BLE001, S112 - `hgpo envs` shows why data cannot be used
            continue
    return None, looked


def _data_places(spec: EnvironmentSpec) -> list[Path]:
    places = (
        resolve_name(spec.data_places)
        if isinstance(spec.data_places, str)
        else spec.data_places
    )
    return list(dict.fromkeys(map(Path, places())))


def _found(spec: EnvironmentSpec, place: Path | None) -> FoundData:
    path = None if place is None else str(place)
    try:
        source = spec.open_source(**({} if path is None else {"data": path})).source
        splits = spec.splits or dict.fromkeys(
            ("train", spec.evaluation_split or "train")
        )
        ids = {split: source.ids(split) for split in splits}
        sizes = {split: len(tasks) for split, tasks in ids.items()}
        # Describing a task can take long, so it is done only where there is something to see.
        firsts = [
            source.task(tasks[0])
            for tasks in ids.values()
            if spec.wordings and len(tasks)
        ]
        wordings = dict.fromkeys(
            [wording_of(spec.id, task.versions) for task in firsts]
        )
        return FoundData(path, sizes, tuple(filter(None, wordings)))
    except Exception as error:  # noqa: BLE001 - damaged data, or the code of another package
        return FoundData(path, error=one_line(error, 300))
