"""Train a model on whole conversations with ALFWorld, with TRL's `GRPOTrainer`: the model plays by calling a tool.

    python -m examples.train_with_trl Qwen/Qwen3-0.6B --steps 100 --out runs/trl

docs/how_to.md explains it, and what of HGPO cannot be done this way. Written for TRL 1.16.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import gymnasium
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import hgpo_envs  # noqa: F401 - registers the environments
from hgpo_envs.environment_spec import environment_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

ENV_ID = "HGPO/ALFWorld-v0"
SPLIT = "train"
INSTRUCTION = "Solve the task by calling the tool act, one command at a time, until the episode has ended.\n\n"


class Household:
    """An episode in the form that TRL expects: its public methods, apart from reset and get_reward, are tools."""

    def __init__(self) -> None:
        self._env = gymnasium.make(ENV_ID, split=SPLIT)

    def reset(self, task: str, **row: Any) -> str:
        """Start the task of a row of the data set; the text is appended to the row's prompt."""
        observation, info = self._env.reset(options={"task": task})
        self._reward = 0.0
        self._ended = False
        return self._shown(observation, info)

    def act(self, command: str) -> str:
        """Carry out a command and return what happens.

        Args:
            command: One of the admissible commands.
        """
        if self._ended:
            return "The episode has ended."
        observation, reward, terminated, truncated, info = self._env.step(command)
        self._reward += float(reward)
        self._ended = terminated or truncated
        return (
            "The episode has ended." if self._ended else self._shown(observation, info)
        )

    def get_reward(self) -> float:
        """Return the reward of the conversation."""
        return self._reward

    def _shown(self, observation: dict[str, Any], info: dict[str, Any]) -> str:
        return f"{observation['state']}\nAdmissible commands: {', '.join(info['admissible_actions'])}"


def rows(tasks: Sequence[str]) -> Dataset:
    """Return a data set with one prompt per task."""
    prompt = [{"role": "user", "content": INSTRUCTION}]
    return Dataset.from_list([{"prompt": prompt, "task": task} for task in tasks])


def main() -> None:
    """Train, and save the model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", help="name or folder of a model whose chat template has tools"
    )
    parser.add_argument("--out", required=True, help="output folder")
    parser.add_argument("--steps", type=int, default=100, help="optimisation steps")
    parser.add_argument(
        "--group-size", type=int, default=8, help="conversations per task and step"
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=8192,
        help="length of a conversation after its prompt",
    )
    options = parser.parse_args()

    source = environment_spec(ENV_ID).open_source().source
    settings = GRPOConfig(
        options.out,
        max_steps=options.steps,
        per_device_train_batch_size=options.group_size,
        num_generations=options.group_size,
        max_completion_length=options.tokens,
        max_tool_calling_iterations=environment_spec(ENV_ID).max_steps,
        bf16=torch.cuda.is_available(),
        logging_steps=1,
        report_to="none",
    )
    trainer = GRPOTrainer(
        options.model,
        args=settings,
        train_dataset=rows(source.ids(SPLIT)),
        environment_factory=Household,
    )
    trainer.train()
    trainer.save_model(options.out)


if __name__ == "__main__":
    main()
