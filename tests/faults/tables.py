"""Scenarios that write step tables and advantage tables."""

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

from groups import Rows, group

from tests.faults.commands import hgpo
from tests.faults.harness import Note, Scenario

GROUPS = 3
UNFINISHED = ("uncommitted", "manifest")
"""Kinds of problems that `verify` may report for a run whose writer was killed, until it is opened again."""


def rows(number: int) -> Rows:
    return group(f"task {number}", 2 + number, 3, prompt=f"prompt {number} " * 20)


def write(root: Path, note: Note) -> None:
    """Write one shard per group; leaving the block commits the last one."""
    from hgpo_datasets import GroupKey, StepWriter

    with StepWriter(root / "run", run="r", config={"x": 1}) as writer:
        missing = [
            number
            for number in range(GROUPS)
            if GroupKey(0, f"task {number}", 0) not in writer.committed
        ]
        for number in missing:
            writer.add_group(rows(number))
            if number < GROUPS - 1:
                writer.commit()
                note(str(number))
    if missing:
        note(str(missing[-1]))


def check_run(root: Path, noted: Sequence[str], whole: bool) -> None:
    import polars as pl

    from hgpo_datasets import StepWriter, scan_steps, verify
    from hgpo_envs.errors import InputError

    folder = root / "run"
    expected = {f"task {number}" for number in (range(GROUPS) if whole else noted)}
    if not expected and not (folder / "manifest.jsonl").exists():
        return
    # the folder of the shards contains only complete shards, which Polars reads as it is
    names = sorted(path.name for path in (folder / "steps").glob("*"))
    assert names == [f"steps-{number:06d}.parquet" for number in range(len(names))], (
        names
    )
    problems = [
        problem
        for problem in verify(folder).problems
        if whole or problem.kind not in UNFINISHED
    ]
    assert not problems, problems
    try:
        with warnings.catch_warnings():
            # warns about shards that are not listed yet
            warnings.simplefilter("ignore")
            committed = scan_steps(folder).collect()
    except InputError:
        assert not expected, "committed rows cannot be read"
        return
    assert expected <= set(committed["task_id"]), "committed rows are lost"
    for steps in (committed, pl.read_parquet(folder / "steps")):
        assert not steps.select("trajectory", "step").is_duplicated().any(), (
            "doubled rows"
        )
        for task, count in Counter(steps["task_id"]).items():
            assert count == len(rows(int(task.split()[1]))), (
                f"rows of {task} are missing"
            )
        for task, prompt in steps.select("task_id", "prompt").iter_rows():
            assert prompt == rows(int(task.split()[1]))[0]["prompt"]
    if whole:
        StepWriter(folder, run="r").close()


def advantages(root: Path, note: Note, estimator: str = "hgpo") -> None:
    options = ("--chunk-rows", 6, "--out", root / "made" / "a.parquet", "--overwrite")
    hgpo("advantages", root / "run", "-e", estimator, *options)
    note("written")


def another_table(root: Path) -> None:
    write(root, lambda _: None)
    advantages(root, lambda _: None, "grpo")


def check_replaced(root: Path, noted: Sequence[str], whole: bool) -> None:
    import polars as pl

    from hgpo_train.advantages.advantage_tables import read_metadata

    table = root / "made" / "a.parquet"
    frame = pl.read_parquet(table)
    assert frame.height == sum(len(rows(number)) for number in range(GROUPS))
    assert frame["advantage"].is_not_null().all()
    name = read_metadata(table)["columns"]["advantage"]["estimator"]
    assert name == "hgpo" if whole or noted else name in ("hgpo", "grpo")
    check_run(root, ["0", "1", "2"], True)


def branch(root: Path, note: Note) -> None:
    """Collect rollouts that branch, which are written with their branches."""
    from hgpo_train.rollout import collect

    wanted = {
        "tasks": 2,
        "group_size": 4,
        "max_steps": 5,
        "branch": "uniform",
        "width": 2,
        "progress": False,
    }
    collect("doors_env:HGPO-Test/Doors-v0", "random", root / "run", **wanted)
    note("branched")


def branch_later(root: Path, note: Note) -> None:
    """Collect rollouts that branch after they were written: their file is written again."""
    from hgpo_train.rollout import kept_groups

    with patch.object(kept_groups, "_MOST_BYTES", 0):
        branch(root, note)


def check_branched(root: Path, noted: Sequence[str], whole: bool) -> None:
    from hgpo_datasets import scan_steps, verify
    from hgpo_datasets.branches import IS_BRANCH

    folder = root / "run"
    whole = whole or bool(noted)
    if not whole and not (folder / "manifest.jsonl").exists():
        return
    problems = [
        problem
        for problem in verify(folder).problems
        if whole or problem.kind not in UNFINISHED
    ]
    assert not problems, problems
    if not whole and not list((folder / "steps").glob("*.parquet")):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = (
            scan_steps(folder)
            .select("trajectory", IS_BRANCH.alias("branch"))
            .unique()
            .collect()
        )
    branches = steps["branch"].sum()
    assert steps.height - branches in ((4,) if whole else (0, 4)), "rollouts are lost"
    assert branches > 0 or not whole, "branches are lost"


RUN_FOREIGN = (
    "run/notes.txt",
    "run.new/mine",
    "run/steps-000000.parquet.tmp",
    "run/mine.part",
)
MADE_FOREIGN = (
    "made/a.parquet.part/mine",
    "made/a.parquet.new",
    "made/.a.parquet.tmp",
    "run.advantages/mine",
)

# a file that is written again has another number
VARIES = ("*/steps-*.parquet", "*/manifest.jsonl")

SCENARIOS = (
    Scenario("step table", write, check_run, foreign=RUN_FOREIGN),
    Scenario(
        "branches",
        branch,
        check_branched,
        foreign=RUN_FOREIGN[:2],
        varies=("*/sessions.json", *VARIES),
    ),
    Scenario(
        "branches of written rollouts",
        branch_later,
        check_branched,
        foreign=RUN_FOREIGN[:2],
        varies=("*/sessions.json", *VARIES),
    ),
    Scenario(
        "advantages",
        advantages,
        check_replaced,
        prepare=another_table,
        foreign=MADE_FOREIGN,
    ),
)
