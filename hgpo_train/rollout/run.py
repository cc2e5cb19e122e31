"""A whole collection: environment and policy by name, from a plan to committed shards."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import gymnasium

import hgpo_envs
from hgpo_datasets import scan_steps
from hgpo_envs.env import TextEnv
from hgpo_envs.episode import Settings, check_template, settings_for
from hgpo_envs.errors import InputError
from hgpo_envs.secrets import redact_json
from hgpo_envs.sources import SharedSource, Split, open_shared
from hgpo_train.fingerprints import of_model, of_tasks
from hgpo_train.rollout.collector import Collector, Tally
from hgpo_train.rollout.commits import Commits
from hgpo_train.rollout.groups import Groups, Key
from hgpo_train.rollout.outcomes import OF_ROWS, failed_groups, informative
from hgpo_train.rollout.plan import plan
from hgpo_train.rollout.slots import LocalSlots, Slots
from hgpo_train.rollout.workers import WorkerSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hgpo_datasets import StepWriter
    from hgpo_train.policies.base import Policy
    from hgpo_train.rollout.failures import Failed

gymnasium.register_envs(hgpo_envs)


@dataclass(frozen=True)
class World:
    """What is played: an environment id, opened.

    Attributes:
        env_id: The Gymnasium id.
        shared: The task source.
        settings: Prompts, parsing, limits.
        tasks: The split's task ids.
    """

    env_id: str
    shared: SharedSource
    settings: Settings
    tasks: Split


def open_world(env_id: str, **options: Any) -> World:
    """Opens an environment id for rollouts.

    Args:
        env_id: The id of a `hgpo_envs.env.TextEnv`, or of another package's environment whose observations and actions
            are text (`hgpo_envs.gymnasium_source`).
        options: The environment's keyword arguments.

    Raises:
        InputError: The id or an argument is unknown, the environment is not one of text, or the prompt template fails
            at the first task.
    """
    try:
        env = gymnasium.make(env_id, **options).unwrapped
    except gymnasium.error.Error as error:
        known = sorted(name for name in gymnasium.registry if name.startswith("HGPO/"))
        raise InputError(f"unknown environment {env_id!r} ({error}). Known: {', '.join(known)}") from error
    except TypeError:  # it does not know this package's arguments
        return _foreign_world(env_id, options)
    if not isinstance(env, TextEnv):
        return _foreign_world(env_id, options)
    return World(env_id, env.shared, env.episode.settings, env.tasks)


_SHELL: Final = ("history_length", "history_depth", "action_format", "max_steps", "prompt_template")


def _foreign_world(env_id: str, options: Mapping[str, Any]) -> World:
    """An environment of another package: its own arguments for it, the shell's for the shell."""
    own = {name: value for name, value in options.items() if name not in (*_SHELL, "split")}
    shell = {name: options[name] for name in _SHELL if name in options}
    shared = open_shared("hgpo_envs.gymnasium_source:GymnasiumSource", env_id=env_id, options=json.dumps(own))
    world = World(env_id, shared, settings_for(env_id, **shell), Split(shared, options.get("split", "train")))
    check_template(shared, world.settings, world.tasks[0])
    return world


@dataclass(frozen=True)
class Collection:
    """What is to be collected; the same values give the same table.

    Attributes:
        tasks: How many groups.
        group_size: G, rollouts of each task.
        seed: Seeds the order of tasks and every rollout.
        order: How tasks are ordered: a name of `hgpo_envs.sampling`.
        iteration: Training iteration, written into every row.
        skip: Tasks of the order to pass over.
        most: With dynamic sampling, the most groups to play until `tasks` of them say something; None turns it off.
        outcome: What must differ within a group for it to say something (`hgpo_train.rollout.outcomes`).
    """

    tasks: int
    group_size: int = 1
    seed: int = 0
    order: str = "shuffled"
    iteration: int = 0
    skip: int = 0
    most: int | None = None
    outcome: str = "reward"

    def __post_init__(self) -> None:
        for name, least in (("tasks", 1), ("group_size", 1), ("iteration", 0), ("skip", 0)):
            value = getattr(self, name)
            if value < least:
                raise InputError(f"{name}: expected at least {least}, got {value}")
        if self.most is not None and self.most < self.tasks:
            raise InputError(f"most: expected at least as many groups as are wanted ({self.tasks}), got {self.most}")
        if self.outcome not in OF_ROWS:
            raise InputError(f"outcome: expected one of {', '.join(OF_ROWS)}, got {self.outcome!r}")


