"""The check of a certificate: against its own episodes, its panel, the run's table, and a replay in the environment.

Each step finds what the one before it cannot: a changed figure disagrees with the file's own episodes; changed episodes
with figures to match disagree with the run's table; a changed table disagrees with the environment.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import polars as pl
from msgspec import Struct

from hgpo_datasets import manifest, scan_steps
from hgpo_envs.episode import Episode
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.sealed import is_sealed
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_envs.responses import DEEPEST, is_deep
from hgpo_train.evaluation.certificate import (
    FORMAT,
    NAME,
    Outcome,
    as_table,
    certificate,
    figures,
)
from hgpo_train.evaluation.json_difference import differences
from hgpo_train.evaluation.play import FIXED
from hgpo_train.panels.data import find_data
from hgpo_train.panels.loading import load_panel
from hgpo_train.panels.panel import Panel
from hgpo_train.rollout.env_handle import EnvHandle, open_env
from hgpo_train.settings import build

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


MOST_BYTES: Final = 256 << 20
"""The largest certificate that is read, in bytes: about half a million episodes."""

_REPLAYED: Final = ("state", "reward", "terminated", "truncated", "won", "score")
"""What is compared of every step that is replayed."""


class _PanelPart(Struct, forbid_unknown_fields=True):
    title: str
    digest: str
    settings: dict[str, Any]


class Certificate(Struct, forbid_unknown_fields=True):
    """A certificate as it is read: the keys of docs/repeatable.md."""

    format: Literal["hgpo certificate 1"]
    panel: _PanelPart
    data: dict[str, Any]
    policy: dict[str, Any]
    counts: dict[str, int]
    results: list[dict[str, Any]]
    intervals: dict[str, str]
    success_by_rule: dict[str, dict[str, Any]]
    cost: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any]
    episodes: list[Outcome]
    check: int

    def table(self) -> pl.DataFrame:
        """Return the episodes as `hgpo_train.evaluation.episode_table` does."""
        return as_table(self.episodes, self.own_panel().environment["env"])

    def own_panel(self) -> Panel:
        """Return the panel that the certificate contains.

        Raises:
            InputError: Its settings are not valid.
        """
        return build(Panel, self.panel.settings, noun="panel setting")


@dataclass(slots=True)
class CertificateCheck:
    """The result of a check.

    Attributes:
        problems: One line for each value that is not what it should be.
        notes: One line for each thing that could not be compared.
        replayed: Number of episodes that were replayed.
        is_other_run: Whether the run was played with another panel or policy than the certificate says.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    replayed: int = 0
    is_other_run: bool = False


def read_certificate(path: Path) -> Certificate:
    """Read a certificate.

    Raises:
        InputError: The file is none, or a value has the wrong type.
    """
    data = read_bytes(path, MOST_BYTES, "certificate")
    try:
        found = msgspec.json.decode(data, type=Certificate)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is no certificate of the form {FORMAT!r}: {one_line(error, 200)}"
        ) from None
    free = [found.panel.settings, found.data, found.policy, found.cost, found.machine]
    if is_deep([*free, found.results]):
        raise InputError(
            f"{path} is no certificate of the form {FORMAT!r}: values are nested more than {DEEPEST} deep"
        )
    for number, episode in enumerate(found.episodes):
        length = episode["length"]
        is_possible = (
            episode["invalid"] <= length
            and episode["admissible"] <= episode["judged"] <= length
        )
        if not is_possible or length != int(length):
            expected = "expected counts with invalid <= length and admissible <= judged <= length"
            raise InputError(f"{path}: episodes[{number}]: {expected}")
    try:
        found.own_panel()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return found


def read_comparable(
    path: Path, panel: Panel, data: str | os.PathLike[str] | None = None
) -> Certificate:
    """Read a certificate whose episodes can be compared with those of a panel, task by task.

    Args:
        path: The certificate, or the folder of a run that has one.
        panel: The panel.
        data: Where its data are, as of `find_data`.

    Raises:
        InputError: The certificate is of another panel, or of other data. The line says which settings differ.
    """
    found = read_certificate(path / NAME if path.is_dir() else path)
    theirs = found.own_panel().canonical() | {"tasks played": found.data.get("tasks")}
    ours = panel.canonical() | {"tasks played": find_data(panel, data)[1]}
    # Of lists, their lengths say enough.
    lines = []
    for name in ("tasks", "seeds"):
        here = ours.pop(name)
        there = theirs.pop(name)
        if here != there:
            both = len(set(here) & set(there))
            lines.append(
                f"{name}: {len(there)} there, {len(here)} here, {both} in both"
            )
    lines += [
        f"{each.path} is {each.found} there and {each.expected} here"
        for each in differences(ours, theirs)
    ]
    if lines:
        rest = [f"and {len(lines) - 5} more"] if len(lines) > 5 else []
        shown = "; ".join([*lines[:5], *rest])
        raise InputError(
            f"{path} is of another panel, {one_line(found.panel.title)}: {shown}"
        )
    return found


