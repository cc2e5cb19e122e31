"""The scores of a run: one Parquet file per iteration in `RUN/scores`, with the keys of the rows."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_datasets.reader import errors, source_files
from hgpo_datasets.row_tables import (
    KEYS,
    path_of,
    read_metadata,
    read_table,
    readable_files,
    write_table,
)
from hgpo_datasets.sources import Source, parts_of, real, run_at, run_of_file
from hgpo_envs.errors import InputError
from hgpo_envs.wording import counted, listed
from hgpo_train.scores.registry import columns_of, get, score_command
from hgpo_train.scores.rows import ScoredRows, Scorer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hgpo_train.models.hf import Tokenizer

FOLDER: Final = "scores"
METADATA: Final = "hgpo.scores"
"""The metadata of a file: what each column was computed with."""
IS_ABORTED: Final = pl.col("aborted").any().over("run", "trajectory")
HAS_TOKENS: Final = (pl.col("response_token_ids").list.len() > 0) & ~IS_ABORTED
"""Whether a step is scored."""


def score_table(
    steps: pl.DataFrame,
    scores: Sequence[str],
    scorer: Scorer,
    load_tokenizer: Callable[[], Tokenizer] | None = None,
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Score the steps that have a response with token ids.

    Args:
        steps: Whole trajectories of a step table, with their token ids. Those that are aborted are left out.
        scores: The names of scores.
        scorer: The model.
        load_tokenizer: Returns the model's tokenizer.

    Returns:
        The scored rows, with the columns of `KEYS` and of the scores; and the seconds of each score. A forward pass
        that several scores share is in the seconds of the first.

    Raises:
        InputError: A score is unknown, or the model cannot score the rows.
    """
    # A trajectory is left out as a whole, because no estimator uses the rest of an aborted one.
    rows = steps.filter(HAS_TOKENS)
    scored = ScoredRows(rows, scorer, steps, load_tokenizer)
    columns: dict[str, pl.Series] = {}
    seconds: dict[str, float] = {}
    for name in scores:
        begin = time.perf_counter()
        columns |= get(name)(scored)
        seconds[name] = time.perf_counter() - begin
    return rows.select(KEYS).with_columns(**columns), seconds


def description(
    scores: Sequence[str],
    *,
    model: str,
    temperature: float,
    reference: str | None = None,
) -> dict[str, dict[str, object]]:
    """Return what the columns of scores were computed with, as the metadata `METADATA` store it.

    The model of the score `reference_logprobs` is the reference.
    """
    about = {
        column: {"score": name, "model": model, "temperature": temperature}
        for name in scores
        for column in get(name).columns
    }
    if reference is not None and "reference_logprobs" in about:
        about["reference_logprobs"]["model"] = reference
    return about


def store_scores(
    path: Path, table: pl.DataFrame, about: Mapping[str, Mapping[str, object]]
) -> None:
    """Write an iteration's scores, beside those of other columns that its file has.

    Raises:
        InputError: The file is damaged.
    """
    if path.exists():
        kept = read_table(path).drop(*about, strict=False)
        table = table.join(kept, on=list(KEYS), how="full", coalesce=True).sort(KEYS)
        about = {**(read_metadata(path, METADATA) or {}), **about}
    write_table(path, table, {METADATA: about})


def stored_scores(
    path: Path, steps: pl.DataFrame, about: Mapping[str, Mapping[str, object]]
) -> pl.DataFrame | None:
    """Return the scores of an iteration's file if they can be used; None if they are to be computed.

    Args:
        path: The file, which may be missing.
        steps: The rows whose scores are needed, with the columns that `HAS_TOKENS` reads.
        about: What the needed columns are computed with, as `description` returns it.

    Returns:
        The file's table, which may have more rows and columns. None if its columns were computed with another model or
        at another temperature, as after `hgpo score` on an interrupted run, or if rows are missing, as after failed
        rollouts were repeated.

    Raises:
        InputError: The file is damaged.
    """
    if not path.exists():
        return None
    stored = read_metadata(path, METADATA) or {}
    if any(stored.get(column) != value for column, value in about.items()):
        return None
    table = read_table(path)
    rows = steps.filter(HAS_TOKENS).select(KEYS)
    expected = dict(rows.schema) | columns_of(
        {str(value["score"]) for value in about.values()}
    )
    if any(table.schema.get(column) != dtype for column, dtype in expected.items()):
        return None
    found = rows.join(table.drop_nulls(list(about)), on=list(KEYS), how="semi")
    return table if found.height == rows.height else None


