"""The wordings of the tasks in a step table."""

from __future__ import annotations

import json

import polars as pl

from hgpo_envs.task_wordings import wording_of


def wordings_of(steps: pl.LazyFrame) -> list[str]:
    """Return the wordings of the tasks in a step table, sorted (`hgpo_envs.task_wordings`).

    Args:
        steps: Steps with the columns `env_id` and `env_version`.

    >>> steps = pl.LazyFrame({"env_id": ["HGPO/ALFWorld-v0"], "env_version": ['{"grammar": "move"}']})
    >>> wordings_of(steps)
    ['move … to … (alfworld 0.4 and later)']
    """
    columns = [pl.col(name).cast(pl.String) for name in ("env_id", "env_version")]
    pairs = steps.select(columns).unique().drop_nulls().collect(engine="streaming")
    found = set()
    for env_id, text in pairs.iter_rows():
        try:
            versions = json.loads(text)
        except (ValueError, RecursionError):
            continue  # a table of another program
        if isinstance(versions, dict):
            found.add(wording_of(env_id, versions))
    return sorted(filter(None, found))
