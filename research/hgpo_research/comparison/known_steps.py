"""The distributions that a policy had at the steps of a saved run: it is asked again with what its prompts showed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from hgpo_envs.engine import State, Task
from hgpo_envs.errors import InputError
from hgpo_envs.memory import Pair
from hgpo_envs.wording import listed
from hgpo_train.policies.base import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from hgpo_research.policies.distributions import Distribution, KnownPolicy
    from hgpo_research.policies.softmax import SoftmaxPolicy

    Known = KnownPolicy | SoftmaxPolicy


class KnownStep(NamedTuple):
    """A step whose response is one that the policy gives.

    Attributes:
        trajectory: The step's trajectory.
        step: Its position.
        request: What the policy was asked.
        distribution: The distribution of its replies.
        choice: The number of the response in it.
    """

    trajectory: str
    step: int
    request: Request
    distribution: Distribution
    choice: int


COLUMNS = (
    "trajectory",
    "step",
    "task",
    "state",
    "admissible_actions",
    "action",
    "response",
)
"""The columns that are read."""


def known_steps(
    steps: pl.LazyFrame, policy: Known, history_length: int
) -> Iterator[KnownStep]:
    """Yield the steps of a run by trajectory; those whose response the policy never gives are left out.

    Args:
        steps: A step table with `COLUMNS`.
        policy: The policy that played the run.
        history_length: The number of past steps that the prompts show.

    Raises:
        InputError: A column is missing.
    """
    schema = steps.collect_schema()
    if missing := [name for name in COLUMNS if name not in schema]:
        raise InputError(
            f"the policy is asked again at each step: expected a run with the columns {listed(missing)}"
        )
    table = steps.select(COLUMNS).sort("trajectory", "step").collect()
    past: list[Pair] = []
    for trajectory, step, task, text, actions, action, response in table.iter_rows():
        if step == 0:
            past = []
        shown = past[max(0, len(past) - history_length) :]
        now = Request(
            id=0,
            prompt="",
            seed=0,
            slot=0,
            step=step,
            task=Task("", "", task, ""),
            state=State(text, actions),
            engine=None,
            with_shorter_history=lambda _: "",
            read_history=partial(tuple, shown),
        )
        (distribution,) = policy.distributions([now])
        if response in distribution.responses:
            choice = distribution.responses.index(response)
            yield KnownStep(trajectory, step, now, distribution, choice)
        past.append(Pair(step + 1, text, action))
