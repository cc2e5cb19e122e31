"""The parameters that every estimator has: how returns are made from stored columns, and how numbers are rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from msgspec import Meta

from hgpo_envs.errors import InputError
from hgpo_train.settings import NonNegativeFloat, build, check

if TYPE_CHECKING:
    from collections.abc import Mapping

Mode = Literal["mean_std_norm", "mean_norm"]
Context = Literal["states", "states_actions"]
Precision = Literal["mixed", "float64", "float32"]
Discount = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What a step's return and an episode's score are.

    Attributes:
        reward: The stored column that rewards are read from: ``reward`` is every step's own; ``success`` is 1 at the
            last step of a won trajectory (column ``won``); ``score`` is the benchmark's final score at the last step.
        reward_scale: What that is multiplied with. verl-agent trains with success × 10: ``reward="success",
            reward_scale=10``. The default takes rewards as they stand.
        gamma: The discount of a step, in [0, 1].
        returns: ``per_step``: R_t = Σ_j γ^(j-t) r_j. ``from_end``: R_t = γ^(T-t) Σ_j r_j, with T the last step.
        invalid_action_penalty: What an invalid action costs, on the scaled rewards.
        penalty_at: ``return`` takes the penalty off that step's return and off that row's episode score, after
            discounting, as verl-agent does. ``reward`` takes it off the step's reward, so that it is discounted
            back to earlier steps and is part of the score of all rows.
        epsilon: Added to standard deviations (and to HGPO's sum of weights).
        precision: ``mixed`` rounds returns and scores to float32, as the originals do, and computes in float64 from
            there: the originals' numbers without their float32 noise. ``float64`` rounds nothing. ``float32`` rounds
            the result as well: the originals' numbers, but for rows where theirs are noise (docs/estimators.md).
    """

    reward: Literal["reward", "success", "score"] = "reward"
    reward_scale: float = 1.0
    gamma: Discount = 0.95
    returns: Literal["per_step", "from_end"] = "per_step"
    invalid_action_penalty: float = 0.1
    penalty_at: Literal["return", "reward"] = "return"
    epsilon: NonNegativeFloat = 1e-6
    precision: Precision = "mixed"

    def __post_init__(self) -> None:
        check(self, "parameter")
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"parameter {name}: expected a finite number, got {value}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Parameters by name.

        Raises:
            InputError: A name is unknown, or a value is not what the field's annotation says.
        """
        return build(cls, given, "parameter")
