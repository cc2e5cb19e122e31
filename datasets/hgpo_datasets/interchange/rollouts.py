"""Import rollouts that other programs wrote as a run: `hgpo data import PATH… --out RUN`.

    FORMATS             the formats, each with its reader and what its files are recognised by
    import_rollouts     read files, whose format is found out if it is not named, and write a run

The files come from elsewhere: they are read within limits, and nothing in them is executed.
"""

from __future__ import annotations

import itertools
import os
import re
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import polars as pl

from hgpo_datasets.interchange.readers.inspect_log import read_inspect
from hgpo_datasets.interchange.readers.json_records import json_file, json_lines
from hgpo_datasets.interchange.readers.openai import read_openai
from hgpo_datasets.interchange.readers.rllm import read_rllm
from hgpo_datasets.interchange.readers.rollout_rows import NAMED, PLACE, SUMMED
from hgpo_datasets.interchange.readers.skyrl import read_skyrl
from hgpo_datasets.interchange.readers.trl import read_trl
from hgpo_datasets.interchange.readers.verifiers import read_verifiers
from hgpo_datasets.interchange.readers.verl import read_verl
from hgpo_datasets.interchange.readers.verl_agent import read_verl_agent
from hgpo_datasets.reader import StepTableWarning, scan_steps
from hgpo_datasets.rows import RowError
from hgpo_datasets.schema import GROUP_KEY
from hgpo_datasets.writer import StepWriter
from hgpo_envs.errors import InputError, one_line, unknown
from hgpo_envs.files.atomic import new_folder
from hgpo_envs.files.untrusted_files import open_regular
from hgpo_envs.wording import counted, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Format:
    """A format of files with rollouts.

    Attributes:
        read: The reader: a path to rows.
        suffixes: The suffixes of its files.
        fields: Columns, or fields of the first record, by which a file is recognised; `.eval` is enough without.
        by_folder: Whether rollouts are one file each, so that those of a task in one folder are a group.
        repeated: Whether a file may repeat the one before it: TRL writes its last rollouts whenever it logs, also where
            it made several updates with them.
    """

    read: Callable[..., Iterator[Row]]
    suffixes: tuple[str, ...]
    fields: frozenset[str]
    by_folder: bool = False
    repeated: bool = False


def _format(
    read: Callable[..., Iterator[Row]], suffixes: str, fields: str, **options: bool
) -> Format:
    return Format(read, tuple(suffixes.split()), frozenset(fields.split()), **options)


FORMATS: Final[Mapping[str, Format]] = {
    "inspect": _format(read_inspect, ".eval .json", "eval samples"),
    "openai": _format(read_openai, ".jsonl", "messages"),
    "rllm": _format(
        read_rllm, ".json", "trajectories termination_reason", by_folder=True
    ),
    "skyrl": _format(read_skyrl, ".jsonl", "input_prompt output_response score"),
    "trl": _format(read_trl, ".parquet", "prompt completion", repeated=True),
    "verifiers": _format(read_verifiers, ".jsonl", "traces task"),
    "verl-agent": _format(read_verl_agent, ".jsonl", "traj_uid uid anchor_obs rewards"),
    "verl": _format(read_verl, ".jsonl", "input output score step"),
}
"""The formats by name. A file is of the first whose fields it has."""


@dataclass(slots=True)
class ImportReport:
    """What was imported.

    Attributes:
        format: Name of the format.
        skipped: Files of the named folders that are of no known format.
        steps: Number of rows.
        trajectories: Number of rollouts.
        groups: Number of groups.
        missing: What estimators need that the files do not have.
    """

    format: str
    skipped: list[str]
    steps: int = 0
    trajectories: int = 0
    groups: int = 0
    missing: list[str] = field(default_factory=list)


