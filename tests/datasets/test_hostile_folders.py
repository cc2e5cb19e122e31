"""Run folders that somebody else made: nothing hangs, nothing leads out of the folder, every refusal is one line."""

import contextlib
import multiprocessing
import os
import shutil
import warnings

import orjson
import pytest
from groups import group, rich_group, with_checks, write_rich_run, write_run
from planted import KINDS, content, plant
from refusals import refused

from hgpo_datasets import StepTableWarning, StepWriter, manifest, scan_steps, verify
from hgpo_envs.errors import InputError
from hgpo_train.analysis.run_summary import summarize_run


def readers(run):
    return (
        lambda: scan_steps(run),
        lambda: summarize_run(run),
        lambda: StepWriter(run).close(),
    )


def test_a_pipe_in_place_of_a_shard_or_manifest_is_refused_at_once(rich_run):
    for name in ("steps/steps-000001.parquet", "manifest.jsonl"):
        (rich_run / name).unlink()
        os.mkfifo(rich_run / name)
        assert not verify(rich_run).ok
        for reader in readers(rich_run):
            with refused(r"^.*$"):
                reader()


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        *(
            (1, "file", name)
            for name in (
                "../../secret.parquet",
                "/etc/passwd",
                "steps-000001.parquet",
                7,
            )
        ),
        *(
            (2, "replaces", name)
            for name in ("../rich/steps-000000.parquet", ["steps-000000.parquet"])
        ),
        *(
            (1, key, value)
            for key, value in (
                ("rows", -1),
                ("bytes", 1.5),
                ("sha256", "x"),
                ("unknown", 1),
            )
        ),
        *(
            (0, key, value)
            for key, value in (
                ("depth", 10**9),
                ("schema_version", 10**9),
                ("format", "another"),
            )
        ),
    ],
)
def test_a_manifest_of_odd_values_is_refused(rich_run, line, key, value):
    """The checks of the lines are right; the folder has a table outside of the run."""
    shutil.copy(
        rich_run / "steps/steps-000000.parquet", rich_run.parent / "secret.parquet"
    )
    path = rich_run / manifest.NAME
    lines = [orjson.loads(text) for text in path.read_bytes().splitlines()]
    lines[line][key] = value
    path.write_bytes(with_checks(lines))
    assert verify(rich_run).problems[0].kind in ("manifest", "version")
    for reader in readers(rich_run):
        with refused(r"^.*$"):
            reader()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hgpo_datasets.StepTableWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        ".lock",
        "manifest.jsonl",
        "steps",
        "steps/steps-000003.parquet",
        ".hgpo-0123456789abcdef.tmp",
    ],
)
def test_what_is_planted_in_a_run_is_never_followed(rich_run, tmp_path, name, kind):
    """The writer, `hgpo verify` and the readers end at once; no file outside changes, moves or disappears."""
    outside = write_rich_run(tmp_path / "outside", config={"seed": 7})
    (outside / "precious.txt").write_text("mine")
    if name == "steps" and kind == "link to a folder":
        (outside / "steps").rename(tmp_path / "shards")
        # a stranger's manifest names shards of the user, and calls one of them replaced
        outside = tmp_path / "shards"
        with StepWriter(rich_run) as writer:
            writer.replace(rich_group("task 1", 9))
    before = content(outside)
    plant(rich_run / name, kind, outside)
    with contextlib.suppress(InputError), StepWriter(rich_run) as writer:
        writer.add_group(group("new"))
    with contextlib.suppress(InputError), StepWriter(rich_run) as writer:
        writer.replace(rich_group("task 1", 10))
    verify(rich_run)
    for reader in readers(rich_run):
        with contextlib.suppress(InputError):
            reader()
    assert content(outside) == before


def test_a_run_may_be_reached_through_links(rich_run, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "here").symlink_to("disk")
    rich_run.rename(tmp_path / "disk/run")
    (tmp_path / "mine").symlink_to("here/run")
    write_run(tmp_path / "mine", group("new"))
    assert verify(tmp_path / "mine").ok


def test_another_programs_file_under_the_next_name_is_not_replaced(tmp_path):
    with StepWriter(tmp_path) as writer:
        writer.add_group(group("a"))
        (tmp_path / "steps/steps-000000.parquet").write_text("somebody's")
        with refused("created by another program"):
            writer.commit()
        assert (tmp_path / "steps/steps-000000.parquet").read_text() == "somebody's"
        (tmp_path / "steps/steps-000000.parquet").unlink()
    assert verify(tmp_path).ok


def test_a_folder_that_was_moved_is_not_written_to(tmp_path):
    run = tmp_path / "run"
    with StepWriter(run) as writer:
        writer.add_group(group("a"))
        writer.commit()
        writer.add_group(group("b"))
        run.rename(tmp_path / "moved")
        with refused("was moved or replaced"):
            writer.commit()
        with StepWriter(run) as other:  # another run is begun under the old name
            other.add_group(group("c"))
        with refused("was moved or replaced"):
            writer.commit()
        assert verify(run).ok
        shutil.rmtree(run)
        (tmp_path / "moved").rename(run)
    assert verify(run).ok
    assert set(scan_steps(run).collect()["task_id"]) == {"a", "b"}


def write_shards(folder, count):
    with StepWriter(folder, run="run") as writer:
        for number in range(count):
            writer.add_group(rich_group(f"t{number}", number, 2, 3))
            writer.commit()


def replace_trajectories(folder, times):
    with StepWriter(folder, run="run") as writer:
        for number in range(times):
            writer.replace(rich_group(f"t{number % 4}", 100 + number, 2, 3))


@pytest.mark.slow
def test_readers_beside_a_writer_that_replaces_files(tmp_path):
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
                assert (
                    scan_steps(tmp_path / "run").select("step").collect().height == 24
                )
            except (FileNotFoundError, InputError) as error:
                # replaced after the manifest was read
                assert "No such file" in str(error) or "is missing" in str(error)  # noqa: PT017
        looked += 1
    writer.join()
    assert writer.exitcode == 0
    assert looked
    report = verify(tmp_path / "run")
    assert (report.problems, report.notes) == ([], [])
