"""`hgpo data compare`: whether two data sets have the same tasks under the same ids."""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Any, Final

from hgpo_train.cli import options  # noqa: TC001 - cyclopts reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_envs.data_comparison import DataComparison

SHOWN: Final = 3
"""The number of ids, and of differences of a kind, that are printed."""
LINES: Final = 4
"""The number of lines of a difference that are printed."""


def compare(
    a: Path,
    b: Path,
    /,
    *,
    env: options.Env = "HGPO/ALFWorld-v0",
    split: options.Split = "all",
    env_option: options.EnvOption = None,
    as_json: options.Json = False,
) -> None:
    """Compare two data sets of an environment: ids, sentences, initial states, goals, wordings.

    The exit status is 0 if they are equal, 1 if they differ, and 2 if one cannot be read.

    Args:
        a: An official folder, a pack or a catalogue.
        b: Another one.
        env: The environment.
        split: The split.
        env_option: An argument of both.
        as_json: Whether to print JSON, with all differences.
    """
    from dataclasses import asdict

    from hgpo_envs.data_comparison import compare_data
    from hgpo_envs.environment_spec import environment_spec
    from hgpo_envs.errors import InputError
    from hgpo_envs.registration import resolve_id
    from hgpo_envs.sources import Split
    from hgpo_envs.task_sampling import SORTED
    from hgpo_train.cli.display import ProgressBars, print_json
    from hgpo_train.settings import read_assignments

    spec = environment_spec(resolve_id(env))
    if "data" not in spec.parameters():
        raise InputError(f"--env {env}: expected an environment with the argument data, received one without")
    arguments = read_assignments("--env-option", env_option or (), {})
    if "data" in arguments:
        raise InputError("--env-option data: expected another argument; the data are those that are compared")
    shared = [spec.open_source(data=str(path), **arguments) for path in (a, b)]
    tasks = [Split(each, split) for each in shared]
    if max(map(len, tasks)) > SORTED:
        raise InputError(f"--split {split}: expected at most {SORTED:,} tasks, received more; choose another split")
    with ProgressBars() as bars:
        track = partial(bars.track, description="comparing")
        comparison = compare_data(shared[0].source, shared[1].source, (tasks[0], tasks[1]), track)
    if as_json:
        document: dict[str, Any] = {"env": spec.id, "split": split, "a": str(a), "b": str(b)}
        print_json(document | {"equal": comparison.equal} | asdict(comparison))
    else:
        _show(comparison, spec.id, str(a), str(b))
    sys.exit(0 if comparison.equal else 1)


def _show(comparison: DataComparison, env_id: str, a: str, b: str) -> None:
    from hgpo_envs.wording import counted
    from hgpo_train.cli.display import print_table

    counts = {
        "A": f"{a}: {counted(comparison.tasks_in_a, 'task')}",
        "B": f"{b}: {counted(comparison.tasks_in_b, 'task')}",
    }
    print_table(["", ""], counts.items(), title=env_id, texts=2)
    if comparison.equal:
        print(f"\nequal: {', '.join(comparison.differences)}")
        return
    rows = [("only in A", len(comparison.only_in_a)), ("only in B", len(comparison.only_in_b))]
    rows += [(name, len(found)) for name, found in comparison.differences.items()]
    print_table(["different", "tasks"], [(name, f"{count:,}") for name, count in rows])
    print()
    for line in _examples(comparison):
        print(line)


def _examples(comparison: DataComparison) -> Iterator[str]:
    """Yield the first ids of one side, and the most frequent differences of each kind with the first id of each."""
    for side, ids in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        for task_id in ids[:SHOWN]:
            yield f"only in {side}: {task_id}"
        if len(ids) > SHOWN:
            yield f"only in {side}: … {len(ids) - SHOWN:,} more; --json has all"
    for name, found in comparison.differences.items():
        firsts = {(each.a, each.b): each.task_id for each in reversed(found)}
        pairs = Counter((each.a, each.b) for each in found)
        for (a, b), times in pairs.most_common(SHOWN):
            more = f" and {times - 1:,} more" if times > 1 else ""
            yield f"{name} of {firsts[a, b]}{more}"
            yield from _lines("A", a)
            yield from _lines("B", b)
        if len(pairs) > SHOWN:
            yield f"{name}: … {len(pairs) - SHOWN:,} other pairs; --json has all"


def _lines(side: str, text: str) -> Iterator[str]:
    lines = text.splitlines()
    for line in lines[:LINES]:
        yield f"  {side}: {line}"
    if len(lines) > LINES:
        yield f"  {side}: … {len(lines) - LINES:,} more lines"
