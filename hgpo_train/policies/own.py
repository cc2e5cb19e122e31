"""Policies of one's own: a function of a request, an object with `respond`, an instance of the policy protocol.

    def first(request: Request) -> str:
        return request.admissible_actions[0]

`own_policy` makes a policy of each. A bug in it ends the collection and is raised with its traceback
(`hgpo_train.policies.base.is_bug`); a `Failure` that it returns fails one rollout.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.hashing import text_hash
from hgpo_train.policies.base import AsyncPolicy, BatchPolicy, Failure, Reply, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import CodeType

    from hgpo_train.policies.base import Policy

_EXPECTED: Final = "a function of one request, an object with `respond`, or a Policy"


class FunctionPolicy(BatchPolicy):
    """A function of one request as a policy: from a `Request` to the response (text), a `Reply` or a `Failure`."""

    batch_size = 1
    raise_errors = True

    def __init__(self, function: Callable[[Request], str | Reply | Failure]) -> None:
        super().__init__()
        self.name, self._function = name_of(function), function
        self.reproducible = bool(getattr(function, "reproducible", False))

    def respond(self, requests: Sequence[Request]) -> Sequence[str | Reply | Failure]:
        """See `Policy`."""
        return [self._function(request) for request in requests]


class AsyncFunctionPolicy(AsyncPolicy):
    """An async function of one request as a policy. Up to 128 calls run concurrently."""

    raise_errors = True

    def __init__(self, function: Callable[[Request], Awaitable[str | Reply | Failure]]) -> None:
        super().__init__()
        self.name, self.reply = name_of(function), function  # type: ignore[method-assign,assignment]
        self.reproducible = bool(getattr(function, "reproducible", False))

    async def reply(self, request: Request) -> str | Reply | Failure:
        """See `AsyncPolicy`; replaced by the function."""
        raise NotImplementedError


class RespondPolicy(BatchPolicy):
    """An object with `respond` as a policy: from a list of requests to a list of texts, `Reply` or `Failure`.

    Its `name`, `reproducible`, `version`, `batch_size` and `close` are used, if it has them.
    """

    raise_errors = True

    def __init__(self, responder: Any) -> None:  # noqa: ANN401 (any object with `respond`)
        super().__init__()
        self.name, self._responder = name_of(responder), responder
        self.reproducible = bool(getattr(responder, "reproducible", False))
        self.batch_size = getattr(responder, "batch_size", None)

    def respond(self, requests: Sequence[Request]) -> Sequence[str | Reply | Failure]:
        """See `Policy`."""
        replies: Sequence[str | Reply | Failure] = self._responder.respond(requests)
        self.version = getattr(self._responder, "version", 0)
        return replies

    def close(self) -> None:
        """See `Policy`."""
        if callable(close := getattr(self._responder, "close", None)):
            close()


def own_policy(policy: Any, origin: str = "") -> Policy:  # noqa: ANN401 (whatever the user passes)
    """Make a policy of a function, an object with `respond`, or an instance of the policy protocol.

    Args:
        policy: The function or object; a class with `respond` is instantiated.
        origin: Where it was found, for error messages.

    Raises:
        InputError: It is none of these, or a function that cannot be called with one request.

    >>> own_policy(lambda request: "look").name
    '<lambda>'
    >>> own_policy(3)
    Traceback (most recent call last):
    hgpo_envs.errors.InputError: policy: expected a name such as 'random', a function of one request, an object with
    `respond`, or a Policy, received int 3
    """
    named = origin or "policy"
    if isinstance(policy, type) and (has_protocol(policy) or hasattr(policy, "respond")):
        if not takes(policy, 0):
            raise InputError(f"{named}: expected an instance of {policy.__name__}, received the class itself")
        policy = policy()
    if has_protocol(policy):
        if getattr(policy, "raise_errors", None) is None and not type(policy).__module__.startswith("hgpo_train."):
            policy.raise_errors = True  # bugs of the user's own policy end the collection
        own: Policy = policy
        return own
    if callable(getattr(policy, "respond", None)):
        if inspect.iscoroutinefunction(policy.respond):
            raise InputError(
                f"{named}: expected `respond` to be a plain method, received an async one; use an async function of "
                "one request"
            )
        return RespondPolicy(policy)
    if not callable(policy) or isinstance(policy, type):
        expected = f"a PolicySpec, {_EXPECTED}" if origin else f"a name such as 'random', {_EXPECTED}"
        raise InputError(f"{named}: expected {expected}, received {type(policy).__name__} {one_line(repr(policy), 60)}")
    if not takes(policy, 1):
        parameters = inspect.signature(policy)
        raise InputError(f"{named}: expected a function of one argument, the request, received one of {parameters}")
    is_async = inspect.iscoroutinefunction(policy) or inspect.iscoroutinefunction(type(policy).__call__)
    return AsyncFunctionPolicy(policy) if is_async else FunctionPolicy(policy)


def has_protocol(given: object) -> bool:
    """Return whether an object has the methods of `hgpo_train.policies.base.Policy`."""
    return all(callable(getattr(given, name, None)) for name in ("submit", "collect", "close"))


def takes(function: Callable[..., Any], arguments: int) -> bool:
    """Return whether a function can be called with so many positional arguments; True if this is unknown."""
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:  # some functions of extension modules have no signature
        return True
    return True


def name_of(given: object) -> str:
    """Return the name of a function or of an object: its `name`, or that of its class."""
    for name in (getattr(given, "name", None), getattr(given, "__qualname__", None)):
        if isinstance(name, str) and name:
            return name.rpartition("<locals>.")[2]
    return type(given).__name__


def source_hash(given: object) -> str | None:
    """Return a hash of the code of a function or of an object's class; None if the code is unknown.

    It excludes comments, variables outside of the function, and other functions.
    """
    function = getattr(given, "__wrapped__", given)
    if inspect.isroutine(function) and hasattr(function, "__code__"):
        return f"{text_hash(repr(_content(function.__code__))) % (1 << 64):016x}"
    kind = function if isinstance(function, type) else type(function)
    methods = [value.__code__ for _, value in sorted(vars(kind).items()) if hasattr(value, "__code__")]
    return f"{text_hash(repr([_content(code) for code in methods])) % (1 << 64):016x}" if methods else None


def _content(code: CodeType) -> tuple[object, ...]:
    """Return what a function does: its instructions, names and constants, without its place in a file."""
    constants = [_content(one) if hasattr(one, "co_code") else one for one in code.co_consts]
    shown = [sorted(map(repr, one)) if isinstance(one, frozenset) else repr(one) for one in constants]
    return code.co_code, code.co_names, shown
