"""Where metrics go: a JSON line an iteration, TensorBoard, and trackers by option."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Protocol

from hgpo_envs.atomic import write_file
from hgpo_envs.errors import InputError
from hgpo_train.settings import to_dict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hgpo_train.config import Config


class Tracker(Protocol):
    """Is told the metrics of each iteration."""

    def log(self, metrics: Mapping[str, float], iteration: int) -> None:
        """Takes one iteration's metrics."""
        ...

    def close(self) -> None:
        """Ends the run."""
        ...


class JsonLines:
    """`metrics.jsonl`: one object an iteration, `iteration` first.

    Args:
        path: The file; lines of iterations from `start` on are dropped, because they will be written again.
        start: The first iteration to come.
    """

    def __init__(self, path: Path, start: int) -> None:
        self.path = path
        kept = [line for line in read_metrics(path) if line["iteration"] < start]
        write_file(path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def log(self, metrics: Mapping[str, float], iteration: int) -> None:
        """See `Tracker`. A value that is not a number is written as null."""
        finite = {name: value if math.isfinite(value) else None for name, value in sorted(metrics.items())}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"iteration": iteration, **finite}) + "\n")

    def close(self) -> None:
        """See `Tracker`."""


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`; a last line that was cut off is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


class TensorBoard:
    """TensorBoard events under `tensorboard/`; a resumed run hides what it writes again."""

    def __init__(self, folder: Path, start: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=start)

    def log(self, metrics: Mapping[str, float], iteration: int) -> None:
        """See `Tracker`."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, iteration)
        self._writer.flush()

    def close(self) -> None:
        """See `Tracker`."""
        self._writer.close()


class Hosted:
    """Weights & Biases, or trackio, which has the same few functions."""

    def __init__(self, module: str, project: str, config: Config, folder: Path) -> None:
        import importlib

        try:
            self._module: Any = importlib.import_module(module)
        except ImportError as error:
            raise InputError(f"tracking.{module} is set but {module} is not installed; pip install {module}") from error
        extra = {"dir": str(folder), "id": folder.name, "resume": "allow"} if module == "wandb" else {"resume": "allow"}
        self._run: Any = self._module.init(project=project, name=config.name, config=to_dict(config), **extra)

    def log(self, metrics: Mapping[str, float], iteration: int) -> None:
        """See `Tracker`."""
        self._module.log(dict(metrics), step=iteration)

    def close(self) -> None:
        """See `Tracker`."""
        self._module.finish()


def make_trackers(config: Config, folder: Path, start: int) -> list[Tracker]:
    """The trackers that a configuration asks for.

    Args:
        config: The run's.
        folder: The run's.
        start: The first iteration to come; what was logged from there on is logged again.
    """
    trackers: list[Tracker] = [JsonLines(folder / "metrics.jsonl", start)]
    if config.tracking.tensorboard and _has_tensorboard():
        trackers.append(TensorBoard(folder / "tensorboard", start))
    for module, project in (("wandb", config.tracking.wandb), ("trackio", config.tracking.trackio)):
        if project is not None:
            trackers.append(Hosted(module, project, config, folder))
    return trackers


def _has_tensorboard() -> bool:
    from importlib.util import find_spec

    return find_spec("tensorboard") is not None
