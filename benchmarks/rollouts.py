"""Measure the collector's overhead, and its speedup over a lockstep loop.

    python benchmarks/rollouts.py                # all parts, some minutes
    python benchmarks/rollouts.py --only tail    # one part: overhead, tail

overhead   CPU time per step outside policy and environment, with and without writing
tail       collector and lockstep loop with the same log-normal response times
"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from record import add_keep, store
from rich.console import Console
from rich.table import Table

from hgpo_datasets import StepWriter
from hgpo_envs.hashing import text_hash
from hgpo_train.policies.base import AsyncPolicy, BatchPolicy, Reply, Request
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout import collector, slots
from hgpo_train.rollout.env_handle import EnvHandle, open_env
from hgpo_train.rollout.group_plan import plan_groups
from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec, collect_groups

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ALFWORLD, WEBSHOP = "HGPO/ALFWorld-v0", "HGPO/WebShop-v0"
CONSOLE = Console()


def handle(env_id: str = ALFWORLD, **options: Any) -> EnvHandle:
    return open_env(env_id, action_format="response", **options)


def policy_for(here: EnvHandle, spec: str) -> BatchPolicy:
    made = make_policy(spec, PolicyContext(here.shared.source.name, "response"))
    assert isinstance(made, BatchPolicy)
    return made


class Nowhere:
    """A writer that discards all rows."""

    committed: frozenset[Any] = frozenset()

    def add_group(self, steps: Mapping[str, Sequence[Any]]) -> None:
        """Discard columns of rows."""

    replace = add_group

    def commit(self) -> None:
        """Do nothing."""


def overhead() -> dict[str, Any]:
    """Measure CPU time: the thread's clock replaces the wall clock, so that other programs do not affect the result."""
    before = collector.perf_counter, slots.perf_counter
    collector.perf_counter = slots.perf_counter = time.thread_time
    figures: dict[str, Any] = {}
    table = Table("CPU a step, µs", "policy", "environment", "everything else", "with writing", title="Overhead")
    try:
        for env_id in (ALFWORLD, WEBSHOP):
            here = handle(env_id)
            what = RolloutSpec(tasks=60, group_size=8, seed=1)
            collect_groups(here, policy_for(here, "random"), Nowhere(), what)  # warm
            began = time.process_time()
            bare = collect_groups(here, policy_for(here, "random"), Nowhere(), what)
            bare_s = time.process_time() - began
            with tempfile.TemporaryDirectory() as folder, StepWriter(folder) as writer:
                began = time.process_time()
                full = collect_groups(here, policy_for(here, "random"), writer, what)
                full_s = time.process_time() - began
            row = {
                "policy": per_step(bare, bare.policy_s),
                "environment": per_step(bare, bare.environment_s),
                "else": per_step(bare, bare_s - bare.policy_s - bare.environment_s),
                "else_with_writing": per_step(full, full_s - full.policy_s - full.environment_s),
            }
            figures[env_id] = row
            table.add_row(env_id, *(f"{value:.1f}" for value in row.values()))
    finally:
        collector.perf_counter, slots.perf_counter = before
    CONSOLE.print(table)
    return figures


def per_step(tally: collector.Tally, seconds: float) -> float:
    return round(seconds / tally.steps * 1e6, 2)


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


def tail(count: int = 128, mean_s: float = 0.25) -> dict[str, Any]:
    """Compare the collector with a lockstep loop for the same rollouts and response times.

    In the lockstep loop, a batch of `count` rollouts is reset together, each step waits for the last response, and the
    batch ends with its last rollout. Its time includes only the waiting, which is calculated.
    """
    here = handle(max_steps=20)
    figures: dict[str, Any] = {}
    table = Table(
        "sigma", "steps", "collector s", "lockstep s", "ratio", "idle", "idle until the last begin", title="Tail"
    )
    tasks = 1_440  # some minutes, like an iteration of training, so that the wait for the last rollouts is a small part
    for sigma in (0.6, 1.0):
        what = RolloutSpec(tasks=tasks, group_size=8, seed=1)
        thinking = Thinking(policy_for(here, "mixture:expert=0.8,random=0.2"), count, mean_s, sigma)
        lengths: dict[str, int] = {}
        began = time.perf_counter()
        last_begin = [0.0, 0.0]

        def note(
            tally: collector.Tally,
            thinking: Thinking = thinking,
            last_begin: list[float] = last_begin,
            rollouts: int = what.tasks * what.group_size,
        ) -> None:
            if rollouts - tally.trajectories >= count:
                last_begin[:] = [tally.seconds, thinking.busy_s]

        tally = collect_groups(here, thinking, Lengths(lengths), what, ExecutionOptions(slots=count), progress=note)
        seconds = time.perf_counter() - began
        thinking.close()
        waited = lockstep_s(lengths, thinking, count, what)
        idle = 1 - thinking.busy_s / (count * seconds)
        full = 1 - min(1.0, last_begin[1] / (count * last_begin[0]))
        figures[str(sigma)] = {
            "steps": tally.steps,
            "collector_s": round(seconds, 2),
            "lockstep_s": round(waited, 2),
            "ratio": round(waited / seconds, 2),
            "idle_share": round(idle, 4),
            "idle_share_until_the_last_begin": round(full, 4),
        }
        row = figures[str(sigma)]
        table.add_row(str(sigma), *(str(value) for value in row.values()))
    CONSOLE.print(table)
    return figures


class Lengths(Nowhere):
    """A writer that stores only the number of steps of each rollout."""

    def __init__(self, lengths: dict[str, int]) -> None:
        self._lengths = lengths

    def add_group(self, steps: Mapping[str, Sequence[Any]]) -> None:
        """Count steps."""
        for trajectory, step in zip(steps["trajectory"], steps["step"], strict=True):
            self._lengths[trajectory] = max(self._lengths.get(trajectory, 0), step + 1)


def lockstep_s(lengths: dict[str, int], thinking: Thinking, count: int, what: RolloutSpec) -> float:
    """Return the time of a lockstep loop over the same rollouts: at every step of a batch, the slowest response."""
    seeds = {}
    groups = plan_groups(handle(max_steps=20).tasks, order=what.order, seed=what.seed, group_size=what.group_size)
    for group in islice(groups, what.tasks):
        for member in range(group.size):
            seeds[group.trajectory(member)] = group.seed(what.seed, member)
    names = sorted(lengths)
    waited = 0.0
    for first in range(0, len(names), count):
        batch = names[first : first + count]
        for step in range(max(lengths[name] for name in batch)):
            playing = [name for name in batch if lengths[name] > step]
            waited += max(thinking.seconds(text_hash(f"{seeds[name]}/{step}") % (1 << 63)) for name in playing)
    return waited


PARTS = {"overhead": overhead, "tail": tail}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append")
    add_keep(parser)
    given = parser.parse_args()
    for part in given.only or PARTS:
        CONSOLE.print(store(f"rollouts_{part}", PARTS[part](), keep=given.keep) + "\n")


if __name__ == "__main__":
    main()
