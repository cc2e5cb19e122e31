"""What the two benchmarks have in common: an engine plays one task at a time, a task source names the tasks.

Environments, vector environments, memory, experts and rollouts know benchmarks only through these few methods.
There is no Gymnasium, no prompt and no randomness in an engine: the same task and the same commands give the same
states, to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Task:
    """One initial state and goal.

    Attributes:
        id: The identifier; see the benchmark for its form.
        split: The split that holds the task.
        instruction: What is to be done, in the benchmark's own words.
        task_type: The benchmark's name for this kind of task.
        versions: What a result depends on and a row must record (grammar, catalogue, nouns …), by name.
    """

    id: str
    split: str
    instruction: str
    task_type: str
    versions: Mapping[str, str] = field(default_factory=dict)

    def __reduce__(self) -> tuple[type[Task], tuple[Any, ...]]:
        """Pickles a mapping of any type, `MappingProxyType` too, as a dictionary: workers send tasks and states."""
        return Task, (self.id, self.split, self.instruction, self.task_type, dict(self.versions))


@dataclass(frozen=True, slots=True)
class State:
    """What an engine shows after a start or a command.

    Attributes:
        text: The state text: what the environment shows, without instruction and history.
        actions: The admissible actions in the benchmark's order (ALFWorld: sorted; WebShop: `search[<your query>]`
            and every `click[…]`).
        valid: Whether the command that led here did something the benchmark offers; True after a start.
        terminated: The task has ended.
        won: The task was solved.
        reward: The benchmark's own reward of this step: ALFWorld 1 when won, WebShop the score in [0, 1].
        score: The benchmark's score so far, in [0, 1].
        info: Further fields of the benchmark, merged into Gymnasium's info (for WebShop: page, reward parts, …).
    """

    text: str
    actions: Sequence[str]
    valid: bool
    terminated: bool
    won: bool
    reward: float
    score: float
    info: Mapping[str, Any]

    def __reduce__(self) -> tuple[type[State], tuple[Any, ...]]:
        """See `Task.__reduce__`."""
        flags = (self.valid, self.terminated, self.won)
        return State, (self.text, self.actions, *flags, self.reward, self.score, dict(self.info))


class Engine(Protocol):
    """Plays tasks, one at a time. Cheap to make: what is large is shared and read-only in the task source."""

    def start(self, task_id: str) -> State:
        """Begins a task. Raises KeyError with a clear line for an unknown id."""
        ...

    def act(self, command: str) -> State:
        """Carries out a command; anything not admissible changes nothing. Never raises for any text."""
        ...


class TaskSource(Protocol):
    """The tasks of one benchmark's data, and the engines that play them."""

    name: str
    """The benchmark's name in environment ids, for example ``ALFWorld``."""

    def ids(self, split: str) -> Sequence[str]:
        """The split's task ids in their documented order; ``all`` is every task."""
        ...

    def task(self, task_id: str) -> Task:
        """What is known of a task without starting it."""
        ...

    def engine(self) -> Engine:
        """A new engine over this data."""
        ...
