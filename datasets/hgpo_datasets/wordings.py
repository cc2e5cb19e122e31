"""The wordings of the tasks in a step table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl

from hgpo_envs.task_wordings import wording_of

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    found = {wording_of(env_id, _versions(text)) for env_id, text in pairs.iter_rows()}
    return sorted(filter(None, found))


def _versions(text: str) -> Mapping[str, str]:
    """Return the versions that a table of any origin stores as text; none if it is no JSON object of texts."""
    try:
        versions = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    known = versions.items() if isinstance(versions, dict) else ()
    return {name: value for name, value in known if isinstance(value, str)}
