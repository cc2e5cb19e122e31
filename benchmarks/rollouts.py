"""Measure what the collector adds to environment and policy, and its speedup over a lockstep loop.

    python -m benchmarks rollouts                 all parts, some minutes
    python -m benchmarks rollouts --only steps    one part: steps, workers, memory, tail

Every part has a ratio with a reference that is measured in the same run, in turns with what it is compared with.

steps      CPU time a step of a collection with 256 slots, beside environment and policy alone
workers    time a step with two worker processes, beside two environments in this process
memory     peak memory of a collection of 102,000 steps, in a process of its own
tail       collector and lockstep loop with the same log-normal response times
"""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections import Counter
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.runner import Part, Row, in_new_process, least, memory_mb
from hgpo_datasets import StepWriter
from hgpo_envs.episode import Episode
from hgpo_envs.hashing import text_hash
from hgpo_train.policies.base import AsyncPolicy, BatchPolicy, Reply, Request
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout import collect
from hgpo_train.rollout.env_handle import EnvHandle, open_env
from hgpo_train.rollout.plan import ExecutionOptions, RolloutSpec, plan_groups
from hgpo_train.rollout.run import collect_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hgpo_train.rollout.tally import Tally

ALFWORLD = "HGPO/ALFWorld-v0"


def policy_for(env: EnvHandle, name: str = "random") -> BatchPolicy:
    policy = make_policy(name, PolicyContext(env.shared.source.name, "response"))
    assert isinstance(policy, BatchPolicy)
    return policy


class Nowhere:
    """A writer that discards all rows, and keeps the number of steps of each trajectory."""

    committed: frozenset[Any] = frozenset()

    def __init__(self) -> None:
        self.lengths: Counter[str] = Counter()

    def add_group(
        self,
        rows: Mapping[str, Sequence[Any]],
        *,
        checked: bool = False,  # noqa: ARG002
    ) -> None:
        """Count steps."""
        self.lengths.update(rows["trajectory"])

    def commit(self) -> None:
        """Do nothing."""


