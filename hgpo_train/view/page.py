"""One file that shows a selection of a run's tasks, in any browser, without a server or a network.

It contains the page's script and style and the same documents that the server would send, by the addresses at which the
page asks for them. Prompts repeat states and lists of actions, so the documents are compressed, to less than a tenth.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
import polars as pl

from hgpo_datasets.reader import errors
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.files.atomic import write_file
from hgpo_envs.files.secrets import redact
from hgpo_envs.unicode_text import clean_text
from hgpo_train.measures import TASK
from hgpo_train.view.documents import STEPS, group_document, step_documents
from hgpo_train.view.encoding import encode_redacted
from hgpo_train.view.estimates import estimate, estimator_documents
from hgpo_train.view.notes import notes_document
from hgpo_train.view.overview import (
    curves_document,
    definitions_document,
    levels_document,
    overview_document,
)
from hgpo_train.view.rollouts import rollouts_document
from hgpo_train.view.sources import ESTIMATORS, TREE_ESTIMATORS, Source, run_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hgpo_train.advantages.registry import Estimator
    from hgpo_train.view.index import Index


MB: Final = 1 << 20
_LEVEL: Final = 6
"""How well documents are compressed."""
_BASE64: Final = 4 / 3
"""Letters of a byte."""
_LARGEST: Final = 20
"""Documents of so many bytes count as one at least: a browser must hold them, also where all texts are alike."""
STATIC: Final = Path(__file__).parent / "static"
"""The built page; `viewer/README.md` says how it is built."""


class Page(NamedTuple):
    """What was written: the numbers of tasks in the file and left out, its size, and what could not be read."""

    tasks: int
    left_out: int
    bytes: int
    problems: list[str]


def write_page(
    sources: Sequence[Source],
    path: Path,
    *,
    tasks: int | None = None,
    task_ids: Sequence[str] = (),
    estimators: Sequence[str] = (),
    max_mb: float = 8.0,
    progress: Callable[[int, int], object] = lambda _done, _all: None,
) -> Page:
    """Write a page.

    Args:
        sources: The runs. Those that cannot be read or have no rows are left out, and tasks that are damaged.
        path: The file.
        tasks: The number of tasks, the first of each run. Default: all that fit.
        task_ids: Ids of tasks; if there are any, `tasks` is ignored.
        estimators: Estimators whose advantages it contains, with the parameters of the training run, or else with the
            default ones; the first two are the pair that is shown. Default: `ESTIMATORS`. Those of training runs are
            added.
        max_mb: The largest size of the file. Tasks that would exceed it are left out, and the page says so.
        progress: Called with the number of finished tasks and of all.

    Raises:
        InputError: A task or an estimator is unknown, or not a single task fits into the size.
    """
    for option, value in (("--tasks", tasks), ("--max-mb", max_mb)):
        if value is not None and not value > 0:
            raise InputError(
                f"{option}: expected a positive number, received {value:g}"
            )
    answers: dict[str, bytes] = {}
    problems: list[str] = []
    runs = _open(sources, answers, problems)
    known = {task for run in runs for task in run.index.groups["task_id"]}
    if missing := set(task_ids) - known:
        raise InputError(unknown("task", min(missing), sorted(known), limit=5))

    # The estimators: those of training runs, and the chosen ones with the parameters of training.
    if not estimators and any(run.index.episodes["parent"].count() for run in runs):
        estimators = TREE_ESTIMATORS
    trained = [found[0] for run in runs if (found := run.source.trained()) is not None]
    names = list(dict.fromkeys([*trained, *(estimators or ESTIMATORS)]))
    specs = [run.source.estimators(names) for run in runs]

    # The tasks of each run that are wanted.
    wanted = [_tasks(run.index, tasks, task_ids) for run in runs]
    all_tasks = sum(map(len, wanted))

    # Tasks are added in turns, until the next one would exceed the size: what it adds to the others, compressed.
    head = {
        "runs": [run.document for run in runs],
        "estimators": estimator_documents(names),
        "opened": [*estimators],
        "definitions": definitions_document(),
    }
    size = float(len(_page(head, answers)))
    compressor = zlib.compressobj(_LEVEL)
    kept: list[list[int]] = [[] for _ in runs]
    damaged = 0
    for number, groups in _in_turns(wanted):
        added: dict[str, bytes] = {}
        with _noting(runs[number].source, problems):
            added = _answers(f"runs/{number}", runs[number], groups, specs[number])
        if not added:
            damaged += 1
            continue
        listed = encode_redacted(rollouts_document(runs[number].index, groups))
        documents = b"".join([listed, *added.values()])
        packed = compressor.compress(documents)
        packed += compressor.flush(zlib.Z_SYNC_FLUSH)
        size += max(len(packed) * _BASE64, len(documents) / _LARGEST)
        if size > max_mb * MB:
            break
        answers |= added
        kept[number] += groups
        runs[number].document["selection"]["tasks"] += 1
        done = sum(run.document["selection"]["tasks"] for run in runs)
        progress(done, all_tasks)
    if not any(kept):
        too_large = (
            f"the first task alone does not fit into {max_mb:g} MB; increase --max-mb"
        )
        raise InputError(problems[0] if problems else too_large)
    for number, run in enumerate(runs):
        answers[f"runs/{number}/rollouts"] = encode_redacted(
            rollouts_document(run.index, kept[number])
        )
    page = _page(head, answers)
    write_file(path, page)
    return Page(
        done,
        all_tasks - done - damaged,
        len(page),
        list(dict.fromkeys(problems)),
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """A run that can be read, and its document in the list of runs."""

    source: Source
    index: Index
    document: dict[str, Any]


def _open(
    sources: Sequence[Source], answers: dict[str, bytes], problems: list[str]
) -> list[_Run]:
    """Return the runs that can be read, and add the documents of the whole runs."""
    runs: list[_Run] = []
    documents = run_documents(sources)
    for place, source in enumerate(sources):
        address = f"runs/{len(runs)}"
        with _noting(source, problems):
            index = source.index()
            overview = overview_document(source, index)
            found = {
                "overview": overview,
                "curves": curves_document(source, index),
                "levels": levels_document(index, chance=True),
                "notes": notes_document(source.notes),
            }
            for name, value in found.items():
                answers[f"{address}/{name}"] = encode_redacted(value)
            selection = {"tasks": 0, "of": overview["total"]["tasks"]}
            document = {
                **documents[place],
                "path": source.name,
                "live": False,
                "selection": selection,
            }
            runs.append(_Run(source, index, document))
    return runs


@contextmanager
def _noting(source: Source, problems: list[str]) -> Iterator[None]:
    """Add the error of the block to the problems: one damaged run does not spoil the page of others."""
    try:
        with errors(source.path):
            yield
    except InputError as error:
        problems.append(f"{source.path}: {redact(clean_text(str(error)))}; left out")


def _tasks(index: Index, most: int | None, task_ids: Sequence[str]) -> list[list[int]]:
    """Return the numbers of the groups of some tasks: those with the ids, or else the first ones."""
    tasks = index.groups.group_by(TASK, maintain_order=True).agg("number")
    if task_ids:
        return tasks.filter(pl.col("task_id").is_in(task_ids))["number"].to_list()
    return tasks["number"].to_list()[:most]


def _in_turns(runs: Sequence[Sequence[list[int]]]) -> Iterator[tuple[int, list[int]]]:
    """Yield the groups of the first task of each run, then of the second, with the number of the run."""
    for row in zip_longest(*runs):
        yield from (
            (run, groups) for run, groups in enumerate(row) if groups is not None
        )


def _answers(
    address: str,
    run: _Run,
    groups: Sequence[int],
    specs: Mapping[str, Estimator | None],
) -> dict[str, bytes]:
    """Return the documents of groups and of their steps by their addresses, as JSON without secrets."""
    answers: dict[str, bytes] = {}
    index = run.index
    tokenizer = run.source.tokenizer()
    for number in groups:
        group = f"{address}/groups/{number}"
        document = group_document(index, number)
        answers[group] = encode_redacted(document)
        for name, spec in specs.items():
            estimated = estimate(index, number, spec)
            answers[f"{group}/estimates/{name}"] = encode_redacted(estimated)
        for trajectory in document["trajectories"]:
            end = trajectory["row"] + trajectory["length"]
            for row in range(trajectory["row"], end, STEPS):
                steps = min(STEPS, end - row)
                answers[f"{address}/steps/{row}/{steps}"] = encode_redacted(
                    step_documents(index, row, steps, tokenizer)
                )
    return answers


def _packed(head: Mapping[str, Any], answers: Mapping[str, bytes]) -> bytes:
    """Return documents as one, compressed by gzip, in base64: nothing in it can end a script element."""
    encoded = {address: orjson.Fragment(json) for address, json in answers.items()}
    document = encode_redacted({**head, "answers": encoded})
    return base64.b64encode(gzip.compress(document, _LEVEL, mtime=0))


def _page(head: dict[str, Any], answers: Mapping[str, bytes]) -> bytes:
    script = (STATIC / "app.js").read_bytes()
    style = (STATIC / "app.css").read_bytes()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = [
        b'<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'.encode(),
        b'<meta name="viewport" content="width=device-width, initial-scale=1">',
        b'<meta name="referrer" content="no-referrer">',
        b"<title>HGPO viewer</title><style>",
        style,
        b'</style></head><body><div id="app"></div><script type="text/plain" id="data">',
        _packed(head, answers),
        b"</script><script>",
        script,
        b"</script></body></html>\n",
    ]
    return b"".join(parts)


def _digest(content: bytes) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content).digest()).decode()
