"""The parameters that every estimator has: how returns are made from stored columns, and how numbers are rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Self, get_args, get_type_hints

from hgpo_envs.errors import InputError, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

Mode = Literal["mean_std_norm", "mean_norm"]
Context = Literal["states", "states_actions"]
Precision = Literal["mixed", "float64", "float32"]


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
    gamma: float = 0.95
    returns: Literal["per_step", "from_end"] = "per_step"
    invalid_action_penalty: float = 0.1
    penalty_at: Literal["return", "reward"] = "return"
    epsilon: float = 1e-6
    precision: Precision = "mixed"

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in fields(self):
            _check(field.name, getattr(self, field.name), hints[field.name])
        if not 0 <= self.gamma <= 1:
            raise InputError(f"gamma is a discount in [0, 1], got {self.gamma}")
        if self.epsilon < 0:
            raise InputError(f"epsilon is at least 0, got {self.epsilon}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Parameters by name; an unknown name is an InputError that tells the nearest known one."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise InputError(unknown("parameter", name, known, shown=99))
        return cls(**given)


def _check(name: str, value: object, expected: object) -> None:
    """One value against its annotation: a choice, a bool, an int or a finite float."""
    choices = get_args(expected)
    if choices:
        if value not in choices:
            raise InputError(unknown(name, value, [str(choice) for choice in choices]))
    elif expected is bool and not isinstance(value, bool):
        raise InputError(f"{name} is True or False, got {value!r}")
    elif expected is int and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise InputError(f"{name} is a whole number of at least 0, got {value!r}")
    elif expected is float and (
        isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
    ):
        raise InputError(f"{name} is a finite number, got {value!r}")