def check_certificate(
    path: Path,
    run: Path | None = None,
    *,
    replay: int = 0,
    panel: str | None = None,
    data: str | os.PathLike[str] | None = None,
) -> CertificateCheck:
    """Check a certificate.

    Args:
        path: The certificate.
        run: The run that it is of, whose table is compared.
        replay: Number of episodes, drawn at random, whose recorded actions are replayed in the environment.
        panel: The panel as of `load_panel`. Default: the one of the certificate's title.
        data: Where the panel's data are. Default: the bundled data, or the environment's usual places.

    Raises:
        InputError: The file is no certificate, or what it is compared with cannot be read.
    """
    if replay and run is None:
        raise InputError(
            "replay: expected a run, which contains the actions, together with a number of episodes"
        )
    found = read_certificate(path)
    own = found.own_panel()
    known, problems = _known_panel(found, own, panel)
    if not is_sealed(read_bytes(path, MOST_BYTES)):
        problems.insert(0, "check: the file was changed after it was written")
    problems += _wrong_episodes(found.episodes, own)
    problems += _wrong_figures(found, own)
    result = CertificateCheck(problems)
    if run is not None:
        _check_run(found, own, run, result)
        if replay and known is not None:
            _check_replay(found, run, known, result, replay, data)
    # What the file shows, the run shows as well.
    result.problems = list(dict.fromkeys(problems))
    return result


def _known_panel(
    found: Certificate, own: Panel, name: str | None
) -> tuple[Panel | None, list[str]]:
    """Return the panel that is known here by a title, and where the certificate's own differs.

    It is None if none is known: what a stranger's panel names would be imported and started by a replay.
    """
    title = found.panel.title
    problems = _named("panel.digest", own.digest, found.panel.digest)
    if title.partition("+")[0] != own.id:
        problems.append(
            f"panel.title: expected {own.id} with its overrides, found {one_line(title)}"
        )
        title = own.id
    try:
        known = load_panel(name or title)
    except InputError as error:
        if name is not None:
            raise
        # Anybody can write a panel, of easy tasks or many steps, with any figures.
        unknown = one_line(error, 300)
        return None, [
            *problems,
            f"panel: not known here ({unknown}); if you trust it, name it: --panel FILE",
        ]
    problems += _named("panel.settings", known.canonical(), own.canonical())
    problems += _named("data.pinned", known.is_pinned, found.data.get("pinned"))
    # What is pinned is the panel before any override (`find_data`).
    checksum = (known.base or known).checksum
    if checksum:
        problems += _named("data.tasks", checksum, found.data.get("tasks"))
    return known, problems


def _wrong_figures(found: Certificate, panel: Panel) -> list[str]:
    """Return the figures that do not follow from the episodes."""
    expected = figures(found.episodes, panel.environment["env"])
    stated = {name: msgspec.to_builtins(getattr(found, name)) for name in expected}
    expected["cost.environment_steps"] = int(
        sum(episode["length"] for episode in found.episodes)
    )
    stated["cost.environment_steps"] = found.cost.get("environment_steps")
    return _named("", expected, stated)


def _check_run(
    found: Certificate, own: Panel, run: Path, result: CertificateCheck
) -> None:
    """Compare the certificate with the one that the run's files give now, and the run's settings with the panel's."""
    result.problems += _wrong_settings(run, own)
    header = manifest.read(run).header
    played = {} if header is None else header.section("panel")
    result.is_other_run = played.get("digest") != own.digest
    try:
        of_run = certificate(run, own)
    except InputError as error:
        # A changed panel is named already, and so is what was changed.
        if not result.problems:
            raise
        result.problems.append(one_line(error))
        return
    stated = msgspec.to_builtins(found)
    del of_run["machine"], stated["machine"], stated["check"]
    # The model may be elsewhere, or be gone.
    if of_run["policy"]["files"] is None and found.policy.get("files"):
        result.notes.append(
            "the model is not on this machine: its files were not compared"
        )
        of_run["policy"]["files"] = found.policy["files"]
    result.is_other_run |= of_run["policy"] != stated["policy"]
    for document in (of_run, stated):
        document["episodes"] = {
            _key(episode): episode for episode in document["episodes"]
        }
    result.problems += _named("", of_run, stated)


