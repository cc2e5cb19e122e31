"""One place for the columns: the page, the Arrow schema and what is written agree with it."""

from pathlib import Path

from hgpo_datasets import schema
from tools import schema_page

PAGE = Path(__file__).parents[2] / "docs/step_table.md"


def test_the_page_is_the_schema() -> None:
    page = PAGE.read_text("utf-8")
    assert schema_page.rewrite(page) == page, "run: python -m tools.schema_page docs/step_table.md"
    for column in schema.columns(depth=1):
        assert f"`{column.name.replace('_hash_1', '_hash_k')}`" in page
