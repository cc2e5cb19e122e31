"""Run folders that somebody else made: nothing hangs, nothing leads out of the folder, every refusal is one line."""

import multiprocessing
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import orjson
import polars as pl
import pytest
from groups import group, rich_group, with_checks

from hgpo_datasets import StepTableWarning, StepWriter, manifest, scan_steps, verify
from hgpo_datasets.run_summary import summarize_run
from hgpo_envs.errors import InputError


def outcomes(folder: Path) -> dict[str, str]:
    """What every reader says of a folder: a line, or how many rows there are."""

    def rows(source: object) -> str:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", StepTableWarning)
                return str(scan_steps(source).select("step", "state_hash").collect().height)  # type: ignore[arg-type]
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            return f"while reading: {type(error).__name__}"

    paths = sorted(folder.rglob("*"))
    readers: dict[str, Callable[[], object]] = {
        "verify": lambda: [problem.kind for problem in verify(folder).problems],
        "scan": lambda: rows(folder),
        "overview": lambda: summarize_run(folder).steps,
        "writer": lambda: StepWriter(folder).close(),
        **{f"verify {path.name}": lambda path=path: verify(path).ok for path in paths},
        **{f"scan {path.name}": lambda path=path: rows(path) for path in paths},
    }
    said = {}
    for name, call in readers.items():
        try:
            said[name] = str(call())
        except InputError as error:
            said[name] = f"refused: {error}"
        assert "\n" not in said[name], said[name]
    return said


def test_a_pipe_in_place_of_a_shard_or_manifest_is_refused_at_once(rich_run: Path) -> None:
    for name in ("steps/steps-000001.parquet", "manifest.jsonl"):
        (rich_run / name).unlink()
        os.mkfifo(rich_run / name)
        said = outcomes(rich_run)
        assert said["verify"] != "[]"
        assert [said[reader][:7] for reader in ("scan", "overview", "writer")] == ["refused"] * 3


def rewritten(folder: Path, change: Callable[[list[dict[str, object]]], object]) -> Path:
    """The run with changed lines in its manifest, whose checks are right."""
    path = folder / manifest.NAME
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    change(lines)
    path.write_bytes(with_checks(lines))
    return folder


ODD_VALUES: list[tuple[int, str, object]] = [
    *((1, "file", value) for value in ("../../secret.parquet", "/etc/passwd", "steps-000001.parquet", 7)),
    (1, "file", "steps-000000.parquet/../steps-000000.parquet"),
    *((1, "rows", value) for value in ("many", -1)),
    *((1, "bytes", value) for value in (1.5, True)),
    *((1, "sha256", value) for value in ("x", None)),
    *((1, key, value) for key, value in (("unknown", 1), ("groups", ...), ("replaces", ["steps-000000.parquet"]))),
    *((1, "replaces", "steps-000000.parquet"), (2, "replaces", "../rich/steps-000000.parquet")),
    *((0, "depth", value) for value in (10**9, -1, "8", ...)),
    *((0, "run", value) for value in (None, ...)),
    *((0, "schema_version", value) for value in ("1", ..., 10**9)),
    *((0, key, value) for key, value in (("config", []), ("format", "another"), ("extra", {}))),
]


def test_a_manifest_of_odd_values_is_refused_in_one_line(rich_run: Path) -> None:
    shutil.copy(rich_run / "steps/steps-000000.parquet", rich_run.parent / "secret.parquet")
    sound = (rich_run / manifest.NAME).read_bytes()
    for line, key, value in ODD_VALUES:

        def change(lines: list[dict[str, object]], line: int = line, key: str = key, value: object = value) -> None:
            if value is ...:
                del lines[line][key]
            else:
                lines[line][key] = value

        (rich_run / manifest.NAME).write_bytes(sound)
        rewritten(rich_run, change)
        for call in (scan_steps, summarize_run, StepWriter):
            with pytest.raises(InputError) as refused:
                call(rich_run)
            assert "\n" not in str(refused.value)
        assert verify(rich_run).problems[0].kind in ("manifest", "version"), (line, key, value)


@pytest.mark.slow
def test_files_of_absurd_size_are_not_read(rich_run: Path) -> None:
    path = rich_run / "steps/steps-000001.parquet"
    with path.open("ab") as file:
        file.truncate(1 << 40)
    rewritten(rich_run, lambda lines: lines[2].update(bytes=1 << 40))
    (problem,) = verify(rich_run).problems
    assert "received a larger file" in problem.message
    with (rich_run / manifest.NAME).open("ab") as file:
        file.truncate(1 << 40)
    for call in (scan_steps, summarize_run, StepWriter):
        with pytest.raises(InputError, match=r"at most 268,435,456 bytes"):
            call(rich_run)


def test_another_programs_file_under_the_next_name_is_not_replaced(tmp_path: Path) -> None:
    with StepWriter(tmp_path) as writer:
        writer.add_group(group("a"))
        (tmp_path / "steps/steps-000000.parquet").write_text("somebody's")
        with pytest.raises(InputError, match="created by another program"):
            writer.commit()
        assert (tmp_path / "steps/steps-000000.parquet").read_text() == "somebody's"
        (tmp_path / "steps/steps-000000.parquet").unlink()
    assert verify(tmp_path).ok


def test_a_folder_that_was_moved_is_not_written_to(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with StepWriter(run) as writer:
        writer.add_group(group("a"))
        writer.commit()
        writer.add_group(group("b"))
        run.rename(tmp_path / "moved")
        with pytest.raises(InputError, match="was moved or replaced"):
            writer.commit()
        with StepWriter(run) as other:  # another run is begun under the old name
            other.add_group(group("c"))
        with pytest.raises(InputError, match="was moved or replaced"):
            writer.commit()
        assert verify(run).ok
        shutil.rmtree(run)
        (tmp_path / "moved").rename(run)
    assert verify(run).ok
    assert set(scan_steps(run).collect()["task_id"]) == {"a", "b"}


def write_shards(folder: Path, count: int) -> None:
    with StepWriter(folder, run="run") as writer:
        for number in range(count):
            writer.add_group(rich_group(f"t{number}", number, 2, 3))
            writer.commit()


def replace_trajectories(folder: Path, times: int) -> None:
    with StepWriter(folder, run="run") as writer:
        for number in range(times):
            writer.replace(rich_group(f"t{number % 4}", 100 + number, 2, 3))


@pytest.mark.slow
def test_readers_beside_a_writer_that_replaces_files(tmp_path: Path) -> None:
    """A file may be gone a moment after the manifest named it; then the manifest names another."""
    write_shards(tmp_path / "run", 4)
    context = multiprocessing.get_context("spawn")
    writer = context.Process(target=replace_trajectories, args=(tmp_path / "run", 40))
    writer.start()
    looked = 0
    while writer.is_alive():
        assert verify(tmp_path / "run").problems == []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StepTableWarning)
            try:
                assert scan_steps(tmp_path / "run").select("step").collect().height == 24
            except (FileNotFoundError, InputError) as error:  # replaced after the manifest was read
                assert "No such file" in str(error) or "is missing" in str(error)  # noqa: PT017
        looked += 1
    writer.join()
    assert writer.exitcode == 0
    assert looked
    report = verify(tmp_path / "run")
    assert (report.problems, report.notes) == ([], [])
