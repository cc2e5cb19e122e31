"""The decision process of one task under one policy, expanded lazily: hidden states, contexts, nodes and edges.

A *hidden state* is a value of the engine's key. A *node* is a hidden state with everything that the policy's
distribution can depend on: the state text and the past pairs that the policy reads (and the step, if it reads prompts).
An *edge* is a response of the policy at a node. Transitions are deterministic and computed once for each hidden state
and command, distributions once for each context, and both are arrays, so that many rollouts move in one NumPy
operation (`walks.py`).

A policy with a memory of its own depends on the path. Its graph is a tree: the node before is part of a node. The
policy's memory at each node is in a slot of the policy, copied from the node before (`KnownPolicy.fork`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hgpo_envs.engine import State
from hgpo_envs.episode import Episode
from hgpo_envs.errors import InputError
from hgpo_envs.hashing import text_hashes
from hgpo_envs.memory import Pair
from hgpo_research.arrays import Numbers, grown
from hgpo_train.policies.base import Request

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from hgpo_envs.engine import Task
    from hgpo_envs.episode import Settings
    from hgpo_envs.sources import SharedSource
    from hgpo_research.arrays import Booleans, Floats, Hashes, Integers
    from hgpo_research.policies.distributions import (
        Distribution,
        KnownPolicy,
    )
    from hgpo_research.truth.rewards import Rewards

    _Node = tuple[int, int, int, tuple[int, ...], int]
    """The hidden state, the state text, the step (0 for policies that read neither prompts nor a memory of their own),
    the past pairs, oldest first, and the node before it (0 for policies without a memory of their own). Texts and pairs
    are numbered: such tuples are hashed in a fraction of a microsecond."""

UNKNOWN: Final = -1
"""The target of an edge that was not followed yet, and the first edge of a node without a distribution."""

_NO_LIMIT: Final = 1 << 60


class _Move(NamedTuple):
    """What a command does in a hidden state.

    Attributes:
        hidden: The hidden state after it.
        text: The number of the state text after it.
        valid: Whether the command is admissible.
        terminated: Whether the episode ends, by its task or by a limit of the benchmark's own.
        gains: The reward of the step if its action counts as invalid, and if it counts as valid.
        final: The further reward if this is the episode's last step.
        score: The task's score after it.
    """

    hidden: int
    text: int
    valid: bool
    terminated: bool
    gains: tuple[float, float]
    final: float
    score: float


class _Hidden(NamedTuple):
    """A hidden state.

    Attributes:
        engine: An engine in it with `fork` and `key`, which is only forked.
        state: Its first state.
        actions: The number of its admissible actions.
        moves: The moves that were tried, by command.
    """

    engine: Any
    state: State
    actions: int
    moves: dict[str, _Move]


class _Replayed:
    """The `act`, `fork` and `key` of a branching engine, by an episode that replays its commands in a new engine."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode

    def act(self, command: str) -> State:
        self._episode.observe(command, None, self._episode.engine.act(command))
        return self._episode.state

    def fork(self) -> _Replayed:
        return _Replayed(self._episode.fork())

    def key(self) -> Hashable:
        return self._episode.engine_key()


class Edges:
    """Columns of edges, which grow.

    Attributes:
        count: The number of edges.
        node: int64, the node at which the response is given.
        probability: float64, the probability of the response.
        response: uint64, the hash of the response.
        target: int64, the node that the edge leads to, or `UNKNOWN`. Without one, the following columns are 0.
        ended: bool, whether the task ends.
        gain: float64, the reward of the step.
        final: float64, the further reward if this is the episode's last step.
        score: float64, the task's score after the step.
    """

    node: Integers
    probability: Floats
    response: Hashes
    target: Integers
    ended: Booleans
    gain: Floats
    final: Floats
    score: Floats

    _KINDS: Final = {
        "node": "i8",
        "probability": "f8",
        "response": "u8",
        "target": "i8",
        "ended": "?",
        "gain": "f8",
        "final": "f8",
        "score": "f8",
    }

    def __init__(self) -> None:
        self.count = 0
        for name, kind in self._KINDS.items():
            setattr(self, name, np.zeros(1024, kind))

    def add(
        self,
        nodes: Integers,
        probabilities: Sequence[Floats],
        responses: Sequence[Hashes],
    ) -> Integers:
        """Append the edges of some nodes and return the number of each node's first one."""
        sizes = np.array([len(each) for each in probabilities], np.int64)
        start = self.count
        self.count += int(sizes.sum())
        for name in self._KINDS:
            setattr(self, name, grown(getattr(self, name), self.count))
        new = slice(start, self.count)
        self.node[new] = np.repeat(nodes, sizes)
        self.probability[new] = np.concatenate(probabilities)
        self.response[new] = np.concatenate(responses)
        self.target[new] = UNKNOWN
        first: Integers = start + np.cumsum(sizes) - sizes
        return first


