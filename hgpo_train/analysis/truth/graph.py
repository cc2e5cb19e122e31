"""The decision process of one task under one policy, expanded lazily: hidden states, contexts, nodes and edges.

A *hidden state* is a value of the engine's key. A *node* is a hidden state with everything that the policy's
distribution can depend on: the state text and the past pairs that the policy reads (and the step, if it reads prompts).
An *edge* is a response of the policy at a node. Transitions are deterministic and computed once for each hidden state
and command, distributions once for each context, and both are arrays, so that many rollouts move in one NumPy
operation (`walks.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hgpo_envs.engine import State
from hgpo_envs.episode import Episode
from hgpo_envs.errors import InputError
from hgpo_envs.hashing import text_hash
from hgpo_envs.memory import Memory, Pair
from hgpo_train.policies.base import Request

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from hgpo_envs.engine import Task
    from hgpo_envs.episode import Settings
    from hgpo_envs.sources import SharedSource
    from hgpo_train.analysis.truth.rewards import Rewards
    from hgpo_train.policies.base import Distribution, DistributionPolicy

    Pairs = tuple[tuple[str, str], ...]
    """Past pairs of state text and action, oldest first."""

UNKNOWN: Final = -1
"""The target of an edge that was not followed yet, and the first edge of a node without a distribution."""

_NO_LIMIT: Final = 1 << 60


@dataclass(slots=True)
class _Hidden:
    """A hidden state: an episode in it, and the moves that were tried."""

    episode: Episode
    actions: tuple[str, ...]
    moves: dict[str, _Move]


class _Move(NamedTuple):
    """What a command does in a hidden state."""

    hidden: int
    text: str
    valid: bool
    terminated: bool
    reward: float
    won: bool
    score: float


class _Node(NamedTuple):
    """See the module. `step` is 0 for policies that do not read prompts."""

    hidden: int
    text: str
    pairs: Pairs
    step: int


class Edges:
    """Columns of edges, which grow.

    Attributes:
        probability: float64, the probability of the response.
        response: uint64, the hash of the response.
        target: int64, the node that the edge leads to, or `UNKNOWN`.
        ended: bool, whether the task ends.
        gain: float64, the reward of the step.
        final: float64, the further reward if this is the episode's last step.
    """

    _KINDS: Final = {"probability": "f8", "response": "u8", "target": "i8", "ended": "?", "gain": "f8", "final": "f8"}

    probability: NDArray[np.float64]
    response: NDArray[np.uint64]
    target: NDArray[np.int64]
    ended: NDArray[np.bool_]
    gain: NDArray[np.float64]
    final: NDArray[np.float64]

    def __init__(self) -> None:
        self.count = 0
        for name, kind in self._KINDS.items():
            setattr(self, name, np.empty(1024, kind))

    def add(
        self, probabilities: Sequence[NDArray[np.float64]], responses: Sequence[NDArray[np.uint64]]
    ) -> NDArray[np.int64]:
        """Append the edges of some nodes and return the number of each node's first one."""
        sizes = np.array([len(each) for each in probabilities], np.int64)
        first: NDArray[np.int64] = self.count + np.cumsum(sizes) - sizes
        start, self.count = self.count, self.count + int(sizes.sum())
        if self.count > len(self.target):
            for name in self._KINDS:
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.empty(max(len(old), self.count - start), old.dtype)]))
        self.probability[start : self.count] = np.concatenate(probabilities)
        self.response[start : self.count] = np.concatenate(responses)
        self.target[start : self.count] = UNKNOWN
        return first


