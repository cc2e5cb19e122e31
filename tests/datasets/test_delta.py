"""Runs as Delta Lake tables: other engines read the same rows, new shards are appended once, and kills do no harm."""

import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from command import environment, python
from groups import group, rich_group
from polars.testing import assert_frame_equal
from s3 import options_of, s3_server

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.errors import InputError

deltalake = pytest.importorskip("deltalake")

from hgpo_datasets.interchange.delta import to_delta  # noqa: E402 (after the check that deltalake is installed)

KEY = ["run", "task_id", "group", "trajectory", "step"]


def add(run: Path, numbers: range) -> None:
    with StepWriter(run) as writer:
        for number in numbers:
            writer.add_group(rich_group(f"t{number}", number))
            writer.commit()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    add(tmp_path / "run", range(3))
    return tmp_path / "run"


def same(table: pl.DataFrame, run: Path) -> None:
    """Check that a table has the rows of a run."""
    steps = scan_steps(run).collect().sort(KEY)
    assert_frame_equal(table.sort(KEY).select(steps.columns), steps)


def test_engines_read_the_rows_of_the_run(run: Path, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    report = to_delta(run, tmp_path / "table")
    assert report == (3, 3, scan_steps(run).collect().height)
    same(pl.scan_delta(str(tmp_path / "table")).collect(), run)
    table = deltalake.DeltaTable(tmp_path / "table")
    same(pl.DataFrame(arrow := table.to_pyarrow_table()), run)
    same(duckdb.sql("SELECT * FROM arrow").pl(), run)
    assert table.partitions() == [{"run": "run"}]
    assert set(arrow["shard"].to_pylist()) == {f"steps-00000{number}.parquet" for number in range(3)}


def test_paths_that_are_no_urls_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without the characters"):
        to_delta(run, tmp_path / "table[1]")


def test_only_new_shards_are_appended(run: Path, tmp_path: Path) -> None:
    to_delta(run, tmp_path / "table")
    again = to_delta(run, tmp_path / "table")
    assert (again.version, again.shards, again.rows) == (3, 0, 0)
    before = scan_steps(run).collect()
    add(run, range(3, 5))
    more = to_delta(run, tmp_path / "table")
    assert (more.version, more.shards) == (5, 2)
    same(pl.read_delta(str(tmp_path / "table")), run)
    earlier = pl.read_delta(str(tmp_path / "table"), version=3)
    assert_frame_equal(earlier.select(KEY).sort(KEY), before.select(KEY).sort(KEY))


def test_rows_of_replaced_shards_are_removed(run: Path, tmp_path: Path) -> None:
    """A shard that was exported is replaced twice, and one that was not is replaced before its first export."""
    to_delta(run, tmp_path / "table")
    add(run, range(3, 4))
    for reward in (0.25, 0.5):
        with StepWriter(run) as writer:
            for number in (1, 3):
                rows = rich_group(f"t{number}", number)
                writer.replace([{**row, "reward": reward} for row in rows])
    report = to_delta(run, tmp_path / "table")
    assert report.shards == 2
    table = pl.read_delta(str(tmp_path / "table"))
    assert table.filter(pl.col("task_id").is_in(["t1", "t3"]))["reward"].unique().to_list() == [0.5]
    same(table, run)
    assert to_delta(run, tmp_path / "table") == (report.version, 0, 0)


def test_runs_of_one_table(run: Path, tmp_path: Path) -> None:
    """A run of another depth has other columns; a run of the same name is refused."""
    with StepWriter(tmp_path / "o'ther", depth=1) as writer:
        writer.add_group(group("t", 2, 3))
    to_delta(run, tmp_path / "table")
    to_delta(tmp_path / "o'ther", tmp_path / "table")
    table = pl.read_delta(str(tmp_path / "table"))
    same(table.filter(run="run"), run)
    same(table.filter(run="o'ther"), tmp_path / "o'ther")
    with StepWriter(tmp_path / "again/run", config={"seed": 1}) as writer:
        writer.add_group(group("t", 2, 3))
    with pytest.raises(InputError, match="has the rows of another run named 'run'"):
        to_delta(tmp_path / "again/run", tmp_path / "table")
    pl.DataFrame({"a": [1]}).write_delta(str(tmp_path / "foreign"))
    with pytest.raises(InputError, match="expected a table of `hgpo data export delta`"):
        to_delta(run, tmp_path / "foreign")
    with pytest.raises(InputError, match="expected the folder of one run"):
        to_delta(next(run.glob("steps/*")), tmp_path / "table")


KILLED = """
import os, signal, sys
import deltalake
from hgpo_datasets.interchange.delta import to_delta

write = deltalake.write_deltalake
deltalake.write_deltalake = lambda *args, **options: (write(*args, **options), os.kill(os.getpid(), signal.SIGKILL))
to_delta(*sys.argv[1:])
"""


def test_a_killed_export_continues(run: Path, tmp_path: Path) -> None:
    for finished in (1, 2):
        assert python(KILLED, run, tmp_path / "table", timeout=120).returncode == -signal.SIGKILL
        table = pl.read_delta(str(tmp_path / "table"))
        assert table["shard"].n_unique() == finished
    # a file that was written but not committed belongs to no version
    (tmp_path / "table/run=run/part-unfinished.zstd.parquet").write_bytes(b"PAR1")
    assert to_delta(run, tmp_path / "table").shards == 1
    same(pl.read_delta(str(tmp_path / "table")), run)


AT_ONCE = """
import sys
from hgpo_datasets.interchange.delta import to_delta
from hgpo_envs.errors import InputError

print("ready", flush=True)
sys.stdin.readline()
try:
    print(to_delta(*sys.argv[1:]).shards)
except InputError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("exports", [2, 3])
def test_exports_at_the_same_time_append_a_shard_once(run: Path, tmp_path: Path, exports: int) -> None:
    """Into a new table, and into one that has another run; the others fail with a line, and can be repeated."""
    with StepWriter(tmp_path / "other") as writer:
        writer.add_group(group("t", 2, 3))
    to_delta(tmp_path / "other", tmp_path / "existing")
    for table in ("new", "existing"):
        command = [sys.executable, "-c", AT_ONCE, str(run), str(tmp_path / table)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes = [subprocess.Popen(command, env=environment(), **pipes) for _ in range(exports)]
        assert {process.stdout.readline() for process in processes} == {"ready\n"}
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        lines = [process.communicate(timeout=120)[0].strip() for process in processes]
        same(pl.read_delta(str(tmp_path / table)).filter(run="run"), run)
        assert all(line.isdigit() or line.startswith(f"{tmp_path / table}: ") for line in lines), lines
        to_delta(run, tmp_path / table)
        same(pl.read_delta(str(tmp_path / table)).filter(run="run"), run)


def test_a_table_in_an_object_store(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert to_delta(run, "s3://bucket/table").shards == 3
        assert to_delta(run, "s3://bucket/table").shards == 0
        same(pl.read_delta("s3://bucket/table", storage_options={**options_of(environment), "allow_http": "true"}), run)
        add(run, range(3, 4))
        assert to_delta(run, "s3://bucket/table").shards == 1
        with pytest.raises(InputError, match=r"^s3://nowhere/table: "):
            to_delta(run, "s3://nowhere/table")
