"""The scores of a run: one Parquet file per iteration in `RUN/scores`, with the keys of the rows."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_datasets.reader import errors
from hgpo_datasets.row_tables import KEYS, read_metadata, read_table, readable_files
from hgpo_datasets.sources import parts_of, run_at, run_of_file
from hgpo_envs.errors import InputError
from hgpo_envs.wording import listed
from hgpo_train.scores.registry import columns_of, get
from hgpo_train.scores.rows import ScoredRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_datasets.sources import Source
    from hgpo_train.scores.rows import Scorer

FOLDER: Final = "scores"
METADATA: Final = "hgpo.scores"
"""The metadata of a file: what each column was computed with."""
HAS_TOKENS: Final = (pl.col("response_token_ids").list.len() > 0) & ~pl.col("aborted").any().over("trajectory")
"""Whether a step is scored."""


def score_table(
    steps: pl.DataFrame,
    scores: Sequence[str],
    scorer: Scorer,
) -> tuple[pl.DataFrame, dict[str, float]]:
    """Score the steps that have a response with token ids.

    Args:
        steps: Rows of a step table, with their token ids. Those of aborted trajectories are left out.
        scores: The names of scores.
        scorer: The model.

    Returns:
        The scored rows, with the columns of `KEYS` and of the scores; and the seconds of each score. A forward pass
        that several scores share is in the seconds of the first.

    Raises:
        InputError: A score is unknown, or the model cannot score the rows.
    """
    # A trajectory is left out as a whole, because no estimator uses the rest of an aborted one.
    rows = steps.filter(HAS_TOKENS)
    scored = ScoredRows(rows, scorer)
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
) -> dict[str, dict[str, object]]:
    """Return what the columns of scores were computed with, as the metadata `METADATA` store it."""
    return {
        column: {"score": name, "model": model, "temperature": temperature}
        for name in scores
        for column in get(name).columns
    }


def stored_scores(path: Path, steps: pl.DataFrame, about: Mapping[str, Mapping[str, object]]) -> pl.DataFrame | None:
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
    expected = dict(rows.schema) | columns_of({str(value["score"]) for value in about.values()})
    if any(table.schema.get(column) != dtype for column, dtype in expected.items()):
        return None
    found = rows.join(table.drop_nulls(list(about)), on=list(KEYS), how="semi")
    return table if found.height == rows.height else None


def with_scores(steps: pl.LazyFrame, source: Source | Sequence[Source], scores: Sequence[str]) -> pl.LazyFrame:
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
    missing = [column for column in columns_of(scores) if column not in present]
    if not missing:
        return steps

    # Their runs, which have the scores next to the steps.
    sources = [source] if isinstance(source, str | os.PathLike) else source
    runs: dict[Path, None] = {}  # each once, in order
    for part in parts_of(sources):
        path = Path(part.path)
        run = run_at(path) if path.is_dir() else run_of_file(path)
        if run is not None:
            runs[run] = None
    if not runs:
        raise InputError(f"expected a saved run with the columns {listed(missing)}, received a table without them")

    # All columns must be there in every run; rows that were not scored have null.
    tables = []
    for run in runs:
        with errors(run / FOLDER):
            known = [pl.scan_parquet(file, glob=False) for file in readable_files(run, FOLDER)]
            # Iterations may have different scores.
            found = [table for table in known if {*KEYS, *missing} <= set(table.collect_schema())]
        if not found:
            wanted = " ".join(f"-s {name}" for name in scores)
            raise InputError(
                f"{run} has no scores {listed(missing)}; add them with: hgpo score {run} --model MODEL {wanted}"
            )
        tables += [table.select(*KEYS, *missing) for table in found]
    return steps.join(pl.concat(tables), on=list(KEYS), how="left", maintain_order="left")
