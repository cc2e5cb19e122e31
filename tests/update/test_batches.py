"""Batches: every row once, within bounds, the right tokens predicted from the right places."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.errors import InputError
from hgpo_train.update.batches import micro_batches, mini_batches, samples_from_steps

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
def test_flat_arrays_hold_the_table(lengths):
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
def test_mini_batches_hold_every_row_once(rows, size, seed):
    batches = mini_batches(np.arange(rows), size, np.random.default_rng(seed))
    assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
    sizes = {len(batch) for batch in batches}
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    assert len(batches) == -(-rows // size)


def test_padding_is_small_for_sorted_rows():
    rng = np.random.default_rng(1)
    samples = samples_from_steps(table([(int(n), 3) for n in rng.integers(10, 400, 200)]))
    sizes = [m.input_ids.numel() for m in micro_batches(samples, np.arange(200), max_tokens=4096)]
    assert samples.start[-1] / sum(sizes) > 0.9


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (pl.lit(None).alias("prompt_token_ids"), "token ids"),
        (pl.lit(float("nan")).alias("advantage"), "row 0 has nan"),
        (pl.lit([1.0], dtype=pl.List(pl.Float32)).alias("response_logprobs"), "row 0 has 1 for 3 tokens"),
        (pl.lit([], dtype=pl.List(pl.Int32)).alias("prompt_token_ids"), "at least one token"),
    ],
)
def test_bad_tables(change, line):
    with pytest.raises(InputError, match=line):
        samples_from_steps(table([(4, 3), (2, 3)]).with_columns(change))
