"""Records of a run's metrics: one JSON line per iteration, TensorBoard, and optional hosted services."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import msgspec

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import append, write_file
from hgpo_envs.files.secrets import redact_json
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_train.models.checkpoint_files import rename_damaged
from hgpo_train.settings import to_dict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hgpo_train.training.config import Config, SftConfig

_METRICS_BYTES: Final = 4 << 30
"""Size limit of `metrics.jsonl`, in bytes."""


class TrackingWarning(UserWarning):
    """Stored metrics that cannot be read."""


class Trackers:
    """The trackers of a configuration; `metrics.jsonl` is always among them.

    Args:
        config: The run's configuration.
        folder: The run's folder.
        start: The first iteration that will be logged; records from it on are replaced.

    Raises:
        InputError: A configured tracker is not installed, or `metrics.jsonl` cannot be read.
    """

    def __init__(self, config: Config | SftConfig, folder: Path, start: int) -> None:
        self._lines = JsonLines(folder / "metrics.jsonl", start)
        self._board: Any = None
        if config.tracking.tensorboard and find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=start)
        self._services: list[Any] = []  # wandb and trackio share the functions `init`, `log` and `finish`
        for name, project in (("wandb", config.tracking.wandb), ("trackio", config.tracking.trackio)):
            if project is None:
                continue
            try:
                service = import_module(name)
            except ImportError as error:
                raise InputError(f"tracking.{name} is set but {name} is not installed; pip install {name}") from error
            extra = {"dir": str(folder), "id": folder.name} if name == "wandb" else {}
            settings = redact_json(to_dict(config))
            service.init(project=project, name=config.name, config=settings, resume="allow", **extra)
            self._services.append(service)

    def log(self, metrics: Mapping[str, float], iteration: int) -> None:
        """Log one iteration's metrics, without secrets in their names: environments choose some (task types)."""
        shown = redact_json(metrics)
        self._lines.log(shown, iteration)
        if self._board is not None:
            for name, value in shown.items():
                self._board.add_scalar(name, value, iteration)
            self._board.flush()
        for service in self._services:
            service.log(dict(shown), step=iteration)

    def close(self) -> None:
        """End the records."""
        self._lines.close()
        if self._board is not None:
            self._board.close()
        for service in self._services:
            service.finish()


class JsonLines:
    """A writer of `metrics.jsonl`: one object per iteration, with the key `iteration` first.

    A line is on disk when `log` returns. An incomplete last line is dropped, because its iteration is logged again. A
    file with other damaged lines is renamed to `metrics.jsonl.damaged`, and its intact lines are written again.

    Args:
        path: The file; its lines of iterations from `start` on are dropped, because they are logged again.
        start: The first iteration that will be logged.

    Raises:
        InputError: `path` is not a file, or cannot be read.
        OSError: `path` cannot be written.
    """

    def __init__(self, path: Path, start: int) -> None:
        lines, damaged = _read(path)
        if damaged:
            renamed = rename_damaged(path).name
            message = f"{path} contains {damaged} damaged lines; the file with them is now {renamed}"
            warnings.warn(message, TrackingWarning, stacklevel=2)
        kept = {line["iteration"]: line for line in lines if line["iteration"] < start}
        write_file(path, b"".join(_encode(kept[iteration]) for iteration in sorted(kept)))
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0))

    def log(self, metrics: Mapping[str, float], iteration: int) -> None:
        """Write one iteration's metrics. Values that are not finite are written as null."""
        append(self._descriptor, _encode({"iteration": iteration, **dict(sorted(metrics.items()))}))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a `metrics.jsonl`.

    Damaged lines are left out with a warning, an incomplete last line without one.

    Raises:
        InputError: `path` is not a file, or cannot be read.
    """
    lines, damaged = _read(path)
    if damaged:
        warnings.warn(f"{path} contains {damaged} damaged lines; ignored them", TrackingWarning, stacklevel=2)
    return lines


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return a file's intact lines, and the number of its damaged ones."""
    data = read_bytes(path, _METRICS_BYTES, "metrics.jsonl") if os.path.lexists(path) else b""
    lines, damaged = [], 0
    for line in data.split(b"\n")[:-1]:
        try:
            values = msgspec.json.decode(line, type=dict[str, int | float | None])
        except (ValueError, RecursionError):
            values = {}
        if type(values.get("iteration")) is int:
            lines.append(values)
        else:
            damaged += 1
    return lines, damaged


def _encode(values: Mapping[str, float | None]) -> bytes:
    return msgspec.json.encode(values) + b"\n"  # NaN and infinity become null
