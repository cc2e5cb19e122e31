"""Step tables as Hugging Face datasets (extra `interchange`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hgpo_datasets.reader import step_files
from hgpo_envs.errors import InputError
from hgpo_envs.hashing import UNDEFINED

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import pyarrow as pa


def to_dataset(
    source: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    streaming: bool = False,
    **options: Any,
) -> Any:  # noqa: ANN401 (type checkers take the folder `datasets` of this project for the package)
    """A run's committed files as a Hugging Face dataset, its hashes right in every format.

    The torch format turns an integer column that holds a null into float32, and 64-bit hashes into noise. Hashes that
    do not exist (k > t) are therefore `hgpo_envs.hashing.UNDEFINED` here, as in observations.

    Args:
        source: A run's folder, a Parquet file, or a pattern.
        columns: The columns to keep; all of them by default.
        streaming: Read while iterating, instead of converting first.
        options: Further arguments of `datasets.load_dataset`, for example `cache_dir`.

    Returns:
        A `datasets.Dataset`, or with `streaming` a `datasets.IterableDataset`.

    Raises:
        InputError: There is nothing to read, or Hugging Face `datasets` is not installed.
    """
    import datasets

    if not hasattr(datasets, "load_dataset"):
        raise InputError("expected Hugging Face datasets; install it with: pip install 'hgpo[interchange]'")
    files = step_files(source)
    if not files:
        raise InputError(f"no committed rows in {source}")
    loaded = datasets.load_dataset(
        "parquet", data_files=files, split="train", streaming=streaming, columns=columns, **options
    )
    features = loaded.features
    return loaded.with_format("arrow").map(_define_hashes, batched=True, features=features).with_format(None)


def _define_hashes(table: pa.Table) -> pa.Table:
    import pyarrow.compute as pc

    for place, name in enumerate(table.column_names):
        if "_hash" in name and table.column(place).null_count:
            table = table.set_column(place, table.schema.field(name), pc.fill_null(table.column(place), UNDEFINED))
    return table
