"""Export to Minari: texts, actions and rewards, one episode per trajectory (extra `interchange`).

Minari has no columns per step, no ragged lists and no groups. Token ids, admissible actions, hashes and the grouping of
rollouts are therefore not exported.
"""

from __future__ import annotations

import itertools
import os
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from gymnasium import spaces

from hgpo_datasets.reader import scan_steps
from hgpo_datasets.schema import GROUP_KEY
from hgpo_envs.errors import InputError
from hgpo_envs.spaces import UnicodeText

if TYPE_CHECKING:
    from collections.abc import Iterator

    import minari

_KEY = ("run", *GROUP_KEY, "trajectory")


def to_minari(source: str | os.PathLike[str], dataset_id: str, **description: Any) -> minari.MinariDataset:
    """Write a run as a Minari dataset into Minari's folder (`MINARI_DATASETS_PATH`).

    An observation is `{"state": …, "task": …}`. If the state after the last step is unknown, it is an empty text.

    Args:
        source: Run folder, Parquet file, or glob pattern.
        dataset_id: Minari's name of the dataset, `namespace/env/name-v0`.
        description: Further arguments of `minari.create_dataset_from_buffers`, for example `author`, `algorithm_name`.

    Raises:
        InputError: Minari is not installed, the name is not one of Minari's or is taken, the source has no rows, or the
            run was written without its states.
    """
    try:
        import minari
    except ModuleNotFoundError as error:
        raise InputError(f"this needs {error.name}: pip install 'hgpo[interchange]'") from None
    _check_name(dataset_id)
    columns = (*_KEY, "step", "task", "state", "next_state", "action", "reward", "terminated", "truncated", "aborted")
    steps = scan_steps(source).select(columns).collect().sort(*_KEY, "step")
    if steps["state"].has_nulls():
        raise InputError(f"{source}: expected states, which Minari requires; the run was written without them")
    longest = steps.select(pl.col("state", "next_state", "task", "action").str.len_chars().max()).row(0)
    text = UnicodeText(max(1, *(length or 0 for length in longest)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="minari")  # it warns about optional metadata
        try:
            return minari.create_dataset_from_buffers(
                dataset_id,
                list(_episodes(steps)),
                observation_space=spaces.Dict({"state": text, "task": text}),
                action_space=text,
                **{"data_format": "arrow", **description},
            )
        except BaseException:
            shutil.rmtree(_place(dataset_id), ignore_errors=True)
            raise


def _place(dataset_id: str) -> Path:
    """Return Minari's folder of a dataset. Minari's own function also creates the folder of all datasets."""
    root = os.environ.get("MINARI_DATASETS_PATH")
    return (Path(root) if root is not None else Path.home() / ".minari" / "datasets") / dataset_id


def _check_name(dataset_id: str) -> None:
    """Check a name before Minari does, which creates a folder first: even for `../x`, outside its own."""
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError):  # TypeError: no version
        raise InputError(
            f"--name: expected letters, digits, _ and - with a version, such as hgpo/alfworld/random-v0, received "
            f"{dataset_id!r}"
        ) from None
    if os.path.lexists(place := _place(dataset_id)):
        raise InputError(f"the Minari dataset {dataset_id} exists already in {place}; choose another name or version")


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
