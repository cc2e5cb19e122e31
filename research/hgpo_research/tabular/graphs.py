"""The graphs of tasks as arrays, compiled where rollouts go, and kept as Parquet.

They are those of `hgpo_research.truth.graph`, under a softmax policy without noise: the logarithms of its probabilities
are the first logits of tabular policies. Here, states and choices get numbers: a *parameter* is a pair of a state text
and a choice, which all nodes with this text share, whatever happened before.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import new_path
from hgpo_envs.hashing import link, text_hash
from hgpo_research.truth.exact import close
from hgpo_research.truth.graph import UNKNOWN, Graph
from hgpo_research.truth.rewards import Rewards

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

COUNTED: Final = Rewards(reward="success", reward_scale=1.0, gamma=1.0, invalid_action_penalty=1.0)
"""With these, an edge's `gain` is -1 if its action is invalid, else 0, and its `final` is 1 if the task is won."""

_COLUMNS: Final = ("probability", "response", "target", "ended", "gain", "final")
_METADATA: Final = "hgpo.tabular"


class TaskGraph:
    """The graph of one task.

    Args:
        task_id: The task.
        open_graph: Opens the task's `Graph`, which is done only if something is not known yet.
        stored: The nodes and the edges that were stored, if there are any.

    Attributes:
        graph: The `Graph`, or the same arrays from a file.
        state: For each node, the hash of its state text.
        owner: For each edge, its node.
        parameter: For each edge, the number of its parameter.
        names: For each parameter, a hash of its state text and choice.
    """

    def __init__(
        self,
        task_id: str,
        open_graph: Callable[[], Graph],
        stored: tuple[pl.DataFrame, pl.DataFrame] | None = None,
    ) -> None:
        self.task_id, self._open, self._stored = task_id, open_graph, stored
        self._numbers: dict[int, int] = {}
        self._complete: bool | None = None
        self.state = self.owner = self.parameter = self.names = np.empty(0, np.int64)
        self.graph: Any = open_graph() if stored is None else _arrays(*stored)
        if stored is not None:
            self.state = stored[0]["state_hash"].to_numpy()
            self._number(stored[1]["node"].to_numpy())

    def visit(self, nodes: Integers) -> None:
        """Make the edges of nodes known."""
        missing = np.unique(nodes[self.graph.first[nodes] == UNKNOWN])
        if len(missing):
            graph = self._live()
            graph.prepare(missing.tolist())
            self._number(np.repeat(missing, graph.size[missing]))

    def follow(self, edges: Integers) -> None:
        """Make known where edges lead."""
        missing = np.unique(edges[self.graph.edges.target[edges] == UNKNOWN])
        if len(missing):
            self._live().expand(self.owner[missing].tolist(), missing.tolist())
            self._hash_states()

    def close(self, most_nodes: int) -> bool:
        """Expand everything that can be reached, if these are few nodes; return whether that is so."""
        if self._complete is not None:
            return self._complete
        graph = self._live()
        self._complete = close(graph, [graph.start], most_nodes)
        prepared = np.flatnonzero(graph.first[: graph.nodes] != UNKNOWN)
        prepared = prepared[np.argsort(graph.first[prepared])]
        self._number(np.repeat(prepared, graph.size[prepared])[len(self.owner) :])
        return self._complete

    def tables(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the nodes and the edges, which are rows in the order of their numbers."""
        if not isinstance(self.graph, Graph):
            return self._stored  # type: ignore[return-value]  # the graph is what was stored
        edges, count, nodes = self.graph.edges, len(self.owner), len(self.state)
        owners = np.unique(self.owner)
        by_edge = owners[np.argsort(self.graph.first[owners])].tolist()
        actions = [action for node in by_edge for action in self.graph.responses(node)]
        named = {"task_id": [self.task_id] * count, "node": self.owner, "action": actions}
        return (
            pl.DataFrame({"task_id": [self.task_id] * nodes, "node": np.arange(nodes), "state_hash": self.state}),
            pl.DataFrame(named | {name: getattr(edges, name)[:count] for name in _COLUMNS}),
        )

    def _live(self) -> Graph:
        """Return the `Graph`, with the nodes and edges of the file under their numbers."""
        if isinstance(self.graph, Graph):
            return self.graph
        graph, (_, table), edges = self._open(), self._stored, self.graph.edges  # type: ignore[misc]
        actions, same = table["action"].to_list(), True
        order = np.lexsort((self.owner, edges.target))  # a node was found from one of a smaller number
        nodes, first = np.unique(edges.target[order], return_index=True)
        for node, edge in zip(nodes.tolist(), order[first].tolist(), strict=True):
            if node > 0:
                same &= graph.follow(int(self.owner[edge]), actions[edge])[0] == node
        _, places = np.unique(self.owner, return_index=True)
        graph.prepare(self.owner[np.sort(places)].tolist())
        if not same or not np.array_equal(graph.edges.response[: len(actions)], edges.response):
            raise InputError(f"the stored graph of task {self.task_id} is of another version; delete the graphs")
        for name in _COLUMNS:
            getattr(graph.edges, name)[: len(actions)] = getattr(edges, name)
        self.graph = graph
        return graph

    def _hash_states(self) -> None:
        new = range(len(self.state), self.graph.nodes)
        self.state = np.append(self.state, np.array([text_hash(self.graph.text(node)) for node in new], np.int64))

    def _number(self, owners: Integers) -> None:
        """Number the parameters of the newest edges, which belong to some nodes."""
        if isinstance(self.graph, Graph):
            self._hash_states()
        responses = self.graph.edges.response[len(self.owner) : len(self.owner) + len(owners)].view(np.int64)
        numbers = self._numbers
        found = [numbers.setdefault(name, len(numbers)) for name in link(self.state[owners], responses).tolist()]
        self.owner, self.parameter = np.append(self.owner, owners), np.append(self.parameter, np.array(found, np.int64))
        self.names = np.array(list(numbers), np.int64)


def _arrays(nodes: pl.DataFrame, edges: pl.DataFrame) -> SimpleNamespace:
    """Return stored tables as the arrays of a `Graph`."""
    first, size = np.full(nodes.height, UNKNOWN, np.int64), np.zeros(nodes.height, np.int64)
    owners, places, counts = np.unique(edges["node"].to_numpy(), return_index=True, return_counts=True)
    first[owners], size[owners] = places, counts
    columns = SimpleNamespace(**{name: edges[name].to_numpy() for name in _COLUMNS}, count=edges.height)
    return SimpleNamespace(first=first, size=size, edges=columns, nodes=nodes.height, start=0)


@dataclass(frozen=True)
class TaskSet:
    """Tasks that policies learn together.

    Attributes:
        graphs: Their graphs.
        max_steps: The step limit of episodes.
        settings: The environment and the policy that they belong to.
    """

    graphs: list[TaskGraph]
    max_steps: int
    settings: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Store what is known of the graphs as `nodes.parquet` and `edges.parquet` of an existing folder."""
        tables = zip(*(graph.tables() for graph in self.graphs), strict=True)
        for name, parts in zip(("nodes", "edges"), tables, strict=True):
            with new_path(folder / f"{name}.parquet") as content:
                pl.concat(parts).write_parquet(content, metadata={_METADATA: orjson.dumps(self.settings).decode()})


def compile_tasks(
    env_id: str,
    env_options: Mapping[str, Any],
    policy_options: Mapping[str, Any],
    tasks: int | Sequence[str],
    seed: int = 0,
    folder: Path | None = None,
) -> TaskSet:
    """Open tasks of an environment as graphs.

    Args:
        env_id: The environment.
        env_options: Its keyword arguments.
        policy_options: Options of the policy `softmax` whose logits are the first ones; `memory` is a number.
        tasks: The tasks' ids, or how many are drawn.
        seed: The seed of the draw.
        folder: Where graphs may have been stored.

    Raises:
        InputError: There are too few tasks, or the stored graphs are those of other settings.
    """
    from hgpo_train.policies.registry import PolicyContext, make_policy
    from hgpo_train.rollout.env_handle import open_env

    read = {"action_format": "command", "history_length": policy_options["memory"]}
    handle = open_env(env_id, **{**env_options, **read})
    context = PolicyContext(handle.shared.source.name, "command", {**policy_options, "taste": 0.0})
    policy: Any = make_policy("softmax", context)
    if isinstance(tasks, int):
        if not 0 < tasks <= len(handle.tasks):
            raise InputError(f"tasks: expected a number from 1 to {len(handle.tasks)}, received {tasks}")
        drawn = np.random.default_rng(seed).permutation(len(handle.tasks))[:tasks]
        tasks = [handle.tasks[number] for number in drawn.tolist()]
    settings = {"env": env_id, "options": dict(env_options), "policy": dict(policy_options)}
    stored: dict[Any, tuple[pl.DataFrame, pl.DataFrame]] = {}
    if folder is not None and (folder / "edges.parquet").exists():
        files = folder / "nodes.parquet", folder / "edges.parquet"
        kept = orjson.loads(pl.read_parquet_metadata(files[1]).get(_METADATA, "null"))
        if kept != settings:
            raise InputError(f"{folder}: expected graphs of {settings}, received those of {kept}; use another folder")
        nodes, edges = (pl.read_parquet(file).partition_by("task_id", as_dict=True) for file in files)
        stored = {task: (nodes[task], edges[task]) for task in edges}

    def opener(task: str) -> Callable[[], Graph]:
        return lambda: Graph(handle.shared, handle.settings, policy, COUNTED, task)

    graphs = [TaskGraph(task, opener(task), stored.get((task,))) for task in tasks]
    return TaskSet(graphs, handle.settings.max_steps, settings)
