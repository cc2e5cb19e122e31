"""The parameters of estimators: those of returns, which all have, and the types of those that several have.

The defaults are verl-agent's, and are defined here alone: Python functions, commands, statistics, viewer and training
use them, and results contain the values that they were computed with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from msgspec import Meta

from hgpo_envs.errors import InputError
from hgpo_train.settings import NonNegativeFloat, PositiveInt

Mode = Literal["mean_std_norm", "mean_norm"]
Ddof = Literal[0, 1]
Discount = Annotated[float, Meta(ge=0, le=1)]
Epsilon = NonNegativeFloat
Precision = Literal["mixed", "float64"]
Context = Literal["states", "states_actions"]

REWARD_SCALE: Final = 10.0
INVALID_ACTION_PENALTY: Final = 0.1
GAMMA: Final = 0.95
HISTORY_LENGTH: Final = 2
STATISTICS_HISTORY_LENGTH: Final = 4
"""The deepest level that statistics describe by default, the largest K of HGPO's paper."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The definition of returns and episode scores, the base class of all estimators' parameters.

    Attributes:
        reward: The source of rewards: ``reward`` is the stored reward of each step; ``success`` is 1 at the last step
            of a won trajectory (column ``won``), else 0; ``score`` is the final score at the last step, else 0.
        reward_scale: A factor of all rewards, 10 by default as in verl-agent's training. Use 1 for rewards that are
            scaled already.
        gamma: γ, the discount per step, in [0, 1].
        returns: ``per_step``: R_t = Σ_j γ^(j-t) r_j. ``from_end``: R_t = γ^(T-t) Σ_j r_j, where T is the last step.
        invalid_action_penalty: The penalty of an invalid action, in the scale of scaled rewards.
        rewards: Other columns of numbers or flags of the table, each with its weight, which are added to the scaled
            reward of each step: ``{"action_valid": 0.1}`` rewards well-formed responses.
        overlong_penalty: What is subtracted from the scaled reward of a step with a response of `overlong_limit` tokens
            or more; it rises linearly over the `overlong_buffer` tokens before (DAPO, arXiv 2503.14476 equation 13).
        overlong_limit: The tokens of the longest response, such as `rollout.max_response_tokens` of training.
        overlong_buffer: The number of tokens below the limit from which on there is a penalty.
        penalty_at: ``return`` subtracts the penalty from that step's return and that row's episode score, after
            discounting, as verl-agent does. ``reward`` subtracts it from the step's reward: it is then discounted to
            earlier steps, and part of the score of all rows.
        epsilon: ε, added to standard deviations (and to HGPO's sum of weights).
        precision: ``mixed`` rounds returns and scores to float32, as the originals do, and computes everything else in
            float64. The results equal the originals' without their float32 noise. ``float64`` rounds nothing.
        state_key: What is compared instead of the state's text: a function of `hgpo_envs.state_keys`
            (``mask-numbers``, ``sort-lines`` or ``module:function``), or ``alfworld-nodes`` for the nodes of G2PO in
            ALFWorld. Stored hashes are ignored, and the texts are read.
        mode: ``mean_std_norm`` divides deviations by the group's standard deviation, ``mean_norm`` does not.
        ddof: Delta degrees of freedom of the standard deviation: the divisor is n - ddof.
        cross_steps: Whether means and standard deviations of episode scores are over all rows of the task (the
            official default); if false, over one row per trajectory.
        step_weight: w, the weight of the step term.
        episode_weight: The weight of the episode term.
        similarity: Whether states with similar texts are one state.
        similarity_threshold: The minimum ratio of similar texts, in (0, 1).
    """

    reward: Literal["reward", "success", "score"] = "reward"
    reward_scale: float = REWARD_SCALE
    gamma: Discount = GAMMA
    returns: Literal["per_step", "from_end"] = "per_step"
    invalid_action_penalty: float = INVALID_ACTION_PENALTY
    penalty_at: Literal["return", "reward"] = "return"
    rewards: dict[str, float] = field(default_factory=dict, hash=False)
    overlong_penalty: NonNegativeFloat = 0.0
    overlong_limit: PositiveInt = 512
    overlong_buffer: PositiveInt = 128
    epsilon: Epsilon = 1e-6
    precision: Precision = "mixed"
    state_key: str | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"parameter {name}: expected a finite number, received {value}")
