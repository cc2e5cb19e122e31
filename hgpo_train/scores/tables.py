"""The scores of a run: one Parquet file per iteration in `RUN/scores`, with the keys of the rows."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_datasets.row_tables import KEYS, files_of
from hgpo_datasets.sources import parts_of, run_at, run_of_file
from hgpo_envs.errors import InputError
from hgpo_envs.wording import listed
from hgpo_train.scores.registry import columns_of, get
from hgpo_train.scores.rows import ScoredRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_datasets.sources import Source
    from hgpo_train.scores.rows import Scorer

FOLDER: Final = "scores"
METADATA: Final = "hgpo.scores"
"""The metadata of a file: what each column was computed with."""


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
    has_tokens = pl.col("response_token_ids").list.len() > 0
    rows = steps.filter(has_tokens & ~pl.col("aborted").any().over("trajectory"))
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


def with_scores(
    steps: pl.LazyFrame,
    source: Source | Sequence[Source],
    scores: Sequence[str],
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
        files = files_of(run, FOLDER)
        known = pl.scan_parquet(files, glob=False, missing_columns="insert") if files else pl.LazyFrame()
        lacking = [column for column in missing if column not in known.collect_schema()]
        if lacking:
            wanted = " ".join(f"-s {name}" for name in scores)
            raise InputError(
                f"{run} has no scores {listed(lacking)}; add them with: hgpo score {run} --model MODEL {wanted}"
            )
        tables.append(known.select(*KEYS, *missing))
    return steps.join(
        pl.concat(tables),
        on=list(KEYS),
        how="left",
        maintain_order="left",
    )
