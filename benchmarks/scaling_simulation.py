"""A simulation of synchronous HGPO training on many GPUs: `benchmarks/scaling.py` runs it and prints tables.

The rollout phase is a discrete-event simulation. Every GPU has an engine with continuous batching. A trajectory is a
sequence of turns: a prompt is prefilled, a response is decoded at a pace that depends on the sequences that run beside
it, and a host process executes the action. The iteration ends with its last trajectory. All other phases are formulas:
FLOPs, bytes and rows by rates.

Nothing here was measured on a GPU. `Assumptions` contains every number with its source.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

GIB: Final = 2**30
NODE: Final = 8
"""GPUs of a machine."""


def _number(default: float, unit: str, source: str) -> Any:  # noqa: ANN401 - the type is the field's
    return field(default=default, metadata={"unit": unit, "source": source})


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Every number of the simulation. Units and sources are the fields' metadata (`described`)."""

    parameters: float = _number(7.616e9, "weights", "Qwen2.5-7B (hgpo_train/models/shapes.py); 1.5B: 1.544e9")
    layers: int = _number(28, "layers", "config.json of both models")
    cache_bytes: float = _number(57_344, "bytes a token", "keys and values of 7B, the same module; 1.5B: 28,672")
    tasks_per_gpu: float = _number(4, "tasks", "official scripts: 16 tasks on 4 GPUs for 7B, on 2 for 1.5B")
    group_size: int = _number(8, "rollouts a task", "official scripts")
    mini_batch: int = _number(256, "rows for 16 tasks", "official scripts for ALFWorld; grows with the tasks")

    prompt_tokens: float = _number(1500, "tokens", "assumed; prompts of 1,000 to 3,000 are usual with 2 past steps")
    response_tokens: float = _number(200, "tokens", "assumed; responses of 150 to 300 with thoughts")
    response_spread: float = _number(0.6, "σ of the logarithm", "assumed")
    longest_response: int = _number(512, "tokens", "official scripts")
    prefix_cached: float = _number(0.0, "share of a prompt", "assumed: the history changes in every step")

    bandwidth: float = _number(3.35e12, "bytes/s", "H100 SXM, data sheet")
    peak: float = _number(989e12, "FLOP/s", "H100 SXM, dense bfloat16, data sheet")
    memory: float = _number(79.1 * GIB, "bytes", "as torch reports it (hgpo_train/training/memory_plan.py)")
    decode_efficiency: float = _number(0.6, "share of the bandwidth", "assumed")
    prefill_mfu: float = _number(0.4, "share of the peak", "assumed")
    step_overhead_s: float = _number(0.003, "s a token", "assumed: scheduler, sampling, launches")
    engine_share: float = _number(0.6, "share of the memory", "official scripts (gpu_memory_utilization)")
    train_mfu: float = _number(0.35, "share of the peak", "assumed")
    micro_batch_tokens: int = _number(32_768, "tokens", "shipped configurations")
    wake_s: float = _number(2.0, "s an iteration", "assumed: engines sleep and wake up")

    environment_s: float = _number(20e-6, "s a step", "measured: environments.json")
    host_s: float = _number(0.0025, "s a step", "assumed: tokenising the prompt, requests; one process at a time")
    hosts_per_gpu: float = _number(1, "processes", "assumed; less than 1: a process serves several GPUs")
    request_s: float = _number(0.01, "s a step", "assumed: way through Ray and the engine's server")

    node_bandwidth: float = _number(0.7 * 450e9, "bytes/s a GPU", "NVLink 4, data sheet; 70% assumed")
    network_bandwidth: float = _number(0.7 * 50e9, "bytes/s a GPU", "400 Gbit/s InfiniBand a GPU; 70% assumed")
    hop_s: float = _number(5e-6, "s a GPU of a ring", "assumed")
    sharded_over: int = _number(0, "GPUs", "0: weights are divided among all (verl's default); 8: within a machine")

    advantages_row_s: float = _number(1.0e-6, "s a row", "measured: advantages.json, the largest table")
    advantages_s: float = _number(0.007, "s", "measured: advantages.json, the smallest table")
    table_row_s: float = _number(300e-6, "s a row", "measured in the same run: one writer, texts and tokens")
    table_row_bytes: float = _number(2000, "bytes a row", "measured in the same run")
    table_writers: float = _number(1, "processes", "one driver writes; 0: one on each machine")
    driver_token_bytes: float = _number(40, "bytes a token", "assumed: ids, masks, positions, log-probabilities")
    driver_bandwidth: float = _number(1e9, "bytes/s", "assumed: one process packs and unpacks rows")

    dollars_per_hour: float = _number(2.5, "$ a GPU-hour", "assumed: H100, rented; offers range from 2 to 4 and more")

    @property
    def row_tokens(self) -> float:
        """Tokens of a row."""
        return self.prompt_tokens + self.response_tokens


def described() -> list[tuple[str, Any, str, str]]:
    """Return the name, default, unit and source of every assumption."""
    return [(one.name, one.default, one.metadata["unit"], one.metadata["source"]) for one in fields(Assumptions)]