class Graph:
    """The lazily expanded graph of one task.

    Args:
        shared: The task source.
        settings: The settings of episodes: prompts, parsing, step limit.
        policy: The policy; its distributions must not depend on anything but the request.
        rewards: The definition of rewards.
        task_id: The task.

    Attributes:
        edges: The edges.
        first: For each node, its first edge, or `UNKNOWN` before `prepare`.
        size: For each node, its number of edges.
    """

    def __init__(
        self, shared: SharedSource, settings: Settings, policy: DistributionPolicy, rewards: Rewards, task_id: str
    ) -> None:
        self._settings, self._policy, self._rewards = settings, policy, rewards
        self._pairs_kept = settings.history_length
        if policy.history_read is not None and not policy.prompt_read:
            self._pairs_kept = min(self._pairs_kept, policy.history_read)
        self.edges = Edges()
        self.first, self.size = np.full(256, UNKNOWN, np.int64), np.zeros(256, np.int64)
        self._hidden: list[_Hidden] = []
        self._hidden_numbers: dict[Hashable, int] = {}
        self._nodes: list[_Node] = []
        self._node_numbers: dict[_Node, int] = {}
        self._contexts: dict[tuple[Any, ...], Distribution] = {}
        self._responses: list[tuple[str, ...]] = []  # of each node
        self._hashes: dict[tuple[str, ...], NDArray[np.uint64]] = {}
        self._parsed: dict[str, tuple[str, bool | None]] = {}
        plain = Episode(shared, replace(settings, history_length=0, max_steps=_NO_LIMIT))
        plain.start(task_id)
        self.task: Task = plain.task
        self.start = self._node(self._hidden_state(plain), plain.state.text, (), 0)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self._nodes)

    @property
    def max_steps(self) -> int:
        """The step limit of episodes."""
        return self._settings.max_steps

    def text(self, node: int) -> str:
        """Return a node's state text."""
        return self._nodes[node].text

    def responses(self, node: int) -> tuple[str, ...]:
        """Return the responses of a node's edges."""
        return self._responses[node]

    def probabilities(self, node: int) -> NDArray[np.float64]:
        """Return the probabilities of a node's edges."""
        return self.edges.probability[self.first[node] : self.first[node] + self.size[node]]

    def command(self, node: int, response: str) -> str:
        """Return the command that a response means at a node."""
        return self._read(self._hidden[self._nodes[node].hidden], response)[0]

    def prepare(self, nodes: Sequence[int]) -> None:
        """Ask the policy for the distributions of nodes, in one batch, and create their edges."""
        missing = {node: self._context(node) for node in nodes if self.first[node] == UNKNOWN}
        asked = {context: node for node, context in missing.items() if context not in self._contexts}
        if asked:
            requests = [self._request(number, node) for number, node in enumerate(asked.values())]
            self._contexts.update(zip(asked, self._policy.distributions(requests), strict=True))
        if missing:
            found = [self._contexts[context] for context in missing.values()]
            numbers = np.fromiter(missing, np.int64, len(missing))
            self.first[numbers] = self.edges.add(
                [each.probabilities for each in found], [self._hashes_of(each.responses) for each in found]
            )
            self.size[numbers] = [len(each.responses) for each in found]
            for node, each in zip(missing, found, strict=True):
                self._responses[node] = each.responses

    def expand(self, nodes: Sequence[int], edges: Sequence[int]) -> None:
        """Compute where some edges of prepared nodes lead, and their rewards."""
        rows, firsts = [], self.first[nodes].tolist()
        for node, edge, first in zip(nodes, edges, firsts, strict=True):
            here = self._nodes[node]
            hidden = self._hidden[here.hidden]
            command, well_formed = self._read(hidden, self._responses[node][edge - first])
            move = hidden.moves.get(command) or self._move(hidden, command)
            gain = self._rewards.gain(move.reward, valid=move.valid if well_formed is None else well_formed)
            final = self._rewards.final(won=move.won, score=move.score)
            rows.append((self._follow(here, command, move), move.terminated, gain, final))
        if rows:
            at, columns = self.edges, zip(*rows, strict=True)
            for column, values in zip((at.target, at.ended, at.gain, at.final), columns, strict=True):
                column[edges] = values

    def follow(self, node: int, command: str) -> tuple[int, _Move]:
        """Return the node after any command, and what the command did."""
        here = self._nodes[node]
        hidden = self._hidden[here.hidden]
        move = hidden.moves.get(command) or self._move(hidden, command)
        return self._follow(here, command, move), move

    def _hashes_of(self, responses: tuple[str, ...]) -> NDArray[np.uint64]:
        found = self._hashes.get(responses)
        if found is None:
            found = self._hashes[responses] = np.array([text_hash(each) for each in responses]).view(np.uint64)
        return found

    def _follow(self, here: _Node, command: str, move: _Move) -> int:
        kept = self._pairs_kept
        pairs = (*here.pairs, (here.text, command))[-kept:] if kept else ()
        return self._node(move.hidden, move.text, pairs, here.step + self._policy.prompt_read)

    def _node(self, hidden: int, text: str, pairs: Pairs, step: int) -> int:
        node = _Node(hidden, text, pairs, step)
        number = self._node_numbers.get(node)
        if number is None:
            number = self._node_numbers[node] = len(self._nodes)
            self._nodes.append(node)
            self._responses.append(())
            if number == len(self.first):
                self.first = np.concatenate([self.first, np.full(number, UNKNOWN, np.int64)])
                self.size = np.concatenate([self.size, np.zeros(number, np.int64)])
        return number

    def _hidden_state(self, episode: Episode) -> int:
        key = episode.engine_key()
        number = self._hidden_numbers.get(key)
        if number is None:
            number = self._hidden_numbers[key] = len(self._hidden)
            self._hidden.append(_Hidden(episode, tuple(episode.state.actions), {}))
        return number

    def _move(self, hidden: _Hidden, command: str) -> _Move:
        episode = hidden.episode.fork()
        episode.observe(command, None, episode.engine.act(command))
        state = episode.state
        move = hidden.moves[command] = _Move(
            self._hidden_state(episode), state.text, state.valid, state.terminated, state.reward, state.won, state.score
        )
        return move

    def _read(self, hidden: _Hidden, response: str) -> tuple[str, bool | None]:
        if self._settings.action_format == "number":  # a number means another action in each state
            return hidden.episode.read(response)
        found = self._parsed.get(response)
        if found is None:
            found = self._parsed[response] = hidden.episode.read(response)
        return found

    def _context(self, node: int) -> tuple[Any, ...]:
        here = self._nodes[node]
        return here.text, self._hidden[here.hidden].actions, here.pairs, here.step

    def _request(self, number: int, node: int) -> Request:
        here = self._nodes[node]
        now = self._hidden[here.hidden].episode.state
        first = here.step - len(here.pairs) + 1 if self._policy.prompt_read else 1
        pairs = tuple([Pair(first + index, *pair) for index, pair in enumerate(here.pairs)])
        state = State(here.text, now.actions, won=now.won, score=now.score, info=now.info)
        prompt = partial(self._prompt, here, state, pairs)
        text = prompt() if self._policy.prompt_read else ""
        return Request(number, text, 0, 0, here.step, self.task, state, None, prompt, lambda: pairs)

    def _prompt(self, here: _Node, state: State, pairs: Sequence[Pair], length: int | None = None) -> str:
        memory = Memory(self._settings.history_length)
        memory.resume(pairs, here.step)
        return self._settings.template.render(
            task=self.task.instruction,
            observation=here.text,
            admissible_actions=list(state.actions),
            memory=memory,
            max_steps=self._settings.max_steps,
            action_format=self._settings.action_format,
            history_length=length,
        )


def check_memoryless(policy: DistributionPolicy) -> None:
    """Check that a policy's distributions depend on requests only.

    Raises:
        InputError: The policy has a memory of its own.
    """
    if not policy.memoryless:
        raise InputError(
            f"policy {policy.name}: expected a policy without a memory of its own, whose probabilities depend on the "
            "prompt and the state only, such as softmax or random"
        )
