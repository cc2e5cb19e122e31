"""Records of a run's metrics: one JSON line per iteration, TensorBoard, and optional hosted services."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import msgspec

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import append, open_inside, write_file
from hgpo_envs.files.sealed import CHECK, seal
from hgpo_envs.files.secrets import redact_json
from hgpo_envs.files.untrusted_files import read_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hgpo_train.training.config import Config, SftConfig

METRICS: Final = "metrics.jsonl"
_BYTES: Final = 4 << 30
"""Size limit of `metrics.jsonl`, in bytes."""


class Trackers(ExitStack):
    """The trackers of a configuration; `metrics.jsonl` is always among them, with one object per iteration.

    `close` ends the records.

    Args:
        config: The run's configuration.
        folder: The run's folder.
        start: The first iteration that will be logged; records from it on are replaced.

    Raises:
        InputError: A configured tracker is not installed, or `metrics.jsonl` cannot be read.
    """

    def __init__(
        self,
        config: Config | SftConfig,
        folder: Path,
        start: int,
    ) -> None:
        super().__init__()
        # An interrupted run has lines of iterations after its checkpoint, which are computed again.
        path = folder / METRICS
        kept = {
            line["iteration"]: line
            for line in read_metrics(path)
            if line["iteration"] < start
        }
        write_file(
            path,
            b"".join(
                seal(msgspec.json.encode(kept[iteration])) for iteration in sorted(kept)
            ),
        )
        self._lines = open_inside(path, os.O_APPEND)
        self.callback(os.close, self._lines)

        self._board: Any = None
        if config.tracking.tensorboard and find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=start)
            self.callback(self._board.close)

        # wandb and trackio share the functions `init`, `log` and `finish`.
        self._services: list[Any] = []
        for name in ("wandb", "trackio"):
            project = getattr(config.tracking, name)
            if project is None:
                continue
            try:
                service = import_module(name)
            except ImportError as error:
                raise InputError(
                    f"tracking.{name} is set but {name} is not installed; pip install {name}"
                ) from error
            extra = {"dir": str(folder), "id": folder.name} if name == "wandb" else {}
            settings = redact_json(asdict(config))
            service.init(
                project=project,
                name=config.name,
                config=settings,
                resume="allow",
                **extra,
            )
            self._services.append(service)
            self.callback(service.finish)

    def log(self, metrics: Mapping[str, float], iteration: int) -> None:
        """Log one iteration's metrics; its line is on disk when this returns. NaN and infinity become null.

        Raises:
            OSError: The disk cannot be written. Lines of earlier iterations are complete.
        """
        # environments choose some of the names (task types)
        shown = redact_json(metrics)
        line = msgspec.json.encode(
            {"iteration": iteration, **dict(sorted(shown.items()))}
        )
        append(self._lines, seal(line))
        if self._board is not None:
            for name, value in shown.items():
                self._board.add_scalar(name, value, iteration)
            self._board.flush()
        for service in self._services:
            service.log(dict(shown), step=iteration)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a `metrics.jsonl`; empty without a file. An incomplete last line, of a killed run, is left out.

    Raises:
        InputError: `path` is not a file, cannot be read, or has a damaged line.
    """
    data = read_bytes(path, _BYTES, METRICS) if os.path.lexists(path) else b""
    lines = []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            values = msgspec.json.decode(line, type=dict[str, int | float | None])
        except (ValueError, RecursionError):
            values = {}
        if type(values.get("iteration")) is not int:  # a bool is an int for isinstance
            raise InputError(
                f"{path}: line {number} is damaged; remove it, or restore the file from a backup"
            )
        values.pop(CHECK, None)
        lines.append(values)
    return lines
