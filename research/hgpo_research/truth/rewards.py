"""The rewards whose values are computed, defined as those of estimators (`hgpo_train.advantages.parameters`)."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal

from hgpo_envs.errors import InputError
from hgpo_train.advantages.parameters import GAMMA, REWARD_SCALE, Discount
from hgpo_train.settings import check


@dataclass(frozen=True, kw_only=True)
class Rewards:
    """The definition of rewards and their discount.

    Attributes:
        reward: reward is the environment's reward of each step; success is 1 at the last step of a won trajectory,
            else 0; score is the final score at the last step, else 0.
        reward_scale: A factor of all rewards, other than 0.
        gamma: γ, the discount per step, in [0, 1].
        invalid_action_penalty: Subtracted from the scaled reward of a step with an invalid action, and so discounted to
            earlier steps, as by estimators with penalty_at=reward. Unlike theirs, the default is 0: the truth is
            that of the task.

    Raises:
        InputError: A value is not valid.
    """

    reward: Literal["reward", "success", "score"] = "reward"
    reward_scale: float = REWARD_SCALE
    gamma: Discount = GAMMA
    invalid_action_penalty: float = 0.0

    def __post_init__(self) -> None:
        check(self, "parameter")
        for name in ("reward_scale", "invalid_action_penalty"):
            if not isfinite(getattr(self, name)):
                raise InputError(
                    f"parameter {name}: expected a finite number, received {getattr(self, name)}"
                )
        # Values are divided by it, to be compared in the unit of rewards.
        if not self.reward_scale:
            raise InputError(
                "parameter reward_scale: expected a number other than 0, received 0"
            )

    def gain(self, reward: float, *, valid: bool) -> float:
        """Return the reward of a step, wherever it is in the episode."""
        gain = self.reward_scale * reward if self.reward == "reward" else 0.0
        return gain if valid else gain - self.invalid_action_penalty

    def final(self, *, won: bool, score: float) -> float:
        """Return the further reward of the step if it is the episode's last one."""
        if self.reward == "reward":
            return 0.0
        return self.reward_scale * (float(won) if self.reward == "success" else score)
