"""One file: what is written is read back, by every reader, and checksums find what was changed."""

import io
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from groups import rich_group
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from polars.testing.parametric import dataframes

from hgpo_datasets import StepWriter, footer, scan_steps, shards, table_file, verify
from hgpo_envs.errors import InputError

KINDS = [pl.Int64, pl.Int32, pl.String, pl.Boolean, pl.Float32, pl.List(pl.Int32), pl.List(pl.String)]


@settings(deadline=None)
@given(dataframes(min_cols=1, max_cols=6, max_size=40, allowed_dtypes=KINDS), st.integers(1, 9))
def test_every_frame_comes_back_whatever_its_chunks(frame: pl.DataFrame, rows: int) -> None:
    data = table_file.encode(frame, {"a key": "ü"})
    assert_frame_equal(pl.read_parquet(data), frame)
    assert_frame_equal(table_file.read(io.BytesIO(data)), frame)
    judged = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True).read()
    assert_frame_equal(pl.DataFrame(judged), frame)
    footer.check_file_in_memory(data)
    assert footer.damaged_pages(data) == []
    assert pl.read_parquet_metadata(io.BytesIO(data))["a key"] == "ü"
    pieces = pl.concat([*frame.iter_slices(rows), frame.clear()], rechunk=False)
    assert table_file.encode(pieces, {"a key": "ü"}) == data


def test_rows_texts_and_columns_are_stored_as_promised(rich_run: Path) -> None:
    frame = scan_steps(rich_run).collect()
    frame = pl.concat([frame] * (60_000 // len(frame)))
    data = table_file.encode(frame, {})
    metadata = pq.read_metadata(io.BytesIO(data))
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert rows == [25_000, 25_000, len(frame) - 50_000]
    for number in range(metadata.num_columns):
        chunk = metadata.row_group(0).column(number)
        assert chunk.compression == "ZSTD"
        assert chunk.has_dictionary_page == (chunk.physical_type == "BYTE_ARRAY"), chunk.path_in_schema
    assert_frame_equal(table_file.read(io.BytesIO(data)), frame)
    assert table_file.read(io.BytesIO(data), ["step", "admissible_actions"]).columns == ["step", "admissible_actions"]


def test_a_changed_page_is_named_and_not_read() -> None:
    frame = pl.DataFrame({"task": ["a", "b"] * 20_000, "hash": range(40_000)})
    data = table_file.encode(frame, {})
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(1).column(1)
    for column, position in (("hash", chunk.data_page_offset + chunk.total_compressed_size // 2), ("task", 40)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        (named,) = footer.damaged_pages(bytes(damaged))
        assert named.startswith(f"row group {int(column == 'hash')}, column {column}, page ")
        with pytest.raises(ValueError, match="CRC"):
            table_file.read(io.BytesIO(bytes(damaged)))
        other = ({"task", "hash"} - {column}).pop()
        assert_frame_equal(table_file.read(io.BytesIO(bytes(damaged)), [other]), frame.select(other))


def test_pages_without_a_checksum_are_named() -> None:
    buffer = io.BytesIO()
    pl.DataFrame({"a": [1], "b": ["x"]}).write_parquet(buffer)
    assert {line.rpartition(",")[0] for line in footer.damaged_pages(buffer.getvalue())} == {
        "row group 0, column a",
        "row group 0, column b",
    }


@pytest.mark.parametrize("wrong", [b"", b"PAR1", b"PAR1" + b"\xff" * 20 + b"PAR1", b"x" * 50])
def test_what_is_no_parquet_file_is_refused_in_one_line(wrong: bytes) -> None:
    for call in (footer.check_file_in_memory, footer.damaged_pages, lambda data: table_file.read(io.BytesIO(data))):
        with pytest.raises(ValueError, match=r"Parquet|footer|Thrift|Arrow|byte") as refused:
            call(wrong)
        assert "\n" not in str(refused.value)


@settings(deadline=None)
@given(st.data())
def test_damage_raises_nothing_but_value_errors_of_one_line(data: st.DataObject) -> None:
    frame = pl.DataFrame({"task": ["a", None] * 30, "lists": [["x"], []] * 30, "step": range(60)})
    changed = bytearray(table_file.encode(frame, {}))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    for call in (footer.check_file_in_memory, footer.damaged_pages, lambda data: table_file.read(io.BytesIO(data))):
        try:
            call(cut)
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017 (most damages are refused, not all)


PAGES = {
    "fewer than no values": lambda header: header[5][1].__setitem__(1, [5, -2]),
    "2^31 - 1 values": lambda header: header[5][1].__setitem__(1, [5, 2**31 - 1]),
    "no number of values": lambda header: header[5][1].pop(1),
    "a size that is a text": lambda header: header.__setitem__(3, [8, b"x"]),
    "a size before its start": lambda header: header.__setitem__(3, [5, -9]),
}


@pytest.mark.parametrize("claim", PAGES)
def test_a_page_that_claims_what_it_cannot_hold_is_refused(tmp_path: Path, claim: str) -> None:
    """Polars ends the process at a page of -2 values."""
    import footers

    data = table_file.encode(pl.DataFrame({"a": [1, None]}), {shards.VERSION_KEY: "1"})
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(0).column(0)
    begin = chunk.data_page_offset
    rest = iter(data[begin:])
    header = footers.decode(rest)
    PAGES[claim](header)
    page = footers.encode(header) + bytes(rest)
    growth = len(data[:begin] + page) - len(data)
    data = footers.with_footer(data[:begin] + page, lambda changed: grow(changed[4][1][1][0][1][1][1][0][3][1], growth))
    with pytest.raises(ValueError, match="page"):
        footer.check_file_in_memory(data)
    (tmp_path / "forged.parquet").write_bytes(data)
    assert not verify(tmp_path / "forged.parquet").ok


def grow(column: dict[int, list[int]], growth: int) -> None:
    column[7][1] += growth


def flip_last_byte(file: Path, column: int) -> None:
    """Of the last page of a column."""
    chunk = pq.read_metadata(file).row_group(0).column(column)
    data = bytearray(file.read_bytes())
    begin = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    data[begin + chunk.total_compressed_size - 1] ^= 1
    file.write_bytes(data)


def test_changed_bytes_are_not_written_again_under_a_new_digest(rich_run: Path) -> None:
    """`replace` copies what it does not replace; a flipped byte would come out as sound."""
    file = rich_run / "steps/steps-000000.parquet"
    flip_last_byte(file, 31)
    before = sorted(path.name for path in rich_run.glob("steps/*.parquet"))
    with StepWriter(rich_run) as writer, pytest.raises(InputError, match="is damaged"):
        writer.replace(rich_group("task 1", 9))
    assert sorted(path.name for path in rich_run.glob("steps/*.parquet")) == before
