"""The simulation of scaling (benchmarks/scaling_simulation.py), in cases whose result is known."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from scaling_simulation import (
    Assumptions,
    Engine,
    Hosts,
    described,
    fits,
    iterate,
    learner_seconds,
    losses,
    play,
    roofline,
)

LENGTHS = np.full((4, 8), 10)


def test_one_trajectory_takes_the_sum_of_its_parts() -> None:
    engine = Engine(fixed_s=0.5, prefill_s=0.01)
    hosts = Hosts(step_s=3.0, delay_s=0.25)
    ends = play(engine, hosts, [100], [[4, 6, 2]])
    # Three prefills of 100 tokens, 12 steps, three actions, and the way back to the engine twice.
    assert ends == pytest.approx([3 * 1.0 + 12 * 0.5 + 3 * 3.0 + 2 * 0.25])


@pytest.mark.parametrize("count", [1, 7, 40])
def test_equal_sequences_decode_in_step(count: int) -> None:
    """Reading weights and the cache limits small batches, computing large ones."""
    engine = Engine(fixed_s=1.0, weights_s=8.0, sequence_s=0.5)
    assert play(engine, Hosts(), [0] * count, [[10]] * count) == pytest.approx(
        [10 * (1 + max(8.0, 0.5 * count))] * count
    )


def test_the_cache_grows_with_every_token() -> None:
    """Two sequences of prompt p: a step reads 2 (p + tokens so far) entries, to the mean of which the pace is fixed."""
    exact = sum(2 * (1000 + token) * 1e-3 for token in range(100))
    (first, second) = play(Engine(fixed_s=0.0, cache_s=1e-3), Hosts(), [1000, 1000], [[100], [100]])
    assert first == second == pytest.approx(exact, rel=0.06)  # the pace changes at arrivals and ends only


def test_a_shorter_sequence_leaves_and_the_others_become_faster() -> None:
    engine = Engine(fixed_s=0.0, sequence_s=1.0)
    assert play(engine, Hosts(), [0, 0], [[5], [9]]) == pytest.approx([10.0, 14.0])


def test_a_prefill_stops_the_decoding_of_the_others() -> None:
    engine = Engine(fixed_s=1.0, prefill_s=0.1)
    assert play(engine, Hosts(), [0, 30], [[10], [10]], starts=[0.0, 4.0]) == pytest.approx([13.0, 17.0])


def test_sequences_beyond_the_cache_wait_in_order() -> None:
    engine = Engine(fixed_s=1.0, most=2)
    assert play(engine, Hosts(), [0] * 4, [[3], [5], [2], [1]]) == pytest.approx([3.0, 5.0, 5.0, 6.0])


def test_actions_wait_for_a_host_process() -> None:
    engine = Engine(fixed_s=1.0)
    assert sorted(play(engine, Hosts(step_s=2.0), [0] * 4, [[1]] * 4)) == pytest.approx([3.0, 5.0, 7.0, 9.0])
    assert sorted(play(engine, Hosts(step_s=2.0, processes=2), [0] * 4, [[1]] * 4)) == pytest.approx([3, 3, 5, 5])


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_random_arrivals_at_a_constant_service_wait_as_queueing_theory_says(load: float) -> None:
    """M/D/1 (Pollaczek and Khinchine): the mean wait is ρ / (2 (1 − ρ)) services."""
    count = 60_000
    starts = np.cumsum(np.random.default_rng(0).exponential(1 / load, count))
    ends = play(Engine(fixed_s=0.1, most=1), Hosts(), [0] * count, [[10]] * count, starts=list(starts))
    waits = ends - starts - 1.0
    assert waits.mean() == pytest.approx(load / (2 * (1 - load)), rel=0.05)
    # The same queue, at the hosts instead of the engine.
    ends = play(Engine(fixed_s=0.0), Hosts(step_s=1.0), [0] * count, [[1]] * count, starts=list(starts))
    assert (ends - starts - 1.0).mean() == pytest.approx(load / (2 * (1 - load)), rel=0.05)


def test_many_equal_trajectories_reach_the_throughput_of_the_busy_engine() -> None:
    """With environments that take no time, the engine always decodes all sequences: tokens · pace / sequences."""
    engine = Engine(fixed_s=0.2, sequence_s=0.1)
    ends = play(engine, Hosts(), [0] * 16, [[25] * 8] * 16)
    assert ends.max() == pytest.approx(8 * 25 * (0.2 + 1.6))


def test_decoding_alone_reads_the_weights_once_per_token() -> None:
    """7.616e9 weights of 2 bytes at 60% of 3.35e12 bytes/s, and 3 ms."""
    engine = roofline(Assumptions())
    (end,) = play(dataclasses.replace(engine, cache_s=0.0, prefill_s=0.0), Hosts(), [0], [[100]])
    assert end / 100 == pytest.approx(0.003 + 15.232e9 / 2.01e12)


def test_the_learner_computes_twelve_operations_per_weight_and_token() -> None:
    """Two scorings of 2, and 8 for forward, recomputation and backward, on one GPU, where nothing is gathered."""
    a = Assumptions(mini_batch=10**9, parameters=1e9)
    scored, updated, gathered = learner_seconds(a, 1, 1000, 16)
    rate = 989e12 * 0.35
    assert scored == pytest.approx(4 * 1e9 * 1000 * 1700 / rate)
    assert updated == pytest.approx(8 * 1e9 * 1000 * 1700 / rate + 28 * 1e9 / 3.35e12)
    assert gathered == 0


def test_every_gpu_has_a_row_of_every_mini_batch() -> None:
    """More GPUs than rows of a mini-batch do not help: the time is that of one row, or of gathering the weights."""
    a = dataclasses.replace(Assumptions(), hop_s=0.0)
    _, first, _ = learner_seconds(a, 256, 2560, 16)
    _, second, _ = learner_seconds(a, 1024, 2560, 16)
    assert second == pytest.approx(first, rel=0.01)


def test_perfectly_divided_work_has_no_loss() -> None:
    a = Assumptions(
        response_spread=0.0, wake_s=0.0, hop_s=0.0, advantages_s=0.0, table_writers=0, hosts_per_gpu=1, host_s=0.0
    )
    few, many = (iterate(a, gpus, 4 * gpus, LENGTHS) for gpus in (16, 128))
    lost = losses(few, many)
    assert lost["rollout"] == pytest.approx(0.0, abs=0.01 * many.seconds["rollout"])
    assert lost["update"] == pytest.approx(0.0, abs=0.01 * many.seconds["update"])
    assert lost["driver"] == pytest.approx(7 / 8 * many.seconds["driver"])  # one process for all machines


def test_the_same_seed_simulates_the_same_iteration() -> None:
    lengths = np.arange(32).reshape(4, 8) + 1
    first, again, other = (iterate(Assumptions(), 4, 16, lengths, seed) for seed in (0, 0, 1))
    assert first == again != other


def test_memory_decides_where_a_model_fits() -> None:
    """18 bytes a weight: 137 GB of 7B on one GPU do not fit, a quarter does; 1.5B fits on one."""
    assert [fits(Assumptions(), gpus) for gpus in (1, 2, 4)] == [False, False, True]
    assert fits(Assumptions(parameters=1.544e9), 1)


def test_every_assumption_has_a_unit_and_a_source() -> None:
    for name, _, unit, source in described():
        assert unit, name
        assert source, name
