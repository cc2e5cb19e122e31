"""Policies without a model: ``random``, ``outdated``, ``forgetful``, a benchmark's players, and mixtures."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from hgpo_envs.environment_spec import make_player, spec_named
from hgpo_envs.errors import InputError
from hgpo_envs.hashing import text_hash
from hgpo_envs.tools import random_call
from hgpo_train.policies.base import Answer, BatchPolicy, Failure, Reply, Request
from hgpo_train.policies.registry import (
    PolicyContext,
    PolicySpec,
    check_admissible_actions,
    make_policy,
    refuse_settings,
)
from hgpo_train.settings import read_value, split_assignment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hgpo_envs.engine import Player
    from hgpo_envs.environment_spec import EnvironmentSpec

OPEN_QUERY: Final = "<your query>"
"""The part of an admissible action that stands for any text."""
MOST_WORDS: Final = 3
"""The largest number of words of a query."""

MISTAKE: Final = 0.2
"""The probability of a mistake of ``forgetful``."""
STALE: Final = 0.02
"""The probability of its actions that were admissible one step before, and may not be any more."""
LOST: Final = 0.06
"""The probability with which it loses track of the task, at each step."""
HABITS: Final = 2
"""The number of mistakes that it makes in a state."""
IDLE: Final = ("look", "inventory", "examine", "help")
"""Actions that change nothing, which are no mistakes of it."""
SLOTS: Final = 32
"""The number of concurrent environments by default. A batch saves these policies nothing, and with more environments
what a step needs is no longer in the processor's caches."""

_WORD: Final = re.compile(r"[^\W_]+")


class ActionPolicy(BatchPolicy):
    """A policy that chooses an action for each request, and writes it in the form that a run expects.

    Args:
        action_format: The format of the action: ``command``, ``response`` or ``number``.
        benchmark: The benchmark's name, whose form responses have.
    """

    reproducible = True
    slots = SLOTS

    def __init__(self, action_format: str, benchmark: str = "") -> None:
        super().__init__()
        self._action_format = action_format
        self._spec = spec_named(benchmark) if benchmark else None

    @abstractmethod
    def choose(self, request: Request) -> str | Failure:
        """Return the action."""

    def respond(self, requests: Sequence[Request]) -> Sequence[Reply | Failure]:
        """See `Policy`."""
        form = self._action_format
        replies: list[Reply | Failure] = []
        for request in requests:
            action = self.choose(request)
            if isinstance(action, Failure):
                replies.append(action)
                continue
            text = format_action(action, form, request.state.actions, self._spec)
            replies.append(Reply(text))
        return replies


class RandomPolicy(ActionPolicy):
    """A policy that draws uniformly from the admissible actions, by the request's seed.

    An open search query is filled with one to three words of the instruction. Where the state lists no actions and
    there are tools, it calls one with random arguments.
    """

    name = "random"
    _drawn = "action"  # what is drawn, of which each draw has its own random numbers

    def choose(self, request: Request) -> str | Failure:
        """See `ActionPolicy`."""
        actions = request.state.actions
        if request.tools and not actions:
            return random_call(
                request.tools, request.rng, instruction_words(request.task.instruction)
            )
        if not actions:
            message = f"{self.name} draws from the admissible actions, and the state lists none"
            return Failure("PolicyFailed", message)
        action = actions[_seeded_choice(request.seed, self._drawn, len(actions))]
        if OPEN_QUERY not in action:
            return action
        words = instruction_words(request.task.instruction)
        count = 1 + _seeded_choice(request.seed, "words", MOST_WORDS)
        chosen = [
            words[_seeded_choice(request.seed, f"word {number}", len(words))]
            for number in range(count)
        ]
        return action.replace(OPEN_QUERY, " ".join(chosen))


class OutdatedActionPolicy(RandomPolicy):
    """A policy that draws from the actions that were admissible earlier in the episode and no longer are.

    If there is none, as at the first step, it draws any admissible action. This is a usual mistake of small models. In
    demonstrations (``mixture:explorer=0.85,outdated=0.15``) it leads to the states that follow a mistake, so a model
    that imitates the player's steps learns to recover from them (noise injection, DART, arXiv 1703.09327).
    """

    name = "outdated"
    _drawn = "stale action"

    def __init__(self, action_format: str, benchmark: str = "") -> None:
        super().__init__(action_format, benchmark)
        self._seen: dict[int, dict[str, None]] = {}

    def choose(self, request: Request) -> str | Failure:
        """See `ActionPolicy`."""
        if request.is_first:
            self._seen[request.slot] = {}
        seen = self._seen[request.slot]
        now = request.state.actions
        outdated = [action for action in seen if action not in now]
        seen.update(dict.fromkeys(now))
        state = replace(request.state, actions=outdated or now)
        return super().choose(replace(request, state=state))


