"""Runs as Delta Lake tables: other engines read the same rows, and a second export replaces the first."""

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from command import environment
from groups import group, rich_group, write_run
from polars.testing import assert_frame_equal
from refusals import refused
from s3 import options_of, s3_server

from hgpo_datasets import StepWriter, scan_steps

deltalake = pytest.importorskip("deltalake")

from hgpo_datasets.interchange.delta import to_delta  # noqa: E402 (after the check that deltalake is installed)

KEY = ["run", "task_id", "group", "trajectory", "step"]


def add(run, numbers):
    with StepWriter(run) as writer:
        for number in numbers:
            writer.add_group(rich_group(f"t{number}", number))
            writer.commit()


@pytest.fixture
def run(tmp_path):
    add(tmp_path / "run", range(3))
    return tmp_path / "run"


def same(table, run):
    """Check that a table has the rows of a run."""
    steps = scan_steps(run).collect().sort(KEY)
    assert_frame_equal(table.sort(KEY).select(steps.columns), steps)


@pytest.mark.slow
def test_engines_read_the_rows_of_the_run(run, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    report = to_delta(run, tmp_path / "table")
    assert report == (1, scan_steps(run).collect().height)
    same(pl.scan_delta(str(tmp_path / "table")).collect(), run)
    table = deltalake.DeltaTable(tmp_path / "table")
    arrow = table.to_pyarrow_table()
    same(pl.DataFrame(arrow), run)
    same(duckdb.sql("SELECT * FROM arrow").pl(), run)
    assert table.partitions() == [{"run": "run"}]


def test_the_documented_line_writes_the_rows(tmp_path, monkeypatch):
    page = (
        (Path(__file__).parents[2] / "docs/interchange.md")
        .read_text("utf-8")
        .partition("## Delta Lake")[2]
    )
    add(tmp_path / "runs/first", range(2))
    monkeypatch.chdir(tmp_path)
    exec(page.partition("```python\n")[2].partition("```")[0], {})
    same(pl.read_delta("first_table"), tmp_path / "runs/first")


def test_paths_that_are_no_urls_are_refused(run, tmp_path):
    with refused("without the characters"):
        to_delta(run, tmp_path / "table[1]")


def test_what_is_no_table_is_left_alone(run, tmp_path):
    (tmp_path / "catalogue").mkdir()
    (tmp_path / "catalogue/items.json").write_text("{}")
    for name, line in (
        ("catalogue", "received one with other files"),
        ("catalogue/items.json", "received a file"),
    ):
        with refused(line):
            to_delta(run, tmp_path / name)
    assert [path.name for path in tmp_path.glob("catalogue/*")] == ["items.json"]
    (tmp_path / "empty").mkdir()
    assert to_delta(run, tmp_path / "empty").version == 1


def test_a_second_export_replaces_the_rows_of_the_first(run, tmp_path):
    """The run has grown, and some of its rollouts were retried. Earlier versions stay readable."""
    to_delta(run, tmp_path / "table")
    before = scan_steps(run).collect()
    add(run, range(3, 5))
    with StepWriter(run) as writer:
        writer.replace([{**row, "reward": 0.5} for row in rich_group("t1", 1)])
    report = to_delta(run, tmp_path / "table")
    assert report == (2, scan_steps(run).collect().height)
    table = pl.read_delta(str(tmp_path / "table"))
    assert table.filter(task_id="t1")["reward"].unique().to_list() == [0.5]
    same(table, run)
    earlier = pl.read_delta(str(tmp_path / "table"), version=1)
    assert_frame_equal(earlier.select(before.columns).sort(KEY), before.sort(KEY))


def test_runs_of_one_table(run, tmp_path):
    """A run of another depth has other columns; a run of the same name is refused."""
    write_run(tmp_path / "o'ther", group("t", 2, 3), depth=1)
    to_delta(run, tmp_path / "table")
    to_delta(tmp_path / "o'ther", tmp_path / "table")
    table = pl.read_delta(str(tmp_path / "table"))
    same(table.filter(run="run"), run)
    same(table.filter(run="o'ther"), tmp_path / "o'ther")
    write_run(tmp_path / "again/run", group("t", 2, 3), config={"seed": 1})
    with refused("has the rows of another run named 'run'"):
        to_delta(tmp_path / "again/run", tmp_path / "table")
    pl.DataFrame({"a": [1]}).write_delta(str(tmp_path / "foreign"))
    with refused("expected a table of `hgpo data export delta`"):
        to_delta(run, tmp_path / "foreign")
    with refused("expected the folder of one run"):
        to_delta(next(run.glob("steps/*")), tmp_path / "table")


AT_ONCE = """
import sys
from hgpo_datasets.interchange.delta import to_delta
from hgpo_envs.errors import InputError

print("ready", flush=True)
sys.stdin.readline()
try:
    print(to_delta(*sys.argv[1:]).rows)
except InputError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("exports", [2, 3])
def test_exports_at_the_same_time_write_each_row_once(run, tmp_path, exports):
    """Into a new table, and into one that has another run; the others fail with a line, and can be repeated."""
    write_run(tmp_path / "other", group("t", 2, 3))
    to_delta(tmp_path / "other", tmp_path / "existing")
    for table in ("new", "existing"):
        command = [sys.executable, "-c", AT_ONCE, str(run), str(tmp_path / table)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes = [
            subprocess.Popen(command, env=environment(), **pipes)
            for _ in range(exports)
        ]
        assert {process.stdout.readline() for process in processes} == {"ready\n"}
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        lines = [process.communicate(timeout=120)[0].strip() for process in processes]
        same(pl.read_delta(str(tmp_path / table)).filter(run="run"), run)
        assert all(
            line.isdigit() or line.startswith(f"{tmp_path / table}: ") for line in lines
        ), lines
        to_delta(run, tmp_path / table)
        same(pl.read_delta(str(tmp_path / table)).filter(run="run"), run)


@pytest.mark.slow
def test_a_table_in_an_object_store(run, monkeypatch):
    with s3_server() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert to_delta(run, "s3://bucket/table").version == 1
        add(run, range(3, 4))
        assert to_delta(run, "s3://bucket/table").version == 2
        same(
            pl.read_delta(
                "s3://bucket/table",
                storage_options={**options_of(environment), "allow_http": "true"},
            ),
            run,
        )
        with refused(r"^s3://nowhere/table: "):
            to_delta(run, "s3://nowhere/table")
