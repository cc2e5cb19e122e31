"""Page checksums, judged by a reader that knows them (pyarrow)."""

import contextlib
import io
import random
import zlib

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from polars.testing.parametric import dataframes

from hgpo_datasets import thrift
from hgpo_datasets.page_checksums import add_page_checksums, damaged_pages


def written(frame: pl.DataFrame, **options: object) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, **options)
    return buffer.getvalue()


def table(rows: int = 3_000) -> pl.DataFrame:
    draw = random.Random(7)
    return pl.DataFrame(
        {
            "task": [f"task {i // 100}" for i in range(rows)],
            "hash": [draw.getrandbits(62) for _ in range(rows)],
            "text": [None if i % 7 == 0 else f"you see {draw.randrange(50)} apples" for i in range(rows)],
            "tokens": [[draw.randrange(9)] * (i % 4) for i in range(rows)],
        }
    )


@given(
    dataframes(max_cols=6, max_size=40, allowed_dtypes=[pl.Int64, pl.String, pl.Boolean, pl.Float32, pl.List(pl.Int32)])
)
def test_every_table_stays_the_same_and_verifies(frame: pl.DataFrame) -> None:
    if not frame.width:
        return
    checked = add_page_checksums(written(frame))
    assert_frame_equal(pl.read_parquet(checked), frame)
    assert damaged_pages(checked) == []
    judged = pq.read_table(io.BytesIO(checked), page_checksum_verification=True)
    assert_frame_equal(pl.DataFrame(pl.from_arrow(judged)), pl.read_parquet(checked))


@pytest.mark.parametrize("compression", ["zstd", "uncompressed"])
def test_many_pages_and_row_groups(compression: str) -> None:
    frame = table()
    checked = add_page_checksums(written(frame, compression=compression, row_group_size=700, data_page_size=512))
    assert_frame_equal(pl.read_parquet(checked), frame)
    assert pq.read_table(io.BytesIO(checked), page_checksum_verification=True).num_rows == len(frame)
    assert pq.read_metadata(io.BytesIO(checked)).num_row_groups == 5


def test_a_flipped_page_byte_is_named_and_pyarrow_agrees() -> None:
    checked = add_page_checksums(written(table(), row_group_size=700))
    metadata = pq.read_metadata(io.BytesIO(checked))
    column = metadata.row_group(2).column(1)
    position = column.data_page_offset + column.total_compressed_size // 2
    damaged = bytearray(checked)
    damaged[position] ^= 0x10
    assert [(p.row_group, p.column) for p in damaged_pages(bytes(damaged))] == [(2, "hash")]
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(io.BytesIO(bytes(damaged)), page_checksum_verification=True, use_threads=False)


def test_without_checksums_every_page_is_reported() -> None:
    assert len(damaged_pages(written(table(10)))) >= 4


@pytest.mark.parametrize("wrong", [b"", b"PAR1", b"PAR1" + b"\xff" * 20 + b"PAR1", b"x" * 50])
def test_what_is_no_parquet_file_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match=r"Parquet|footer|Thrift"):
        damaged_pages(wrong)


@given(st.data())
def test_damage_never_raises_anything_but_value_error(data: st.DataObject) -> None:
    checked = bytearray(add_page_checksums(written(table(50))))
    for _ in range(data.draw(st.integers(1, 3))):
        checked[data.draw(st.integers(0, len(checked) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(checked[: data.draw(st.integers(0, len(checked)))])
    with contextlib.suppress(ValueError):
        damaged_pages(cut)


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_the_page_index_moves_with_its_pages(compression: str) -> None:
    frame = table()
    buffer = io.BytesIO()
    pq.write_table(
        frame.to_arrow(),
        buffer,
        write_page_index=True,
        data_page_size=400,
        write_batch_size=50,
        compression=compression,
    )
    checked = add_page_checksums(buffer.getvalue())
    assert damaged_pages(checked) == []
    for reader in (pl.scan_parquet(io.BytesIO(checked)), pl.scan_parquet(io.BytesIO(buffer.getvalue()))):
        assert (
            reader.filter(pl.col("task") == "task 17").collect()["hash"].to_list() == frame["hash"][1700:1800].to_list()
        )
    assert pq.read_table(io.BytesIO(checked), page_checksum_verification=True).equals(
        pq.read_table(io.BytesIO(buffer.getvalue()))
    )


def test_the_index_locations_point_at_pages() -> None:
    checked = add_page_checksums(written(table(), data_page_size=512))
    data = memoryview(checked)
    footer, _ = thrift.decode(data, len(data) - 8 - int.from_bytes(data[-8:-4], "little"))
    seen = 0
    for chunk in footer[4].value.values[0][1].value.values:
        locations, end = thrift.decode(data, chunk[4].value)
        assert end == chunk[4].value + chunk[5].value
        for location in locations[1].value.values:
            header, start = thrift.decode(data, location[1].value)
            assert location[2].value == start - location[1].value + header[3].value
            assert zlib.crc32(data[start : start + header[3].value]) == header[4].value % 2**32
            seen += 1
    assert seen > 20


def test_footers_of_other_writers_round_trip_to_the_byte() -> None:
    buffer = io.BytesIO()
    pq.write_table(table().to_arrow(), buffer, row_group_size=500, write_page_index=True, store_decimal_as_integer=True)
    data = memoryview(buffer.getvalue())
    length = int.from_bytes(data[-8:-4], "little")
    begin = len(data) - 8 - length
    footer, end = thrift.decode(data, begin)
    assert end == len(data) - 8
    assert thrift.encode(footer) == bytes(data[begin:end])
