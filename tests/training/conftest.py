"""A small model for the texts of the house of doors, and a configuration that trains it there."""

import io
from pathlib import Path

import pytest
from doors import DoorsEngine, DoorsSource, solution
from rich.console import Console

from hgpo_train.models.checkpoint_files import list_checkpoints
from hgpo_train.training.config import Config, replace
from hgpo_train.training.display import Display
from hgpo_train.training.tracking import read_metrics

TEMPLATE = "{{ task }}\n{{ observation }}\n{{ admissible_actions | join(', ') }}"


@pytest.fixture(autouse=True, scope="session")
def _imported():
    """Import the heavy libraries before the first test, so that no test's CPU time contains them."""
    import torch
    from torch.utils import tensorboard  # noqa: F401
    from transformers import Qwen2ForCausalLM, Qwen3ForCausalLM  # noqa: F401

    import hgpo_train.training.trainer  # noqa: F401

    torch.set_num_threads(1)


def texts() -> list[str]:
    source = DoorsSource(10)
    found = []
    for task in source.ids("train"):
        engine: DoorsEngine = source.engine()
        states = [
            engine.start(task),
            *(engine.act(command) for command in solution(task)),
        ]
        found += [
            f"{source.task(task).instruction} {state.text} {', '.join(state.actions)}"
            for state in states
        ]
    return found


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    from hgpo_train.models.tiny import TinyShape, save_tiny

    shape = TinyShape(
        vocabulary=384, width=64, layers=2, heads=2, key_value_heads=1, intermediate=96
    )
    return save_tiny(tmp_path_factory.mktemp("tiny"), texts() * 3, shape, seed=1)


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "short.j2"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture
def config(tiny, template):
    environment = {
        "id": "doors_env:HGPO-Test/Doors-v0",
        "action_format": "command",
        "max_steps": 6,
    }
    return replace(
        Config(),
        name="doors",
        iterations=3,
        environment=environment | {"prompt_template": str(template)},
        model={
            "path": str(tiny),
            "compute_dtype": "float32",
            "gradient_checkpointing": False,
            "device": "cpu",
        },
        rollout={
            "tasks": 3,
            "group_size": 4,
            "max_prompt_tokens": 200,
            "max_response_tokens": 6,
        },
        update={"mini_batch_size": 20, "logit_chunk": 0, "kl_weight": 0.01},
        optimiser={"learning_rate": 1e-3},
        evaluation={"every": 0, "split": "test", "tasks": 4},
        tracking={"tensorboard": False},
    )


class Runs:
    """Trains runs in new folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def trainer(
        self, config: Config, name: str = "run", *, resume: bool = False, display=None
    ):
        from hgpo_train.training.trainer import Trainer

        display = display or Display(
            Console(file=io.StringIO(), width=200), config.iterations
        )
        return Trainer(config, self.folder / name, display, resume=resume)

    def train(self, config: Config, name: str = "run", *, resume: bool = False):
        trainer = self.trainer(config, name, resume=resume)
        trainer.run()
        return trainer

    def weights(self, name: str) -> dict[str, bytes]:
        newest = list_checkpoints(self.folder / name / "checkpoints")[-1]
        return {
            path.name: path.read_bytes()
            for path in sorted(newest.rglob("*.safetensors"))
        }

    def metrics(self, name: str = "run") -> list[dict]:
        return read_metrics(self.folder / name / "metrics.jsonl")

    def results(self, name: str = "run") -> list[dict]:
        """Return the metrics without what depends on time."""
        timed = ("timing_s", "perf")
        return [
            {key: value for key, value in line.items() if not key.startswith(timed)}
            for line in self.metrics(name)
        ]


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path)


@pytest.fixture
def small(config):
    """Two iterations that take less than a CPU second."""
    rollout = {"tasks": 2, "group_size": 2, "max_response_tokens": 3}
    return replace(config, iterations=2, environment={"max_steps": 3}, rollout=rollout)


@pytest.fixture
def whole(small, runs):
    return runs.train(small, "whole")
