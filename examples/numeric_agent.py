"""Train a numeric agent, MaskablePPO of Stable-Baselines3's contributions, on ALFWorld's texts as numbers.

    pip install sb3-contrib
    python -m examples.numeric_agent --tasks 4 --steps 20000

`NumericEnv` needs neither package: it fits every agent with `Box` observations and `Discrete` actions.
"""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeAwareObservation

import hgpo_envs  # noqa: F401 - registers the environments
from hgpo_envs.environment_spec import environment_spec
from hgpo_envs.hashing import text_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


ENV_ID = "HGPO/ALFWorld-v0"


class NumericEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A text environment as numbers.

    An observation is three bags of words: the task, the state, and the commands so far. An action is the number of an
    admissible command, which a command has in every state, unless another command of the state has the same: then the
    next number that is free. All other numbers are masked; without a mask, they are invalid commands.

    Args:
        env: The text environment.
        tasks: The tasks to play, at random; None plays all of its split.
        words: Length of a bag.
        actions: How many numbers there are.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        tasks: Sequence[str] | None = None,
        words: int = 256,
        actions: int = 1024,
    ) -> None:
        super().__init__(env)
        self._tasks = tasks
        self._words = words
        self._actions = actions
        self.observation_space = gymnasium.spaces.Box(0, 1, (3 * words,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> Any:
        self._played: list[str] = []
        if seed is not None:
            self._draw = np.random.default_rng(seed)
        if self._tasks is not None:
            options = {
                "task": self._tasks[int(self._draw.integers(len(self._tasks)))],
                **(options or {}),
            }
        observation, info = self.env.reset(seed=seed, options=options)
        return self._numbers(observation, info), info

    def step(self, action: int) -> Any:
        command = self._commands.get(int(action), "")
        self._played.append(command)
        observation, reward, terminated, truncated, info = self.env.step(command)
        info["is_success"] = info["won"]  # what Stable-Baselines3 logs
        return self._numbers(observation, info), reward, terminated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which numbers are commands of the state."""
        mask = np.zeros(self._actions, bool)
        # after the end there are none, and a mask needs one
        mask[list(self._commands) or 0] = True
        return mask

    def _numbers(
        self, observation: dict[str, Any], info: dict[str, Any]
    ) -> NDArray[np.float32]:
        self._commands: dict[int, str] = {}
        for command in info["admissible_actions"][: self._actions]:
            number = text_hash(command) % self._actions
            while number in self._commands:
                number = (number + 1) % self._actions
            self._commands[number] = command
        texts = (info["task"], observation["state"], "\n".join(self._played))
        return np.concatenate([bag_of_words(text, self._words) for text in texts])


def bag_of_words(text: str, size: int) -> NDArray[np.float32]:
    """Return which hashed words a text has. A number belongs to the word before it: ``drawer 2``."""
    bag = np.zeros(size, np.float32)
    bag[
        [
            text_hash(word) % size
            for word in re.findall(r"[a-z]+(?: \d+)?", text.lower())
        ]
    ] = 1
    return bag


def main() -> None:
    """Train, and print the share of solved episodes."""
    from sb3_contrib import MaskablePPO
    from stable_baselines3.common.env_util import make_vec_env

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tasks",
        type=int,
        default=4,
        help="number of tasks, the first of the training split",
    )
    parser.add_argument("--steps", type=int, default=20_000, help="environment steps")
    options = parser.parse_args()

    tasks = environment_spec(ENV_ID).open_source().source.ids("train")[: options.tasks]

    def environment() -> gymnasium.Env[Any, Any]:
        return TimeAwareObservation(NumericEnv(gymnasium.make(ENV_ID), tasks))

    env = make_vec_env(environment, n_envs=8, seed=0)
    MaskablePPO(
        "MlpPolicy",
        env,
        n_steps=128,
        batch_size=256,
        learning_rate=1e-3,
        ent_coef=0.01,
        seed=0,
        verbose=1,
    ).learn(options.steps)


if __name__ == "__main__":
    main()
