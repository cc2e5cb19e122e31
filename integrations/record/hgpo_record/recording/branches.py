"""Which call of a rollout continues which: branches by common prefix.

A call continues another one if its messages are those of the other call, then the reply, then more. The first call that
continues a step belongs to the same branch. Every other call begins a branch of its own: one that continues the same
step again (a second attempt), one whose messages were shortened or rewritten (compaction), and one with a conversation
of its own (a sub-agent). So no step is ever put into a conversation that its model did not see.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import redact_json
from hgpo_envs.responses import is_deep, message_calls
from hgpo_record.recording.calls import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hgpo_record.recording.calls import Answer, Request


@dataclass
class Branch:
    """A conversation within a rollout.

    Attributes:
        parent: The step that it continues or from whose messages it departs; None if it shares no message with another.
        shared: The number of its first messages that are those of the parent's conversation.
        steps: Its steps, in order.
        requests: The fields of its requests beside the messages, at each step where they differ from the step before.
    """

    parent: int | None
    shared: int
    steps: list[int] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Prefix:
    """Messages with which conversations begin.

    Attributes:
        longer: Those with one more message, by its JSON.
        ended: The steps whose messages are these.
        last: The last step whose messages begin with these; None before the first.
    """

    longer: dict[bytes, _Prefix] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    last: int | None = None


class Branches:
    """The branches of one rollout, by their numbers.

    Attributes:
        found: The branches.
    """

    def __init__(self) -> None:
        self.found: list[Branch] = []
        self._branch_of: list[int] = []  # of each step
        # of the last step, by the number of messages from 0
        self._prefixes = [_Prefix()]
        # of each step, what its continuation sends back
        self._replies: list[Sequence[object]] = []
        # the steps by the server's ids of their answers
        self._answers: dict[str, int] = {}
        # of the last step of each branch
        self._settings: list[Mapping[str, bytes]] = []
        # of the last step
        self._decoded: tuple[Mapping[str, bytes], dict[str, Any]] = ({}, {})

    def add(self, request: Request, answer: Answer) -> None:
        """Add the next step of the rollout to the branch to which it belongs.

        Raises:
            InputError: A field of the request is nested too deeply. Nothing is added.
        """
        # 1. What may fail comes first. Nearly every call has the fields of the call before.
        if request.settings != self._decoded[0]:
            fields = _fields(tuple(request.settings.items()))
            self._decoded = request.settings, fields
        # A request that continues the one before begins with its messages.
        prefixes = [*self._prefixes[: request.known + 1]]
        for item in request.items[request.known :]:
            prefixes.append(prefixes[-1].longer.setdefault(item, _Prefix()))
        number = self._branch(request, prefixes)
        # 2. The step, and the other fields of its request if they are not those of the step before.
        step = len(self._branch_of)
        branch = self.found[number]
        branch.steps.append(step)
        self._branch_of.append(number)
        if number == len(self._settings):
            self._settings.append({})
        if request.settings != self._settings[number]:
            branch.requests.append({"step": step, **self._decoded[1]})
        self._settings[number] = request.settings
        # 3. What later calls are compared with. A prompt that the server continues is not whole: its id stands for it.
        if request.previous is None:
            prefixes[-1].ended.append(step)
            for prefix in prefixes:
                prefix.last = step
        if answer.id:
            self._answers[answer.id] = step
        self._replies.append(answer.items)
        self._prefixes = prefixes

    def _branch(self, request: Request, prefixes: Sequence[_Prefix]) -> int:
        """Return the number of the branch of a call, which is a new one unless it continues a last step."""
        if request.previous is not None:
            return self._after(self._answers.get(request.previous))
        # The longest conversation that it continues, its reply included.
        for length in range(len(request.items) - 1, 0, -1):
            for step in reversed(prefixes[length].ended):
                reply = self._replies[step]
                if _follows(request.items[length:], reply):
                    return self._after(step, length, reply)
        # Or the call with which it shares the most messages.
        for length in range(len(request.items), 0, -1):
            if prefixes[length].last is not None:
                return self._new(prefixes[length].last, length)
        return self._new(None, 0)

    def _after(
        self, step: int | None, length: int = 0, reply: Sequence[object] = ()
    ) -> int:
        """Return the branch of a call that continues a step, after a number of messages and the step's reply."""
        if step is not None:
            number = self._branch_of[step]
            if self.found[number].steps[-1] == step:
                return number
        return self._new(step, length + len(list(_keys(reply))))

    def _new(self, parent: int | None, shared: int) -> int:
        self.found.append(Branch(parent, shared))
        return len(self.found) - 1


@lru_cache(maxsize=16)
def _fields(written: tuple[tuple[str, bytes], ...]) -> dict[str, Any]:
    """Return fields of a request without secrets. Rollouts of one program have the same, with long lists of tools."""
    fields = {name: msgspec.json.decode(value) for name, value in written}
    if is_deep(fields):
        raise InputError("expected fields of a request without hundreds of levels")
    return redact_json(fields)  # type: ignore[no-any-return]  # a mapping stays one


def _follows(items: Sequence[bytes], reply: Sequence[object]) -> bool:
    """Return whether items begin with a reply, from which a program may have left out thoughts."""
    # Many programs send a reply back as it came.
    if [msgspec.json.decode(item) for item in items[: len(reply)]] == reply:
        return True
    wanted = list(_keys(reply))
    sent = _keys(map(msgspec.json.decode, items))
    return list(islice(sent, len(wanted))) == wanted


def _keys(items: Iterable[object]) -> Iterator[object]:
    """Yield what is compared of messages of an assistant, or of items of an output, which are not thoughts."""
    for item in items:
        if not isinstance(item, dict):
            yield item
        elif item.get("type") != "reasoning":
            yield _key(item)


def _key(item: Mapping[str, Any]) -> object:
    """Return what of an assistant's message or an item of an output is compared.

    Programs send a reply back in other words: without ids of the server and empty fields, with arguments written anew.
    """
    if item.get("type", "message") == "message":
        calls = [_call_key(call) for call in message_calls(item)]
        return (item.get("role"), text_of(item.get("content")), calls)
    fields = {
        name: value
        for name, value in item.items()
        if value is not None and name not in ("id", "status")
    }
    return {**fields, "arguments": _arguments(item.get("arguments"))}


def _call_key(call: Any) -> object:  # noqa: ANN401 - whatever was sent
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    return (call.get("id"), function.get("name"), _arguments(function.get("arguments")))


def _arguments(written: object) -> object:
    """Return the arguments of a call as an object, if they are one."""
    try:
        return orjson.loads(written)  # type: ignore[arg-type]  # caught
    except (orjson.JSONDecodeError, TypeError):
        return written
