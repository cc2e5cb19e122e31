"""StepWriter: what goes in comes out, whole, sorted, once; and what of it is left out or derived."""

import io
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from groups import group, rich_group, step, write_run
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import sample_or_all
from polars.testing import assert_frame_equal

from hgpo_datasets import GroupKey, StepWriter, scan_steps, schema, shards, verify
from hgpo_datasets.rows import RowError
from hgpo_envs import hashing
from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import register

texts = st.one_of(
    st.text(),
    st.sampled_from(
        ["", "\x00", "a\x00b", "日本", "😀" * 3, "x" * 1_000_000, "\ufeff", "\r\n"]
    ),
)
values = st.fixed_dictionaries(
    {
        "state": texts,
        "action": texts,
        "reward": st.floats(allow_nan=False, allow_infinity=False, width=32),
        "prompt": st.none() | texts,
        "response": st.none() | texts,
        "admissible_actions": st.none() | st.lists(texts, max_size=3),
        "action_valid": st.booleans(),
        "won": st.booleans(),
        "score": st.none() | st.floats(0, 1),
        "tokens": st.none()
        | st.lists(
            st.tuples(st.integers(0, 2**31 - 1), st.floats(-50, 0, width=32)),
            max_size=4,
        ),
        "environment_s": st.none() | st.floats(0, 1e6),
    }
)
runs = st.dictionaries(
    st.tuples(st.integers(0, 3), texts, st.integers(0, 2)),
    st.lists(st.lists(values, min_size=1, max_size=4), min_size=1, max_size=3),
    max_size=4,
)


def rows_of(run: dict[Any, Any]) -> list[dict[str, Any]]:
    rows = []
    for number, ((iteration, task, which), members) in enumerate(run.items()):
        for m, trajectory in enumerate(members):
            for t, drawn in enumerate(trajectory):
                row = {
                    **drawn,
                    "iteration": iteration,
                    "task_id": task,
                    "group": which,
                    "step": t,
                }
                tokens = row.pop("tokens")
                row["response_token_ids"] = tokens and [token for token, _ in tokens]
                row["response_logprobs"] = tokens and [logprob for _, logprob in tokens]
                rows.append(
                    {
                        **row,
                        "trajectory": f"{number}/{m}",
                        "terminated": t == len(trajectory) - 1,
                    }
                )
    return rows


@settings(max_examples=sample_or_all(15, 500))
@given(runs, st.randoms(use_true_random=False), st.integers(0, 3))
@pytest.mark.slow
def test_write_then_read_is_the_identity_in_any_row_order(
    tmp_path_factory: pytest.TempPathFactory,
    run: dict[Any, Any],
    draw: random.Random,
    depth: int,
) -> None:
    folder = tmp_path_factory.mktemp("run")
    rows = rows_of(run)
    expected = sorted(
        rows,
        key=lambda row: [
            v.encode() if isinstance(v, str) else v
            for v in map(row.get, schema.SORT_KEY)
        ],
    )
    draw.shuffle(rows)
    with StepWriter(folder, depth=depth) as writer:
        if rows:
            writer.add_group(rows)
    if not rows:
        with pytest.raises(InputError, match="no committed rows"):
            scan_steps(folder)
        return
    read = scan_steps(folder).collect()
    assert read.schema == schema.polars_schema(depth)
    given_columns = list(expected[0])
    assert read.select(given_columns).to_dicts() == [
        {c: row[c] for c in given_columns} for row in expected
    ]


def test_derived_columns_follow_their_definitions(tmp_path: Path) -> None:
    rows = [
        step("t", "a", 0, state="A", action="x", reward=0.1),
        step("t", "a", 1, state="B", action="y", reward=0.2),
        step(
            "t",
            "a",
            2,
            state="A",
            action="z",
            reward=0.3,
            terminated=True,
            next_state="end",
        ),
        step(
            "t",
            "b",
            0,
            state="A",
            action=None,
            reward=0.0,
            aborted=True,
            error="out of time",
        ),
    ]
    write_run(
        tmp_path,
        rows[::-1],
        depth=2,
        defaults={"env_id": "HGPO/ALFWorld-v0", "split": "train"},
    )
    read = scan_steps(tmp_path).collect()
    a, b, end = (hashing.text_hash(text) for text in ("A", "B", "end"))
    x, y, z = (hashing.text_hash(text) for text in "xyz")

    def chain(*items: int) -> int:
        value = 0
        for item in items:
            value = int(hashing.link(np.array([value]), np.array([item]))[0])
        return value

    assert read["state_hash"].to_list() == [a, b, a, a]
    assert read["action_hash"].to_list() == [x, y, z, None]
    assert read["next_state_hash"].to_list() == [b, a, end, None]
    assert read["history_hash_2"].to_list() == [None, None, chain(a, b, a), None]
    assert read["history_hash_1"].to_list() == [None, chain(a, b), chain(b, a), None]
    assert read["context_hash_2"].to_list() == [None, None, chain(a, x, b, y, a), None]
    assert read["episode_return"].to_list() == [math.fsum([0.1, 0.2, 0.3])] * 3 + [0.0]
    assert read["episode_length"].to_list() == [3, 3, 3, 1]
    assert read["env_id"].unique().to_list() == ["HGPO/ALFWorld-v0"]
    assert read["run"].unique().to_list() == [tmp_path.name]


