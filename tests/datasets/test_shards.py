"""One file: what is written is read back, by every reader, and checksums find what was changed."""

import io
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from groups import rich_group
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import sample_or_all
from polars.testing import assert_frame_equal
from polars.testing.parametric import dataframes

from hgpo_datasets import StepWriter, scan_steps, shards
from hgpo_envs.errors import InputError

KINDS = [pl.Int64, pl.Int32, pl.String, pl.Boolean, pl.Float32, pl.List(pl.Int32), pl.List(pl.String)]


@settings(deadline=None, max_examples=sample_or_all(25, 500))
@given(dataframes(min_cols=1, max_cols=6, max_size=40, allowed_dtypes=KINDS), st.integers(1, 9))
def test_every_frame_comes_back_whatever_its_chunks(frame: pl.DataFrame, rows: int) -> None:
    data = shards.encode(frame, {"a key": "ü"})
    assert_frame_equal(pl.read_parquet(data), frame)
    assert list(shards.damaged_columns(data)) == []
    assert pl.read_parquet_metadata(io.BytesIO(data))["a key"] == "ü"
    pieces = pl.concat([*frame.iter_slices(rows), frame.clear()], rechunk=False)
    assert shards.encode(pieces, {"a key": "ü"}) == data


def test_rows_texts_and_columns_are_stored_as_promised(rich_run: Path) -> None:
    frame = scan_steps(rich_run).collect()
    frame = pl.concat([frame] * (60_000 // len(frame)))
    data = shards.encode(frame, {})
    metadata = pq.read_metadata(io.BytesIO(data))
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert rows == [25_000, 25_000, len(frame) - 50_000]
    for number in range(metadata.num_columns):
        chunk = metadata.row_group(0).column(number)
        assert chunk.compression == "ZSTD"
        assert chunk.has_dictionary_page == (
            chunk.physical_type == "BYTE_ARRAY" and chunk.path_in_schema != "prompt"
        ), chunk.path_in_schema
    assert_frame_equal(pl.read_parquet(data), frame)


def test_changed_bytes_are_not_written_again_under_a_new_digest(rich_run: Path) -> None:
    """`replace` copies what it does not replace; a flipped byte would come out as sound."""
    file = rich_run / "steps/steps-000000.parquet"
    data = bytearray(file.read_bytes())
    chunk = pq.read_metadata(file).row_group(0).column(31)
    begin = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    data[begin + chunk.total_compressed_size - 1] ^= 1
    file.write_bytes(data)
    before = sorted(path.name for path in rich_run.glob("steps/*.parquet"))
    with StepWriter(rich_run) as writer, pytest.raises(InputError, match="is damaged"):
        writer.replace(rich_group("task 1", 9))
    assert sorted(path.name for path in rich_run.glob("steps/*.parquet")) == before
