"""The graphs of tasks as arrays, compiled where rollouts go, and kept as Parquet.

They are those of `hgpo_research.truth.graph`, under a softmax policy without noise: the logarithms of its probabilities
are the first logits of tabular policies. Here, choices get numbers of *parameters*, which are logits that nodes share:

- of one task, one for each pair of what the policy reads (a state text, and the last past pairs if it reads any) and a
  choice, whatever else happened before; nothing that is learned reaches another task;
- or shared by all tasks, one for each combination of the features (`hgpo_research.features`) that a choice
  has, rounded to halves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import orjson
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import new_path
from hgpo_envs.hashing import text_hash, text_hashes
from hgpo_research.arrays import Numbers, grown
from hgpo_research.random_numbers import subkey
from hgpo_research.truth.exact import close
from hgpo_research.truth.graph import UNKNOWN, Graph
from hgpo_research.truth.rewards import Rewards

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hgpo_research.arrays import Integers

COUNTED: Final = Rewards(
    reward="success",
    reward_scale=1.0,
    gamma=1.0,
    invalid_action_penalty=1.0,
)
"""With these, an edge's `gain` is -1 if its action is invalid, else 0, and its `final` is 1 if the task is won.

With `reward="score"`, `final` is the score so far."""

_COLUMNS: Final = (
    "probability",
    "response",
    "target",
    "ended",
    "gain",
    "final",
    "score",
)
"""The columns of edges that are stored as they are in a `Graph`."""

CHANCE: Final = " (chance "
"""What follows it in a response is no choice of the policy, but one of the equally likely things that chance can do.

Engines are deterministic. In a game of chance, ``jump (chance 1)`` and ``jump (chance 2)`` are one action with two
outcomes: they have one parameter, so the policy decides about jumping alone, and steps record the action ``jump``.
"""

_METADATA: Final = "hgpo.tabular.3"


class _Growing:
    """An array of int64 that grows by doubling."""

    def __init__(self) -> None:
        self._array = np.empty(0, np.int64)
        self._count = 0

    def extend(self, values: Integers | Sequence[int]) -> None:
        """Append values."""
        count = self._count + len(values)
        self._array = grown(self._array, count)
        self._array[self._count : count] = values
        self._count = count

    def values(self) -> Integers:
        """Return the array."""
        return self._array[: self._count]


class Parameters:
    """The numbers of the parameters of tasks that are learned together.

    Args:
        shared: Whether tasks share parameters of equal names.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared
        self._names = _Growing()
        self._numbers = Numbers()

    def number(self, task_id: str, names: Integers) -> Integers:
        """Return the numbers of parameters of a task."""
        task = "" if self.shared else task_id
        known = len(self._numbers)
        found = [self._numbers[task, name] for name in names.tolist()]
        self._names.extend([name for _, name in self._numbers.listed[known:]])
        return np.array(found, np.int64)

    @property
    def names(self) -> Integers:
        """For each parameter, its name: a hash of what is read and the choice, or of the features."""
        return self._names.values()