def import_rollouts(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - the word of the command
    reward: Mapping[str, float] | None = None,
    success_reward: float | None = None,
) -> ImportReport:
    """Write rollouts of another program as a run. Hashes, returns and lengths are computed.

    The rollouts of a task in one file are a group (rLLM: in one folder). Rollouts whose reward is unknown, where others
    have one, are marked as aborted, so that no estimator counts them.

    Args:
        source: A file, a folder with files, or several of these.
        out: Folder of the new run; it must be missing or empty. It is written atomically.
        format: One of `FORMATS`; by default found out.
        reward: Names and weights of the numbers whose sum is the reward of a rollout; by default what the program
            itself takes.
        success_reward: For verl-agent, its reward of a success, by which rewards are divided; 10 by default.

    Raises:
        InputError: A file is damaged, of no known format or of another one than the others; there are no rollouts; or
            a name of `reward` is unknown.
    """
    paths = (
        [Path(source)]
        if isinstance(source, str | os.PathLike)
        else [Path(path) for path in source]
    )
    where = listed(list(map(str, paths)))
    name, files, skipped = _files(paths, format)
    read = FORMATS[name].read
    if success_reward is not None:
        if name != "verl-agent":
            raise InputError(
                f"success_reward: expected rollouts of verl-agent, received those of {name}"
            )
        read = partial(read, success_reward=success_reward)
    folder = Path(out).absolute()
    report = ImportReport(name, skipped)
    is_rewarded = False
    summed: set[str] = set()
    groups = Counter[tuple[int, str]]()
    with (
        new_folder(folder) as new,
        StepWriter(new, run=folder.name, config={"imported_from": name}) as writer,
    ):
        for number, (part, rows) in enumerate(_parts(files, FORMATS[name], read)):
            try:
                is_rewarded |= _set_rewards(rows, reward or {})
                summed.update(*[row.pop(SUMMED) for row in rows if SUMMED in row])
                _set_names(rows, groups, f"{number}/" if number else "")
                places = _places(rows, part)
                if rows:
                    writer.add_group([_stored(row) for row in rows])
            except RowError as error:
                place = places.get(str(error.first), part)
                raise InputError(f"{place}: {error}") from None
            except InputError as error:
                raise InputError(f"{part}: {error}") from None
            report.steps += len(rows)
        if not report.steps:
            raise InputError(
                f"{where}: expected rollouts, received no complete one ({name})"
            )
    _describe(report, folder, is_rewarded=is_rewarded)
    if len(summed) > 1 and not reward:
        names = listed(sorted(summed))
        report.missing.append(
            f"weights of {names}, whose sum is the reward; give them by --reward"
        )
    return report


def _parts(
    files: list[Path], known: Format, read: Callable[[Path], Iterator[Row]]
) -> Iterator[tuple[Path, list[Row]]]:
    """Yield the rows of each file, or of the files of a folder, without files that repeat the one before them."""
    parts = itertools.groupby(
        files, key=lambda file: file.parent if known.by_folder else file
    )
    before = None
    repeats = []
    for part, members in parts:
        rows = [row for file in members for row in read(file)]
        if known.repeated:
            texts = [(row["prompt"], row["response"]) for row in rows]
            if texts and texts == before:
                repeats.append(part)
                continue
            before = texts
        yield part, rows
    if repeats:
        warnings.warn(
            f"{counted(len(repeats), 'file')} skipped, whose rollouts are those of the file before: {repeats[0]} …",
            StepTableWarning,
            stacklevel=2,
        )


def _files(paths: list[Path], name: str | None) -> tuple[str, list[Path], list[str]]:
    """Return the format of all files, the files, and those of folders that are of no format."""
    if name is not None and name not in FORMATS:
        raise InputError(unknown("format", name, FORMATS))
    found: dict[str | None, list[Path]] = defaultdict(list)
    for path in paths:
        if not path.is_dir():
            open_regular(path, "file with rollouts, or a folder of them").close()
        suffixes = (
            FORMATS[name].suffixes
            if name
            else tuple({end for one in FORMATS.values() for end in one.suffixes})
        )
        for file in _inside(path, suffixes) if path.is_dir() else [path]:
            found[name or format_of(file)].append(file)
    skipped = found.pop(None, [])
    if not found:
        received = ""
        if len(paths) == 1 and paths[0].suffix == ".jsonl":
            # A line that is no JSON raises its own error.
            fields = sorted(_fields(paths[0]))
            received = f", received the fields {', '.join(fields) or '(none)'}"
        raise InputError(
            f"{listed(list(map(str, paths)))}: expected rollouts in one of the formats {', '.join(FORMATS)}{received}; "
            "name it with --format"
        )
    if len(found) > 1:
        examples = [f"{files[0]} is of {known}" for known, files in found.items()]
        raise InputError(
            f"expected files of one format, received several ({listed(examples)}); use --format"
        )
    ((known, files),) = found.items()
    assert known is not None
    return known, files, list(map(str, skipped))


