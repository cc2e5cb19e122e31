"""Export to Minari: texts, actions and rewards, one episode per trajectory (extra `interchange`).

Minari has no columns per step, no ragged lists and no groups. Token ids, admissible actions, hashes and the grouping of
rollouts are therefore not exported.
"""

from __future__ import annotations

import copy
import itertools
import os
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import polars as pl
from gymnasium import spaces

from hgpo_datasets.branches import with_prefixes
from hgpo_datasets.reader import header_of, scan_steps, source_files
from hgpo_datasets.schema import GROUP_KEY
from hgpo_envs.environment_spec import environment_ids
from hgpo_envs.errors import InputError
from hgpo_envs.spaces import UnicodeText

if TYPE_CHECKING:
    from collections.abc import Iterator

    import minari
    from gymnasium.envs.registration import EnvSpec

_KEY = ("run", *GROUP_KEY, "trajectory")


def to_minari(
    source: str | os.PathLike[str], dataset_id: str, **description: Any
) -> minari.MinariDataset:
    """Write a run as a Minari dataset into Minari's folder (`MINARI_DATASETS_PATH`).

    An observation is `{"state": …, "task": …}`. If the state after the last step is unknown, it is an empty text.
    Aborted rollouts are left out. The episode of a branch begins with its parent's steps. An episode's options are
    those with which a reset starts its task.

    The dataset of one run names its environment, if it is one of `hgpo_envs.environment_spec.environment_ids`:
    `recover_environment` makes it with the run's arguments, for the commands that are the actions here.

    Args:
        source: Run folder, Parquet file, or glob pattern.
        dataset_id: Minari's name of the dataset, `namespace/env/name-v0`.
        description: Further arguments of `minari.create_dataset_from_buffers`, for example `author`, `algorithm_name`.

    Raises:
        InputError: The name is not one of Minari's or is taken, the source has no complete rollout, or the run was
            written without its states.
    """
    import minari

    folder = _new_folder(dataset_id)
    columns = [
        *_KEY,
        "step",
        "parent",
        "branch_step",
        "task",
        "state",
        "next_state",
        "action",
        "reward",
    ]
    columns += ["terminated", "truncated", "aborted"]
    steps = with_prefixes(scan_steps(source).select(columns)).sort(*_KEY, "step")
    steps = steps.filter(~pl.col("aborted").any().over(_KEY))
    if steps.is_empty():
        raise InputError(f"{source}: expected complete rollouts; all were aborted")
    if steps["state"].has_nulls():
        raise InputError(
            f"{source}: expected states, which Minari requires; the run was written without them"
        )
    longest = steps.select(
        pl.col("state", "next_state", "task", "action").str.len_chars().max()
    ).row(0)
    text = UnicodeText(max(1, *(length or 0 for length in longest)))
    with warnings.catch_warnings():
        # it warns about optional metadata
        warnings.filterwarnings("ignore", module="minari")
        try:
            dataset = minari.create_dataset_from_buffers(
                dataset_id,
                list(_episodes(steps)),
                observation_space=spaces.Dict({"state": text, "task": text}),
                action_space=text,
                **{"data_format": "arrow", **description},
            )
            if (spec := _env_spec(source)) is not None:
                # As an argument above, it would open the environment, whose data may not be here.
                dataset.storage.update_metadata({"env_spec": spec.to_json()})
            return minari.load_dataset(dataset_id)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _new_folder(dataset_id: str) -> Path:
    """Return Minari's folder of a new dataset.

    Minari checks names after it has created a folder: for `../x`, even outside its own.
    """
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError):  # TypeError: no version
        expected = (
            "NAMESPACE/NAME-vNUMBER of letters, digits, _ and -, where NAMESPACE may contain / and has at least two "
            "characters, such as hgpo/alfworld/random-v0"
        )
        raise InputError(
            f"--name: expected {expected}, received {dataset_id!r}"
        ) from None
    folder = (
        Path(
            os.environ.get("MINARI_DATASETS_PATH", Path.home() / ".minari" / "datasets")
        )
        / dataset_id
    )
    if os.path.lexists(folder):
        raise InputError(
            f"the Minari dataset {dataset_id} exists already in {folder}; choose another name or version"
        )
    return folder


def _env_spec(source: str | os.PathLike[str]) -> EnvSpec | None:
    """Return the spec of a run's environment with the run's arguments; None if it is not known."""
    header = header_of(source_files(source))
    arguments = header.config.get("env") if header else None
    if not isinstance(arguments, dict) or arguments.get("id") not in environment_ids():
        return None
    spec = copy.deepcopy(gymnasium.spec(arguments["id"]))
    spec.kwargs |= {
        name: value
        for name, value in arguments.items()
        if name not in ("id", "action_format")
    }
    return spec


def _episodes(steps: pl.DataFrame) -> Iterator[object]:
    from minari.data_collector import EpisodeBuffer

    rows = steps.iter_rows(named=True)
    for number, (_, members) in enumerate(
        itertools.groupby(rows, key=lambda row: [row[name] for name in _KEY])
    ):
        episode = list(members)
        last = episode[-1]
        yield EpisodeBuffer(
            id=number,
            options={"task": last["task_id"]},
            observations={
                "state": [*(row["state"] for row in episode), last["next_state"] or ""],
                "task": [last["task"] or ""] * (len(episode) + 1),
            },
            actions=[row["action"] or "" for row in episode],
            rewards=[row["reward"] for row in episode],
            terminations=[row["terminated"] for row in episode],
            truncations=[row["truncated"] for row in episode],
            infos={},
        )
