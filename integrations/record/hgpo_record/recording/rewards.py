"""Rewards of a recorded run by a function: `hgpo record reward`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets import StepWriter, manifest
from hgpo_datasets.sources import STEPS
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.atomic import write_file
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_record.recording.rollouts import BRANCHES
from hgpo_train.policies.validation import checked_number
from hgpo_train.rollout.collection import removed_if_unused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hgpo_datasets.manifest import Header

_MOST: Final = 1 << 30
_DERIVED: Final = ("run", "episode_return", "episode_length", "episode_won")
"""The columns that the writer fills in again."""


def reward_run(
    run: Path, function: Callable[[list[dict[str, Any]]], object], out: Path | None
) -> int:
    """Reward the rollouts of a run by a function. Aborted rollouts stay as they are.

    Args:
        run: The run.
        function: Takes the rows of a rollout as dictionaries, in the order of the steps. It returns the reward of the
            last step; or a list with one of each step; or None to leave the rollout as it is.
        out: The new run; None replaces the rows of the run, file by file.

    Returns:
        The number of rewarded rollouts.

    Raises:
        InputError: There is no such run, or the function fails or returns something else.
        OSError: The disk cannot be written.
    """
    listed = manifest.read(run)
    if listed.header is None or listed.problem:
        raise InputError(
            f"{run}: {listed.problem}; run `hgpo verify {run}` for details"
        )
    header: Header = listed.header
    files = [run / STEPS / name for name in listed.shards]
    if out is None:
        # Every file is computed before the first is replaced, so that an error of the function changes nothing.
        frames = [_rewarded(file, function) for file in files]
        with StepWriter(run) as writer:
            for frame, _ in frames:
                writer.replace(frame)
        return sum(count for _, count in frames)
    count = 0
    with (
        removed_if_unused(out, BRANCHES),
        StepWriter(
            out, run=header.run, config=header.config, depth=header.depth
        ) as writer,
    ):
        if writer.committed:
            raise InputError(
                f"{out}: expected a new folder, received a run; choose another one"
            )
        if (run / BRANCHES).exists():
            write_file(
                out / BRANCHES, read_bytes(run / BRANCHES, _MOST, "file of branches")
            )
        for file in files:
            frame, rewarded = _rewarded(file, function)
            count += rewarded
            writer.add_group(frame)
            writer.commit()
    return count


def _rewarded(
    file: Path, function: Callable[[list[dict[str, Any]]], object]
) -> tuple[pl.DataFrame, int]:
    """Return the rows of a file with rewards, and the number of rewarded rollouts."""
    count = 0
    rollouts = []
    for rollout in (
        pl.read_parquet(file)
        .drop(_DERIVED)
        .partition_by("trajectory", maintain_order=True)
    ):
        rewards = None if rollout["aborted"].any() else _rewards(function, rollout)
        if rewards is None:
            rollouts.append(rollout)
            continue
        is_last = pl.col("step") == pl.col("step").max()
        ends = is_last & ~pl.col("truncated")
        rollouts.append(
            rollout.with_columns(
                pl.Series("reward", rewards, pl.Float64), terminated=ends
            )
        )
        count += 1
    return pl.concat(rollouts), count


def _rewards(
    function: Callable[[list[dict[str, Any]]], object], rollout: pl.DataFrame
) -> list[float] | None:
    """Return the reward of each step of a rollout; None if the function gives none."""
    name = rollout["trajectory"][0]
    try:
        value = function(rollout.to_dicts())
    except Exception as error:
        raise InputError(
            f"--from: trajectory {name}: {type(error).__name__}: {one_line(error, 200)}"
        ) from error
    if value is None:
        return None
    length = len(rollout)
    listed = (
        list(value)
        if isinstance(value, Sequence) and not isinstance(value, str)
        else [0.0] * (length - 1) + [value]
    )
    if len(listed) != length:
        raise InputError(
            f"--from: trajectory {name}: expected a reward or {length}, received {len(listed)}"
        )
    return [checked_number(f"--from: trajectory {name}", each) for each in listed]
