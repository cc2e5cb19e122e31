"""Wall time of iterations with rollouts beside updates (`rollout.ahead`), against rollouts and updates in turns.

    python -m benchmarks rollouts_ahead        three minutes, mostly of waiting

A simulation of two devices: the environments are ALFWorld's and the loop is that of `hgpo train`, but the engine draws
random actions and waits after each batch of them, and an update only waits. What waits computes nothing, as on a device
of its own.
"""

from __future__ import annotations

import io
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from benchmarks.runner import Row
from hgpo_train.models.tiny import TinyShape, save_tiny
from hgpo_train.policies.generation import GenerationOptions
from hgpo_train.policies.scripted import RandomPolicy
from hgpo_train.training import trainer as training
from hgpo_train.training.config import Config, replace
from hgpo_train.training.display import Display
from hgpo_train.training.tracking import read_metrics
from hgpo_train.training.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hgpo_train.models.hf import Model
    from hgpo_train.policies.base import Failure, Reply, Request

STEPS: Final = 10
SECONDS_A_BATCH: Final = 0.2
UPDATES: Final = (0.5, 2.0, 6.0)
ITERATIONS: Final = 5


class Served(RandomPolicy):
    """A trainable policy that waits after each batch of random actions."""

    def __init__(self) -> None:
        super().__init__("response")
        self.options = GenerationOptions()

    def respond(self, requests: Sequence[Request]) -> Sequence[Reply | Failure]:
        """See `BatchPolicy`."""
        replies = super().respond(requests)
        time.sleep(SECONDS_A_BATCH)
        return replies

    def publish(self, model: Model, version: int) -> None:
        """See `TrainablePolicy`."""
        del model
        self.version = version


def measure(model: Path, seconds: float, *, ahead: bool) -> dict[str, float]:
    """Return means over the iterations between the first and the last, by the name of the metric."""

    def waits(*_: Any) -> dict[str, float]:
        time.sleep(seconds)
        return {"perf/total_num_tokens": 0.0}

    training.stages.update = waits
    training.trainable_factory = lambda *_: lambda *_: Served()
    config = replace(
        Config(),
        iterations=ITERATIONS,
        environment={"max_steps": STEPS},
        model={
            "path": str(model),
            "compute_dtype": "float32",
            "gradient_checkpointing": False,
            "device": "cpu",
        },
        rollout={
            "engine": "served",
            "ahead": ahead,
            "tasks": 16,
            "group_size": 8,
            "max_prompt_tokens": 1024,
        },
        # random actions have no tokens to score
        update={"old_logprobs": "rollout", "kl_weight": 0.0},
        evaluation={"every": 0},
        tracking={"tensorboard": False},
    )
    display = Display(Console(file=io.StringIO()), ITERATIONS)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        Trainer(config, out, display).run()
        lines = read_metrics(out / "metrics.jsonl")[1:-1]
    names = ("timing_s/step", "timing_s/gen_wait", "training/policy_lag")
    return {name: fmean(line.get(name, 0.0) for line in lines) for name in names}


def run() -> Iterator[Row]:
    """Measure iterations with updates of all durations."""
    with tempfile.TemporaryDirectory() as folder:
        model = save_tiny(
            Path(folder) / "model",
            ["go to shelf 1"] * 8,
            TinyShape(vocabulary=384, width=32, layers=1),
        )
        for seconds in UPDATES:
            turns = measure(model, seconds, ahead=False)["timing_s/step"]
            ahead = measure(model, seconds, ahead=True)
            note = f"{ahead['timing_s/gen_wait']:.2f} s for rollouts, lag {ahead['training/policy_lag']:.0f}"
            what = f"an iteration, updates of {seconds:.1f} s"
            yield Row(
                what,
                ahead["timing_s/step"],
                "s",
                rival=("in turns", turns),
                note=note,
            )