class TaskGraph:
    """The graph of one task.

    Args:
        task_id: The task.
        open_graph: Opens the task's `Graph`, which is done only if something is not known yet.
        stored: The nodes and the edges that were stored, if there are any.
        reads: Number of past pairs that parameters depend on, if tasks do not share them.
        parameters: The parameters; None for those of this task alone.

    Attributes:
        graph: The `Graph`, or the same arrays from a file.
        parameters: The parameters.
        chance: Whether chance decides anything (`CHANCE`), as far as the graph is known.
    """

    def __init__(
        self,
        task_id: str,
        open_graph: Callable[[], Graph],
        stored: tuple[pl.DataFrame, pl.DataFrame] | None = None,
        reads: int = 0,
        parameters: Parameters | None = None,
    ) -> None:
        self.task_id = task_id
        self._open = open_graph
        self._stored = stored
        self._reads = reads
        self.parameters = parameters or Parameters()
        self._complete: bool | None = None
        self._state = _Growing()
        self._name = _Growing()
        self._parameter = _Growing()
        self._action = _Growing()
        self.chance = False
        self.graph: Any = open_graph() if stored is None else _arrays(*stored)
        if stored is not None:
            nodes, edges = stored
            self._state.extend(nodes["state_hash"].to_numpy())
            self._add(edges["parameter_name"].to_numpy())
            self._add_actions(edges["action"].to_list())

    @property
    def state(self) -> Integers:
        """For each node, the hash of its state text."""
        return self._state.values()

    @property
    def parameter(self) -> Integers:
        """For each edge, the number of its parameter."""
        return self._parameter.values()

    @property
    def action(self) -> Integers:
        """For each edge, the hash of its action: of the response without what chance does."""
        return self._action.values()

    def visit(self, nodes: Integers) -> None:
        """Make the edges of nodes known."""
        # New nodes in the order of their numbers, so that those of parameters do not depend on the rollouts' order.
        missing = np.unique(nodes[self.graph.first[nodes] == UNKNOWN])
        if len(missing):
            self._live().prepare(missing.tolist())
            self._describe()

    def follow(self, edges: Integers) -> None:
        """Make known where edges lead."""
        missing = np.unique(edges[self.graph.edges.target[edges] == UNKNOWN])
        if len(missing):
            self._live().expand(missing.tolist())
            self._describe()

    def close(self, most_nodes: int) -> bool:
        """Expand everything that can be reached, if these are few nodes; return whether that is so."""
        if self._complete is None:
            self._complete = close(self._live(), most_nodes)
            self._describe()
        return self._complete

    def tables(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the nodes and the edges, which are rows in the order of their numbers."""
        if not isinstance(self.graph, Graph):
            return self._stored  # type: ignore[return-value]  # the graph is what was stored
        edges = self.graph.edges
        owners = edges.node[: edges.count]
        task = pl.lit(self.task_id).alias("task_id")
        nodes = pl.DataFrame(
            {"node": np.arange(self.graph.nodes), "state_hash": self.state}
        )
        columns = {
            "node": owners,
            "action": list(
                chain.from_iterable(
                    map(self.graph.responses, dict.fromkeys(owners.tolist()))
                )
            ),
            "parameter_name": self._name.values(),
        }
        columns |= {name: getattr(edges, name)[: edges.count] for name in _COLUMNS}
        return nodes.select(task, pl.all()), pl.DataFrame(columns).select(
            task, pl.all()
        )

    def _live(self) -> Graph:
        """Return the `Graph`, with the nodes and edges of the file under their numbers."""
        if isinstance(self.graph, Graph):
            return self.graph
        graph = self._open()
        stored = self.graph.edges
        actions = self._stored[1]["action"].to_list()  # type: ignore[index]  # without a graph, there is a file
        same = True

        # 1. The nodes in the order of their numbers, so that they get these again. Each was found from one of a smaller
        #    number, as its first edge in this order is. -1 is no node, and 0 is there from the start.
        order = np.lexsort((stored.node, stored.target))
        nodes, places = np.unique(stored.target[order], return_index=True)
        for node, edge in zip(nodes.tolist(), order[places].tolist(), strict=True):
            if node > 0:
                same &= graph.follow(int(stored.node[edge]), actions[edge])[0] == node

        # 2. Their edges, in the order of the file.
        graph.prepare(list(dict.fromkeys(stored.node.tolist())))
        if not same or not np.array_equal(
            graph.edges.response[: len(actions)], stored.response
        ):
            raise InputError(
                f"the stored graph of task {self.task_id} is of another version; delete the graphs"
            )
        for name in _COLUMNS:
            getattr(graph.edges, name)[: len(actions)] = getattr(stored, name)
        self.graph = graph
        return graph

    def _describe(self) -> None:
        """Hash the states of new nodes, and number the parameters of new edges."""
        graph = self.graph
        self._state.extend(
            text_hashes(map(graph.text, range(len(self.state), graph.nodes)))
        )
        new = slice(len(self.parameter), graph.edges.count)
        owners = graph.edges.node[new]
        if not len(owners):
            return
        self._add_actions(
            list(
                chain.from_iterable(
                    map(graph.responses, dict.fromkeys(owners.tolist()))
                )
            )
        )
        if self.parameters.shared:
            self._add(self._features(owners))
        else:
            self._add(
                subkey(
                    self._contexts(owners),
                    self.action[new],
                )
            )

    def _add(self, names: Integers) -> None:
        """Append the parameters of edges."""
        self._name.extend(names)
        self._parameter.extend(self.parameters.number(self.task_id, names))

    def _add_actions(self, responses: Sequence[str]) -> None:
        """Append the actions of edges."""
        actions = [response.partition(CHANCE)[0] for response in responses]
        self.chance |= actions != responses
        self._action.extend(text_hashes(actions))

    def _contexts(self, owners: Integers) -> Integers:
        """Return hashes of what the policy reads at nodes."""
        if not self._reads:
            return self.state[owners]
        nodes, places = np.unique(owners, return_inverse=True)
        contexts = self.state[nodes]
        for number, node in enumerate(nodes.tolist()):
            texts = chain.from_iterable(self.graph.past(node)[-self._reads :])
            contexts[number] = subkey(
                contexts[number : number + 1], *map(text_hash, texts)
            )[0]
        return contexts[places]

    def _features(self, owners: Integers) -> Integers:
        """Return hashes of the features, rounded to halves, of all choices at nodes, which come one after another."""
        rows: list[list[float]] = []
        for node in dict.fromkeys(owners.tolist()):
            rows += (2 * self.graph.features(node)).round().tolist()
        return text_hashes(map(str, rows))


def _arrays(nodes: pl.DataFrame, edges: pl.DataFrame) -> SimpleNamespace:
    """Return stored tables as the arrays of a `Graph`."""
    first = np.full(nodes.height, UNKNOWN, np.int64)
    size = np.zeros(nodes.height, np.int64)
    owners, places, counts = np.unique(
        edges["node"].to_numpy(), return_index=True, return_counts=True
    )
    first[owners] = places
    size[owners] = counts
    columns = {name: edges[name].to_numpy() for name in ("node", *_COLUMNS)}
    return SimpleNamespace(
        first=first,
        size=size,
        edges=SimpleNamespace(**columns, count=edges.height),
        nodes=nodes.height,
        start=0,
    )


@dataclass(frozen=True)
class TaskSet:
    """Tasks that policies learn together, or with the parameters of tasks that are learned.

    Attributes:
        graphs: Their graphs, which have the same `Parameters`.
        max_steps: The step limit of episodes.
        settings: The environment and the policy that they belong to.
    """

    graphs: list[TaskGraph]
    max_steps: int
    settings: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Store what is known of the graphs as `nodes.parquet` and `edges.parquet` of an existing folder."""
        metadata = {_METADATA: orjson.dumps(self.settings).decode()}
        tables = zip(*(graph.tables() for graph in self.graphs), strict=True)
        for name, parts in zip(("nodes", "edges"), tables, strict=True):
            with new_path(folder / f"{name}.parquet") as content:
                pl.concat(parts).write_parquet(content, metadata=metadata)


def compile_tasks(
    env_id: str,
    env_options: Mapping[str, Any],
    policy_options: Mapping[str, Any],
    tasks: int | Sequence[str],
    seed: int = 0,
    folder: Path | None = None,
    reads: int = 0,
    shared: bool = False,
    held_out: int = 0,
    reward: Literal["success", "score"] = "success",
) -> tuple[TaskSet, TaskSet]:
    """Open tasks of an environment as graphs.

    Args:
        env_id: The environment.
        env_options: Its keyword arguments.
        policy_options: Options of the policy `softmax` whose logits are the first ones; `memory` is a number.
        tasks: The tasks' ids, or how many are drawn.
        seed: The seed of the draw.
        folder: Where graphs may have been stored.
        reads: Number of past pairs that learned logits depend on, if tasks do not share them.
        shared: Whether tasks share logits by features.
        held_out: Number of further tasks that are drawn, with the parameters of the others.
        reward: What is learned: success, or the final score of graded tasks.

    Returns:
        The tasks, and the held-out ones.

    Raises:
        InputError: There are too few tasks, or the stored graphs are those of other settings.
    """
    from hgpo_train.policies.registry import PolicyContext, make_policy
    from hgpo_train.rollout.env_handle import open_env

    if shared and reads:
        raise InputError(
            f"reads: expected 0 for shared logits, which read what the features read, received {reads}"
        )
    if held_out and not shared:
        raise InputError(
            "held_out: expected shared logits, without which nothing that is learned reaches other tasks"
        )
    # Nodes tell as many past pairs apart as the first or the learned logits read.
    read = {
        "action_format": "command",
        "history_length": max(policy_options["memory"], reads),
    }
    handle = open_env(env_id, **{**env_options, **read})
    context = PolicyContext(
        handle.shared.source.name,
        "command",
        {**policy_options, "taste": 0.0},
    )
    policy: Any = make_policy("softmax", context)
    if isinstance(tasks, int):
        if tasks < 1 or held_out < 0 or tasks + held_out > len(handle.tasks):
            wanted = f"tasks: expected a number from 1 to {len(handle.tasks)}, with the held-out ones"
            raise InputError(f"{wanted}, received {tasks} and {held_out}")
        # Held-out tasks are drawn after the others, so that these do not depend on their number.
        drawn = np.random.default_rng(seed).permutation(len(handle.tasks))[
            : tasks + held_out
        ]
        tasks = [handle.tasks[number] for number in drawn.tolist()]
    settings = {
        "env": env_id,
        "options": dict(env_options),
        "policy": dict(policy_options),
        "reads": reads,
        "shared": shared,
        "reward": reward,
    }
    stored = {} if folder is None else _stored(folder, settings)
    parameters = Parameters(shared=shared)

    # A graph is opened when something is not in the file: environments may be slow to start.
    def opener(task: str) -> Callable[[], Graph]:
        return lambda: Graph(
            handle.shared,
            handle.settings,
            policy,
            replace(COUNTED, reward=reward),
            task,
            reads,
        )

    graphs = [
        TaskGraph(task, opener(task), stored.get(task), reads, parameters)
        for task in tasks
    ]
    # All graphs have the same parameters: what is learned changes policies on held-out tasks.
    learned = len(graphs) - held_out
    steps = handle.settings.max_steps
    return TaskSet(graphs[:learned], steps, settings), TaskSet(
        graphs[learned:], steps, settings
    )


def _stored(
    folder: Path, settings: dict[str, Any]
) -> dict[str, tuple[pl.DataFrame, pl.DataFrame]]:
    """Return the nodes and edges of each task that `TaskSet.write` stored; empty if it stored none."""
    edges_file = folder / "edges.parquet"
    if not edges_file.exists():
        return {}
    kept = orjson.loads(pl.read_parquet_metadata(edges_file).get(_METADATA, "null"))
    if kept != settings:
        raise InputError(
            f"{folder}: expected graphs of {settings}, received those of {kept}; use another folder"
        )
    nodes, edges = (
        pl.read_parquet(file, glob=False).partition_by("task_id", as_dict=True)
        for file in (folder / "nodes.parquet", edges_file)
    )
    return {task: (nodes[task,], part) for (task,), part in edges.items()}
