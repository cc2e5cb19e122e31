"""Export to Minari: text, actions and rewards, one episode a trajectory (extra `interchange`).

Minari has no grain of steps, no ragged lists and no groups: token ids, admissible actions, hashes and the grouping of
rollouts stay behind.
"""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any

import polars as pl
from gymnasium import spaces

from hgpo_datasets.reader import scan_steps
from hgpo_datasets.schema import GROUP_KEY
from hgpo_envs.errors import InputError
from hgpo_envs.spaces import UnicodeText

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    import minari

_KEY = ("run", *GROUP_KEY, "trajectory")


def to_minari(source: str | os.PathLike[str], dataset_id: str, **description: Any) -> minari.MinariDataset:
    """Writes a run as a Minari dataset into Minari's folder (`MINARI_DATASETS_PATH`).

    An observation is `{"state": …, "task": …}`. Where the state after the last step is unknown it is an empty text.

    Args:
        source: A run's folder, a Parquet file, or a pattern.
        dataset_id: Minari's name, `namespace/env/name-v0`.
        description: Further arguments of `minari.create_dataset_from_buffers`, for example `author`, `algorithm_name`.

    Raises:
        InputError: There is nothing to read, or the run was written without its texts.
    """
    import minari

    columns = (*_KEY, "step", "task", "state", "next_state", "action", "reward", "terminated", "truncated", "aborted")
    steps = scan_steps(source).select(columns).collect().sort(*_KEY, "step")
    if steps["state"].has_nulls():
        raise InputError(f"{source} was written without states; Minari needs them")
    longest = steps.select(pl.col("state", "next_state", "task", "action").str.len_chars().max()).row(0)
    text = UnicodeText(max(1, *(length or 0 for length in longest)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="minari")  # it asks for a description that it can do without
        return minari.create_dataset_from_buffers(
            dataset_id,
            list(_episodes(steps)),
            observation_space=spaces.Dict({"state": text, "task": text}),
            action_space=text,
            **{"data_format": "arrow", **description},
        )


def _episodes(steps: pl.DataFrame) -> Iterator[object]:
    from minari.data_collector import EpisodeBuffer

    rows = steps.iter_rows(named=True)
    for number, (_, members) in enumerate(itertools.groupby(rows, key=lambda row: [row[name] for name in _KEY])):
        episode = list(members)
        last = episode[-1]
        yield EpisodeBuffer(
            id=number,
            observations={
                "state": [*(row["state"] for row in episode), last["next_state"] or ""],
                "task": [last["task"] or ""] * (len(episode) + 1),
            },
            actions=[row["action"] or "" for row in episode],
            rewards=[row["reward"] for row in episode],
            terminations=[row["terminated"] for row in episode],
            truncations=[row["truncated"] or row["aborted"] for row in episode],
            infos={},
        )
