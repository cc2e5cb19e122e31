"""A game with a tool, whose states count the moves; the players of tests import it."""

from hgpo_envs.engine import State, Task
from hgpo_envs.environment_spec import EnvironmentSpec
from hgpo_envs.responses import parse_tool_calls


class CounterSource:
    """One room, in which each call is a move."""

    name = "Counter"

    def ids(self, split: str) -> list[str]:
        return ["a"]

    def task(self, task_id: str) -> Task:
        return Task(task_id, "train", "Walk.", "walk")

    def engine(self) -> "CounterEngine":
        return CounterEngine()


class CounterEngine:
    moves = 0

    def start(self, task_id: str) -> State:
        self.moves = 0
        return self._state()

    def act(self, command: str) -> State:
        self.moves += 1
        return self._state()

    def _state(self) -> State:
        return State(f"Moves: {self.moves}", [])


COUNTER = EnvironmentSpec(
    id="Test/Counter-v0",
    source=CounterSource,
    max_steps=3,
    parse_response=parse_tool_calls,
    state_key="mask-numbers",
    action_tag="",
    admissible_actions=False,
    tools=[{"type": "function", "function": {"name": "walk", "description": "Walk."}}],
)
