"""How advantage code is called: with a step table, or with the tensors that verl, SkyRL and TRL pass.

An adapter calls a function with rollouts and returns one advantage for each step. Arguments are passed by name, and
only those that the function has. The forms are those of verl (`compute_grpo_outcome_advantage` of
`verl/trainer/ppo/core_algos.py`), of its fork verl-agent (the same function with `traj_index`), and of SkyRL
(`ppo_utils.py` and the step-wise part of `skyrl/train/trainer.py`).
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.wording import listed
from hgpo_record.conform.rollouts import KEYS, returns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

TURN: Final = 2
"""Tokens of the environment between two responses of one sequence, which have the mask 0."""


class CallError(InputError):
    """The function raised an exception, or returned no advantage for each row."""


@dataclass(frozen=True)
class Advantages:
    """What a function returned.

    Attributes:
        values: float64, the advantage of each step, in the order of the table's rows: the mean over its tokens.
        outside: The largest magnitude of an advantage outside the response mask; 0 without tensors.
        uneven: Whether the tokens of one step have different advantages.
        changed: The names of arguments that the function modified in place.
    """

    values: NDArray[np.float64]
    outside: float = 0.0
    uneven: bool = False
    changed: tuple[str, ...] = ()


def plain(
    function: Callable[..., Any], steps: pl.DataFrame, settings: Mapping[str, Any]
) -> Advantages:
    """Call ``function(steps, **settings)`` with a step table (a DataFrame).

    It returns one number for each row, or the table with a column ``advantage`` (of Polars or pandas); its rows may
    have another order.
    """
    kept = steps.clone()
    result = _call(function, steps, **settings)
    if type(result).__module__.startswith("pandas") and hasattr(result, "columns"):
        result = pl.DataFrame(
            {str(name): result[name].to_list() for name in result.columns}
        )
    if isinstance(result, pl.DataFrame):
        if "advantage" not in result.columns:
            raise CallError(
                f"expected a column advantage, received {', '.join(result.columns)}"
            )
        if set(KEYS) <= set(result.columns):
            result = kept.select(KEYS).join(
                result, on=KEYS, how="left", maintain_order="left"
            )
        result = result["advantage"]
    values = _numbers(result, kept.height)
    return Advantages(values, changed=() if steps.equals(kept) else ("steps",))


def verl(
    function: Callable[..., Any], steps: pl.DataFrame, settings: Mapping[str, Any]
) -> Advantages:
    """Call ``function(token_level_rewards, response_mask, index, …)`` with one sequence per rollout.

    A sequence has the responses of all steps, with tokens of the environment between them. If the function has an
    argument ``traj_index``, it is called as by verl-agent instead: one sequence per step, each with the rollout's sum
    of rewards at its last token, and ``step_rewards`` (returns from the step on) and ``anchor_obs`` if it has them.
    """
    if "traj_index" in inspect.signature(function).parameters:
        sums = steps.join(
            returns(steps).rename({"reward": "sum"}),
            on=("task_id", "trajectory"),
            maintain_order="left",
        )
        return _tensors(
            function, steps, settings, _each_step(steps), sums["sum"].to_list()
        )
    rows = steps.partition_by("task_id", "trajectory", maintain_order=True)
    places = [_positions(rollout["tokens"].to_list()) for rollout in rows]
    return _tensors(
        function, steps, settings, places, returns(steps)["reward"].to_list()
    )


def skyrl(
    function: Callable[..., Any], steps: pl.DataFrame, settings: Mapping[str, Any]
) -> Advantages:
    """Call code of SkyRL's step-wise training, where each step is a sequence.

    Responses are at the right, and the rollout's sum of rewards is at the last token of its last step. Code with an
    argument ``is_last_step`` (bool, one per sequence) gets all sequences: ``function(token_level_rewards,
    response_mask, index, is_last_step)``. Any other is an estimator, which the trainer calls with the last steps alone.
    """
    last = (
        steps["step"]
        == steps.select(pl.col("step").max().over("task_id", "trajectory"))["step"]
    )
    sums = steps.select(pl.col("reward").sum().over("task_id", "trajectory"))["reward"]
    if "is_last_step" in inspect.signature(function).parameters:
        rewards = np.where(last, sums, 0.0).tolist()
        return _tensors(
            function, steps, settings, _each_step(steps, right=True), rewards
        )
    ends = steps.filter(last)
    found = _tensors(
        function,
        ends,
        settings,
        _each_step(ends, right=True),
        sums.filter(last).to_list(),
    )
    values = ends.select("task_id", "trajectory").with_columns(
        advantage=pl.Series(found.values)
    )
    joined = steps.join(
        values, on=("task_id", "trajectory"), how="left", maintain_order="left"
    )["advantage"]
    return replace(found, values=joined.to_numpy())


def trl(
    function: Callable[..., Any], steps: pl.DataFrame, settings: Mapping[str, Any]
) -> Advantages:
    """Call ``function(rewards, num_generations, …)`` with one reward per rollout: the sum over its steps.

    The rollouts of a task are next to each other, and all tasks have equally many.
    """
    import torch

    sums = returns(steps)
    rewards = torch.tensor(sums["reward"].to_list(), dtype=torch.float32)
    before = rewards.clone()
    given = {
        "rewards": rewards,
        "num_generations": sums.height // sums["task_id"].n_unique(),
    }
    values = _numbers(
        _call(function, **_accepted(function, given, settings), **settings), sums.height
    )
    by_rollout = sums.with_columns(advantage=pl.Series(values))
    found = steps.join(
        by_rollout, on=("task_id", "trajectory"), how="left", maintain_order="left"
    )["advantage"]
    changed = (
        () if torch.equal(rewards.nan_to_num(), before.nan_to_num()) else ("rewards",)
    )
    return Advantages(found.to_numpy(), changed=changed)


ADAPTERS: Final[Mapping[str, Callable[..., Advantages]]] = {
    "plain": plain,
    "verl": verl,
    "skyrl": skyrl,
    "trl": trl,
}
"""The adapters by name."""

_Sequences = list[list[range]]
"""The positions of the responses of each sequence: of one step, or of all steps of a rollout."""


def _each_step(steps: pl.DataFrame, *, right: bool = False) -> _Sequences:
    """Return the positions of one response per sequence, at the left or at the right."""
    tokens = steps["tokens"].to_list()
    width = max(tokens) + TURN
    return [
        [range(width - count, width) if right else range(count)] for count in tokens
    ]


def _positions(tokens: list[int]) -> list[range]:
    """Return the positions of the responses of a sequence, with tokens of the environment between them."""
    found = []
    start = 0
    for count in tokens:
        found.append(range(start, start + count))
        start += count + TURN
    return found


def _tensors(
    function: Callable[..., Any],
    steps: pl.DataFrame,
    settings: Mapping[str, Any],
    sequences: _Sequences,
    rewards: list[float],
) -> Advantages:
    """Call a function of tensors, and read the advantages of the steps out of its tensor."""
    import torch

    # 1. The tensors: a reward at the last token of each sequence, and the mask of its responses.
    width = max(responses[-1].stop for responses in sequences)
    mask = torch.zeros(len(sequences), width)
    scores = torch.zeros(len(sequences), width)
    for row, responses in enumerate(sequences):
        for positions in responses:
            mask[row, positions.start : positions.stop] = 1
        scores[row, responses[-1].stop - 1] = rewards[row]

    # 2. Names: one per sequence, which is a step or a rollout.
    names = steps if len(sequences) == steps.height else returns(steps)
    last = [*(names["trajectory"][:-1] != names["trajectory"][1:]), True]
    given = {
        "token_level_rewards": scores,
        "response_mask": mask,
        "index": np.array(names["task_id"].to_list(), dtype=object),
        "traj_index": np.array(names["trajectory"].to_list(), dtype=object),
        "is_last_step": torch.tensor(last),
    }
    if len(sequences) == steps.height:
        to_go = steps.select(
            pl.col("reward").cum_sum(reverse=True).over("task_id", "trajectory")
        )["reward"]
        given["step_rewards"] = torch.tensor(to_go.to_list(), dtype=torch.float32)
        given["anchor_obs"] = np.array(steps["state"].to_list(), dtype=object)
    before = (scores.clone(), mask.clone())

    # 3. The call, and the advantages of each step's tokens.
    result = _call(function, **_accepted(function, given, settings), **settings)
    if isinstance(result, tuple):
        result = result[0]
    try:
        found = torch.as_tensor(result).detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise CallError(
            f"expected a tensor of advantages, received {type(result).__name__}"
        ) from error
    if found.shape != mask.shape:
        raise CallError(
            f"expected advantages of the shape {tuple(mask.shape)}, received {tuple(found.shape)}"
        )
    pieces = [
        found[row, part.start : part.stop]
        for row, parts in enumerate(sequences)
        for part in parts
    ]
    spread = [float(piece.max() - piece.min()) for piece in pieces]
    rest = found[mask == 0].abs()
    return Advantages(
        np.array([float(piece.mean()) for piece in pieces]),
        outside=float(rest.max()) if len(rest) else 0.0,
        uneven=max(spread) > 1e-6,
        changed=tuple(
            name
            for name, now, then in zip(
                ("token_level_rewards", "response_mask"),
                (scores, mask),
                before,
                strict=True,
            )
            if not torch.equal(now.nan_to_num(), then.nan_to_num())
        ),
    )


def _accepted(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the arguments that a function has; all if it takes any.

    Raises:
        InputError: The function needs others.
    """
    parameters = inspect.signature(function).parameters
    takes_any = False
    for name, parameter in parameters.items():
        takes_any |= parameter.kind is parameter.VAR_KEYWORD
        variadic = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if (
            parameter.default is parameter.empty
            and not variadic
            and name not in {*given, *settings}
        ):
            raise InputError(
                f"expected a function of {listed(list(given))}, received one that needs {name}; write a function that "
                "passes it on, or name another adapter"
            )
    return (
        dict(given)
        if takes_any
        else {name: value for name, value in given.items() if name in parameters}
    )


def _call(function: Callable[..., Any], *arguments: object, **named: object) -> Any:  # noqa: ANN401 - anything
    try:
        with warnings.catch_warnings():
            # The checks have groups of one rollout, of which torch warns; what comes of it is checked.
            warnings.filterwarnings("ignore", r"(std|var)\w*\(\): degrees of freedom")
            result = function(*arguments, **named)
            return result.collect() if isinstance(result, pl.LazyFrame) else result
    except (Exception, SystemExit) as error:
        raise CallError(
            f"it raised {type(error).__name__}: {one_line(error, 160)}"
        ) from error


def _numbers(result: Any, rows: int) -> NDArray[np.float64]:  # noqa: ANN401 - anything
    """Return one number for each row; NaN for null."""
    if hasattr(result, "detach"):
        result = result.detach().cpu().double()  # NumPy has no bfloat16
    try:
        values = np.asarray(result, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise CallError(
            f"expected one number for each row, received {type(result).__name__}"
        ) from error
    if values.shape != (rows,):
        raise CallError(
            f"expected one advantage for each of {rows} rows, received the shape {values.shape}"
        )
    return values
