"""verl-agent's mini-batches and token weights against a slow simulation of its GPUs."""

import copy
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lazily import Lazy

from hgpo_envs.errors import InputError
from hgpo_train.training.config import Config, UpdateConfig, replace

torch = Lazy("torch")
samples_from_steps = Lazy("hgpo_train.training.update.batches:samples_from_steps")
Learner = Lazy("hgpo_train.training.update.learner:Learner")
clipped_policy_loss = Lazy("hgpo_train.training.update.losses:clipped_policy_loss")
balanced_parts = Lazy("hgpo_train.training.update.verl_agent:balanced_parts")
verl_agent_batches = Lazy("hgpo_train.training.update.verl_agent:verl_agent_batches")


lengths = st.lists(st.integers(2, 40), min_size=1, max_size=60)


@given(lengths, st.integers(1, 4))
def test_parts_contain_every_row_once_in_equal_numbers(rows, parts):
    found = balanced_parts(rows, parts)
    assert sorted(row for part in found for row in part.tolist()) == list(range(len(rows)))
    assert len(found) == parts
    assert max(map(len, found)) - min(map(len, found)) <= 1
    assert all(part.tolist() == sorted(part.tolist()) for part in found)
    sums = [sum(rows[row] for row in part) for part in found]
    assert sums == sorted(sums, reverse=True)


@given(st.lists(st.integers(1, 30), min_size=2, max_size=10).filter(lambda rows: len(rows) % 2 == 0))
def test_two_parts_differ_by_at_most_the_longest_row(rows):
    """And never by less than the best division, found by trying all."""
    first, second = (sum(rows[row] for row in part) for part in balanced_parts(rows, 2))
    half = itertools.combinations(range(len(rows)), len(rows) // 2)
    best = min(abs(sum(rows) - 2 * sum(rows[row] for row in part)) for part in half)
    assert best <= first - second <= max(rows)


def settings(size, micro, gpus):
    return UpdateConfig(
        order="verl-agent", mini_batch_size=size, verl_agent_micro_batch_size=micro, verl_agent_gpus=gpus
    )


def test_one_gpu_keeps_the_order_of_trajectories():
    rows = np.arange(10)
    batches = verl_agent_batches(rows + 5, rows + 1, settings(4, 2, 1))
    assert [batch.tolist() for batch, _ in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    # The tokens of rows 0 and 1 are 1 + 2, those of rows 2 and 3 are 3 + 4: each micro-batch counts one half.
    assert batches[0][1].tolist() == [1 / 6, 1 / 6, 1 / 14, 1 / 14]
    assert (batches[2][1] * (rows[8:] + 1)).sum() == pytest.approx(0.5)  # half a mini-batch: half the weight


@given(lengths, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_weights_match_a_simulation_of_the_gpus(rows, gpus, micro, micros):
    response = np.array(rows) - 1
    size = gpus * micro * micros
    batches = verl_agent_batches(np.array(rows), response, settings(size, micro, gpus))
    expected: list[dict[int, float]] = [{} for _ in batches]
    for part in balanced_parts(rows, gpus):
        for step, begin in enumerate(range(0, len(part), size // gpus)):
            mini = part[begin : begin + size // gpus].tolist()
            for first in range(0, len(mini), micro):
                tokens = sum(int(response[row]) for row in mini[first : first + micro])
                for row in mini[first : first + micro]:
                    expected[step][row] = 1 / tokens / (size // gpus // micro) / gpus
    for (batch, weight), weights in zip(batches, expected, strict=True):
        assert dict(zip(batch.tolist(), weight.tolist(), strict=True)) == pytest.approx(weights)


def test_the_update_takes_the_steps_of_a_slow_trainer(model, steps):
    """Two GPUs, each with one micro-batch of two rows per optimiser step; nine rows, of which one has no response."""
    config = replace(
        Config(),
        model={"compute_dtype": "float32", "gradient_checkpointing": False},
        update={
            "order": "verl-agent",
            "verl_agent_gpus": 2,
            "verl_agent_micro_batch_size": 2,
            "mini_batch_size": 4,
            "kl_weight": 0.0,
            "entropy_weight": 0.0,
        },
        optimiser={"learning_rate": 1e-2, "gradient_clip": 0.0, "epsilon": 1e-2},  # steps in proportion to the gradient
    )
    samples = samples_from_steps(steps)
    slow, start = copy.deepcopy(model), copy.deepcopy(model)
    learner = Learner(model, config)
    old = learner.logprobs(samples)
    metrics = learner.update(samples, np.random.default_rng(0))
    rows = np.flatnonzero(samples.response_length > 0)
    parts = [rows[part] for part in balanced_parts(samples.length[rows].tolist(), 2)]
    optimiser = torch.optim.AdamW(slow.parameters(), lr=1e-2, weight_decay=0.01, eps=1e-2)
    for begin in range(0, 4, 2):
        for part in parts:
            micro = part[begin : begin + 2]
            losses = []
            for row in micro:
                tokens = torch.from_numpy(samples.tokens[samples.start[row] : samples.start[row + 1]]).long()[None]
                n = int(samples.response_length[row])
                table = torch.log_softmax(slow(tokens).logits[0, -1 - n : -1], -1)
                logprob = table.gather(1, tokens[0, -n:, None])[:, 0]
                first = samples.response_start[row]
                advantage = torch.full((n,), float(samples.advantage[row]))
                losses.append(clipped_policy_loss(logprob, torch.from_numpy(old[first : first + n]), advantage).loss)
            (torch.cat(losses).mean() / 2).backward()  # one micro-batch in each mini-batch of a GPU; mean of two GPUs
        optimiser.step()
        optimiser.zero_grad()
    assert metrics["actor/optimiser_steps"] == 2
    for got, expected, before in zip(model.parameters(), slow.parameters(), start.parameters(), strict=True):
        np.testing.assert_allclose(got.detach(), expected.detach(), atol=2e-5)
        assert (got - before).abs().max() > 1e-3


def test_settings_that_do_not_go_together_are_reported():
    def update(**changes):
        return replace(Config(), update={"order": "verl-agent", **changes})

    assert update().update.verl_agent_gpus == 2
    with pytest.raises(InputError, match=r"mini_batch_size: expected a multiple of .* = 32 .*, received 100"):
        update(mini_batch_size=100)
    with pytest.raises(InputError, match=r'aggregation: expected "token_mean" with order = "verl-agent"'):
        update(aggregation="sequence_mean")