def alone(env: EnvHandle, steps: int = 8_000, count: int = 256) -> float:
    """Return the CPU time of a step of environments and the random policy without collector and table."""
    policy = policy_for(env)
    tasks = cycle(env.tasks[:40])
    episodes = [Episode(env.shared, env.settings) for _ in range(count)]
    for episode in episodes:
        episode.start(next(tasks))
    began = time.process_time()
    for turn in range(steps // count):
        requests = [
            Request(
                slot,
                episode.prompt(),
                turn * count + slot,
                slot,
                episode.steps_taken,
                episode.task,
                episode.state,
                None,
                episode.prompt,
            )
            for slot, episode in enumerate(episodes)
        ]
        for episode, reply in zip(episodes, policy.respond(requests), strict=True):
            assert isinstance(reply, Reply)
            episode.act(reply.response)
            if episode.done:
                episode.start(next(tasks))
    return (time.process_time() - began) / (steps // count * count)


def collected(
    env: EnvHandle,
    writer: StepWriter | Nowhere,
    clock: Callable[[], float],
    **options: Any,
) -> float:
    """Return the time of a step of a collection, from its 200th step on: processes have started by then."""
    first: list[tuple[float, int]] = []

    def note(tally: Tally) -> None:
        if tally.steps > 200 and not first:
            first.append((clock(), tally.steps))

    tally = collect_groups(
        env,
        policy_for(env),
        writer,  # type: ignore[arg-type]
        RolloutSpec(tasks=40, group_size=8, seed=1),
        ExecutionOptions(**{"slots": 256, **options}),
        progress=note,
    )
    began, steps = first[0]
    return (clock() - began) / (tally.steps - steps)


def written(env: EnvHandle, clock: Callable[[], float], **options: Any) -> float:
    with tempfile.TemporaryDirectory() as folder, StepWriter(folder) as writer:
        return collected(env, writer, clock, **options)


def steps() -> Iterator[Row]:
    for name in ("ALFWorld", "WebShop"):
        env = open_env(f"HGPO/{name}-v0", action_format="response")
        measures: dict[str, Callable[[], float]] = {
            "alone": partial(alone, env),
            "collected": partial(collected, env, Nowhere(), time.process_time),
            "collected and written": partial(written, env, time.process_time),
        }
        found = least(6, measures)
        floor = ("environment and policy alone", found.pop("alone"))
        for what, value in found.items():
            shown = (name, what) == ("ALFWorld", "collected and written")
            yield Row(
                f"Rollouts: {name}, random policy, 256 slots, a step {what}",
                value,
                "s",
                floor=floor,
                shown="readme" * shown,
            )


def workers() -> Iterator[Row]:
    env = open_env(ALFWORLD, action_format="response")
    measure = partial(written, env, time.perf_counter, slots=2)
    found = least(2, {"here": measure, "apart": partial(measure, workers=True)})
    yield Row(
        "Rollouts: the same with two worker processes, wall time",
        found["apart"],
        "s",
        floor=("in this process", found["here"]),
        shown="page",
    )


def collect_many(folder: str) -> tuple[int, float]:
    run = collect(
        ALFWORLD,
        "random",
        folder,
        tasks=256,
        group_size=8,
        seed=1,
        progress=False,
    )
    return run.tally.steps, memory_mb("VmHWM")


def memory() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        count, peak = in_new_process(collect_many, f"{folder}/run")
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.parquet"))
    note = f"table of {size / 1e6:.0f} MB"
    yield Row(
        f"Rollouts: peak memory of {count:,} steps",
        peak,
        "MB",
        note=note,
        shown="page",
    )


class Thinking(AsyncPolicy):
    """A scripted policy that simulates a server of `concurrency` with log-normal response times by request seed."""

    name = "thinking"
    reproducible = True

    def __init__(
        self, player: BatchPolicy, concurrency: int, mean_s: float, sigma: float
    ) -> None:
        super().__init__(concurrency)
        self._player = player
        self._mean_s = mean_s
        self._sigma = sigma
        self.busy_s = 0.0

    async def reply(self, request: Request) -> Reply:
        began = time.perf_counter()
        await asyncio.sleep(self.seconds(request.seed))
        answer = self._player.respond([request])[0]
        self.busy_s += time.perf_counter() - began
        assert isinstance(answer, Reply)
        return answer

    def seconds(self, seed: int) -> float:
        """Draw a log-normal time with the given mean, by the Box-Muller transform of two hashes of the seed."""
        u, v = (
            ((text_hash(f"{seed}/{name}") % (1 << 64)) + 0.5) / (1 << 64)
            for name in ("u", "v")
        )
        normal = math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)
        return self._mean_s * math.exp(self._sigma * normal - self._sigma**2 / 2)


def tail(count: int = 128, mean_s: float = 0.25) -> Iterator[Row]:
    """Compare the collector with a lockstep loop for the same rollouts and response times.

    In the lockstep loop, a batch of `count` rollouts is reset together, each step waits for the last response, and the
    batch ends with its last rollout. Its time includes only the waiting, which is calculated.
    """
    env = open_env(ALFWORLD, action_format="response", max_steps=20)
    # some minutes, so that the last rollouts are a small part
    spec = RolloutSpec(tasks=1_440, group_size=8, seed=1)
    for sigma in (0.6, 1.0):
        thinking = Thinking(
            policy_for(env, "mixture:expert=0.8,random=0.2"),
            count,
            mean_s,
            sigma,
        )
        writer = Nowhere()
        began = time.perf_counter()
        collect_groups(env, thinking, writer, spec, ExecutionOptions(slots=count))  # type: ignore[arg-type]
        seconds = time.perf_counter() - began
        thinking.close()
        lockstep = lockstep_s(env, writer.lengths, thinking, count, spec)
        yield Row(
            f"Rollouts: {count} environments, log-normal response times (σ = {sigma})",
            seconds,
            "s",
            rival=("lockstep loop", lockstep),
            note=f"idle {1 - thinking.busy_s / (count * seconds):.1%}",
            shown="readme" if sigma == 0.6 else "",
        )


def lockstep_s(
    env: EnvHandle,
    lengths: Mapping[str, int],
    thinking: Thinking,
    count: int,
    spec: RolloutSpec,
) -> float:
    """Return the time of a lockstep loop over the same rollouts: at every step of a batch, the slowest response."""
    seeds = {}
    for group in islice(plan_groups(env.tasks, spec), spec.tasks):
        for member in range(group.size):
            seeds[group.trajectory(member)] = group.seed(spec.seed, member)
    names = sorted(lengths)
    waited = 0.0
    for first in range(0, len(names), count):
        batch = names[first : first + count]
        for step in range(max(lengths[name] for name in batch)):
            waited += max(
                thinking.seconds(text_hash(f"{seeds[name]}/{step}") % (1 << 63))
                for name in batch
                if lengths[name] > step
            )
    return waited


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "steps": steps,
    "workers": workers,
    "memory": memory,
    "tail": tail,
}


def run(only: tuple[str, ...] = tuple(PARTS)) -> Iterator[Part]:
    """Measure parts; each is a result."""
    for part in only:
        yield Part(list(PARTS[part]()), suffix=f"_{part}")
