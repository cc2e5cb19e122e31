"""Policies of one's own: a function of a request, an object with `respond`, an instance of the policy protocol.

    def first(request: Request) -> str:
        return request.admissible_actions[0]

`own_policy` makes a policy of each. A bug in it ends the collection and is raised with its traceback
(`hgpo_train.policies.base.is_bug`); a `Failure` that it returns fails one rollout.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from hgpo_envs.errors import InputError
from hgpo_envs.hashing import text_hash
from hgpo_train.policies.base import AsyncPolicy, BatchPolicy, Failure, Reply, Request
from hgpo_train.policies.validation import preview

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_train.policies.base import Policy

    Answer = str | Reply | Failure


class OwnBatchPolicy(BatchPolicy):
    """A function of one request, or an object with `respond`, which maps requests to texts, `Reply` or `Failure`.

    Its `name`, `reproducible`, `version`, `batch_size` and `close` are used, if it has them.
    """

    raise_errors = True

    def __init__(self, own: Any) -> None:  # noqa: ANN401 (any function or object)
        super().__init__()
        self.name, self.reproducible = name_of(own), bool(getattr(own, "reproducible", False))
        self._own, self._respond_to = own, getattr(own, "respond", None)
        self.batch_size = getattr(own, "batch_size", None if self._respond_to else 1)
        self.close = getattr(own, "close", super().close)  # type: ignore[method-assign]

    def respond(self, requests: Sequence[Request]) -> Sequence[Answer]:
        """See `Policy`."""
        replies = self._respond_to(requests) if self._respond_to else [self._own(request) for request in requests]
        self.version = getattr(self._own, "version", 0)
        return replies


class OwnAsyncPolicy(AsyncPolicy):
    """An async function of one request. Up to 128 calls run concurrently."""

    raise_errors = True

    def __init__(self, function: Any) -> None:  # noqa: ANN401 (any async function or object)
        super().__init__()
        self.name, self.reproducible = name_of(function), bool(getattr(function, "reproducible", False))
        self._function = function

    async def reply(self, request: Request) -> Answer:
        """See `AsyncPolicy`."""
        answer: Answer = await self._function(request)
        return answer


def own_policy(policy: Any, origin: str = "policy") -> Policy:  # noqa: ANN401 (whatever the user passes)
    """Make a policy of a function, an object with `respond`, or an instance of the policy protocol.

    Args:
        policy: The function or object.
        origin: Where it was found, for error messages.

    Raises:
        InputError: It is none of these.

    >>> own_policy(lambda request: "look").name
    '<lambda>'
    """
    if isinstance(policy, type) or not (callable(policy) or has_protocol(policy) or hasattr(policy, "respond")):
        raise InputError(
            f"{origin}: expected a PolicySpec, a function of one request, an object with `respond`, or a Policy, "
            f"received {preview(policy)}"
        )
    if has_protocol(policy):
        if getattr(policy, "raise_errors", None) is None and not type(policy).__module__.startswith("hgpo_train."):
            policy.raise_errors = True  # bugs of the user's own policy end the collection
        own: Policy = policy
        return own
    if inspect.iscoroutinefunction(policy) or inspect.iscoroutinefunction(getattr(policy, "__call__", None)):  # noqa: B004
        return OwnAsyncPolicy(policy)
    return OwnBatchPolicy(policy)


def has_protocol(policy: object) -> bool:
    """Return whether an object has the methods of `hgpo_train.policies.base.Policy`."""
    return all(callable(getattr(policy, name, None)) for name in ("submit", "collect", "close"))


def name_of(policy: object) -> str:
    """Return the name of a function or of an object: its `name`, or that of its class."""
    for name in (getattr(policy, "name", None), getattr(policy, "__qualname__", None)):
        if isinstance(name, str) and name:
            return name.rpartition("<locals>.")[2]
    return type(policy).__name__


def source_hash(policy: object) -> str | None:
    """Return a hash of the code of a function or of an object's class; None if the code is unknown."""
    try:
        code = inspect.getsource(policy if inspect.isroutine(policy) else type(policy))
    except (OSError, TypeError):
        return None
    return f"{text_hash(code) % (1 << 64):016x}"
