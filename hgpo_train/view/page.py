"""One file that shows a selection of a run's tasks, in any browser, without a server or a network.

It contains the page's script and style and the same documents that the server would send, by the addresses at which the
page asks for them.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.files.atomic import write_file
from hgpo_envs.files.secrets import redact
from hgpo_train.view.bundle import static_file
from hgpo_train.view.documents import group_document, step_document
from hgpo_train.view.estimates import estimate, estimator_documents
from hgpo_train.view.overview import curves_document, intervals_document, levels_document, overview_document
from hgpo_train.view.tasks import PAGE, TaskFilter, tasks_document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hgpo_train.view.index import Index
    from hgpo_train.view.sources import Source
    from hgpo_train.view.tokens import TokenTexts


@dataclass(frozen=True, slots=True)
class Selection:
    """What a page contains.

    Attributes:
        tasks: The number of tasks, the first of each run.
        task_ids: Ids of tasks; if there are any, `tasks` is ignored.
        estimators: Estimators whose advantages it contains, with their default parameters.
        most_bytes: The largest size of the file. Tasks that would exceed it are left out.
    """

    tasks: int = 10
    task_ids: tuple[str, ...] = ()
    estimators: tuple[str, ...] = ("hgpo", "gigpo", "grpo")
    most_bytes: int = 25 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """What was written.

    Attributes:
        tasks: The number of tasks in the file.
        left_out: The number of tasks that did not fit.
        bytes: The size of the file.
    """

    tasks: int
    left_out: int
    bytes: int


def write_page(
    sources: Sequence[Source],
    path: Path,
    selection: Selection,
    progress: Callable[[int, int], object] = lambda _done, _all: None,
) -> Written:
    """Write a page.

    Args:
        sources: The runs.
        path: The file.
        selection: What it contains.
        progress: Called with the number of finished tasks and of all.

    Raises:
        InputError: A task or an estimator is unknown, or not a single task fits into the size.
    """
    answers: dict[str, Any] = {}
    indices = [source.index() for source in sources]
    chosen = [(number, task) for number, index in enumerate(indices) for task in _tasks(index, selection)]
    missing = set(selection.task_ids) - {task["task_id"] for _, task in chosen}
    if missing:
        known = sorted({task for index in indices for task in index.groups["task_id"]})
        raise InputError(unknown("task", min(missing), known, limit=5))
    for number, (source, index) in enumerate(zip(sources, indices, strict=True)):
        answers[f"runs/{number}/overview"] = overview_document(source, index)
        answers[f"runs/{number}/curves"] = curves_document(source, index)
        answers[f"runs/{number}/levels"] = levels_document(index)
        answers[f"runs/{number}/intervals"] = intervals_document(index)
        answers[f"runs/{number}/tasks"] = {"total": 0, "groups": 0, "offset": 0, "tasks": []}
    head = {
        "runs": [
            {"name": source.name, "path": source.name, "version": "", "training": source.training() is not None}
            for source in sources
        ],
        "estimators": estimator_documents(selection.estimators),
    }
    size = len(_page(head, answers))
    kept = 0
    for done, (number, task) in enumerate(chosen):
        added = dict(_answers(number, indices[number], sources[number].token_texts(), task, selection))
        size += len(_data(task)) + 1 + sum(len(key) + len(_data(value)) + 4 for key, value in added.items())
        if size > selection.most_bytes:
            break
        answers |= added
        listed = answers[f"runs/{number}/tasks"]
        listed["tasks"].append(task)
        listed["total"] += 1
        listed["groups"] += len(task["groups"])
        kept += 1
        progress(done + 1, len(chosen))
    if not kept:
        most = selection.most_bytes / (1 << 20)
        raise InputError(f"the first task alone does not fit into {most:g} MB; increase --max-mb")
    page = _page(head, answers)
    write_file(path, page)
    return Written(kept, len(chosen) - kept, len(page))


def _tasks(index: Index, selection: Selection) -> list[dict[str, Any]]:
    """Return the chosen tasks of a run, with their groups."""
    if not selection.task_ids:
        limit = min(selection.tasks, PAGE)
        found: list[dict[str, Any]] = tasks_document(index, TaskFilter(limit=limit))["tasks"]
        return found
    numbers = index.groups.filter(index.groups["task_id"].is_in(selection.task_ids))["number"].to_list()
    listed: list[dict[str, Any]] = tasks_document(index, TaskFilter(limit=PAGE), numbers)["tasks"]
    return listed


def _answers(
    number: int, index: Index, texts: TokenTexts | None, task: dict[str, Any], selection: Selection
) -> list[tuple[str, Any]]:
    """Return the documents of a task's groups and steps by their addresses."""
    made: list[tuple[str, Any]] = []
    for group in task["groups"]:
        place = group["number"]
        document = group_document(index, place)
        made.append((f"runs/{number}/groups/{place}", document))
        for name in selection.estimators:
            found = estimate(index, place, name, [], selection.estimators)
            made.append((f"runs/{number}/groups/{place}/estimates/{name}", found))
        rows = range(document["row"], document["row"] + document["rows"])
        made += [(f"runs/{number}/steps/{row}", step_document(index, row, texts)) for row in rows]
    return made


def _data(value: object) -> bytes:
    r"""Return JSON that can stand inside a script element: no `<`, which could end it."""
    return orjson.dumps(_rounded(value)).replace(b"<", b"\\u003c")


def _rounded(value: Any) -> Any:  # noqa: ANN401 (any JSON value)
    """Round numbers to 12 digits: the last bits of sums depend on threads, and the same run gives the same page."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _page(head: dict[str, Any], answers: dict[str, Any]) -> bytes:
    script, style = static_file("app.js"), static_file("app.css")
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
        b'</style></head><body><div id="app"></div><script type="application/json" id="data">',
        redact(_data({**head, "answers": answers}).decode()).encode(),
        b"</script><script>",
        script,
        b"</script></body></html>\n",
    ]
    return b"".join(parts)


def _digest(content: bytes) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content).digest()).decode()
