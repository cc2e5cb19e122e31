"""Generate the tables of docs/step_table.md from the schema.

python -m tools.schema_page docs/step_table.md     update the page in place
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import polars as pl

from hgpo_datasets.schema import FAMILIES, VERSION, Column, columns

BEGIN: Final = "<!-- columns: written by python -m tools.schema_page -->"
END: Final = "<!-- end of columns -->"

_HEAD: Final = "| column | type | meaning | unit or format | null if | default |"
_RULE: Final = "|---|---|---|---|---|---|"
_TYPES: Final = {
    pl.String(): "text",
    pl.List(pl.String()): "list of text",
    pl.Int32(): "int32",
    pl.Int64(): "int64",
    pl.Float64(): "float64",
    pl.Boolean(): "bool",
    pl.List(pl.Int32()): "list of int32",
    pl.List(pl.Float32()): "list of float32",
}


def tables() -> str:
    """Return one Markdown table per family of columns."""
    every = [column for column in columns() if not _repeats(column)]
    parts = [f"Schema version {VERSION}."]
    for family in FAMILIES:
        lines = [_line(column) for column in every if column.family == family]
        parts.append(
            "\n".join([f"### {family.capitalize()}", "", _HEAD, _RULE, *lines])
        )
    return "\n\n".join(parts)


def rewrite(page: str) -> str:
    """Return the page with updated tables."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def _repeats(column: Column) -> bool:
    """Return whether a column is a hash of depth 2 or more; the table shows only depths 0 and 1."""
    depth = column.name.rpartition("_")[2]
    return depth.isdigit() and int(depth) > 1


def _line(column: Column) -> str:
    name = f"`{column.name}`"
    meaning = column.meaning
    null = column.null or "never"
    if column.name.endswith("_hash_1"):
        name = f"`{column.name[:-1]}k`, k = 1 … depth"
        meaning = meaning.replace("1 states", "k states")
        null = null.replace("step < 1", "step < k")
    if column.derived:
        missing = "computed"
    elif column.name == "run":
        missing = "run of the writer"
    elif column.default is None and not column.null:
        missing = "required"
    else:
        missing = "null" if column.default is None else str(column.default).lower()
    return f"| {name} | {_TYPES[column.type]} | {meaning} | {column.unit} | {null} | {missing} |"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(rewrite(target.read_text("utf-8")), "utf-8")
