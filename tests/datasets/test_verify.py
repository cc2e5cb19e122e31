"""verify finds what is wrong: every changed byte, every cut, and every broken rule of the rows."""

import hashlib
import math
import shutil

import orjson
import polars as pl
import pyarrow.parquet as pq
import pytest
from groups import group, with_checks, write_run
from nightly import sample_or_all
from refusals import refused

from hgpo_datasets import StepWriter, manifest, schema, verify


def test_every_flipped_byte_and_every_cut_of_a_small_run(tmp_path):
    write_run(
        tmp_path / "run",
        group("t", 1, 1),
        depth=0,
        without=["text", "tokens", "timings"],
    )
    for file in (
        tmp_path / "run/manifest.jsonl",
        tmp_path / "run/steps/steps-000000.parquet",
    ):
        data = file.read_bytes()
        for position in range(0, len(data), sample_or_all(len(data) // 40, 1)):
            file.write_bytes(
                data[:position]
                + bytes([data[position] ^ 1 << position % 8])
                + data[position + 1 :]
            )
            assert not verify(tmp_path / "run").ok, f"byte {position}"
            file.write_bytes(data[:position])
            assert not verify(tmp_path / "run").ok, f"cut at {position}"
        file.write_bytes(data)
    assert verify(tmp_path / "run").ok


@pytest.mark.slow
def test_damage_is_located(rich_run):
    file = rich_run / "steps/steps-000001.parquet"
    chunk = (
        pq.read_metadata(file)
        .row_group(0)
        .column(schema.polars_schema().names().index("response"))
    )
    data = bytearray(file.read_bytes())
    start = (
        chunk.dictionary_page_offset
        if chunk.has_dictionary_page
        else chunk.data_page_offset
    )
    data[start + chunk.total_compressed_size - 1] ^= 1  # the last byte of its last page
    file.write_bytes(data)
    (problem,) = verify(rich_run, processes=1).problems
    assert (problem.kind, problem.file) == ("bytes", str(file))
    assert "damaged: row group 0, column response" in problem.message
    assert verify(file, processes=1).problems == [problem]
    (problem,) = verify(rich_run).problems
    assert problem.message == "its SHA-256 differs from the manifest"
    file.rename(rich_run.parent / "alone.parquet")
    (problem,) = verify(rich_run.parent / "alone.parquet").problems
    assert (problem.kind, problem.message) == (
        "bytes",
        "damaged: row group 0, column response",
    )


def kinds(folder):
    return {problem.kind for problem in verify(folder).problems}


def test_missing_foreign_and_uncommitted_files(rich_run, tmp_path):
    shutil.copy(
        rich_run / "steps/steps-000001.parquet", rich_run / "steps/mine.parquet"
    )
    assert kinds(rich_run) == {"foreign"}
    (rich_run / "steps/mine.parquet").unlink()
    (rich_run / "steps/steps-000009.parquet.part").write_bytes(b"half")
    assert kinds(rich_run) == {"foreign"}
    (rich_run / "steps/steps-000009.parquet.part").unlink()
    shutil.copytree(rich_run, tmp_path / "killed")
    lines = (tmp_path / "killed/manifest.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "killed/manifest.jsonl").write_bytes(b"".join(lines[:-1]))
    assert kinds(tmp_path / "killed") == {"uncommitted"}
    (rich_run / "steps/steps-000002.parquet").rename(tmp_path / "elsewhere.parquet")
    assert kinds(rich_run) == {"missing"}


def test_lines_of_the_manifest_cannot_change_places(rich_run):
    path = rich_run / "manifest.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for order in ("0213", "013", "01123", "123"):
        path.write_bytes(b"".join(lines[int(place)] for place in order))
        assert "manifest" in kinds(rich_run)


def change(name, row, value):
    def changed(frame: pl.DataFrame) -> pl.DataFrame:
        new = (
            pl.when(pl.int_range(pl.len()) == row)
            .then(pl.lit(value, frame.schema[name]))
            .otherwise(name)
        )
        return frame.with_columns(new.alias(name))

    return changed


@pytest.mark.parametrize(
    ("alter", "kind", "message"),
    [
        (
            change("history_hash_3", 4, 1),
            "derived",
            "expected history_hash_3 as computed from the rows in 1 row",
        ),
        (change("state_hash", 3, 5), "derived", "history_hash_0"),
        (change("episode_won", 3, True), "derived", "episode_won"),
        (change("action", 3, "another"), "derived", "action_hash"),
        (change("episode_return", 3, 5.0), "derived", "episode_return"),
        (change("reward", 2, math.nan), "value", "reward is not finite"),
        *(
            (change("score", 2, bad), "value", "expected a score in [0, 1]")
            for bad in (math.inf, math.nan, 1.5, -0.5)
        ),
        (change("environment_s", 2, math.nan), "value", "environment_s is NaN"),
        (change("response_logprobs", 2, [math.nan] * 3), "value", "NaN"),
        (change("terminated", 2, True), "value", "terminated before the last row"),
        (change("step", 2, 7), "steps", "expected contiguous steps"),
        (change("run", 2, "other"), "run", "another run"),
        (
            change("task_id", 2, None),
            "null",
            "task_id must not be null, but is in 1 row",
        ),
        (lambda frame: frame.reverse(), "order", "not sorted"),
        (
            lambda frame: frame.filter(pl.col("step") != 2),
            "steps",
            "expected contiguous steps",
        ),
        (
            lambda frame: pl.concat([frame, frame[:1]]).sort(
                "task_id", "trajectory", "step"
            ),
            "steps",
            "contiguous",
        ),
        (lambda frame: frame.drop("reward"), "columns", "reward is None, not Float64"),
        (
            lambda frame: frame.with_columns(pl.col("step").cast(pl.Int64)),
            "columns",
            "step is Int64, not Int32",
        ),
    ],
)
def test_broken_rules_of_rows(rich_run, raw_run, alter, kind, message):
    frame = pl.read_parquet(rich_run / "steps/steps-000000.parquet")
    problems = verify(raw_run(alter(frame))).problems
    assert any(
        problem.kind == kind and message in problem.message for problem in problems
    ), problems


def test_a_split_group_and_a_trajectory_met_twice(rich_run, raw_run):
    frame = pl.read_parquet(rich_run / "steps/steps-000000.parquet")
    one = frame.filter(pl.col("trajectory") == "task 0/0")
    folder = raw_run(frame.filter(pl.col("trajectory") != "task 0/0"), one, one)
    assert kinds(folder) == {"group", "trajectory"}


def test_what_is_no_step_table(tmp_path):
    with refused("no such run or file"):
        verify(tmp_path / "nothing")
    (tmp_path / "below").mkdir()
    StepWriter(tmp_path / "below/run").close()
    with refused(r"not a run.*found 1 run below it"):
        verify(tmp_path)
    with refused("processes: expected an integer of at least 1"):
        verify(tmp_path, processes=-1)
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "other.parquet")
    assert {p.kind for p in verify(tmp_path / "other.parquet").problems} == {"version"}
    (tmp_path / "empty.parquet").write_bytes(b"")
    assert {p.kind for p in verify(tmp_path / "empty.parquet").problems} == {
        "unreadable"
    }


def listed(run, file):
    """Write the manifest anew with the digest and size that the second shard now has."""
    lines = [
        orjson.loads(line) for line in (run / manifest.NAME).read_bytes().splitlines()
    ]
    data = file.read_bytes()
    lines[2] |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (run / manifest.NAME).write_bytes(with_checks(lines))


def varint(number):
    """Return a number in the encoding of Thrift's compact protocol."""
    return (
        bytes([number & 127 | 128]) + varint(number >> 7)
        if number > 127
        else bytes([number])
    )


def forged(schema, rows):
    """Return a Parquet file without row groups: fields 1 to 4 of its footer are version, schema, rows and groups."""
    elements = b"\x19\xfc" + varint(len(schema)) + b"".join(schema)
    footer = b"\x15\x02" + elements + b"\x16" + varint(2 * rows) + b"\x19\x0c\x00"
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


ROOT_ELEMENT = b"\x48\x04root\x15\x02\x00"
GROUP = b"\x35\x02\x18\x01g\x15\x02\x00"
LEAF = b"\x15\x02\x25\x02\x18\x01x\x00"
FORGED = {
    "10,000 levels of groups": forged([ROOT_ELEMENT, *[GROUP] * 10_000, LEAF], 0),
    "10^12 rows": forged([ROOT_ELEMENT, LEAF], 10**12),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_file_ends_a_child_process_and_no_verification(rich_run, name):
    file = rich_run / "steps/steps-000001.parquet"
    file.write_bytes(FORGED[name])
    listed(rich_run, file)
    report = verify(rich_run, processes=2)
    assert report.files == 3
    assert {problem.file for problem in report.problems} == {str(file)}