def _check_replay(
    found: Certificate,
    run: Path,
    panel: Panel,
    result: CertificateCheck,
    number: int,
    data: str | os.PathLike[str] | None,
) -> None:
    """Replay episodes in the environment: the table's actions lead to its states, rewards and outcomes."""
    arguments, checksum = find_data(panel, data)
    result.problems += _named("data.tasks", checksum, found.data.get("tasks"))
    # What is not of the panel is named already, and may be no task of the environment.
    whole = [
        each
        for each in found.episodes
        if not each["aborted"] and each["task_id"] in panel.tasks
    ]
    chosen = random.sample(whole, min(number, len(whole)))
    with closing(open_env(arguments.pop("env"), **arguments)) as handle:
        for episode in chosen:
            result.problems += _replay(run, handle, episode)
    result.replayed = len(chosen)


def _named(path: str, expected: object, found: object) -> list[str]:
    return [str(each) for each in differences(expected, found, path)]


def _key(episode: Mapping[str, Any]) -> str:
    return f"seed {episode['seed']}, {episode['task_id']}"


def _wrong_settings(run: Path, panel: Panel) -> list[str]:
    """Return the settings with which a run was played, by its manifest, that are not the panel's."""
    header = manifest.read(run).header
    settings = panel.flat()
    settings["id"] = settings.pop("env")
    policy = {} if header is None else header.section("policy")
    found = {} if header is None else dict(header.section("env"))
    # A policy that samples from no model has no such options.
    found |= {name: policy[name] for name in FIXED if name in policy}
    expected = {name: settings[name] for name in settings if name in found}
    return _named(
        f"settings of {run}", expected, {name: found[name] for name in expected}
    )


def _wrong_episodes(
    episodes: Sequence[Mapping[str, Any]], panel: Panel
) -> Iterator[str]:
    """Yield the episodes that are missing, occur twice, are not of the panel, or are in another order."""
    planned = [
        _key({"seed": seed, "task_id": task_id})
        for seed in panel.seeds
        for task_id in panel.tasks
    ]
    found = Counter(map(_key, episodes))
    yield from (f"episodes: {key} is missing" for key in planned if key not in found)
    yield from (
        f"episodes: {key} is not of the panel" for key in found.keys() - set(planned)
    )
    yield from (
        f"episodes: {key} occurs {times} times"
        for key, times in found.items()
        if times > 1
    )
    if list(found) != planned and sorted(found) == sorted(planned):
        yield "episodes: their order is not the panel's"
    limit = panel.environment["max_steps"]
    longest = max((episode["length"] for episode in episodes), default=0)
    if isinstance(limit, int) and longest > limit:
        yield f"episodes: expected at most {limit} steps, found {longest:.0f}"


def _replay(run: Path, handle: EnvHandle, outcome: Mapping[str, Any]) -> list[str]:
    """Return what differs when an episode's actions are replayed, at the first step with a difference."""
    is_it = (pl.col("iteration") == outcome["seed"]) & (
        pl.col("task_id") == outcome["task_id"]
    )
    rows: Iterable[Mapping[str, Any]] = (
        scan_steps(run).filter(is_it).sort("step").collect().iter_rows(named=True)
    )
    with closing(Episode(handle.shared, handle.settings)) as episode:
        episode.start(outcome["task_id"])
        for row in rows:
            where = f"replay of {_key(outcome)}, step {row['step']}"
            if row["action"] is None:
                return [f"{where}: found no action"]
            if episode.terminated or episode.truncated:
                return [f"{where}: found a step after the end"]
            replayed: dict[str, Any] = {"state": episode.state.text}
            episode.observe(row["action"], None, episode.engine.act(row["action"]))
            state = episode.state
            replayed |= {"reward": state.reward, "won": state.won, "score": state.score}
            replayed |= {
                "terminated": episode.terminated,
                "truncated": episode.truncated,
            }
            recorded = {name: row[name] for name in _REPLAYED}
            if row["next_state"] is not None:
                recorded["next_state"] = row["next_state"]
                replayed["next_state"] = state.text
            if lines := _named(where, replayed, recorded):
                return lines
        # Only a failure ends an episode before its end.
        if not (episode.terminated or episode.truncated):
            return [
                f"replay of {_key(outcome)}: expected an episode that ends, found more of it after its last step"
            ]
    return []