class ScriptedPolicy(ActionPolicy):
    """A scripted player, one instance per trajectory.

    A player's `reset` is called with the first state that it acts in: the task's initial state, or in a branch
    (`hgpo branch`) the state at which the branch begins, in the middle of an episode.

    Args:
        name: The player's name.
        make: Creates the player of a trajectory.
        action_format: As of `ActionPolicy`.
        benchmark: Likewise.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Player],
        action_format: str,
        benchmark: str = "",
    ) -> None:
        super().__init__(action_format, benchmark)
        self.name = name
        self._make = make
        self._players: dict[int, Player] = {}  # by slot

    def choose(self, request: Request) -> str | Failure:
        """See `ActionPolicy`."""
        try:
            if request.is_first:
                self._players.pop(request.slot, None)
                player = self._make()
                player.reset(request.task, request.state, request.engine)
                self._players[request.slot] = player
            # in a mixture, it is asked again at later steps
            if request.slot not in self._players:
                return Failure("PolicyFailed", f"{self.name} could not start the task")
            return self._players[request.slot].act(request.state)
        except Exception as error:  # noqa: BLE001 - a player that raises aborts only its trajectory
            return Failure.of("PolicyFailed", error)


class ForgetfulPolicy(ActionPolicy):
    """A benchmark's explorer with the weaknesses of small models, which wins about half of ALFWorld's games.

    It makes mistakes, of which most can be undone; and at some step of many rollouts it loses track of the task, and
    makes nothing but mistakes. Both follow habits, which depend on the task and the state alone, so that rollouts of a
    task share states and histories, as those of a trained model do. Whether it has lost track is seen in the history
    and not in the state.

    Args:
        explorer: The explorer, which sees every state, so that it can continue after a mistake.
        action_format: As of `ActionPolicy`.
        benchmark: Likewise.
    """

    name = "forgetful"

    def __init__(
        self, explorer: ActionPolicy, action_format: str, benchmark: str
    ) -> None:
        super().__init__(action_format, benchmark)
        self._explorer = explorer
        self._lost: set[int] = set()  # the slots of rollouts that have lost track
        # by slot: what was admissible one step before
        self._before: dict[int, list[str]] = {}

    def choose(self, request: Request) -> str | Failure:
        """See `ActionPolicy`."""
        best = self._explorer.choose(request)
        slot = request.slot
        draw = request.rng
        if request.is_first:
            self._lost.discard(slot)
            self._before[slot] = []
        if draw.random() < LOST:
            self._lost.add(slot)
        now = [each for each in request.admissible_actions if OPEN_QUERY not in each]
        stale = [action for action in self._before[slot] if action not in now]
        self._before[slot] = now
        if stale and draw.random() < STALE:
            return draw.choice(stale)
        if slot not in self._lost and draw.random() >= MISTAKE:
            return best
        # the mistakes in a state are always the same of a task
        actions = [action for action in now if not action.startswith(IDLE)]
        if not actions:
            return best
        order = {
            action: text_hash(f"{request.task.id} {request.state.text} {action}")
            for action in actions
        }
        habits = sorted(actions, key=order.__getitem__)[:HABITS]
        return draw.choice(habits)


class MixturePolicy(BatchPolicy):
    """A mixture of policies. Every policy receives every request; the request's seed draws whose reply is used.

    Args:
        parts: Policies with their weights, which are normalized to a sum of 1.
    """

    def __init__(self, parts: Sequence[tuple[BatchPolicy, float]]) -> None:
        super().__init__()
        total = sum(weight for _, weight in parts)
        self._parts = [(policy, weight / total) for policy, weight in parts]
        self.name = "mixture:" + ",".join(
            f"{policy.name}={weight:g}" for policy, weight in self._parts
        )
        self.reproducible = all(policy.reproducible for policy, _ in parts)
        self.slots = SLOTS if all(policy.slots for policy, _ in parts) else None
        self.raise_errors = any(policy.raise_errors for policy, _ in parts)

    def respond(self, requests: Sequence[Request]) -> Sequence[Answer]:
        """See `Policy`."""
        # Every part sees every request: a player follows the episode also where another part acts.
        answers = [policy._answer(requests) for policy, _ in self._parts]  # noqa: SLF001 - a part that fails is one part
        drawn = [self._drawn(request.seed) for request in requests]
        return [answers[part][number] for number, part in enumerate(drawn)]

    def close(self) -> None:
        """See `Policy`."""
        for policy, _ in self._parts:
            policy.close()

    def _drawn(self, seed: int) -> int:
        left = (text_hash(f"{seed}/part") % (1 << 64)) / (1 << 64)
        for number, (_, weight) in enumerate(self._parts):
            left -= weight
            if left < 0:
                return number
        return len(self._parts) - 1


def parse_weights(text: str) -> Mapping[str, float]:
    """Parse ``expert=0.7,random=0.3``.

    Raises:
        InputError: The text has another form, or a weight is not positive.

    >>> parse_weights("expert=3,random=1")
    {'expert': 3.0, 'random': 1.0}
    """
    form = "name=weight,name=weight with different names and positive weights"
    parts = [split_assignment(part, "policy mixture", form) for part in text.split(",")]
    weights = {}
    for name, text_of_weight in parts:
        weight = read_value(text_of_weight, float)
        if (
            name in weights
            or type(weight) not in (int, float)
            or not 0 < weight < math.inf
        ):
            raise InputError(f"policy mixture: expected {form}, received {text!r}")
        weights[name] = float(weight)
    return weights


def format_action(
    action: str,
    action_format: str,
    admissible: Sequence[str],
    spec: EnvironmentSpec | None = None,
) -> str:
    """Format an action as a policy would: as a response with empty thoughts, as its number, or unchanged.

    The form of a response is the benchmark's (`EnvironmentSpec.respond`).

    Args:
        action: The action.
        action_format: ``command``, ``response`` or ``number``.
        admissible: The admissible actions, which are numbered from 1. An action that is not among them is unchanged.
        spec: The benchmark, whose form responses have; without one, the action is in ``<action>`` tags.

    >>> format_action("look", "response", ["go", "look"])
    '<think></think><action>look</action>'
    >>> format_action("look", "number", ["go", "look"])
    '2'
    >>> format_action("search[shoes]", "number", ["search[<your query>]"])
    'search[shoes]'
    """
    if action_format == "response":
        return (
            f"<think></think><action>{action}</action>"
            if spec is None
            else spec.respond(action)
        )
    if action_format == "number" and action in admissible:
        return str(admissible.index(action) + 1)
    return action


def instruction_words(instruction: str) -> list[str]:
    """Return the words that queries consist of."""
    return _WORD.findall(instruction) or [""]


def _seeded_choice(seed: int, purpose: str, choices: int) -> int:
    """Return an integer in [0, choices) for a seed and a purpose: the text hash of ``"<seed>/<purpose>"``, scaled."""
    return ((text_hash(f"{seed}/{purpose}") % (1 << 64)) * choices) >> 64


def _make_drawing(
    policy: type[RandomPolicy], argument: str, context: PolicyContext
) -> RandomPolicy:
    """Create a policy that draws from admissible actions."""
    refuse_settings(policy.name, argument, context)
    check_admissible_actions(policy.name, context)
    return policy(context.action_format, context.benchmark)


def _make_player(name: str, argument: str, context: PolicyContext) -> ScriptedPolicy:
    """Create the policy of a benchmark's player of this name."""
    refuse_settings(name, argument, context)
    make = partial(make_player, name, context.benchmark)
    make()  # raises for an unknown player before the run begins
    return ScriptedPolicy(name, make, context.action_format, context.benchmark)


