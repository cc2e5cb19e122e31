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
from hgpo_train.view.documents import shortened

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

_SORTS: Final = {
    "order": pl.col("first_number"),
    "task": pl.col("task_id"),
    "success": pl.col("won") / pl.col("size"),
    "return": pl.col("mean_return"),
    "length": pl.col("mean_length"),
    "invalid": pl.col("invalid"),
    "aborted": pl.col("aborted"),
}


def tasks_document(index: Index, chosen: TaskFilter, numbers: pl.Series | None = None) -> dict[str, Any]:
    """Return a page of the tasks with the chosen groups, of those at the positions `numbers`, by default of all.

    Returns:
        ``total`` (of tasks), ``groups`` (of groups), and ``tasks``: each with its totals over these groups, and with
        ``groups``, a list of their rows of `Index.groups`.
    """
    groups = index.groups.filter(*_conditions(chosen, "mean_length", OUTCOMES))
    if numbers is not None:
        groups = groups.filter(pl.col("number").is_in(numbers.implode()))
    whole = pl.col("size") - pl.col("aborted")
    tasks = groups.group_by("env_id", "task_id", maintain_order=True).agg(
        pl.col("task_type", "task", "split").first(),
        pl.col("number").min().alias("first_number"),
        pl.col("number").alias("numbers"),
        pl.col("size", "aborted", "truncated", "invalid", "rows").sum(),
        pl.when(~pl.col("won").has_nulls()).then(pl.col("won").sum()).alias("won"),
        ((pl.col("mean_return") * whole).sum() / whole.sum()).fill_nan(None).alias("mean_return"),
        ((pl.col("mean_length") * whole).sum() / whole.sum()).fill_nan(None).alias("mean_length"),
    )
    order = [_SORTS[chosen.sort], pl.col("first_number")]
    tasks = tasks.sort(order, descending=[chosen.descending, False], nulls_last=True, maintain_order=True)
    page = tasks.slice(chosen.offset, chosen.limit)
    return {
        "total": tasks.height,
        "groups": groups.height,
        "offset": chosen.offset,
        "tasks": [_task(row, index) for row in page.iter_rows(named=True)],
    }


def trajectories_document(index: Index, chosen: TaskFilter, first: pl.Series | None = None) -> dict[str, Any]:
    """Return a page of the chosen trajectories, of those with these first rows, by default of all.

    Returns:
        ``total``, ``groups`` (of which they are), and ``trajectories``: rows of `Index.episodes`.
    """
    rows = index.episodes.filter(*_conditions(chosen, "length", _ROLLOUT_OUTCOMES))
    if first is not None:
        rows = rows.filter(pl.col("row").is_in(first.implode()))
    by = {"success": "won", "return": "episode_return", "length": "length", "task": "task_id", "order": "row"}
    order = [by.get(chosen.sort, chosen.sort), "row"]
    page = rows.sort(order, descending=[chosen.descending, False], nulls_last=True).slice(chosen.offset, chosen.limit)
    names = ("trajectory", "row", "length", "episode_return", "score", "won", "aborted", "truncated", "invalid")
    listed = page.select(*names, "number", "iteration", "task_id", "task_type", "task").to_dicts()
    trajectories = [{**row, "task": shortened(row["task"], _LABEL)} for row in listed]
    return {"total": rows.height, "groups": rows["number"].n_unique(), "trajectories": trajectories}


def _conditions(chosen: TaskFilter, length: str, outcomes: Mapping[str, pl.Expr]) -> list[pl.Expr]:
    conditions = []
    if chosen.outcome != "any":
        if chosen.outcome not in outcomes:
            raise InputError(unknown("outcome", chosen.outcome, list(outcomes)))
        conditions.append(outcomes[chosen.outcome])
    conditions += [pl.col(name) > 0 for name in ("invalid", "aborted") if getattr(chosen, name)]
    if chosen.task_type is not None:
        conditions.append(pl.col("task_type").fill_null("") == chosen.task_type)
    if chosen.iteration is not None:
        conditions.append(pl.col("iteration") == chosen.iteration)
    if chosen.shortest is not None:
        conditions.append(pl.col(length) >= chosen.shortest)
    if chosen.longest is not None:
        conditions.append(pl.col(length) <= chosen.longest)
    if chosen.text:
        text = chosen.text.lower()
        lowered = [pl.col(name).fill_null("").str.to_lowercase() for name in ("task_id", "task")]
        conditions.append(pl.any_horizontal(name.str.contains(text, literal=True) for name in lowered))
    return conditions


def _task(row: dict[str, Any], index: Index) -> dict[str, Any]:
    shown = ("number", "iteration", "group", "size", "won", "aborted", "truncated", "invalid", "rows")
    groups = [index.group(number) for number in row.pop("numbers")]
    rows = [{name: group[name] for name in (*shown, "mean_return", "mean_length", "run")} for group in groups]
    return {**row, "task": shortened(row["task"], _LABEL), "groups": rows}


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
    pattern = pl.escape_regex(text)
    matches = {name: pl.col(name).str.contains(f"(?i){pattern}") for name in SEARCHED}
    column = pl.coalesce(pl.when(match).then(pl.lit(name)) for name, match in matches.items())
    around = f"(?is)(.{{0,60}}{pattern}.{{0,120}})"
    snippet = pl.coalesce(pl.when(match).then(pl.col(name).str.extract(around)) for name, match in matches.items())
    with errors(index.place):
        steps = scan_steps(index.files).select("step", *SEARCHED).with_row_index("row")
        steps = steps.with_columns(pl.col("row").cast(pl.Int64), column=column).filter(pl.col("column").is_not_null())
        hits = steps.select("row", "step", "column", snippet=snippet).collect()
    owners = index.episodes.select("row", "number", "trajectory", first="row").with_columns(pl.col("row").set_sorted())
    return hits.sort("row").join_asof(owners, on="row", strategy="backward")