SMALL: Final[dict[str, Any]] = {"parameters": 1.544e9, "cache_bytes": 28_672, "tasks_per_gpu": 8}
"""The assumptions that differ for 1.5B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Continuous batching: what a decoding step of all running sequences takes, and the prefill of a prompt.

    A step takes ``fixed_s + max(weights_s + cache_s · cached tokens, sequence_s · sequences)`` seconds: reading weights
    and cache, or computing. A prefill stops the decoding of the others for ``prefill_s`` seconds a token.

    Attributes:
        fixed_s: Overhead of a step.
        weights_s: Reading all weights.
        cache_s: Reading the keys and values of one token.
        sequence_s: Computing one token of one sequence.
        prefill_s: Computing one token of a prompt.
        most: Number of sequences that run at the same time at most; further ones wait in order.
    """

    fixed_s: float
    weights_s: float = 0.0
    cache_s: float = 0.0
    sequence_s: float = 0.0
    prefill_s: float = 0.0
    most: int = 1 << 30


def roofline(a: Assumptions) -> Engine:
    """Return the engine of one GPU."""
    bandwidth, compute = a.bandwidth * a.decode_efficiency, a.peak * a.prefill_mfu
    cache = a.engine_share * a.memory - 2 * a.parameters - 3 * GIB
    return Engine(
        fixed_s=a.step_overhead_s,
        weights_s=2 * a.parameters / bandwidth,
        cache_s=a.cache_bytes / bandwidth,
        sequence_s=2 * a.parameters / compute,
        prefill_s=2 * a.parameters / compute * (1 - a.prefix_cached),
        most=max(1, int(cache / (a.cache_bytes * (a.prompt_tokens + a.longest_response)))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The processes that execute actions, in the order in which responses end.

    Attributes:
        step_s: Seconds of a process for one action.
        processes: Number of processes.
        delay_s: Further seconds until the next request is at the engine, for which no process is busy.
    """

    step_s: float = 0.0
    processes: int = 1
    delay_s: float = 0.0


def play(
    engine: Engine,
    hosts: Hosts,
    prompts: Sequence[float],
    responses: Sequence[Sequence[float]],
    starts: Sequence[float] | None = None,
) -> NDArray[np.float64]:
    """Return the time at which each trajectory of one engine ends.

    Args:
        engine: The engine.
        hosts: The processes that execute actions.
        prompts: Tokens of every prompt of a trajectory, one value per trajectory.
        responses: Tokens of each response, one sequence per trajectory.
        starts: The time of each trajectory's first request; 0 by default.
    """
    ends = np.zeros(len(responses))
    ready = [(0.0 if starts is None else float(starts[i]), i) for i in range(len(responses)) if len(responses[i])]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []  # the number of decoding steps after which a sequence ends
    waiting: deque[int] = deque()
    free = [0.0] * hosts.processes
    turn = [0] * len(responses)
    now = steps = cached = 0.0  # decoding steps so far, and tokens in the cache

    while ready or running:
        pace = engine.fixed_s + max(engine.weights_s + engine.cache_s * cached, engine.sequence_s * len(running))
        done = now + (running[0][0] - steps) * pace if running else math.inf
        admitted = -1
        if ready and ready[0][0] <= done:
            time, one = heapq.heappop(ready)
            if running and time > now:
                steps += (time - now) / pace
                cached += len(running) * (time - now) / pace
            now = max(now, time)
            if len(running) < engine.most:
                admitted = one
            else:
                waiting.append(one)
        else:
            cached += len(running) * (running[0][0] - steps)
            now, steps = done, running[0][0]
            one = heapq.heappop(running)[1]
            cached -= prompts[one] + responses[one][turn[one]]
            turn[one] += 1
            executed = max(heapq.heappop(free), now) + hosts.step_s
            heapq.heappush(free, executed)
            if turn[one] < len(responses[one]):
                heapq.heappush(ready, (executed + hosts.delay_s, one))
            else:
                ends[one] = executed
            if waiting:
                admitted = waiting.popleft()
        if admitted >= 0:
            now += engine.prefill_s * prompts[admitted]
            cached += prompts[admitted]
            heapq.heappush(running, (steps + responses[admitted][turn[admitted]], admitted))
    return ends


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration: seconds by phase, and bytes moved.

    Attributes:
        gpus: Number of GPUs.
        rollouts: Number of trajectories.
        rows: Number of steps.
        seconds: By phase. `rollout` is the mean of the engines' ends, `tail` the further wait for the last.
        moved: Bytes by way.
    """

    gpus: int
    rollouts: int
    rows: int
    seconds: dict[str, float]
    moved: dict[str, float]

    @property
    def total(self) -> float:
        """Seconds of the iteration."""
        return sum(self.seconds.values())

    @property
    def rate(self) -> float:
        """Rows per second and GPU."""
        return self.rows / self.total / self.gpus


def fits(a: Assumptions, gpus: int) -> bool:
    """Return whether weights, gradients, moments, reference and activations fit while the engines sleep."""
    return 18 * a.parameters / gpus + 12 * GIB < 0.9 * a.memory


def iterate(a: Assumptions, gpus: int, tasks: int, lengths: NDArray[np.int64], seed: int = 0) -> Iteration:
    """Simulate one iteration.

    Args:
        a: The assumptions.
        gpus: Number of GPUs, each with an engine and a part of the learner.
        tasks: Number of tasks.
        lengths: Steps of episodes, int64 of shape (tasks, group size), to draw tasks from with their groups.
        seed: Seed of the draws.
    """
    rng = np.random.default_rng([seed, gpus, tasks])
    steps = lengths[rng.integers(len(lengths), size=tasks)].ravel()
    ends = rollout_ends(a, gpus, steps, rng)
    rows = int(steps.sum())
    tokens = rows * a.row_tokens
    machines = math.ceil(gpus / NODE)
    writers = a.table_writers or machines
    driver_bytes = tokens * a.driver_token_bytes
    scored, updated, gathered = learner_seconds(a, gpus, rows, tasks)
    seconds = {
        "rollout": float(ends.mean()),
        "tail": float(ends.max() - ends.mean()),
        "scoring": scored,
        "update": updated,
        "publication": 2 * a.parameters / _bandwidth(a, gpus) + a.wake_s,
        "advantages": a.advantages_s + rows * a.advantages_row_s,
        "step table": rows * a.table_row_s / writers,
        "driver": driver_bytes / a.driver_bandwidth,
    }
    moved = {
        "learner": gathered * gpus,
        "publication": 2 * a.parameters * gpus,
        "driver": driver_bytes,
        "step table": rows * a.table_row_bytes,
    }
    return Iteration(gpus, len(steps), rows, seconds, moved)


def rollout_ends(a: Assumptions, gpus: int, steps: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the time at which each engine has played its trajectories, which are dealt out at random."""
    # A process that serves several GPUs is one for each of them that is slower.
    hosts = Hosts(
        step_s=(a.environment_s + a.host_s) / min(1.0, a.hosts_per_gpu),
        processes=max(1, int(a.hosts_per_gpu)),
        delay_s=a.request_s,
    )
    engine = roofline(a)
    mean = math.log(a.response_tokens) - a.response_spread**2 / 2
    drawn = np.exp(rng.normal(mean, a.response_spread, int(steps.sum())))
    responses = np.split(np.clip(np.ceil(drawn), 1, a.longest_response), np.cumsum(steps)[:-1])
    order = rng.permutation(len(steps))
    ends = np.zeros(gpus)
    for gpu in range(gpus):
        mine = [responses[i].tolist() for i in order[gpu::gpus]]
        if mine:
            ends[gpu] = play(engine, hosts, [a.prompt_tokens] * len(mine), mine).max()
    return ends


def learner_seconds(a: Assumptions, gpus: int, rows: int, tasks: int) -> tuple[float, float, float]:
    """Return the seconds of scoring (policy and reference) and of the update, and the bytes that a GPU receives.

    Weights are gathered for every forward and backward pass, and gradients scattered, while the GPU computes. Every
    GPU has the same number of micro-batches, and at least one row of a mini-batch.
    """
    optimiser_steps = math.ceil(rows / (a.mini_batch * max(1.0, tasks / 16)))
    rows_each = math.ceil(rows / optimiser_steps / gpus)
    micro = math.ceil(rows_each * a.row_tokens / a.micro_batch_tokens)
    pass_s = rows_each / micro * a.row_tokens * 2 * a.parameters / (a.peak * a.train_mfu)
    group = min(gpus, a.sharded_over or gpus)
    ring_s = (group - 1) * a.hop_s * (a.layers + 1)
    part = (group - 1) / group * a.parameters
    forward_s = max(pass_s, 2 * part / _bandwidth(a, group) + ring_s)
    # Forward, recomputation and backward are four passes; weights are gathered twice, gradients are in float32.
    both_s = max(4 * pass_s, 8 * part / _bandwidth(a, group) + 3 * ring_s)
    outside = gpus // group
    reduce_s = 2 * 4 * a.parameters / group / a.network_bandwidth + 2 * outside * a.hop_s if outside > 1 else 0.0
    adam_s = 28 * a.parameters / group / a.bandwidth
    scored = 2 * optimiser_steps * micro * forward_s
    updated = optimiser_steps * (micro * both_s + reduce_s + adam_s)
    return scored, updated, optimiser_steps * micro * 12 * part


def _bandwidth(a: Assumptions, gpus: int) -> float:
    return math.inf if gpus == 1 else a.node_bandwidth if gpus <= NODE else a.network_bandwidth


def losses(base: Iteration, one: Iteration) -> dict[str, float]:
    """Return the seconds of each phase beyond those of perfect scaling from a smaller number of GPUs."""
    ideal = (one.rows / base.rows) * (base.gpus / one.gpus)
    return {phase: seconds - base.seconds[phase] * ideal for phase, seconds in one.seconds.items()}
