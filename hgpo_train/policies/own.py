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
    """A function of one request as a policy.

    Args:
        function: From a `Request` to the response (text) or a `Reply` or `Failure`.
    """

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
    """An async function of one request as a policy. Up to 128 calls run concurrently.

    Args:
        function: As of `FunctionPolicy`.
    """

    raise_errors = True

    def __init__(self, function: Callable[[Request], Awaitable[str | Reply | Failure]]) -> None:
        super().__init__()
        self.name, self._function = name_of(function), function
        self.reproducible = bool(getattr(function, "reproducible", False))

    async def reply(self, request: Request) -> str | Reply | Failure:
        """See `AsyncPolicy`."""
        return await self._function(request)


class RespondPolicy(BatchPolicy):
    """An object with `respond` as a policy. Its `name`, `reproducible`, `version`, `batch_size` and `close` are used.

    Args:
        responder: The object. `respond` receives a list of requests and returns a list of responses (texts), `Reply`
            or `Failure`, in the same order.
    """

    raise_errors = True

    def __init__(self, responder: Any) -> None:  # noqa: ANN401 (any object with `respond`)
        super().__init__()
        self.name, self._responder = name_of(responder), responder
        self.reproducible = bool(getattr(responder, "reproducible", False))
        self.batch_size = getattr(responder, "batch_size", None)

    def respond(self, requests: Sequence[Request]) -> Sequence[str | Reply | Failure]:
        """See `Policy`."""
        found: Sequence[str | Reply | Failure] = self._responder.respond(requests)
        self.version = getattr(self._responder, "version", 0)
        return found

    def close(self) -> None:
        """See `Policy`."""
        if callable(close := getattr(self._responder, "close", None)):
            close()


def own_policy(given: Any, origin: str = "") -> Policy:  # noqa: ANN401 (whatever the user passes)
    """Make a policy of a function, an object with `respond`, or an instance of the policy protocol.

    Args:
        given: The function or object; a class with `respond` is instantiated.
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
    expected = f"a PolicySpec, {_EXPECTED}" if origin else f"a name such as 'random', {_EXPECTED}"
    if isinstance(given, type) and (has_protocol(given) or hasattr(given, "respond")):
        if not takes(given, 0):
            raise InputError(f"{named}: expected an instance of {given.__name__}, received the class itself")
        given = given()
    if has_protocol(given):
        return _strict(given)
    if callable(getattr(given, "respond", None)):
        if inspect.iscoroutinefunction(given.respond):
            line = (
                "expected `respond` to be a plain method, received an async one; use an async function of one request"
            )
            raise InputError(f"{named}: {line}")
        return RespondPolicy(given)
    if not callable(given) or isinstance(given, type):
        raise InputError(f"{named}: expected {expected}, received {type(given).__name__} {one_line(repr(given), 60)}")
    if not takes(given, 1):
        parameters = inspect.signature(given)
        raise InputError(f"{named}: expected a function of one argument, the request, received one of {parameters}")
    is_async = inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(type(given).__call__)
    return AsyncFunctionPolicy(given) if is_async else FunctionPolicy(given)


def _strict(policy: Policy) -> Policy:
    """Return the policy, so that its exceptions end the collection unless it is a policy of this package."""
    if getattr(policy, "raise_errors", None) is None and not type(policy).__module__.startswith("hgpo_train."):
        policy.raise_errors = True  # type: ignore[attr-defined]  # optional in the protocol
    return policy


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