@dataclass(frozen=True)
class Machine:
    """How the collection is run; changes how long it takes, never what it gives.

    Attributes:
        slots: Environments at once.
        workers: Run each environment in a subprocess of its own.
        worker_timeout_s: A command that takes longer ends its worker.
        policy_timeout_s: A request that the policy does not answer within this many seconds fails.
        groups_together: Groups that make a shard.
        failures_allowed: Rollouts that may fail one after the other before the run stops.
    """

    slots: int = 256
    workers: bool = False
    worker_timeout_s: float = 300.0
    policy_timeout_s: float = 3600.0
    groups_together: int = 64
    failures_allowed: int = 64

    def __post_init__(self) -> None:
        for name in ("slots", "groups_together", "failures_allowed"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("worker_timeout_s", "policy_timeout_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}: expected more than 0 seconds, got {getattr(self, name)}")


def collect(
    world: World,
    policy: Policy,
    writer: StepWriter,
    what: Collection,
    machine: Machine | None = None,
    *,
    retry_failed: bool = False,
    progress: Callable[[Tally], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
) -> Tally:
    """Collects groups into a run; groups that the run already has are not played again.

    Args:
        world: What is played.
        policy: What acts.
        writer: The run.
        what: What is to be collected.
        machine: How it is run.
        retry_failed: Play the rollouts again that the run holds as aborted. Each takes the place of the aborted one;
            the other rollouts of its group stay as they are.
        progress: Called now and then.
        stopping: Asked now and then; when it says so, whole groups are committed and the rest is left for later.

    Raises:
        RolloutError: Rollouts fail one after the other; whole groups are committed.
    """
    machine = machine or Machine()
    tally = Tally()
    done, failed = earlier(writer, None if what.most is None else what.outcome, retry_failed=retry_failed)
    groups = Groups(
        plan(
            world.tasks,
            order=what.order,
            seed=what.seed,
            group_size=what.group_size,
            iteration=what.iteration,
            skip=what.skip,
        ),
        what.tasks,
        Commits(writer, world.env_id, tally),
        most=what.most,
        outcome=what.outcome,
        together=machine.groups_together,
        done=done,
        failed=failed,
        lookahead=8 * max(machine.slots, machine.groups_together),
    )
    count = min(machine.slots, (what.most or what.tasks) * what.group_size)
    slots: Slots = (
        WorkerSlots(world.shared, count, timeout_s=machine.worker_timeout_s)
        if machine.workers
        else LocalSlots(world.shared, count)
    )
    try:
        return Collector(
            world.shared,
            world.settings,
            slots,
            policy,
            groups,
            seed=what.seed,
            failures_allowed=machine.failures_allowed,
            policy_timeout_s=machine.policy_timeout_s,
            progress=progress,
            stopping=stopping,
            tally=tally,
        ).run()
    finally:
        slots.close()


def earlier(
    writer: StepWriter, outcome: str | None, *, retry_failed: bool
) -> tuple[Mapping[Key, bool], Mapping[Key, Failed]]:
    """What a run holds already.

    Args:
        writer: The run.
        outcome: By which groups say something; None takes every group for one that does.
        retry_failed: Whether failed rollouts are to be played again.

    Returns:
        The groups that are not played again, and whether each said something; the groups with failed rollouts that are.
    """
    done: dict[Key, bool] = dict.fromkeys(writer.committed, True)
    if not done:
        return done, {}
    steps = scan_steps(writer.folder)
    if outcome is not None:
        said = informative(steps, outcome).collect()
        done = {**dict.fromkeys(done, False), **dict.fromkeys(said.rows(), True)}
    failed = failed_groups(steps, outcome) if retry_failed else {}
    return {key: says for key, says in done.items() if key not in failed}, failed


@dataclass
class Interruption:
    """Ctrl-C as a wish: the first one is noted, the second one interrupts."""

    wished: bool = field(default=False)

    def __call__(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self.wished


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Within the block, the first Ctrl-C is noted only, so that what is whole can be committed."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return

    def note(number: int, frame: object) -> None:
        del number, frame
        if interruption.wished:
            raise KeyboardInterrupt
        interruption.wished = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, before)


_LOCAL_MODELS: Final = ("transformers", "vllm")


def run_config(
    world: World, env_options: Mapping[str, Any], policy: str, policy_options: Mapping[str, Any], what: Collection
) -> dict[str, Any]:
    """What a run's rows depend on, kept with the run; `Machine` is not part of it, nor how many groups are wanted.

    Paths name data and models that may change: their fingerprints are part of it. Secrets are replaced
    (`hgpo_envs.secrets`): another password does not make another run.
    """
    kind, _, model = policy.partition(":")
    weights = {"weights": of_model(model)} if kind in _LOCAL_MODELS else {}
    config: dict[str, Any] = {
        "env": {"id": world.env_id, **env_options},
        "tasks": of_tasks(world, env_options),
        "prompt_template": world.settings.template.fingerprint,
        "policy": {"name": policy, **policy_options, **weights},
        "group_size": what.group_size,
        "seed": what.seed,
        "order": what.order,
        "dynamic": what.most is not None,
    }
    return dict(redact_json(config))
