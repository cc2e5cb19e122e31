"""One place for the columns: the page, the Arrow schema and what is written agree with it."""

from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from groups import rich_group

from hgpo_datasets import StepWriter, schema
from tools import schema_page

PAGE = Path(__file__).parents[2] / "docs/step_table.md"


def test_the_page_is_the_schema() -> None:
    page = PAGE.read_text("utf-8")
    assert schema_page.rewrite(page) == page, "run: python -m tools.schema_page docs/step_table.md"
    for column in schema.columns(depth=1):
        assert f"`{column.name.replace('_hash_1', '_hash_k')}`" in page


@pytest.mark.parametrize("depth", [0, 1, 8])
def test_files_hold_the_columns_of_the_schema(tmp_path: Path, depth: int) -> None:
    with StepWriter(tmp_path, depth=depth) as writer:
        writer.add_group(rich_group("t", 1))
    written = pq.read_schema(tmp_path / "steps/steps-000000.parquet")
    assert list(pl.Schema(written).items()) == list(schema.polars_schema(depth).items())
    names = written.names
    assert [name for name in names if name.startswith("history")] == [f"history_hash_{k}" for k in range(depth + 1)]
    assert schema.stored_depth(names) == depth