def _inside(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files of a folder that could be of a format, in the order of their names, numbers by value."""
    found = [Path(where, name) for where, _, names in os.walk(folder) for name in names]
    files = [path for path in found if path.suffix in suffixes and path.is_file()]
    return sorted(
        files,
        key=lambda path: [(len(part), part) for part in re.split(r"(\d+)", str(path))],
    )


def format_of(path: Path) -> str | None:
    """Return the name of a file's format; None if it is of no known one, or damaged."""
    try:
        fields = _fields(path)
    except (InputError, OSError):
        return None
    for name, known in FORMATS.items():
        if path.suffix in known.suffixes and (
            known.fields <= fields or path.suffix == ".eval"
        ):
            return name
    return None


def _fields(path: Path) -> set[str]:
    """Return the names of a file's columns, or of the fields of its first record."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        with open_regular(path) as file:
            try:
                return set(pq.read_schema(file).names)
            except (ValueError, pa.ArrowException) as error:
                raise InputError(f"{path}: {one_line(error)}") from None
    if path.suffix == ".json":
        return set(json_file(path))
    if path.suffix == ".jsonl":
        return next((set(record) for _, record in json_lines(path)), set())
    return set()


def _set_names(rows: list[Row], groups: Counter[tuple[int, str]], prefix: str) -> None:
    """Make the names of a file's rollouts unique in the run. A task of an earlier file is another group."""
    before = groups.copy()
    for row in rows:
        task = (row.get("iteration", 0), row["task_id"])
        row["group"] = before[task] + row.get("group", 0)
        row["trajectory"] = prefix + row["trajectory"]
        groups[task] = max(groups[task], row["group"] + 1)


def _places(rows: list[Row], part: Path) -> dict[str, str]:
    """Return file and line of each rollout; the file where the reader does not know more."""
    places: dict[str, str] = {}
    for row in rows:
        places.setdefault(row["trajectory"], row.pop(PLACE, str(part)))
    return places


def _set_rewards(rows: list[Row], weights: Mapping[str, float]) -> bool:
    """Give rollouts the weighted sum of named numbers, if any are named. Return whether any reward is known.

    A rollout without a reward among others that have one is marked as aborted.
    """
    rollouts: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        rollouts[row["trajectory"]].append(row)
    for rollout in rollouts.values():
        named = rollout[0].get(NAMED, {})
        for name in weights:
            if name not in named:
                raise InputError(unknown("reward", name, named))
        if weights:
            for row in rollout:
                row["reward"] = 0.0
            rollout[-1]["reward"] = sum(
                weight * named[name] for name, weight in weights.items()
            )
    # Of an unknown reward, the steps before the last have 0.
    unknown_ones = {
        name
        for name, rollout in rollouts.items()
        if any(row["reward"] is None for row in rollout)
    }
    is_known = len(unknown_ones) < len(rollouts)
    for name, rollout in rollouts.items():
        for row in rollout:
            row["reward"] = row["reward"] or 0.0
        if name in unknown_ones and is_known:
            error = rollout[-1].get("error") or "the file has no reward for it"
            rollout[-1] |= {
                "aborted": True,
                "error": error,
                "terminated": False,
                "truncated": False,
            }
    return is_known


def _stored(row: Row) -> Row:
    """Return a row with `extra` as JSON."""
    named = row.pop(NAMED, {})
    fields = row.pop("extra", {}).items()
    extra = {
        name: value for name, value in fields if value is not None and name not in named
    }
    if named:
        extra[NAMED] = named
    return {
        **row,
        "extra": orjson.dumps(extra, default=str).decode() if extra else None,
    }


def _describe(report: ImportReport, run: Path, *, is_rewarded: bool) -> None:
    """Count what was written, and name what is missing for estimators."""
    groups = (
        scan_steps(run)
        .group_by(GROUP_KEY)
        .agg(
            pl.col("trajectory").n_unique(),
            pl.col("trajectory")
            .filter(~pl.col("aborted").any().over("trajectory"))
            .n_unique()
            .alias("compared"),
            pl.col("episode_length").max(),
            pl.col("response_token_ids").is_not_null().any(),
        )
    )
    table = groups.collect()
    report.trajectories = int(table["trajectory"].sum())
    report.groups = table.height
    if not is_rewarded:
        report.missing.append(
            "rewards (0 is stored), which every estimator needs; name a number with --reward"
        )
    aborted = report.trajectories - int(table["compared"].sum())
    if aborted:
        rollouts = counted(aborted, "rollout")
        report.missing.append(
            f"rewards of {rollouts}, aborted: no estimator counts them"
        )
    if (table["compared"] < 2).all():
        report.missing.append(
            "a second rollout of a task: estimators have nothing to compare, and give 0 or the reward itself"
        )
    if (table["episode_length"] == 1).all():
        report.missing.append(
            "a second step: all rollouts have one, so that hgpo and gigpo compare what grpo compares"
        )
    if not table["response_token_ids"].any():
        report.missing.append("token ids, which `hgpo score` and training need")
