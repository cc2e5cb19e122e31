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
LONGEST: Final = 300
"""The number of characters of a text that are printed."""


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
    from hgpo_train.cli.display import ProgressBars, print_json
    from hgpo_train.settings import read_assignments

    spec = environment_spec(resolve_id(env))
    given = read_assignments("--env-option", env_option or (), {})
    for name, instead in (("data", "the arguments A and B"), ("split", "--split")):
        if name in given:
            raise InputError(f"--env-option {name}: use {instead}")
    shared = [spec.open_source(**given, data=str(path)) for path in (a, b)]
    ids = [Split(each, split) for each in shared]
    with ProgressBars() as bars:
        track = partial(bars.track, description="comparing")
        comparison = compare_data(
            shared[0].source, shared[1].source, (ids[0], ids[1]), track
        )
    if as_json:
        document: dict[str, Any] = {
            "env": spec.id,
            "split": split,
            "a": str(a),
            "b": str(b),
        }
        print_json(document | {"equal": comparison.equal} | asdict(comparison))
    else:
        _show(comparison, str(a), str(b))
    sys.exit(0 if comparison.equal else 1)


def _show(comparison: DataComparison, a: str, b: str) -> None:
    from hgpo_envs.wording import counted
    from hgpo_train.cli.display import print_table

    for side, path, tasks in (
        ("A", a, comparison.tasks_in_a),
        ("B", b, comparison.tasks_in_b),
    ):
        print(f"{side}: {path}, {counted(tasks, 'task')}")
    if comparison.equal:
        print(f"equal: {', '.join(comparison.differences)}")
        return
    sizes = {
        "only in A": len(comparison.only_in_a),
        "only in B": len(comparison.only_in_b),
    }
    sizes |= {name: len(found) for name, found in comparison.differences.items()}
    print_table(
        ["different", "tasks"], [(name, f"{size:,}") for name, size in sizes.items()]
    )
    for line in _examples(comparison):
        print(line)


def _examples(comparison: DataComparison) -> Iterator[str]:
    """Yield the first ids of one side, and the most frequent differences of each kind with the first id of each."""
    from hgpo_envs.errors import one_line

    for side, ids in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        for task_id in ids[:SHOWN]:
            yield f"only in {side}: {task_id}"
    for name, found in comparison.differences.items():
        firsts = {(each.a, each.b): each.task_id for each in reversed(found)}
        times = Counter([(each.a, each.b) for each in found])
        for pair, count in times.most_common(SHOWN):
            more = f" and {count - 1:,} more" if count > 1 else ""
            yield f"{name} of {firsts[pair]}{more}"
            for side, text in zip("AB", pair, strict=True):
                yield f"  {side}: {one_line('; '.join(text.splitlines()), LONGEST)}"
