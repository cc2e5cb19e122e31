"""Step tables as Hugging Face datasets (extra `interchange`)."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING, Any

import polars as pl

from hgpo_datasets.reader import source_files
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.hashing import UNDEFINED
from hgpo_envs.plugins import install_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


def to_dataset(
    source: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    streaming: bool = False,
    **options: Any,
) -> Any:  # noqa: ANN401 (type checkers take the folder `datasets` of this project for the package)
    """Load a run's committed files as a Hugging Face dataset.

    Undefined hashes (k > t) are `hgpo_envs.hashing.UNDEFINED`, as in observations, instead of null. The torch format
    would convert an integer column with nulls to float32, which cannot represent 64-bit hashes.

    Args:
        source: Run folder, Parquet file, or glob pattern.
        columns: Columns to load; all by default.
        streaming: Whether to read rows during iteration instead of converting the files first.
        options: Further arguments of `datasets.load_dataset`, for example `cache_dir`.

    Returns:
        A `datasets.Dataset`, or a `datasets.IterableDataset` if `streaming` is true.

    Raises:
        InputError: The source has no rows, a column is unknown, Hugging Face `datasets` is not installed, or cannot
            open a path with `::` or a variable such as `$HOME` in it.
    """
    import datasets

    if not hasattr(datasets, "load_dataset"):
        raise InputError(
            f"Hugging Face datasets is not installed; run: {install_command('interchange')}"
        )
    files = [file.path for file in source_files(source)]
    for file in files:
        if "::" in file or os.path.expandvars(file) != file:
            raise InputError(
                f"{file}: expected a path without :: and $variables for Hugging Face, which it replaces; rename it"
            )
    known = pl.scan_parquet(files[0], glob=False).collect_schema()
    for column in (column for column in columns or () if column not in known):
        raise InputError(unknown("column", column, known))
    patterns = [glob.escape(os.path.abspath(file)) for file in files]  # noqa: PTH100 (it takes patterns, not names)
    named = {
        "data_files": patterns,
        "split": "train",
        "streaming": streaming,
        "columns": columns,
    }
    loaded = datasets.load_dataset("parquet", **named, **options)
    arrow = loaded.with_format("arrow").map(
        _define_hashes,
        batched=True,
        features=loaded.features,
    )
    return arrow.with_format(None)


def _define_hashes(table: pa.Table) -> pa.Table:
    import pyarrow.compute as pc

    for place, name in enumerate(table.column_names):
        if "_hash" in name and table.column(place).null_count:
            table = table.set_column(
                place,
                table.schema.field(name),
                pc.fill_null(table.column(place), UNDEFINED),
            )
    return table
