"""What scan_steps accepts: runs, folders of runs, patterns."""

import contextlib
import warnings
from pathlib import Path

import polars as pl
import pytest
from groups import group
from polars.testing import assert_frame_equal

from hgpo_datasets import StepTableWarning, StepWriter, scan_steps
from hgpo_datasets.run_summary import summarize_run
from hgpo_envs.errors import InputError


def write(folder: Path, *tasks: str) -> Path:
    with StepWriter(folder) as writer:
        for task in tasks:
            writer.add_group(group(task))
            writer.commit()
    return folder


def tasks(source: object, **options: object) -> list[str]:
    return scan_steps(source, **options).select("task_id").unique().sort("task_id").collect()["task_id"].to_list()  # type: ignore[arg-type]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of runs at several depths, with everything that is usually beside them."""
    folder = tmp_path / "runs"
    write(folder / "first", "a")
    write(folder / "deep/er/second", "b")
    training = write(folder / "training", "c")
    (training / "config.toml").touch()
    write(training / "evaluation", "held out")
    for table in ("first.advantages/hgpo.parquet", ".hidden/x.parquet"):
        (folder / table).parent.mkdir()
        pl.DataFrame({"advantage": [0.0]}).write_parquet(folder / table)
    return folder


def test_any_level_of_folders_and_patterns(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = ["a", "b", "c"]
    for source, expected in (
        (runs, everything),
        (f"{runs}/*", everything),
        (runs.parent, everything),
        (runs / "deep/er/second", ["b"]),
        (f"{runs}/*/*/second", ["b"]),
        (runs / "first/steps", ["a"]),
        (f"{runs}/first/steps/*.parquet", ["a"]),
        (f"{runs}/first/**/*.parquet", ["a"]),
        (runs / "training", ["c"]),
        (f"{runs}/training/*", ["c"]),
        (f"{runs}/*/steps", ["a", "c"]),
        (f"{runs}/*/evaluation", ["held out"]),
        (runs / "training/evaluation/steps", ["held out"]),
        ([runs / "first", f"{runs}/tr*"], ["a", "c"]),
        ((runs / "first").as_uri(), ["a"]),
    ):
        assert tasks(source) == expected, source
        if not isinstance(source, list):
            summarize_run(str(source).removeprefix("file://"))
    for place, name in (("first/steps", "."), ("first", "steps"), ("first/steps", ".."), ("training", ".")):
        monkeypatch.chdir(runs / place)
        assert tasks(name) == (["a"] if "first" in place else ["c"])


def test_a_run_that_is_named_twice_is_read_once(runs: Path) -> None:
    (runs / "link").symlink_to("first")
    for source in (
        [runs / "first", runs / "first/steps", runs / "link"],
        [runs / "first", runs / "first/steps/steps-000000.parquet"],
        f"{runs}/[fl]i*",
    ):
        assert scan_steps(source).collect().height == 6, source


def test_links_and_loops(runs: Path) -> None:
    (runs / "deep/loop").symlink_to(runs)
    (runs / "self").symlink_to("self")
    assert tasks(runs / "deep") == ["a", "b", "c"]
    elsewhere = runs.parent / "elsewhere"
    elsewhere.symlink_to(runs / "first/steps")
    assert tasks(elsewhere) == ["a"], "a link to the folder of the shards"


def test_empty_runs_among_others_are_counted(runs: Path) -> None:
    for name in ("x", "y"):
        StepWriter(runs / name).close()
    with pytest.warns(StepTableWarning, match="runs: 5 runs, 2 of them without committed rows"):
        assert tasks(runs) == ["a", "b", "c"]
    with pytest.raises(InputError, match=r"no committed rows in .*\[xy\]: found 2 runs, none of them with committed"):
        scan_steps(f"{runs}/[xy]")
    with pytest.raises(InputError, match=r"no committed rows in .*/x$"):
        scan_steps(runs / "x")


def test_errors_say_what_was_found(runs: Path) -> None:
    for source, line in (
        (runs / "first.advantages", r"is not a run, and contains none: .*/first.advantages/\*\.parquet\)"),
        (runs / ".hidden/none", "no such file or run"),
        (f"{runs}/nothing*", "no such file or run"),
        (f"{runs}/*.advantages", "is not a run, and contains none"),
        (f"{runs}/**", "matches runs .* and Parquet files outside of them .*hgpo.parquet"),
    ):
        with pytest.raises(InputError, match=rf"^.*{line}.*$"):
            scan_steps(source)


def test_a_file_in_place_of_the_folder_of_shards_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/steps").write_text("somebody's")
    with pytest.raises(InputError, match="expected a folder, received the file"):
        StepWriter(tmp_path / "run")
    assert (tmp_path / "run/steps").read_text() == "somebody's"


READERS = {
    "polars": lambda steps: pl.read_parquet(steps),
    "pandas": lambda steps: pl.from_pandas(__import__("pandas").read_parquet(steps, dtype_backend="pyarrow")),
    "pyarrow": lambda steps: pl.from_arrow(__import__("pyarrow.dataset").dataset.dataset(steps).to_table()),
    "duckdb": lambda steps: __import__("duckdb").sql(f"SELECT * FROM '{steps}/*.parquet'").pl(),
    "datasets": lambda steps: pl.from_arrow(
        __import__("datasets")
        .load_dataset("parquet", data_dir=str(steps), split="train", cache_dir=str(steps.parent.parent / "cache"))
        .data.table
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_other_programs_read_the_folder_as_it_is(tmp_path: Path, reader: str) -> None:
    pytest.importorskip(reader)
    run = write(tmp_path / "run", "a", "b")
    expected = scan_steps(run).sort("task_id", "trajectory", "step").collect()
    for is_open in (False, True):
        with contextlib.ExitStack() as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if is_open:
                stack.enter_context(StepWriter(run))
            found = READERS[reader](run / "steps")
        columns = ["task_id", "trajectory", "step", "state", "action", "reward", "history_hash_1"]
        found = found.select(columns).sort("task_id", "trajectory", "step")
        assert_frame_equal(found, expected.select(columns), check_dtypes=False)
