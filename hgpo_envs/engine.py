"""The interfaces of a benchmark: an engine plays one task at a time, a task source lists tasks, players play them.

Environments, vector environments, memory, experts and rollouts use benchmarks through this interface only. An engine
does not depend on Gymnasium or prompts and is deterministic: the same task and commands give the same states, byte for
byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Task:
    """One initial state and goal.

    Attributes:
        id: The identifier. Its format depends on the benchmark.
        split: The split that contains the task.
        instruction: The task description in the benchmark's words.
        task_type: The benchmark's name for this kind of task.
        versions: The versions that a result depends on, by name (grammar, catalogue, nouns …). Step tables record them.
    """

    id: str
    split: str
    instruction: str
    task_type: str
    versions: Mapping[str, str] = field(default_factory=dict)


# not frozen: every step creates one, and a frozen one takes three times as long
@dataclass(slots=True)
class State:
    """The result of starting a task or executing a command. Nobody changes it.

    Attributes:
        text: The state text: the environment's observation without instruction and history.
        actions: The admissible actions in the benchmark's order (ALFWorld: sorted; WebShop: `search[<your query>]`
            and every `click[…]`).
        valid: Whether the last command was admissible and executed; None if the benchmark does not say. True after a
            start.
        terminated: Whether the task has ended.
        won: Whether the task was solved; None if the benchmark does not say.
        reward: The benchmark's reward for this step: in ALFWorld 1 when won, in WebShop the score in [0, 1].
        score: The benchmark's score so far, in [0, 1].
        info: Further fields of the benchmark, merged into Gymnasium's info (for WebShop: page, reward parts, …).
        truncated: Whether the benchmark itself ended the episode before the task did, such as by a limit of its own.
        key: What is compared instead of the text when steps are grouped; None compares the text, or the key that
            `EnvironmentSpec.state_key` computes from it.
    """

    text: str
    actions: Sequence[str]
    valid: bool | None = True
    terminated: bool = False
    won: bool | None = False
    reward: float = 0.0
    score: float = 0.0
    info: Mapping[str, Any] = field(default_factory=dict)
    truncated: bool = False
    key: str | None = None


class Engine(Protocol):
    """Plays tasks, one at a time.

    Creating an engine is cheap, because large data is read-only and shared in the task source. States that an engine
    returned are never changed later, neither by the engine nor by its callers.
    """

    def start(self, task_id: str) -> State:
        """Start a task.

        Raises:
            KeyError: If the id is unknown. The message is one clear line.
        """
        ...

    def act(self, command: str) -> State:
        """Execute a command. An inadmissible command changes nothing, and no text raises an error."""
        ...


class BranchingEngine(Engine, Protocol):
    """An engine that can be copied in the middle of a task, and whose states can be compared.

    Both methods are optional, and each can be used without the other: episodes of an engine without `fork` are copied
    by replaying their commands, and the key of an engine without `key` is its list of commands
    (`hgpo_envs.episode.Episode.fork` and `key`).
    """

    def fork(self) -> BranchingEngine:
        """Return an independent engine in the same state of the same task. They share read-only data only."""
        ...

    def key(self) -> Hashable:
        """Return a value that identifies the hidden state.

        Two engines of the same task with equal keys offer the same actions and return equal states for every sequence
        of commands from now on. The value depends neither on the process nor on Python's hash seed.
        """
        ...


class TaskSource(Protocol):
    """The tasks of a benchmark's data set and the engines that play them.

    A source whose engines wait for other processes may have the attribute ``concurrent``, an integer: rollouts call
    its engines in threads, at most this many at the same time. The engines may then have a method ``close``, which may
    be called during a call and ends it.

    A source that holds something outside this process, such as a server, may have a method ``close``, which is called
    once, after its last environment was closed (`hgpo_envs.sources.SharedSource`).

    A source may have a method ``contents``, which returns texts of a task by name: everything that it depends on, such
    as its sentence, initial state, rules and wording, and nothing else, such as paths and file formats. Data sets are
    compared by them (`hgpo_envs.data_comparison`), and checksums of panels are made of them
    (`hgpo_train.panels.data.task_checksum`). If its data were made from other files, a source may have the attribute
    ``files``, their SHA-256 by name.
    """

    name: str
    """The benchmark's name in environment ids, for example ``ALFWorld``."""

    def ids(self, split: str) -> Sequence[str]:
        """Return the split's task ids in their documented order. The split ``all`` contains every task."""
        ...

    def task(self, task_id: str) -> Task:
        """Return a task's description without starting it."""
        ...

    def engine(self) -> Engine:
        """Return a new engine over this data."""
        ...


class Player(Protocol):
    """A scripted player, which plays one task at a time: `reset` at its start, then `act` for every state.

    Two of them have the same names in every benchmark. ``expert`` reads the engine's hidden state: it is an upper bound
    and the source of walkthroughs. ``explorer`` uses only what a policy observes: it is for demonstrations.

    A player may also have `fork(engine)`, which returns an independent copy of it in the same state. The copy inspects
    the given engine (or None) instead of its own. Players must be deterministic.

    A branch (`hgpo branch`) resets its player at the state where the branch begins, in the middle of an episode: a
    player that makes its plan in `reset` must make it from that state and the engine, not from the task alone.
    """

    def reset(self, task: Task, state: State, engine: Engine | None = None) -> None:
        """Start a task.

        Args:
            task: The task.
            state: The first state, or that at which a branch begins.
            engine: The engine that plays the task, for players that read its hidden state. They must not change it.
        """
        ...

    def act(self, state: State) -> str:
        """Return the next action. Called once for every state, including the first, except terminal ones."""
        ...
