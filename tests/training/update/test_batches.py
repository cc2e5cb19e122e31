"""Batches contain every row once, within their bounds, and predict each token from the one before it."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lazily import Lazy

from hgpo_envs.errors import InputError

micro_batches = Lazy("hgpo_train.training.update.batches:micro_batches")
mini_batches = Lazy("hgpo_train.training.update.batches:mini_batches")
check_rows = Lazy("hgpo_train.training.update.batches:check_rows")
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


@given(st.integers(1, 500), st.integers(1, 100), st.integers(0, 2**32))
def test_mini_batches_contain_every_row_once(rows, size, seed):
    batches = mini_batches(np.arange(rows), size, np.random.default_rng(seed))
    assert sorted(np.concatenate(batches).tolist()) == list(range(rows))
    sizes = {len(batch) for batch in batches}
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    assert len(batches) == -(-rows // size)


def test_rows_that_cannot_be_trained_on_are_one_line():
    """A row needs ids in the vocabulary, a prompt, and an advantage that is finite in float32."""
    row = {"prompt_token_ids": [1, 2], "response_token_ids": [3, 9], "advantage": 0.5}
    for change, line in (
        ({"prompt_token_ids": [1, -1]}, "expected prompt_token_ids from 0 to 9, received -1"),
        ({"prompt_token_ids": []}, "expected prompts of at least one token"),
        ({"prompt_token_ids": None}, "expected prompts of at least one token"),
        ({"response_token_ids": [2**31]}, "expected response_token_ids from 0 to 9, received 2147483648"),
        ({"advantage": float("nan")}, "expected finite advantages"),
        ({"advantage": 1e39}, "expected finite advantages"),
    ):
        with pytest.raises(InputError, match=line):
            check_rows(pl.DataFrame([row, row | change]), 10)
    check_rows(pl.DataFrame([row]).clear(), 10)