def _make_forgetful(argument: str, context: PolicyContext) -> ForgetfulPolicy:
    """Create the policy of the benchmark's explorer with mistakes."""
    refuse_settings(ForgetfulPolicy.name, argument, context)
    check_admissible_actions(ForgetfulPolicy.name, context)
    explorer = _make_player("explorer", "", context)
    return ForgetfulPolicy(explorer, context.action_format, context.benchmark)


def _make_mixture(argument: str, context: PolicyContext) -> MixturePolicy:
    """Create the policy `mixture:NAME=WEIGHT,NAME=WEIGHT`."""
    parts = []
    for name, weight in parse_weights(argument).items():
        policy = make_policy(name, context)
        if not isinstance(policy, BatchPolicy):
            raise InputError(
                f"policy mixture: expected policies that run in this process, received {argument!r}"
            )
        parts.append((policy, weight))
    return MixturePolicy(parts)


RANDOM = PolicySpec(partial(_make_drawing, RandomPolicy))
OUTDATED = PolicySpec(partial(_make_drawing, OutdatedActionPolicy))
EXPERT = PolicySpec(partial(_make_player, "expert"))
EXPLORER = PolicySpec(partial(_make_player, "explorer"))
FORGETFUL = PolicySpec(_make_forgetful)
MIXTURE = PolicySpec(_make_mixture)