class Graph:
    """The lazily expanded graph of one task.

    Args:
        shared: The task source.
        settings: The settings of episodes: prompts, parsing, step limit.
        policy: The policy. A memory of its own must be a function of the requests so far.
        rewards: The definition of rewards.
        task_id: The task.
        pairs: The least number of past pairs that nodes tell apart, if prompts show as many.

    Attributes:
        edges: The edges.
        first: For each node, its first edge, or `UNKNOWN` before `prepare`.
        size: For each node, its number of edges.
        start: The first node of all rollouts.
        task: The task.
        tree: Whether no two paths merge in a node, because the policy has a memory of its own.

    Raises:
        InputError: Prompts, or an environment's memory, depend on more of the past than nodes tell apart.
    """

    def __init__(
        self,
        shared: SharedSource,
        settings: Settings,
        policy: KnownPolicy,
        rewards: Rewards,
        task_id: str,
        pairs: int = 0,
    ) -> None:
        # What a node tells apart must be all that the policy can depend on: the last pairs, not the whole past.
        if settings.prompt_style == "chat" and (
            policy.prompt_read or not policy.memoryless
        ):
            raise InputError(
                "expected prompt_style = 'memory' for a policy that reads prompts, received 'chat'"
            )
        if settings.memory is not None and (
            policy.prompt_read or policy.history_read != 0
        ):
            raise InputError(
                "expected an environment without a memory function, whose text depends on the whole past"
            )
        self._settings = settings
        self._policy = policy
        self._rewards = rewards
        self.tree = not policy.memoryless
        self._count_steps = policy.prompt_read or self.tree
        # More pairs than the policy reads would divide nodes that have the same future.
        self._pairs_kept = settings.history_length
        if policy.history_read is not None and not policy.prompt_read:
            self._pairs_kept = min(self._pairs_kept, max(pairs, policy.history_read))

        self.edges = Edges()
        self.first = np.full(256, UNKNOWN, np.int64)
        self.size = np.zeros(256, np.int64)
        self._nodes = Numbers()
        self._responses: list[tuple[str, ...]] = []  # of each node
        self._remembered: set[int] = set()  # nodes whose requests the policy has seen

        self._hidden: list[_Hidden] = []
        self._keys = Numbers()  # of hidden states
        self._actions = Numbers()
        self._texts = Numbers()
        self._pairs = Numbers()  # of numbers of texts with commands
        self._contexts: dict[tuple[Any, ...], Distribution] = {}
        # of hidden states with texts, for requests
        self._states: dict[tuple[int, int], State] = {}
        self._hashes: dict[tuple[str, ...], Hashes] = {}
        self._parsed: dict[str, tuple[str, bool | None]] = {}

        # The reader parses responses, and its own limits never end an episode: those of the graph do.
        self._reader = Episode(
            shared, replace(settings, history_length=0, max_steps=_NO_LIMIT)
        )
        self._reader.start(task_id)
        self.task: Task = self._reader.task
        engine: Any = self._reader.fork().engine
        if not (hasattr(engine, "fork") and hasattr(engine, "key")):
            engine = _Replayed(self._reader.fork())
        hidden = self._hidden_state(engine, self._reader.state)
        self.start = self._node(
            (hidden, self._texts[self._reader.state.text], 0, (), 0)
        )

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
        text: str = self._texts.listed[self._nodes.listed[node][1]]
        return text

    def past(self, node: int) -> list[tuple[str, str]]:
        """Return the past states and actions that a node tells apart, oldest first."""
        pairs = [self._pairs.listed[pair] for pair in self._nodes.listed[node][3]]
        return [(self._texts.listed[text], command) for text, command in pairs]

    def responses(self, node: int) -> tuple[str, ...]:
        """Return the responses of a node's edges."""
        return self._responses[node]

    def probabilities(self, node: int) -> Floats:
        """Return the probabilities of a node's edges."""
        return self.edges.probability[
            self.first[node] : self.first[node] + self.size[node]
        ]

    def features(self, node: int) -> Floats:
        """Return the features of a node's responses, of shape (responses, features), of a policy that has them."""
        policy: Any = self._policy
        features: Floats = policy.features(self._request(0, node))
        return features

    def command(self, node: int, response: str) -> str:
        """Return the command that a response means at a node."""
        return self._read(node, response)[0]

    def prepare(self, nodes: Sequence[int]) -> None:
        """Ask the policy for the distributions of nodes, in one batch, and create their edges."""
        missing = {
            node: self._context(node) for node in nodes if self.first[node] == UNKNOWN
        }
        if not missing:
            return
        # Nodes of equal contexts have one distribution, which is asked for once.
        asked = {
            context: node
            for node, context in missing.items()
            if context not in self._contexts
        }
        if asked:
            requests = [
                self._request(number, node)
                for number, node in enumerate(asked.values())
            ]
            self._contexts.update(
                zip(asked, self._policy.distributions(requests), strict=True)
            )
        found = [self._contexts[context] for context in missing.values()]
        numbers = np.fromiter(missing, np.int64, len(missing))
        hashes = [self._hashes_of(each.responses) for each in found]
        self.first[numbers] = self.edges.add(
            numbers, [each.probabilities for each in found], hashes
        )
        self.size[numbers] = [len(each.responses) for each in found]
        for node, each in zip(missing, found, strict=True):
            self._responses[node] = each.responses

    def expand(self, edges: Sequence[int]) -> None:
        """Compute where some edges lead, and their rewards."""
        nodes = self.edges.node[edges]
        rows = []
        for node, edge, first in zip(
            nodes.tolist(), edges, self.first[nodes].tolist(), strict=True
        ):
            command, well_formed = self._read(node, self._responses[node][edge - first])
            target, move = self.follow(node, command)
            valid = move.valid if well_formed is None else well_formed
            rows.append(
                (target, move.terminated, move.gains[valid], move.final, move.score)
            )
        columns = (
            self.edges.target,
            self.edges.ended,
            self.edges.gain,
            self.edges.final,
            self.edges.score,
        )
        for column, values in zip(columns, zip(*rows, strict=True), strict=False):
            column[edges] = values

    def follow(self, node: int, command: str) -> tuple[int, _Move]:
        """Return the node after any command, and what the command did."""
        number, text, step, pairs, _ = self._nodes.listed[node]
        hidden = self._hidden[number]
        move = hidden.moves.get(command) or self._move(hidden, command)
        # Only the last pairs are part of a node: older ones are forgotten, and paths merge.
        if self._pairs_kept:
            pairs = (*pairs, self._pairs[text, command])[-self._pairs_kept :]
        key = (
            move.hidden,
            move.text,
            step + self._count_steps,
            pairs,
            node + 1 if self.tree else 0,
        )
        after = self._nodes.get(key)
        if after is None:
            after = self._node(key)
            # A new node of a tree gets the policy's memory after the node before it.
            if self.tree:
                self._remember(node)
                self._policy.fork(
                    2 * node + 1,
                    2 * after,
                    self._hidden[move.hidden].engine,
                )
        return after, move

    def forget(self, nodes: int, edges: int) -> None:
        """Forget the newest nodes and edges, so that a tree does not grow without a limit.

        Args:
            nodes: The number of nodes that are kept.
            edges: The number of edges that are kept. They belong to these nodes.
        """
        for node in self._nodes.listed[nodes:]:
            del self._nodes[node]
        del self._nodes.listed[nodes:], self._responses[nodes:]
        self.first[nodes:] = UNKNOWN
        self.first[self.first >= edges] = UNKNOWN
        self.edges.count = edges
        targets = self.edges.target[:edges]
        targets[targets >= nodes] = UNKNOWN
        # The context of a node in a tree is its own number.
        self._contexts = {
            context: found
            for context, found in self._contexts.items()
            if context[0] < nodes
        }
        self._remembered = {node for node in self._remembered if node < nodes}

    def _hashes_of(self, responses: tuple[str, ...]) -> Hashes:
        found = self._hashes.get(responses)
        if found is None:
            found = self._hashes[responses] = text_hashes(responses).view(np.uint64)
        return found

    def _remember(self, node: int) -> None:
        """Let the policy see a node's request. Its memory before is in the slot 2 n, and that after it in 2 n + 1."""
        if node in self._remembered:
            return
        self._remembered.add(node)
        request = self._request(0, node)
        if request.step:
            self._policy.fork(2 * node, 2 * node + 1, request.engine)
        self._policy.observe(replace(request, slot=2 * node + 1))

    def _node(self, node: _Node) -> int:
        """Add a node."""
        number = self._nodes[node]
        self._responses.append(())
        if number == len(self.first):
            self.first = grown(self.first, number + 1, UNKNOWN)
            self.size = grown(self.size, number + 1)
        return number

    def _hidden_state(self, engine: Any, state: State) -> int:  # noqa: ANN401 - a branching engine
        number = self._keys[engine.key()]
        if number == len(self._hidden):
            self._hidden.append(
                _Hidden(engine, state, self._actions[tuple(state.actions)], {})
            )
        return number

    def _move(self, hidden: _Hidden, command: str) -> _Move:
        engine = hidden.engine.fork()
        state = engine.act(command)
        move = hidden.moves[command] = _Move(
            self._hidden_state(engine, state),
            self._texts[state.text],
            state.valid is not False,
            state.terminated or state.truncated,
            (
                self._rewards.gain(state.reward, valid=False),
                self._rewards.gain(state.reward, valid=True),
            ),
            self._rewards.final(won=bool(state.won), score=state.score),
            state.score,
        )
        return move

    def _read(self, node: int, response: str) -> tuple[str, bool | None]:
        parsed = self._parsed.get(response)
        if parsed is not None:
            return parsed
        # a number means another action in each state
        if self._settings.action_format == "number":
            self._reader.begin(
                self.task, self._hidden[self._nodes.listed[node][0]].state
            )
            return self._reader.read(response)
        parsed = self._parsed[response] = self._reader.read(response)
        return parsed

    def _context(self, node: int) -> tuple[Any, ...]:
        if self.tree:
            return (node,)
        hidden, text, step, pairs, _ = self._nodes.listed[node]
        return self._hidden[hidden].actions, text, step, pairs

    def _request(self, number: int, node: int) -> Request:
        hidden, text, step, kept, _ = self._nodes.listed[node]
        # A state without rewards: the policy must not depend on how the node was reached.
        state = self._states.get((hidden, text))
        if state is None:
            now = self._hidden[hidden].state
            state = State(
                self._texts.listed[text],
                now.actions,
                won=now.won,
                score=now.score,
                info=now.info,
            )
            self._states[hidden, text] = state
        # The numbers of pairs are part of prompts, and of nodes only if these count steps.
        first = step - len(kept) + 1 if self._count_steps else 1
        pairs = tuple(
            [Pair(first + index, *pair) for index, pair in enumerate(self.past(node))]
        )
        prompt = partial(self._prompt, state, step, pairs)
        return Request(
            id=number,
            prompt=prompt() if self._policy.prompt_read else "",
            seed=0,
            slot=2 * node if self.tree else 0,
            step=step,
            task=self.task,
            state=state,
            engine=self._hidden[hidden].engine if self.tree else None,
            with_shorter_history=prompt,
            read_history=partial(tuple, pairs),
        )

    def _prompt(
        self,
        state: State,
        step: int,
        pairs: Sequence[Pair],
        length: int | None = None,
    ) -> str:
        # As `Episode.prompt`, for a policy that asks for a shorter history.
        shown = len(pairs) if length is None else min(length, len(pairs))
        return self._settings.template.render(
            task=self.task.instruction,
            observation=state.text,
            admissible_actions=state.actions,
            pairs=list(pairs[len(pairs) - shown :]),
            steps_taken=step,
            max_steps=self._settings.max_steps,
            action_format=self._settings.action_format,
        )
