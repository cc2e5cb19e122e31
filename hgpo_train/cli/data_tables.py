"""The tables that `hgpo data show` prints of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hgpo_envs.wording import counted
from hgpo_train.cli.display import print_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_datasets.run_summary import RunSummary, TaskTypeSummary


def _number(value: float | None, form: str = ".1%") -> str:
    return "–" if value is None else format(value, form)


_RESULTS: Final[dict[str, Callable[[TaskTypeSummary], str]]] = {
    "tasks": lambda results: f"{results.tasks:,}",
    "episodes": lambda results: f"{results.episodes:,}",
    "success": lambda results: _number(results.success),
    "score": lambda results: _number(results.score, ".3f"),
    "return": lambda results: _number(results.mean_return, ".3f"),
    "length": lambda results: _number(results.mean_length, ".1f"),
    "valid": lambda results: _number(results.valid),
    "aborted": lambda results: f"{results.aborted:,}",
}
"""The columns of the table of results."""


def print_run(run: RunSummary) -> None:
    """Print the facts of a run, its results by task type, and its size by family of columns."""
    sizes = [f"{count:,} of {counted(size, 'rollout')}" for size, count in run.group_sizes.items()]
    facts = {
        "run": ", ".join(run.runs),
        "environment": f"{', '.join(run.env_ids) or 'unknown'} ({', '.join(run.splits) or 'split unknown'})",
        "iterations": "{} to {}".format(*run.iterations) if run.iterations[1] else "",
        "groups": ", ".join(sizes),
        "steps": f"{run.steps:,} (episodes of {run.shortest} to {run.longest}, median {run.median:g})",
        "files": f"{run.files:,}, hashes to depth {run.depth}",
        "config": ", ".join(f"{name}={value}" for name, value in (run.config or {}).items()),
    }
    if run.total.aborted:
        bounds = f"{_number(run.total.success_low)} of all episodes if they are lost, {_number(run.total.success_high)}"
        facts["aborted"] = f"{counted(run.total.aborted, 'episode')}; success is {bounds} if they are won"
    print_table(["", ""], [fact for fact in facts.items() if fact[1]], texts=2)

    hidden = set() if run.total.aborted else {"aborted"}
    if run.total.score is None or all(results.score == results.success for results in run.kinds):
        hidden.add("score")  # it repeats success
    columns = {name: value for name, value in _RESULTS.items() if name not in hidden}
    rows = [(results.task_type or "unknown", results) for results in run.kinds]
    rows += [("all", run.total)] if len(rows) > 1 else []
    cells = [[name, *(value(results) for value in columns.values())] for name, results in rows]
    print_table(["task type", *columns], cells, title="Results")

    families = {**run.family_bytes, "files": run.bytes}
    storage = [
        [name, f"{size:,}", f"{size / run.bytes:.1%}", f"{size / run.steps:.1f}"] for name, size in families.items()
    ]
    print_table(["columns", "bytes", "share", "bytes a step"], storage, title="Storage")