def with_scores(
    steps: pl.LazyFrame, source: Source | Sequence[Source], scores: Sequence[str]
) -> pl.LazyFrame:
    """Add the columns of scores to the steps of saved runs.

    Args:
        steps: The steps.
        source: Where they were read from: a run or files of a run, or a list of these.
        scores: The names of scores.

    Returns:
        The steps with the columns; null in rows that were not scored. Without scores, or with columns that are there
        already, the same table.

    Raises:
        InputError: A run has no such scores.
    """
    present = steps.collect_schema()
    missing = {
        column: dtype
        for column, dtype in columns_of(scores).items()
        if column not in present
    }
    if not missing:
        return steps

    # Their runs, which have the scores next to the steps.
    sources = [source] if isinstance(source, str | os.PathLike) else source
    runs: dict[Path, str | None] = {}  # with their names in `steps`, if others
    renamed = {file.folder: file.run for file in source_files(sources)}
    for part in parts_of(sources):
        path = Path(part.path)
        run = run_at(path) if path.is_dir() else run_of_file(path)
        if run is not None:
            runs[run] = renamed.get(real(run))
    if not runs:
        raise InputError(
            f"expected a saved run with the columns {listed([*missing])}, received a table without them"
        )

    # The files of the iterations that the steps are of, which alone are read.
    numbers = (
        steps.select(pl.col("iteration").drop_nulls().unique())
        .collect()
        .to_series()
        .to_list()
    )
    tables = []
    for folder, name in runs.items():
        command = score_command(folder, scores)
        found = _read_columns(folder, numbers, missing)
        if not found:
            raise InputError(
                f"{folder} has no scores {listed([*missing])}; add them with: {command}"
            )
        if name is not None:
            found = [table.with_columns(run=pl.lit(name)) for table in found]
        tables += found
    added = pl.concat(tables)
    if added.select(KEYS).is_duplicated().any():
        raise InputError(
            f"{folder / FOLDER}: expected each step once, found some twice; delete it and score again"
        )
    _check_complete(steps, added, command)
    return steps.join(added.lazy(), on=list(KEYS), how="left", maintain_order="left")


def _read_columns(
    run: Path,
    iterations: Sequence[int],
    columns: Mapping[str, pl.DataType],
) -> list[pl.DataFrame]:
    """Return the keys and columns of the files of iterations that have them; iterations may have different scores."""
    paths = {path_of(run, FOLDER, number + 1) for number in iterations}
    values = [pl.col(column).cast(dtype) for column, dtype in columns.items()]
    with errors(run / FOLDER):
        tables = [
            pl.scan_parquet(path, glob=False)
            for path in readable_files(run, FOLDER)
            if path in paths
        ]
        found = [
            table
            for table in tables
            if {*KEYS, *columns} <= set(table.collect_schema())
        ]
        return [table.select(*KEYS, *values).collect() for table in found]


def _check_complete(steps: pl.LazyFrame, scores: pl.DataFrame, command: str) -> None:
    """Raise an `InputError` if steps with a response have no scores, as after an interrupted `hgpo score`."""
    known = scores.lazy().select(KEYS)
    unscored = (
        steps.filter(~IS_ABORTED).select(KEYS).join(known, on=list(KEYS), how="anti")
    )
    if unscored.head(1).collect().is_empty():
        return
    # Responses without tokens have none. Token ids are the largest column, so that they are read only here.
    with_tokens = (
        steps.filter(HAS_TOKENS).select(KEYS).join(known, on=list(KEYS), how="anti")
    )
    count = with_tokens.select(pl.len()).collect().item()
    if count:
        one = count == 1
        lacks = "has no score; add it" if one else "have no scores; add them"
        raise InputError(
            f"{counted(count, 'step')} with a response {lacks} with: {command}"
        )
