"""The parameters of estimators: those of returns, which all have, and the types of those that several have.

The defaults are verl-agent's, and are defined here alone: Python functions, commands, statistics, viewer and training
use them, and results contain the values that they were computed with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypedDict

from msgspec import Meta

from hgpo_envs.errors import InputError
from hgpo_train.settings import NonNegativeFloat, NonNegativeInt, PositiveInt

# A parameter that several estimators have is one type, which also says what it means.
Mode = Annotated[
    Literal["mean_std_norm", "mean_norm"],
    Meta(
        description="mean_std_norm divides deviations by the group's standard deviation, mean_norm does not. The "
        "official scripts of HGPO use mean_std_norm for ALFWorld and mean_norm for WebShop."
    ),
]
Ddof = Annotated[
    Literal[0, 1],
    Meta(
        description="Delta degrees of freedom of the standard deviation: the divisor is n - ddof."
    ),
]
Discount = Annotated[
    float, Meta(ge=0, le=1, description="γ, the discount per step, in [0, 1].")
]
Epsilon = Annotated[
    NonNegativeFloat,
    Meta(description="ε, added to standard deviations and to sums of weights."),
]
Precision = Annotated[
    Literal["mixed", "float64"],
    Meta(
        description="mixed rounds returns and scores to float32, as the originals do, and computes everything else in "
        "float64: results equal the originals' without their float32 noise. float64 rounds nothing."
    ),
]
Context = Annotated[
    Literal["states", "states_actions"],
    Meta(
        description="states groups steps by states, states_actions by states and the actions between them, which is "
        "what the prompt shows."
    ),
]
HistoryLength = Annotated[
    NonNegativeInt, Meta(description="K, the maximum depth of contexts.")
]
CrossSteps = Annotated[
    bool,
    Meta(
        description="Whether means and standard deviations of episode scores are over all rows of the task (the "
        "official default); if false, over one row per trajectory."
    ),
]
StepWeight = Annotated[float, Meta(description="w, the weight of the step term.")]
EpisodeWeight = Annotated[float, Meta(description="The weight of the episode term.")]
Similarity = Annotated[
    bool, Meta(description="Whether states with similar texts are one state.")
]
SimilarityThreshold = Annotated[
    float, Meta(description="The minimum ratio of similar texts, in (0, 1).")
]

REWARD_SCALE: Final = 10.0
INVALID_ACTION_PENALTY: Final = 0.1
GAMMA: Final = 0.95
HISTORY_LENGTH: Final = 2
STATISTICS_HISTORY_LENGTH: Final = 4
"""The deepest level that statistics describe by default, the largest K of HGPO's paper."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The definition of returns and episode scores, the base class of all estimators' parameters."""

    reward: Literal["reward", "success", "score"] = "reward"
    """The source of rewards: reward is the stored reward of each step; success is 1 at the last step of a won
    trajectory (column won), else 0; score is the final score at the last step, else 0."""
    reward_scale: float = REWARD_SCALE
    """A factor of all rewards, 10 by default as in verl-agent's training. Use 1 for rewards that are scaled already."""
    gamma: Discount = GAMMA
    returns: Literal["per_step", "from_end"] = "per_step"
    """per_step: R_t = Σ_j γ^(j-t) r_j. from_end: R_t = γ^(T-t) Σ_j r_j, where T is the last step."""
    invalid_action_penalty: float = INVALID_ACTION_PENALTY
    """The penalty of an invalid action, in the scale of scaled rewards."""
    penalty_at: Literal["return", "reward"] = "return"
    """return subtracts the penalty from that step's return and that row's episode score, after discounting, as
    verl-agent does. reward subtracts it from the step's reward: it is then discounted to earlier steps, and part of the
    score of all rows."""
    rewards: dict[str, float] = field(default_factory=dict, hash=False)
    """Other columns of numbers or flags of the table, each with its weight, which are added to the scaled reward of
    each step: {"action_valid": 0.1} rewards well-formed responses."""
    overlong_penalty: NonNegativeFloat = 0.0
    """What is subtracted from the scaled reward of a step with a response of overlong_limit tokens or more; it rises
    linearly over the overlong_buffer tokens before (DAPO, arXiv 2503.14476 equation 13)."""
    overlong_limit: PositiveInt = 512
    """The tokens of the longest response, such as rollout.max_response_tokens of training."""
    overlong_buffer: PositiveInt = 128
    """The number of tokens below the limit from which on there is a penalty."""
    epsilon: Epsilon = 1e-6
    precision: Precision = "mixed"
    state_key: str | None = None
    """What is compared instead of the state's text: a function of hgpo_envs.state_keys (mask-numbers, sort-lines or
    module:function), or alfworld-nodes for the nodes of G2PO in ALFWorld. Stored hashes are ignored, and the texts are
    read."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(
                    f"parameter {name}: expected a finite number, received {value}"
                )


class CallOptions(TypedDict, total=False):
    """What a call of any estimator takes besides the parameters that its function declares.

    These are fields of `Parameters`, and two options of `compute`. A function declares them as
    ``**_: Unpack[SharedOptions]``, so that editors and type checkers know them; one with a `gamma` of its own declares
    ``CallOptions``. A test holds the types equal to those of `Parameters`.
    """

    reward: Literal["reward", "success", "score"]
    reward_scale: float
    returns: Literal["per_step", "from_end"]
    invalid_action_penalty: float
    penalty_at: Literal["return", "reward"]
    rewards: dict[str, float]
    overlong_penalty: NonNegativeFloat
    overlong_limit: PositiveInt
    overlong_buffer: PositiveInt
    state_key: str | None
    column: str
    details: bool


class SharedOptions(CallOptions, total=False):
    """`CallOptions`, and the discount of returns."""

    gamma: Discount
