"""The tables that `hgpo data show` prints of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.wording import counted
from hgpo_train.cli.display import print_table, shown

if TYPE_CHECKING:
    from collections.abc import Callable


def _interval(results: dict[str, Any]) -> str:
    """Return the 95% interval of success in percent."""
    if results["success"] is None:
        return "–"
    low, high = (results[f"success_95_{end}"] for end in ("low", "high"))
    return f"{100 * low:.1f}–{100 * high:.1f}"


_RESULTS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "tasks": lambda results: f"{results['tasks']:,}",
    "episodes": lambda results: f"{results['episodes']:,}",
    "success": lambda results: shown(results["success"], ".1%"),
    "95%": _interval,
    "score": lambda results: shown(results["score"], ".3f"),
    "return": lambda results: shown(results["mean_return"], ".3f"),
    "length": lambda results: shown(results["mean_length"], ".1f"),
    "valid": lambda results: shown(results["valid"], ".1%"),
    "aborted": lambda results: f"{results['aborted']:,}",
}
"""The columns of the table of results."""


def print_run(run: dict[str, Any]) -> None:
    """Print a summary of `summarize_run`: facts, results by task type, and sizes by family of columns."""
    total = run["total"]
    sizes = [
        f"{count:,} of {counted(size, 'rollout')}"
        for size, count in run["group_sizes"].items()
    ]
    facts = {
        "run": ", ".join(run["runs"]),
        "environment": f"{', '.join(run['env_ids']) or 'unknown'} ({', '.join(run['splits']) or 'split unknown'})",
        "wording": ", ".join(run["wordings"]),
        "iterations": " to ".join(map(str, dict.fromkeys(run["iterations"])))
        if run["iterations"][1]
        else "",
        "groups": ", ".join(sizes),
        "branches": f"{run['branches']:,}, counted in steps alone"
        if run["branches"]
        else "",
        "steps": "{steps:,} (episodes of {shortest} to {longest}, median {median:g})".format(
            **run
        ),
        "files": "{files:,}, hashes to depth {depth}".format(**run),
        "config": ", ".join(
            f"{name}={value}" for name, value in (run["config"] or {}).items()
        ),
    }
    if total["aborted"] and total["success"] is not None:
        low, high = (
            shown(total[f"success_if_aborted_{end}"], ".1%") for end in ("lost", "won")
        )
        bounds = f"{low} of all episodes if they are lost, {high} if they are won"
        facts["aborted"] = (
            f"{counted(total['aborted'], 'episode')}; success is {bounds}"
        )
    print_table(["", ""], [fact for fact in facts.items() if fact[1]], texts=2)

    hidden = set() if total["aborted"] else {"aborted"}
    if total["score"] is None or all(
        results["score"] == results["success"] for results in run["kinds"]
    ):
        hidden.add("score")  # it repeats success
    columns = {name: value for name, value in _RESULTS.items() if name not in hidden}
    rows = [(results["task_type"] or "unknown", results) for results in run["kinds"]]
    rows += [("all", total)] if len(rows) > 1 else []
    cells = [
        [name, *(value(results) for value in columns.values())]
        for name, results in rows
    ]
    print_table(["task type", *columns], cells, title="Results")

    families = {**run["family_bytes"], "files": run["bytes"]}
    storage = []
    for name, size in families.items():
        storage.append(
            [
                name,
                f"{size:,}",
                f"{size / run['bytes']:.1%}",
                f"{size / run['steps']:.1f}",
            ]
        )
    print_table(["columns", "bytes", "share", "bytes a step"], storage, title="Storage")