@pytest.mark.parametrize(
    ("options", "files"), [({"shard_rows": 10}, 4), ({"shard_bytes": 50_000}, 7)]
)
def test_shards_are_cut_between_groups(
    tmp_path: Path, options: dict[str, int], files: int
) -> None:
    write_run(
        tmp_path,
        *(group(f"t{number}", prompt="x" * 10_000) for number in range(7)),
        **options,
    )
    tasks = [
        pl.read_parquet(file)["task_id"].unique().to_list()
        for file in tmp_path.glob("steps/*.parquet")
    ]
    assert len(tasks) == files
    assert sorted(name for names in tasks for name in names) == [
        f"t{number}" for number in range(7)
    ]


def test_resuming_goes_on_after_what_is_committed(tmp_path: Path) -> None:
    header = {
        "run": "[/bold]\nan odd \ud800 name",
        "config": {"seed": 1, "sizes": (1, 2)},
    }
    for number in range(3):
        with StepWriter(tmp_path, **header) as writer:
            assert writer.committed == {GroupKey(0, f"t{n}", 0) for n in range(number)}
            writer.add_group(group(f"t{number}"))
    for options, line in (
        ({"config": {"seed": 2, "sizes": [1, 2]}}, "seed = 1, not 2"),
        ({"depth": 3}, "depth 8, not 3"),
        ({"depth": -1}, "depth: expected 0 to 64"),
        ({"run": "other"}, "contains the run"),
        ({"without": ["promt"]}, "did you mean 'prompt'"),
        ({"without": ["reward"]}, "is always stored"),
        ({"config": {"a": object()}}, "configuration of JSON values"),
        ({"config": {"a": "a\ud800"}}, "configuration of JSON values"),
        ({"defaults": {"iteraton": 1}}, "did you mean 'iteration'"),
        ({"defaults": {"iteration": "first"}}, "column iteration: expected Int32"),
    ):
        with pytest.raises(InputError, match=rf"^.*{line}.*$"):
            StepWriter(tmp_path, **options)
    assert scan_steps(tmp_path).select(pl.len()).collect().item() == 18
    assert verify(tmp_path).ok


def test_a_writer_scans_what_it_has_committed(tmp_path: Path) -> None:
    with StepWriter(tmp_path, depth=2) as writer:
        writer.add_group(group("t"))
        accepted = writer.scan().collect()
        assert (accepted.height, accepted.schema) == (0, schema.polars_schema(2))
        writer.commit()
        committed = writer.scan().collect()
    assert committed.height == 6
    assert_frame_equal(committed, scan_steps(tmp_path).collect())


def test_texts_left_out_keep_their_hashes(tmp_path: Path) -> None:
    write_run(tmp_path / "full", group("t", prompt="p", policy_s=1.0))
    write_run(
        tmp_path / "bare",
        group("t", prompt="p", policy_s=1.0),
        without=["text", "timings"],
    )
    full, bare = (scan_steps(tmp_path / name).collect() for name in ("full", "bare"))
    hashes = [column.name for column in schema.columns() if column.family == "hashes"]
    assert_frame_equal(full.select(hashes), bare.select(hashes))
    assert bare.select("state", "prompt", "action", "policy_s").null_count().row(0) == (
        6,
        6,
        6,
        6,
    )
    with StepWriter(tmp_path / "again") as writer:  # a table without texts is rows, too
        writer.add_group(bare.drop("run"))
    assert_frame_equal(
        scan_steps(tmp_path / "again").drop("run").collect(), bare.drop("run")
    )


@pytest.mark.slow
def test_what_is_left_out_is_not_missed(tmp_path: Path) -> None:
    needed = {"hashes", "won", "parent", "branch_step"}
    always = {
        *needed,
        *(
            column.name
            for column in schema.columns()
            if column.derived or not column.null
        ),
    }
    for name in (*schema.FAMILIES, *(column.name for column in schema.columns())):
        if name in always:
            with pytest.raises(InputError, match=f"{name} is always stored"):
                StepWriter(tmp_path / name, without=[name])
            continue
        write_run(
            tmp_path / name,
            ({**row, "won": row["step"] == 2} for row in group("t")),
            without=[name],
        )
        assert verify(tmp_path / name).ok
        assert scan_steps(tmp_path / name).select(
            "won", "history_hash_1"
        ).null_count().collect().row(0) == (0, 2)


