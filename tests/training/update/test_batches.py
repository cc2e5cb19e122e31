"""Batches contain every row once, within their bounds, and predict each token from the one before it."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lazily import Lazy

from hgpo_envs.errors import InputError

micro_batches = Lazy("hgpo_train.training.update.batches:micro_batches")
mini_batches = Lazy("hgpo_train.training.update.batches:mini_batches")
row_faults = Lazy("hgpo_train.training.update.batches:row_faults")
samples_from_steps = Lazy("hgpo_train.training.update.batches:samples_from_steps")


lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 12)), min_size=1, max_size=30)


def table(lengths):
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "prompt_token_ids": [rng.integers(1, 99, p).tolist() for p, _ in lengths],
            "response_token_ids": [rng.integers(1, 99, r).tolist() for _, r in lengths],
            "response_logprobs": [rng.normal(size=r).tolist() for _, r in lengths],
        },
        schema={
            "prompt_token_ids": pl.List(pl.Int32),
            "response_token_ids": pl.List(pl.Int32),
            "response_logprobs": pl.List(pl.Float32),
        },
    )


@given(lengths, st.integers(1, 200), st.sampled_from(["padded", "packed"]))
def test_every_response_token_is_predicted_once_from_the_token_before(lengths, bound, layout):
    steps = table(lengths)
    samples = samples_from_steps(steps)
    seen = []
    for micro in micro_batches(samples, np.arange(len(samples)), max_tokens=bound, layout=layout):
        flat, positions = micro.input_ids.reshape(-1).numpy(), micro.position_ids.reshape(-1).numpy()
        assert flat.size <= bound or len(np.unique(micro.row)) == 1
        assert (flat[micro.source.numpy() + 1] == micro.target.numpy()).all()
        for row in np.unique(micro.row):
            whole = steps["prompt_token_ids"][int(row)].to_list() + steps["response_token_ids"][int(row)].to_list()
            of_row = micro.row == row
            end = int(micro.source.numpy()[of_row][-1]) + 2
            assert flat[end - len(whole) : end].tolist() == whole
            assert positions[end - len(whole) : end].tolist() == list(range(len(whole)))
            assert micro.target.numpy()[of_row].tolist() == steps["response_token_ids"][int(row)].to_list()
        seen += micro.token.tolist()
    assert sorted(seen) == list(range(sum(r for _, r in lengths)))


@given(lengths)
def test_flat_arrays_contain_the_table(lengths):
    steps = table(lengths)
    samples = samples_from_steps(steps)
    assert len(samples) == len(steps)
    for row in range(len(steps)):
        begin, middle, end = (
            samples.start[row],
            samples.start[row] + samples.prompt_length[row],
            samples.start[row + 1],
        )
        assert samples.tokens[begin:middle].tolist() == steps["prompt_token_ids"][row].to_list()
        assert samples.tokens[middle:end].tolist() == steps["response_token_ids"][row].to_list()
        values = samples.rollout_logprob[samples.response_start[row] : samples.response_start[row + 1]]
        assert values.tolist() == steps["response_logprobs"][row].to_list()


@given(st.integers(1, 500), st.integers(1, 100), st.integers(0, 2**32))
def test_mini_batches_contain_every_row_once(rows, size, seed):
    batches = mini_batches(np.arange(rows), size, np.random.default_rng(seed))
    assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
    sizes = {len(batch) for batch in batches}
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    assert len(batches) == -(-rows // size)


def listed(values, kind):
    return pl.lit(values, dtype=pl.List(kind))


INVALID = (
    (pl.lit(None).alias("prompt_token_ids"), "token ids"),
    (pl.lit(float("nan")).alias("advantage"), r"finite advantage, received NaN, row 0 \(1 more rows"),
    (pl.lit(None, pl.Float64).alias("advantage"), "finite advantage"),
    (pl.lit("1").alias("advantage"), "'advantage' to contain floats, received String"),
    (listed([1.0], pl.Float32).alias("response_logprobs"), "received 1 for 3 tokens, row 0"),
    (listed([float("nan")] * 3, pl.Float32).alias("response_logprobs"), "finite response_logprobs"),
    (listed([-1.0, None, -1.0], pl.Float32).alias("response_logprobs"), "finite response_logprobs"),
    (pl.lit(["a"] * 3).alias("response_logprobs"), "'response_logprobs' to contain lists of floats, received List"),
    (listed([], pl.Int32).alias("prompt_token_ids"), "at least one token"),
    (listed([1, None, 2], pl.Int32).alias("response_token_ids"), "token_ids, received a null"),
    (listed([1, -1], pl.Int32).alias("prompt_token_ids"), "prompt_token_ids from 0 to 98, received -1"),
    (listed([1, 99], pl.Int32).alias("prompt_token_ids"), "prompt_token_ids from 0 to 98, received 99"),
    (listed([2**31, 1, 1], pl.Int64).alias("response_token_ids"), "response_token_ids from 0 to 98"),
    (pl.lit([1.5]).alias("prompt_token_ids"), "'prompt_token_ids' to contain lists of integers, received List"),
    (pl.lit("1 2").alias("prompt_token_ids"), "'prompt_token_ids' to contain lists of integers, received String"),
)


def test_invalid_tables_are_reported():
    for change, line in INVALID:
        with pytest.raises(InputError, match=line) as caught:
            samples_from_steps(table([(4, 3), (2, 3)]).with_columns(change), vocabulary=99)
        assert "\n" not in str(caught.value)
    too_large = table([(4, 1)]).with_columns(listed([2**40], pl.Int64).alias("response_token_ids"))
    with pytest.raises(InputError, match=str(2**40)):
        samples_from_steps(too_large)


SOUND = {
    "prompt_token_ids": [1, 2],
    "response_token_ids": [3, 4],
    "response_logprobs": [-0.5, -1.5],
    "advantage": 0.5,
}  # fmt: skip
ids = st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(-3, 12), st.just(2**31)), max_size=3))
logprobs = st.one_of(st.none(), st.lists(st.one_of(st.none(), st.floats(width=32)), max_size=3))


@given(st.lists(st.tuples(ids, ids, logprobs, st.one_of(st.none(), st.floats())), max_size=6))
def test_random_rows_are_either_reported_or_trained_on(rows):
    """Rows without a fault make samples within the vocabulary; the valid row is always among them."""
    kinds = {"prompt_token_ids": pl.List(pl.Int64), "response_token_ids": pl.List(pl.Int64),
             "response_logprobs": pl.List(pl.Float32), "advantage": pl.Float64}  # fmt: skip
    steps = pl.DataFrame([SOUND, *(dict(zip(SOUND, row, strict=True)) for row in rows)], schema=kinds)
    faults = row_faults(steps, 10)
    assert faults[0] is None
    for row, fault in zip(steps.iter_rows(named=True), faults, strict=True):
        prompt, response, logs = (row[name] or [] for name in list(SOUND)[:3])
        sound = all(one is not None and 0 <= one < 10 for one in prompt + response)
        sound &= bool(prompt) or not response
        sound &= not logs or len(logs) == len(response)
        sound &= all(one is not None and math.isfinite(one) for one in logs)
        sound &= row["advantage"] is not None and abs(row["advantage"]) <= float(np.finfo(np.float32).max)
        assert (fault is None) == sound, row
    samples = samples_from_steps(steps.filter(faults.is_null()), 10)
    assert samples.tokens.min() >= 0
    assert samples.tokens.max() < 10
    assert np.isfinite(samples.advantage).all()
    assert len(samples.rollout_logprob) == samples.response_tokens
