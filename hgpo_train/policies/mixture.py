"""``mixture:expert=0.7,random=0.3``: one of several policies, drawn by weight at each step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hgpo_envs.errors import InputError
from hgpo_envs.hashing import text_hash
from hgpo_train.assignments import read_value, split
from hgpo_train.policies.base import BatchPolicy, Failure, Reply, Request
from hgpo_train.policies.registry import PolicySpec, make_policy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_train.policies.registry import PolicyContext


class MixturePolicy(BatchPolicy):
    """A mixture of policies. Every policy receives every request; the request's seed draws whose reply is used.

    Args:
        parts: Policies with their weights, which are normalized to a sum of 1.
    """

    def __init__(self, parts: Sequence[tuple[BatchPolicy, float]]) -> None:
        super().__init__()
        total = sum(weight for _, weight in parts)
        self._parts = [(policy, weight / total) for policy, weight in parts]
        self.name = "mixture:" + ",".join(f"{policy.name}={weight:g}" for policy, weight in self._parts)
        self.reproducible = all(policy.reproducible for policy, _ in parts)
        self.raise_errors = any(policy.raise_errors for policy, _ in parts)

    def respond(self, requests: Sequence[Request]) -> Sequence[str | Reply | Failure]:
        """See `Policy`."""
        answers = [policy.respond(requests) for policy, _ in self._parts]
        return [answers[self._drawn(request.seed)][n] for n, request in enumerate(requests)]

    def _drawn(self, seed: int) -> int:
        left = (text_hash(f"{seed}/part") % (1 << 64)) / (1 << 64)
        for number, (_, weight) in enumerate(self._parts):
            left -= weight
            if left < 0:
                return number
        return len(self._parts) - 1


def parse_weights(text: str) -> Mapping[str, float]:
    """Parse ``expert=0.7,random=0.3``.

    Raises:
        InputError: The text has another form, or a weight is not positive.

    >>> parse_weights("expert=3,random=1")
    {'expert': 3.0, 'random': 1.0}
    """
    form = "name=weight,name=weight with positive weights"
    parts = [split(part, "policy mixture", form) for part in text.split(",")]
    weights = {name: read_value(value, float) for name, value in parts}
    if not all(type(weight) in (int, float) and 0 < weight < math.inf for weight in weights.values()):
        raise InputError(f"policy mixture: expected {form}, received {text!r}")
    return {name: float(weight) for name, weight in weights.items()}


def make(argument: str, context: PolicyContext) -> MixturePolicy:
    """Create the policy `mixture:NAME=WEIGHT,NAME=WEIGHT`.

    Raises:
        InputError: The argument has another form, a name is unknown, or a policy is not a `BatchPolicy`.
    """
    parts = [(make_policy(name, context), weight) for name, weight in parse_weights(argument).items()]
    batch = [(policy, weight) for policy, weight in parts if isinstance(policy, BatchPolicy)]
    if len(batch) != len(parts):
        raise InputError(f"policy mixture: expected policies that run in this process, received {argument!r}")
    return MixturePolicy(batch)


MIXTURE = PolicySpec(make)
