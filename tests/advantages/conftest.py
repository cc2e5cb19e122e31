"""A run that commands and functions read."""

from pathlib import Path

import pytest

from hgpo_datasets import StepWriter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Six tasks with four rollouts of four steps, half of them won, in which every third action is invalid."""
    with StepWriter(tmp_path / "first", defaults={"action": "look"}) as writer:
        for task in range(6):
            of_task = {
                "task_id": f"task {task}",
                "task_type": "even" if task % 2 == 0 else "odd",
            }
            writer.add_group(
                of_task
                | {
                    "trajectory": f"{task}/{rollout}",
                    "step": step,
                    "state": f"room {(task + rollout * step) % 3}",
                }
                | {
                    "action_valid": (step + rollout) % 3 > 0,
                    "reward": float(step == 3 and rollout % 2),
                }
                | {"terminated": step == 3, "won": step == 3 and rollout % 2 == 1}
                for rollout in range(4)
                for step in range(4)
            )
    return tmp_path / "first"
