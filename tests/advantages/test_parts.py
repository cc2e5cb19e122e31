"""Runs of many shards: several processes, parts, kills and growing runs give the same bytes, numbers and reports."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import polars.testing
import pytest
from large_run import OWN, collect

from hgpo_datasets import StepWriter, manifest, scan_steps, verify
from hgpo_datasets.partitions import partitions
from hgpo_datasets.processes import in_processes
from hgpo_envs.errors import InputError, ProcessError
from hgpo_envs.files.atomic import FolderLock
from hgpo_train.advantages import EstimatorSpec, compute, get, names
from hgpo_train.advantages.advantage_tables import fingerprint, write_advantages
from hgpo_train.advantages.parts import partitions_for, write_folder, write_table

ROWS = 200


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rollouts") / "run"
    collect(folder, tasks=16)
    assert len(list(folder.glob("steps/*"))) == 16
    return folder


IN_GROUPS = [name for name in names() if get(name).scope == "group"]


def specs(*chosen: str) -> list[EstimatorSpec]:
    return [EstimatorSpec(get(name), get(name).parameters(), name, details=True) for name in chosen or IN_GROUPS]


# ------------------------------------------------------------------------------------------------------- partitions


def test_partitions_are_consecutive_shards_of_whole_groups(run: Path) -> None:
    found = partitions(run, ROWS)
    assert len(found) > 4
    assert [part.number for part in found] == list(range(len(found)))
    assert [file for part in found for file in part.files] == list(partitions(run, 10**9)[0].files)
    groups = [set(part.scan().select("task_id", "group").collect().rows()) for part in found]
    assert sum(map(len, groups)) == len(set().union(*groups)) == 16
    assert sum(part.rows() for part in found) == scan_steps(run).collect().height
    assert all(part.rows() <= ROWS or len(part.files) == 1 for part in found)


def test_batches_are_not_divided(tmp_path: Path) -> None:
    """Iteration 4 has a shard after one of iteration 5, like a group that is retried."""
    rows = {"state": "s", "action": "a", "reward": 1.0, "terminated": True, "step": 0}
    with StepWriter(tmp_path / "run") as writer:
        for iteration, task in [(1, "a"), (2, "b"), (2, "c"), (3, "d"), (4, "e"), (5, "f"), (4, "g")]:
            writer.add_group([{**rows, "iteration": iteration, "task_id": task, "trajectory": f"{iteration}{task}"}])
            writer.commit()
    assert [len(part.files) for part in partitions(tmp_path / "run", 1)] == [1] * 7
    assert [len(part.files) for part in partitions(tmp_path / "run", 1, whole=["iteration"])] == [1, 2, 1, 3]
    assert [len(part.files) for part in partitions(tmp_path / "run", 3, whole=["iteration"])] == [3, 1, 3]


def test_files_outside_of_runs_are_one_partition(run: Path, tmp_path: Path) -> None:
    for number in range(3):
        pl.read_parquet(run / "steps" / f"steps-00000{number}.parquet").write_parquet(tmp_path / f"{number}.parquet")
    (whole,) = partitions(tmp_path / "*.parquet", 1, plain=True)
    assert len(whole.files) == 3
    assert whole.fingerprint() == fingerprint(tmp_path / "*.parquet")


def test_runs_of_other_depths_are_read_with_the_columns_of_all(run: Path, tmp_path: Path) -> None:
    with StepWriter(tmp_path / "shallow", depth=1) as writer:
        writer.add_group([{"task_id": "t", "trajectory": "x", "step": 0, "state": "s", "action": "a", "reward": 0.0,
                           "terminated": True}])  # fmt: skip
    both = partitions([run, tmp_path / "shallow"], ROWS)
    expected = scan_steps([run, tmp_path / "shallow"]).collect_schema()
    assert all(part.scan().collect_schema() == expected for part in both)


# -------------------------------------------------------------------------------------------------------- same bytes


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [("hgpo", "gigpo", "grpo"), ("reinforce_pp",)])
def test_processes_give_the_same_bytes(run: Path, tmp_path: Path, chosen: tuple[str, ...]) -> None:
    parts = partitions_for(run, specs(*chosen), ROWS)
    assert (len(parts) > 4) == (chosen != ("reinforce_pp",))  # all rows are one batch
    write_advantages(scan_steps(run), specs(*chosen), tmp_path / "at once", fingerprint="f")
    for processes in (1, 2, 3):
        out = tmp_path / str(processes)
        assert write_table(parts, specs(*chosen), out, fingerprint="f", processes=processes) == sum(
            part.rows() for part in parts
        )
        assert out.read_bytes() == (tmp_path / "at once").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3", "at once"]


@pytest.mark.slow
def test_parts_of_any_size_have_the_rows_of_the_run(run: Path, tmp_path: Path) -> None:
    for rows in (1, ROWS, 10**9):
        write_table(partitions_for(run, specs(), rows), specs(), tmp_path / str(rows), chunk_rows=rows)
    assert (
        (tmp_path / "1").read_bytes() == (tmp_path / str(ROWS)).read_bytes() == (tmp_path / "1000000000").read_bytes()
    )
    table, steps = pl.read_parquet(tmp_path / "1"), scan_steps(run)
    for name in IN_GROUPS:
        assert table[name].equals(compute(steps, name).collect()["advantage"].alias(name)), name


def test_row_groups_do_not_depend_on_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr("hgpo_train.advantages.advantage_tables.ROW_GROUP_ROWS", 100)
    table = scan_steps(run).with_columns(pl.col("env_id").cast(pl.Categorical))
    for rows in (7, 64, 10**6):
        write_advantages(table, specs("hgpo"), tmp_path / str(rows), chunk_rows=rows)
    assert len({(tmp_path / str(rows)).read_bytes() for rows in (7, 64, 10**6)}) == 1
    metadata = pq.read_metadata(tmp_path / "7")
    sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert set(sizes[:-1]) == {100}
    assert sum(sizes) == table.collect().height


@pytest.mark.slow
def test_processes_give_the_same_report(run: Path, tmp_path: Path) -> None:
    """Shards are cut, changed, missing, foreign, and contain the groups of others."""
    shutil.copytree(run, tmp_path / "run")
    shards = sorted(tmp_path.glob("run/steps/*"))
    data = shards[1].read_bytes()
    shards[1].write_bytes(data[:-9])
    shards[3].write_bytes(data[:100] + b"?" + data[101:])
    shards[5].unlink()
    (tmp_path / "run/steps/own.parquet").write_bytes(data)
    listed = manifest.read(tmp_path / "run")
    for number in (7, 8):  # two shards with the content of another, as if they had been committed
        shards[number].write_bytes(shards[9].read_bytes())
        double = replace(listed.shards[9], file=shards[number].name)
        listed = replace(listed, shards=(*listed.shards[:number], double, *listed.shards[number + 1 :]))
    lines, check = [], ""
    for content in (listed.header, *listed.shards):
        line, check = manifest.encode_line(content, check)
        lines.append(line)
    (tmp_path / "run/manifest.jsonl").write_bytes(b"".join(lines))
    report = verify(tmp_path / "run")
    assert {problem.kind for problem in report.problems} >= {"size", "missing", "group", "trajectory", "foreign"}
    assert [verify(tmp_path / "run", processes=number) for number in (2, 3)] == [report, report]
    assert verify(run, processes=2).ok


@pytest.mark.parametrize("name", names())
def test_estimators_can_be_sent_to_other_processes(name: str) -> None:
    (spec,) = specs(name)
    sent = pickle.loads(pickle.dumps(spec))
    assert sent == spec


# ------------------------------------------------------------------------------------------------- folders of parts


def test_a_folder_of_parts_continues_and_grows(tmp_path: Path) -> None:
    run, folder = tmp_path / "run", tmp_path / "parts"
    rows = {"state": "s", "action": "a", "terminated": True, "step": 0}

    def add(tasks: range) -> None:
        with StepWriter(run, shard_rows=1) as writer:
            for task in tasks:
                writer.add_group(
                    [{**rows, "task_id": f"{task}", "trajectory": f"{task}/{n}", "reward": float(n)} for n in range(3)]
                )

    def written(**options: object) -> list[bool]:
        return [one.computed for one in write_folder(partitions_for(run, specs(), 6), specs(), str(folder), **options)]

    add(range(5))
    assert written() == [True, True, True]
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(first) == ["part-000000.parquet", "part-000001.parquet", "part-000002.parquet"]
    assert written() == [False, False, False]
    (folder / "part-000001.parquet").unlink()
    assert written() == [False, True, False]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    add(range(5, 8))  # the last part was not full
    with pytest.raises(
        InputError, match=r"part-000002.parquet has other estimators, rows or parameters; .* --overwrite"
    ):
        written()
    assert written(overwrite=True) == [False, False, True, True]
    table = pl.read_parquet(folder)
    for name in IN_GROUPS:
        assert table[name].equals(compute(scan_steps(run), name).collect()["advantage"].alias(name)), name
    with pytest.raises(InputError, match="other estimators"):
        write_folder(partitions_for(run, specs("grpo"), 6), specs("grpo"), str(folder))
    write_folder(partitions_for(run, specs("grpo"), 12), specs("grpo"), str(folder), overwrite=True)
    assert len(list(folder.iterdir())) == 2


def test_a_folder_with_other_files_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"contains notes\.txt; change --out"):
        write_folder(partitions_for(run, specs(), ROWS), specs(), str(tmp_path), overwrite=True)
    (tmp_path / "out.parquet.parts").mkdir()
    (tmp_path / "out.parquet.parts" / "mine").write_text("mine")
    with pytest.raises(InputError, match="received other files; move them elsewhere"):
        write_table(partitions_for(run, specs(), ROWS), specs(), tmp_path / "out.parquet")
    assert (tmp_path / "out.parquet.parts" / "mine").read_text() == "mine"


def test_details_are_part_of_what_is_wanted(run: Path, tmp_path: Path) -> None:
    plain = [EstimatorSpec(get("hgpo"), get("hgpo").parameters(), "hgpo")]
    write_folder(partitions_for(run, plain, ROWS), plain, str(tmp_path / "parts"))
    with pytest.raises(InputError, match="--overwrite"):
        write_folder(partitions_for(run, plain, ROWS), specs("hgpo"), str(tmp_path / "parts"))


def test_a_table_is_computed_by_one_command_at_a_time(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out.parts").mkdir()
    with FolderLock(tmp_path / "out.parts", "testing"), pytest.raises(InputError, match="is in use"):
        write_table(partitions_for(run, specs(), ROWS), specs(), tmp_path / "out")


def test_runs_of_the_same_name_and_tasks_are_refused(run: Path, tmp_path: Path) -> None:
    collect(tmp_path / "again/run", tasks=16)
    parts = partitions_for([run, tmp_path / "again/run"], specs("grpo"), 1)
    with pytest.raises(InputError, match="is in two places"):
        write_table(parts, specs("grpo"), tmp_path / "out")


# ------------------------------------------------------------------------------------------------------------ kills


def hgpo(folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from hgpo_train.cli import main; main()", *map(str, arguments)]
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root}:{root}/datasets"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def rows_logged(folder: Path) -> int:
    return sum(int(line) for line in (folder / "log").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_process_does_not_change_the_table(run: Path, tmp_path: Path, processes: int) -> None:
    """A worker is replaced; the command itself continues when it is called again."""
    (tmp_path / "own.py").write_text(OWN)
    steps = scan_steps(run).collect()
    arguments = ("advantages", run, "-e", "own:killed", "--chunk-rows", ROWS, "--processes", processes)
    done = hgpo(tmp_path, *arguments, "--out", "whole")
    assert done.returncode == 0, done.stderr
    (tmp_path / "log").unlink()
    (tmp_path / "fault").write_text(f"once {steps['trajectory'][steps.height // 2]}")
    done = hgpo(tmp_path, *arguments, "--out", "out")
    if processes == 1:
        assert done.returncode == -signal.SIGKILL
        assert not (tmp_path / "out").exists()
        parts = len(list((tmp_path / "out.parts").glob("part-*")))
        assert 0 < parts < len(partitions(run, ROWS))
        done = hgpo(tmp_path, *arguments, "--out", "out")
        assert rows_logged(tmp_path) == steps.height  # nothing was computed twice
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
    assert not (tmp_path / "out.parts").exists()


@pytest.mark.slow
def test_a_process_that_is_always_killed_is_one_line(run: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    last = scan_steps(run).select(pl.col("trajectory").last()).collect().item()
    (tmp_path / "fault").write_text(f"always {last}")
    command = ("advantages", run, "-e", "own:killed", "--chunk-rows", ROWS, "--processes", 2, "--out", "out")
    done = hgpo(tmp_path, *command)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "Warning" not in line]
    assert line.startswith("error: a process was killed twice during the work on part ")
    assert not (tmp_path / "out").exists()
    (tmp_path / "fault").unlink()
    assert hgpo(tmp_path, *command).returncode == 0


def fails(number: int) -> int:
    if number == 2:
        raise InputError("expected another number, received 2")
    return number


def dies(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.slow
def test_errors_and_deaths_of_processes_reach_the_caller() -> None:
    results = in_processes(fails, [0, 1, 2, 3], 2)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(InputError, match="received 2"):
        next(results)
    with pytest.raises(ProcessError, match="killed twice during the work on part"):
        list(in_processes(dies, [0, 1, 2, 3], 2))
    with pytest.raises(InputError, match="processes: expected an integer of at least 1, received 0"):
        list(in_processes(fails, [0], 0))
