"""Measure what the collector adds to environment and policy, and its speedup over a lockstep loop.

    python benchmarks/rollouts.py                 # all parts, some minutes
    python benchmarks/rollouts.py --only steps    # one part: steps, workers, memory, start, tail

Every part prints a ratio with a reference that is measured in the same run, in turns with what it is compared with.

steps      CPU time a step of a collection with 256 slots, beside environment and policy alone
workers    time a step with two worker processes, beside two environments in this process
memory     peak memory of a collection of 102,000 steps, in a process of its own
start      CPU time of `hgpo rollout` until its first step, beside importing gymnasium and polars
tail       collector and lockstep loop with the same log-normal response times
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from record import in_new_process, in_turns, make_parser, memory_mb, store
from rich.console import Console

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
    from collections.abc import Callable, Mapping, Sequence

    from hgpo_train.rollout.tally import Tally

ALFWORLD, WEBSHOP = "HGPO/ALFWorld-v0", "HGPO/WebShop-v0"


def handle(env_id: str = ALFWORLD, **options: Any) -> EnvHandle:
    return open_env(env_id, action_format="response", **options)


def policy_for(env: EnvHandle, name: str = "random") -> BatchPolicy:
    policy = make_policy(name, PolicyContext(env.shared.source.name, "response"))
    assert isinstance(policy, BatchPolicy)
    return policy


def compared(values: Mapping[str, Sequence[float]], reference: str, unit: str) -> dict[str, Any]:
    """Return minimum and median of each measure, and the ratio of the minima to the reference's."""
    least = min(values[reference])
    return {
        name: {
            f"min_{unit}": round(min(measured), 3),
            f"median_{unit}": round(statistics.median(measured), 3),
            "ratio": round(min(measured) / least, 2),
        }
        for name, measured in values.items()
    }


class Nowhere:
    """A writer that discards all rows."""

    committed: frozenset[Any] = frozenset()

    def add_group(self, rows: Mapping[str, Sequence[Any]], *, checked: bool = False) -> None:
        """Discard rows."""

    replace = add_group

    def commit(self) -> None:
        """Do nothing."""


