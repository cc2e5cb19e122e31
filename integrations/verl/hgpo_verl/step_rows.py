"""The step tables of a run of verl: rows, the shards that they are stored in, and their advantages. No verl here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from hgpo_datasets import StepWriter
from hgpo_datasets.schema import GROUP_KEY
from hgpo_train.advantages import compute
from hgpo_train.training.data import env_options
from hgpo_train.training.run_folder import fixed_settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hgpo_train.training.config import AdvantageConfig, Config


class StepTable:
    """The step table of a run, to which each iteration adds a shard.

    Args:
        folder: The run's folder, or its folder of evaluations.
        config: The run's configuration.
        split: The split that is played.
    """

    def __init__(self, folder: Path, config: Config, split: str) -> None:
        # as `hgpo rollout` stores it
        environment = {"id": config.environment.id, **env_options(config, split)}
        stored = {"env": environment, "training": fixed_settings(config)}
        self._writer = StepWriter(folder, run=config.name, config=stored)
        self._env_id = config.environment.id

    def store(self, rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
        """Commit the rows of one iteration, and return them as a table, with all derived columns.

        After a resume, the rows of an iteration that is played again replace the earlier ones.

        Args:
            rows: Rows of complete groups, in any order.
        """
        committed = self._writer.committed
        again: list[dict[str, Any]] = []
        new: list[dict[str, Any]] = []
        for row in rows:
            played_before = tuple(row[name] for name in GROUP_KEY) in committed
            (again if played_before else new).append({"env_id": self._env_id, **row})
        if again:
            self._writer.replace(again)
        if new:
            self._writer.add_group(new)
        self._writer.commit()
        iterations = {row["iteration"] for row in rows}
        return (
            self._writer.scan().filter(pl.col("iteration").is_in(iterations)).collect()
        )

    def close(self) -> None:
        """Release the table's lock."""
        self._writer.close()


def advantages(
    steps: pl.DataFrame, config: AdvantageConfig
) -> dict[tuple[str, int], float]:
    """Return the advantage of each step, by trajectory and step. Steps of aborted rollouts have none.

    Args:
        steps: The step table of one iteration.
        config: The estimator and its parameters.
    """
    parameters: dict[str, Any] = config.parameters
    table = (
        compute(steps, config.estimator, **parameters)
        .select("trajectory", "step", "advantage")
        .collect(engine="in-memory")
    )
    return {
        (trajectory, step): value
        for trajectory, step, value in table.iter_rows()
        if value is not None
    }
