"""The tasks and groups of a run, or its trajectories, filtered and sorted; and a search in the texts of steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import polars as pl
from msgspec import Meta

from hgpo_datasets import scan_steps
from hgpo_datasets.reader import errors
from hgpo_envs.errors import InputError, unknown
from hgpo_train.settings import NonNegativeInt, Settings
from hgpo_train.view.documents import TRAJECTORY, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hgpo_train.view.index import Index

PAGE: Final = 500
"""The largest number of tasks in one answer."""
_LABEL: Final = 300
SEARCHED: Final = ("state", "action", "response", "error")
"""The columns that are searched. Prompts repeat states, so they are not."""
HITS: Final = 1_000
"""The largest number of steps that an answer lists."""
_GROUP: Final = (
    "number",
    "iteration",
    "group",
    "run",
    "size",
    "won",
    "aborted",
    "truncated",
    "invalid",
    "rows",
    "mean_return",
    "mean_length",
)

Outcome = Literal["any", "partly", "none", "all", "won", "lost", "unknown"]
Sort = Literal["order", "task", "success", "return", "length", "invalid", "aborted"]


@dataclass(frozen=True, slots=True)
class TaskFilter(Settings):
    """Which groups of tasks, or which trajectories, are listed, and how.

    Attributes:
        outcome: ``partly``: some of a group's trajectories won, and some did not; ``none`` or ``all`` of them won.
            Of a trajectory: ``won``, ``lost`` or ``unknown``.
        invalid, aborted, task_type, iteration: Only those with one, or of this one.
        shortest, longest: The least and the greatest length in steps, of a group the mean.
        text: Only tasks whose id or instruction contains this text; case does not matter.
        search: Only those with a step that `find_steps` finds.
        task_ids: Only these tasks, if there are any.
        sort: ``order`` is the order in the table.
        offset, limit: The numbers of tasks or trajectories to skip and to list.
    """

    outcome: Outcome = "any"
    invalid: bool = False
    aborted: bool = False
    task_type: str | None = None
    iteration: int | None = None
    shortest: NonNegativeInt | None = None
    longest: NonNegativeInt | None = None
    text: str = ""
    search: str = ""
    task_ids: tuple[str, ...] = ()
    sort: Sort = "order"
    descending: bool = False
    offset: NonNegativeInt = 0
    limit: Annotated[int, Meta(ge=0, le=PAGE)] = 100


OUTCOMES: Final = {
    "none": pl.col("won") == 0,
    "partly": (pl.col("won") > 0) & (pl.col("won") < pl.col("size")),
    "all": pl.col("won") == pl.col("size"),
}
"""Which groups have an outcome: how many of their trajectories won."""
_ROLLOUT_OUTCOMES: Final = {
    "won": pl.col("won") & ~pl.col("aborted"),
    "lost": ~pl.col("won") & ~pl.col("aborted"),
    "unknown": pl.col("won").is_null() | pl.col("aborted"),
}
"""Which trajectories have an outcome."""

_SORTS: Final[dict[str, str | pl.Expr]] = {
    "order": "first_number",
    "task": "task_id",
    "success": pl.col("won") / pl.col("size"),
    "return": "mean_return",
    "length": "mean_length",
}
_ROLLOUT_SORTS: Final[dict[str, str | pl.Expr]] = {
    "order": "row",
    "task": "task_id",
    "success": "won",
    "return": "episode_return",
}
"""Other sorts are names of columns."""


def tasks_document(index: Index, chosen: TaskFilter) -> dict[str, Any]:
    """Return a page of the tasks with the chosen groups.

    Returns:
        ``total`` (of tasks), ``groups`` (of groups), and ``tasks``: each with its totals over these groups, and with
        ``groups``, a list of their rows of `Index.groups`.
    """
    groups = index.groups.filter(*_conditions(chosen, "mean_length", OUTCOMES))
    if chosen.search:
        found = find_steps(index, chosen.search)["number"]
        groups = groups.filter(pl.col("number").is_in(found.implode()))
    whole = pl.col("size") - pl.col("aborted")
    means = [
        ((pl.col(name) * whole).sum() / whole.sum()).fill_nan(None).alias(name)
        for name in ("mean_return", "mean_length")
    ]
    tasks = groups.group_by("env_id", "task_id", maintain_order=True).agg(
        pl.col("task_type", "task", "split").first(),
        pl.col("number").min().alias("first_number"),
        pl.col("number").alias("groups"),
        pl.col("size", "aborted", "truncated", "invalid", "rows").sum(),
        pl.when(~pl.col("won").has_nulls()).then(pl.col("won").sum()).alias("won"),
        *means,
    )
    page = _page(tasks, chosen, _SORTS)
    numbers = [number for row in page for number in row["groups"]]
    rows = dict(zip(numbers, index.groups[numbers].select(_GROUP).iter_rows(named=True), strict=True))
    return {
        "total": tasks.height,
        "groups": groups.height,
        "offset": chosen.offset,
        "tasks": [{**row, "groups": [rows[number] for number in row["groups"]]} for row in page],
    }


def trajectories_document(index: Index, chosen: TaskFilter) -> dict[str, Any]:
    """Return a page of the chosen trajectories.

    Returns:
        ``total``, ``groups`` (of which they are), and ``trajectories``: rows of `Index.episodes`.
    """
    episodes = index.episodes.filter(*_conditions(chosen, "length", _ROLLOUT_OUTCOMES))
    if chosen.search:
        found = find_steps(index, chosen.search)["first"]
        episodes = episodes.filter(pl.col("row").is_in(found.implode()))
    listed = episodes.select(
        *TRAJECTORY,
        "number",
        "iteration",
        "task_id",
        "task_type",
        "task",
    )
    return {
        "total": episodes.height,
        "groups": episodes["number"].n_unique(),
        "trajectories": _page(listed, chosen, _ROLLOUT_SORTS),
    }


def _page(rows: pl.DataFrame, chosen: TaskFilter, sorts: Mapping[str, str | pl.Expr]) -> list[dict[str, Any]]:
    """Return the rows of a page; what has no value comes last, and equal ones are in the order of the table."""
    by = [sorts.get(chosen.sort, chosen.sort), sorts["order"]]
    rows = rows.sort(
        by,
        descending=[chosen.descending, False],
        nulls_last=True,
        maintain_order=True,
    )
    listed = rows.slice(chosen.offset, chosen.limit).to_dicts()
    return [{**row, "task": shortened(row["task"], _LABEL)} for row in listed]


def _conditions(chosen: TaskFilter, length: str, outcomes: Mapping[str, pl.Expr]) -> list[pl.Expr]:
    if chosen.outcome not in ("any", *outcomes):
        raise InputError(unknown("outcome", chosen.outcome, list(outcomes)))
    lowered = [pl.col(name).fill_null("").str.to_lowercase() for name in ("task_id", "task")]
    contains = [name.str.contains(chosen.text.lower(), literal=True) for name in lowered]
    conditions = [
        (chosen.outcome != "any", outcomes.get(chosen.outcome, pl.lit(value=True))),
        (chosen.invalid, pl.col("invalid") > 0),
        (chosen.aborted, pl.col("aborted") > 0),
        (chosen.task_type is not None, pl.col("task_type").fill_null("") == pl.lit(chosen.task_type)),
        (chosen.iteration is not None, pl.col("iteration") == pl.lit(chosen.iteration)),
        (chosen.shortest is not None, pl.col(length) >= pl.lit(chosen.shortest)),
        (chosen.longest is not None, pl.col(length) <= pl.lit(chosen.longest)),
        (chosen.task_ids, pl.col("task_id").is_in(chosen.task_ids)),
        (chosen.text, pl.any_horizontal(contains)),
    ]
    return [condition for wanted, condition in conditions if wanted]


def search_document(index: Index, text: str) -> dict[str, Any]:
    """Return the steps that `find_steps` finds.

    Returns:
        ``steps`` (their number), ``groups`` (the number of theirs), and ``hits``: the first of them, each with its
        ``row``, ``group``, ``trajectory``, ``step``, ``column``, and the ``snippet`` in which the text occurs.
    """
    steps = find_steps(index, text)
    hits = steps.head(HITS).drop("first").rename({"number": "group"}).to_dicts()
    return {"steps": steps.height, "groups": steps["number"].n_unique(), "hits": hits}


@lru_cache(16)
def find_steps(index: Index, text: str) -> pl.DataFrame:
    """Return the steps whose state, action, response or error contains a text; case does not matter.

    This reads the texts of the whole run.

    Returns:
        One row per step: `row`, `step`, `column`, `snippet`, and of its trajectory `number` (of the group),
        `trajectory` and `first` (its first row).

    Raises:
        InputError: The text is empty, or the steps cannot be read.
    """
    if not text:
        raise InputError("text: expected what to search for, received an empty text")
    # The first column that contains the text, and the text in it with what is around.
    pattern = pl.escape_regex(text)
    around = f"(?is)(.{{0,60}}{pattern}.{{0,120}})"
    columns = []
    snippets = []
    for name in SEARCHED:
        match = pl.when(pl.col(name).str.contains(f"(?i){pattern}"))
        columns.append(match.then(pl.lit(name)))
        snippets.append(match.then(pl.col(name).str.extract(around)))
    with errors(index.place):
        steps = scan_steps(index.files).select("step", *SEARCHED).with_row_index("row")
        steps = steps.with_columns(pl.col("row").cast(pl.Int64), column=pl.coalesce(columns))
        steps = steps.filter(pl.col("column").is_not_null())
        hits = steps.select("row", "step", "column", snippet=pl.coalesce(snippets)).collect()
    owners = index.episodes.select("row", "number", "trajectory", first="row").with_columns(pl.col("row").set_sorted())
    return hits.sort("row").join_asof(owners, on="row", strategy="backward")
