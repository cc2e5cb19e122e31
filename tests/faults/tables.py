"""Scenarios that write step tables and advantage tables."""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from groups import Rows, group

from tests.faults.commands import hgpo
from tests.faults.harness import Scenario

Note = Callable[[str], None]
GROUPS = 3
UNFINISHED = ("uncommitted", "manifest")
"""Kinds of problems that `verify` may report for a run whose writer was killed, until it is opened again."""
ANY_LOCK = {"varies": ("*.lock",), "unpromised": ("*.lock",)}
"""The content of lock files varies and need not survive a power cut: it only identifies the running process."""


def rows(number: int) -> Rows:
    return group(f"task {number}", 2 + number, 3, prompt=f"prompt {number} " * 20)


def warm() -> None:
    import hgpo_datasets  # noqa: F401
    import hgpo_train.advantages.advantage_tables
    import hgpo_train.cli  # noqa: F401


def write(root: Path, note: Note) -> None:
    """Write one shard per group; leaving the block commits the last one."""
    from hgpo_datasets import GroupKey, StepWriter

    with StepWriter(root / "run", run="r", config={"x": 1}) as writer:
        missing = [number for number in range(GROUPS) if GroupKey(0, f"task {number}", 0) not in writer.committed]
        for number in missing:
            writer.add_group(rows(number))
            if number < GROUPS - 1:
                writer.commit()
                note(str(number))
    if missing:
        note(str(missing[-1]))


def check_run(root: Path, noted: Sequence[str], whole: bool) -> None:
    from hgpo_datasets import StepWriter, scan_steps, verify
    from hgpo_datasets.run_summary import summarize_run
    from hgpo_envs.errors import InputError

    folder = root / "run"
    expected = {str(number) for number in range(GROUPS)} if whole else set(noted)
    if not expected and not (folder / "manifest.jsonl").exists():
        return
    check_shards(folder)
    problems = [problem for problem in verify(folder).problems if whole or problem.kind not in UNFINISHED]
    assert not problems, problems
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warns about shards that are not listed yet
            steps = scan_steps(folder).collect()
            summarize_run(folder)
    except InputError:
        assert not expected, "committed rows cannot be read"
        return
    seen = Counter(task.split()[1] for task in steps["task_id"])
    assert expected <= seen.keys(), f"lost: {sorted(expected - seen.keys())}"
    for number, count in seen.items():
        assert count == len(rows(int(number))), f"lost or doubled rows of group {number}"
    assert not steps.select("trajectory", "step").is_duplicated().any(), "doubled rows"
    for row in steps.select("task_id", "prompt").iter_rows():
        assert row[1] == rows(int(row[0].split()[1]))[0]["prompt"]
    if whole:
        StepWriter(folder, run="r").close()


def check_shards(folder: Path) -> None:
    """Check that the folder of the shards contains only complete shards, which Polars reads as it is."""
    import polars as pl

    names = sorted(path.name for path in (folder / "steps").glob("*"))
    assert names == [f"steps-{number:06d}.parquet" for number in range(len(names))], names
    if names:
        steps = pl.read_parquet(folder / "steps")
        assert not steps.select("trajectory", "step").is_duplicated().any(), "doubled rows"
        for task, count in Counter(steps["task_id"]).items():
            assert count == len(rows(int(task.split()[1]))), f"rows of {task} are missing"


def a_run(root: Path) -> None:
    write(root, lambda _: None)


def another_table(root: Path) -> None:
    a_run(root)
    advantages(root, "grpo")


def advantages(root: Path, estimator: str = "hgpo") -> None:
    options = ("--chunk-rows", 6, "--out", root / "made" / "a.parquet", "--overwrite")
    hgpo("advantages", root / "run", "-e", estimator, *options)


def estimate(root: Path, note: Note) -> None:
    advantages(root)
    note("written")


def view_page(root: Path, note: Note) -> None:
    if not (root / "made" / "page.html").exists():
        hgpo("view", root / "run", "-o", root / "made" / "page.html", "-e", "grpo")
    note("written")


def check_page(root: Path, noted: Sequence[str], whole: bool) -> None:
    page = root / "made" / "page.html"
    if not page.exists():
        assert not noted
        assert not whole
        return
    assert page.read_text().endswith("</html>\n")
    check_run(root, ["0", "1", "2"], True)


def check_advantages(root: Path, noted: Sequence[str], whole: bool) -> None:
    import polars as pl

    from hgpo_train.advantages.advantage_tables import read_metadata

    table = root / "made" / "a.parquet"
    if not table.exists():
        assert not noted
        assert not whole
        return
    frame = pl.read_parquet(table)
    assert frame.height == sum(len(rows(number)) for number in range(GROUPS))
    assert frame["advantage"].is_not_null().all()
    name = read_metadata(table)["columns"]["advantage"]["estimator"]
    assert name == "hgpo" if whole or noted else name in ("hgpo", "grpo")
    check_run(root, ["0", "1", "2"], True)


def check_replaced(root: Path, noted: Sequence[str], whole: bool) -> None:
    assert (root / "made" / "a.parquet").exists(), "the existing table is lost"
    check_advantages(root, noted, whole)


RUN_FOREIGN = ("run/notes.txt", "run.new/mine", "run/steps-000000.parquet.tmp", "run/mine.part")
MADE_FOREIGN = ("made/a.parquet.part/mine", "made/a.parquet.new", "made/.a.parquet.tmp", "run.advantages/mine")

SCENARIOS = (
    Scenario("step table", write, check_run, warm, foreign=RUN_FOREIGN, **ANY_LOCK),
    Scenario("advantages", estimate, check_advantages, warm, a_run, MADE_FOREIGN, **ANY_LOCK),
    Scenario("page of the viewer", view_page, check_page, warm, a_run, **ANY_LOCK),
    Scenario("advantages over an older table", estimate, check_replaced, warm, another_table, MADE_FOREIGN, **ANY_LOCK),
)