def alone(env: EnvHandle, steps: int = 8_000, count: int = 256) -> float:
    """Return the CPU time a step, in µs, of environments and the random policy without collector and table."""
    policy, tasks = policy_for(env), cycle(env.tasks[:40])
    episodes = [Episode(env.shared, env.settings) for _ in range(count)]
    for episode in episodes:
        episode.start(next(tasks))
    began = time.process_time()
    for turn in range(steps // count):
        requests = [
            Request(slot, episode.prompt(), turn * count + slot, slot, episode.steps_taken, episode.task, episode.state,
                    None, episode.prompt)
            for slot, episode in enumerate(episodes)
        ]  # fmt: skip
        for episode, reply in zip(episodes, policy.respond(requests), strict=True):
            assert isinstance(reply, Reply)
            episode.act(reply.response)
            if episode.done:
                episode.start(next(tasks))
    return (time.process_time() - began) / (steps // count * count) * 1e6


def collected(env: EnvHandle, writer: StepWriter | Nowhere, clock: Callable[[], float], **options: Any) -> float:
    """Return the time a step of a collection in µs, from its 200th step on: processes have started by then."""
    first: list[tuple[float, int]] = []

    def note(tally: Tally) -> None:
        if tally.steps > 200 and not first:
            first.append((clock(), tally.steps))

    spec = RolloutSpec(tasks=40, group_size=8, seed=1)
    tally = collect_groups(env, policy_for(env), writer, spec, ExecutionOptions(**options), progress=note)  # type: ignore[arg-type]
    began, steps = first[0]
    return (clock() - began) / (tally.steps - steps) * 1e6


def written(env: EnvHandle, clock: Callable[[], float], **options: Any) -> float:
    with tempfile.TemporaryDirectory() as folder, StepWriter(folder) as writer:
        return collected(env, writer, clock, **options)


def steps() -> dict[str, Any]:
    figures = {}
    for env_id in (ALFWORLD, WEBSHOP):
        env = handle(env_id)
        measures = {
            "environment_and_policy": partial(alone, env),
            "collected": partial(collected, env, Nowhere(), time.process_time),
            "collected_and_written": partial(written, env, time.process_time),
        }
        figures[env_id] = compared(in_turns(7, measures), "environment_and_policy", "us")
    return figures


def workers() -> dict[str, Any]:
    measure = partial(written, handle(), time.perf_counter, slots=2)
    values = in_turns(3, {"in_process": measure, "two_workers": partial(measure, workers=True)})
    return compared(values, "in_process", "us")


_START = """
import os, sys
import hgpo_train.rollout.collection
from hgpo_train.cli import main
from hgpo_train.rollout.trajectory import Trajectory

Trajectory.add_state = lambda *_: os._exit(0)  # at the end of the first step
sys.argv = ["hgpo", "rollout", "--tasks", "1", "--group-size", "1", "--out", sys.argv[1]]
main()
"""
_IMPORTS = "import gymnasium, polars"


def collect_many(folder: str) -> dict[str, Any]:
    run = collect(ALFWORLD, "random", folder, tasks=256, group_size=8, seed=1, progress=False)
    return {"steps": run.tally.steps, "peak_mb": round(memory_mb("VmHWM"))}


def memory() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        found = in_new_process(collect_many, f"{folder}/run")
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.parquet"))
    return {**found, "table_mb": round(size / 1e6)}


def start() -> dict[str, Any]:
    import resource

    # Bytecode is stored, as it is for users, so that only the first turn compiles.
    stored = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": f"{tempfile.gettempdir()}/hgpo-bytecode"}

    def cpu(program: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-c", program, f"{folder}/run"], check=True, env=os.environ | stored)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    programs = {"imports": _IMPORTS, "first_step": _START}
    return compared(in_turns(7, {name: partial(cpu, program) for name, program in programs.items()}), "imports", "s")


class Thinking(AsyncPolicy):
    """A scripted policy that simulates a server of `concurrency` with log-normal response times by request seed."""

    name, reproducible = "thinking", True

    def __init__(self, player: BatchPolicy, concurrency: int, mean_s: float, sigma: float) -> None:
        super().__init__(concurrency)
        self._player, self._mean_s, self._sigma = player, mean_s, sigma
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
        u, v = (((text_hash(f"{seed}/{name}") % (1 << 64)) + 0.5) / (1 << 64) for name in ("u", "v"))
        normal = math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)
        return self._mean_s * math.exp(self._sigma * normal - self._sigma**2 / 2)


class Lengths(Nowhere):
    """A writer that keeps the number of steps of each trajectory."""

    def __init__(self) -> None:
        self.lengths: dict[str, int] = {}

    def add_group(self, rows: Mapping[str, Sequence[Any]], *, checked: bool = False) -> None:  # noqa: ARG002
        """Count steps."""
        for trajectory, step in zip(rows["trajectory"], rows["step"], strict=True):
            self.lengths[trajectory] = max(self.lengths.get(trajectory, 0), step + 1)


def tail(count: int = 128, mean_s: float = 0.25) -> dict[str, Any]:
    """Compare the collector with a lockstep loop for the same rollouts and response times.

    In the lockstep loop, a batch of `count` rollouts is reset together, each step waits for the last response, and the
    batch ends with its last rollout. Its time includes only the waiting, which is calculated.
    """
    env = handle(max_steps=20)
    figures: dict[str, Any] = {}
    spec = RolloutSpec(tasks=1_440, group_size=8, seed=1)  # some minutes, so that the last rollouts are a small part
    for sigma in (0.6, 1.0):
        thinking = Thinking(policy_for(env, "mixture:expert=0.8,random=0.2"), count, mean_s, sigma)
        writer = Lengths()
        last_begin = [0.0, 0.0]

        def note(tally: Tally, thinking: Thinking = thinking, last_begin: list[float] = last_begin) -> None:
            if spec.tasks * spec.group_size - tally.trajectories >= count:
                last_begin[:] = [tally.seconds, thinking.busy_s]

        began = time.perf_counter()
        options = ExecutionOptions(slots=count)
        tally = collect_groups(env, thinking, writer, spec, options, progress=note)  # type: ignore[arg-type]
        seconds = time.perf_counter() - began
        thinking.close()
        waited = lockstep_s(env, writer.lengths, thinking, count, spec)
        figures[str(sigma)] = {
            "steps": tally.steps,
            "collector_s": round(seconds, 2),
            "lockstep_s": round(waited, 2),
            "ratio": round(waited / seconds, 2),
            "idle_share": round(1 - thinking.busy_s / (count * seconds), 4),
            "idle_share_until_the_last_begin": round(1 - min(1.0, last_begin[1] / (count * last_begin[0])), 4),
        }
    return figures


def lockstep_s(env: EnvHandle, lengths: Mapping[str, int], thinking: Thinking, count: int, spec: RolloutSpec) -> float:
    """Return the time of a lockstep loop over the same rollouts: at every step of a batch, the slowest response."""
    groups = plan_groups(env.tasks, spec)
    seeds = {
        group.trajectory(member): group.seed(spec.seed, member)
        for group in islice(groups, spec.tasks)
        for member in range(group.size)
    }
    names = sorted(lengths)
    waited = 0.0
    for first in range(0, len(names), count):
        batch = names[first : first + count]
        for step in range(max(lengths[name] for name in batch)):
            playing = [name for name in batch if lengths[name] > step]
            waited += max(thinking.seconds(text_hash(f"{seeds[name]}/{step}") % (1 << 63)) for name in playing)
    return waited


PARTS = {"steps": steps, "workers": workers, "memory": memory, "start": start, "tail": tail}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--only", choices=PARTS, action="append")
    given = parser.parse_args()
    for part in given.only or PARTS:
        figures = PARTS[part]()
        Console().print_json(data=figures)
        print(store(f"rollouts_{part}", figures, keep=given.keep))


if __name__ == "__main__":
    main()