def test_no_secret_is_written(tmp_path: Path) -> None:
    """Neither from the configuration nor from an error message, into any file of the run."""
    register("a-very-private-key")
    config = {
        "policy": {
            "base_url": "http://me:hunter2-pw@host/v1",
            "api_key": "sk-12345678901234567890",
        },
        "seed": 1,
    }
    error = "401 for http://me:hunter2-pw@host: Bearer a-very-private-key is unknown"
    for _ in range(2):  # begun and resumed
        with StepWriter(tmp_path, config=config) as writer:
            if not writer.committed:
                writer.add_group(
                    [step("t", "a", 0, aborted=True, error=error), step("t", "b", 0)]
                )
    assert scan_steps(tmp_path).collect()["error"].to_list() == [
        "401 for http://***@host: Bearer *** is unknown",
        None,
    ]
    everything = b"".join(file.read_bytes() for file in tmp_path.rglob("*.*"))
    for secret in (b"hunter2", b"a-very-private-key", b"sk-123"):
        assert secret not in everything
    with pytest.raises(InputError, match="was written with policy") as refused:
        StepWriter(
            tmp_path,
            config={**config, "policy": {"base_url": "http://you:other-pw@elsewhere"}},
        )
    assert "hunter2" not in str(refused.value)
    assert "other-pw" not in str(refused.value)


@pytest.mark.slow
def test_rows_texts_and_columns_are_stored_as_promised(rich_run: Path) -> None:
    frame = scan_steps(rich_run).collect()
    frame = pl.concat([frame] * (60_000 // len(frame)))
    data = shards.encode(frame, {})
    metadata = pq.read_metadata(io.BytesIO(data))
    rows = [
        metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)
    ]
    assert rows == [25_000, 25_000, len(frame) - 50_000]
    for number in range(metadata.num_columns):
        chunk = metadata.row_group(0).column(number)
        assert chunk.compression == "ZSTD"
        texts = chunk.physical_type == "BYTE_ARRAY" and chunk.path_in_schema != "prompt"
        assert chunk.has_dictionary_page == texts, chunk.path_in_schema
    assert_frame_equal(pl.read_parquet(data), frame)


def test_changed_bytes_are_not_written_again_under_a_new_digest(rich_run: Path) -> None:
    """`replace` copies what it does not replace; a flipped byte would come out as sound."""
    file = rich_run / "steps/steps-000000.parquet"
    data = bytearray(file.read_bytes())
    chunk = pq.read_metadata(file).row_group(0).column(31)
    begin = (
        chunk.dictionary_page_offset
        if chunk.has_dictionary_page
        else chunk.data_page_offset
    )
    data[begin + chunk.total_compressed_size - 1] ^= 1
    file.write_bytes(data)
    before = sorted(path.name for path in rich_run.glob("steps/*.parquet"))
    with StepWriter(rich_run) as writer, pytest.raises(InputError, match="is damaged"):
        writer.replace(rich_group("task 1", 9))
    assert sorted(path.name for path in rich_run.glob("steps/*.parquet")) == before


def test_rollouts_are_added_to_the_group_of_their_task(tmp_path: Path) -> None:
    with StepWriter(tmp_path) as writer:
        writer.add_group([step(task, f"{task}/0", 0) for task in "tu"])
        writer.extend([step("t", "t/1", 0), step("t", "t/1", 1), step("v", "v/0", 0)])
        assert writer.trajectories == {"t/0", "u/0", "t/1", "v/0"}
        with pytest.raises(RowError, match="t/1' is already in run"):
            writer.extend([step("v", "v/1", 0), step("t", "t/1", 0)])
    assert verify(tmp_path).ok
    rows = (
        scan_steps(tmp_path)
        .select("task_id", "group", "trajectory", "step")
        .sort("trajectory", "step")
        .collect()
    )
    expected = [
        ("t", 0, "t/0", 0),
        ("t", 0, "t/1", 0),
        ("t", 0, "t/1", 1),
        ("u", 0, "u/0", 0),
        ("v", 0, "v/0", 0),
    ]
    assert rows.rows() == expected
    # The file of t and u was written again; v has another one.
    assert sorted(path.name for path in tmp_path.glob("steps/*")) == [
        "steps-000001.parquet",
        "steps-000002.parquet",
    ]
