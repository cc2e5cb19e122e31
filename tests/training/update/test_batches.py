"""Batches contain every row once, within their bounds; steps of conversations share sequences with equal gradients."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lazily import Lazy, lazily
from refusals import refused

from hgpo_train.training.config import Config, replace

micro_batches, mini_batches, check_rows, samples_from_steps = lazily(
    "hgpo_train.training.update.batches",
    "micro_batches mini_batches check_rows samples_from_steps",
)

lengths = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 12)), min_size=1, max_size=30
)


def table(lengths):
    rng = np.random.default_rng(0)
    ids = {
        "prompt_token_ids": pl.List(pl.Int32),
        "response_token_ids": pl.List(pl.Int32),
    }
    prompts = [rng.integers(1, 99, p).tolist() for p, _ in lengths]
    responses = [rng.integers(1, 99, r).tolist() for _, r in lengths]
    logprobs = [rng.normal(size=r).tolist() for _, r in lengths]
    return pl.DataFrame(
        [prompts, responses, logprobs],
        schema={**ids, "response_logprobs": pl.List(pl.Float32)},
    )


@given(lengths, st.integers(1, 200), st.sampled_from(["padded", "packed"]))
def test_every_response_token_is_predicted_once_from_the_token_before(
    lengths, bound, layout
):
    steps = table(lengths)
    samples = samples_from_steps(steps)
    seen = []
    for micro in micro_batches(
        samples, np.arange(len(samples)), max_tokens=bound, layout=layout
    ):
        flat = micro.input_ids.reshape(-1).numpy()
        positions = micro.position_ids.reshape(-1).numpy()
        assert flat.size <= bound or len(np.unique(micro.row)) == 1
        assert (flat[micro.source.numpy() + 1] == micro.target.numpy()).all()
        for row in np.unique(micro.row):
            whole = (
                steps["prompt_token_ids"][int(row)].to_list()
                + steps["response_token_ids"][int(row)].to_list()
            )
            of_row = micro.row == row
            end = int(micro.source.numpy()[of_row][-1]) + 2
            assert flat[end - len(whole) : end].tolist() == whole
            assert positions[end - len(whole) : end].tolist() == list(range(len(whole)))
            assert (
                micro.target.numpy()[of_row].tolist()
                == steps["response_token_ids"][int(row)].to_list()
            )
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
        (
            {"prompt_token_ids": [1, -1]},
            "expected prompt_token_ids from 0 to 9, received -1",
        ),
        ({"prompt_token_ids": []}, "expected prompts of at least one token"),
        ({"prompt_token_ids": None}, "expected prompts of at least one token"),
        (
            {"response_token_ids": [2**31]},
            "expected response_token_ids from 0 to 9, received 2147483648",
        ),
        ({"advantage": float("nan")}, "expected finite advantages"),
        ({"advantage": 1e39}, "expected finite advantages"),
        (
            {"response_logprobs": [-1.0]},
            "expected response_logprobs for each of 2 response tokens, received 1",
        ),
        (
            {"response_logprobs": [-1.0, 0.5]},
            "expected response_logprobs of at most 0, received 0.5",
        ),
        (
            {"response_logprobs": [-1.0, float("inf")]},
            "expected response_logprobs of at most 0, received inf",
        ),
        (
            {"response_logprobs": [float("nan"), -1.0]},
            "expected response_logprobs of at most 0, received nan",
        ),
        (
            {"response_logprobs": [None, -1.0]},
            "expected response_logprobs of at most 0, received None",
        ),
    ):
        with refused(line):
            check_rows(
                pl.DataFrame([row | {"response_logprobs": None}, row | change]), 10
            )
    check_rows(
        pl.DataFrame(
            [
                row | {"response_logprobs": [-float("inf"), 0.0]},
                row | {"response_logprobs": None},
            ]
        ),
        10,
    )
    check_rows(pl.DataFrame([row]).clear(), 10)


torch = Lazy("torch")
LossInputs, Learner = lazily("hgpo_train.training.update.learner", "LossInputs Learner")


@pytest.fixture
def conversations():
    """Return the steps of three conversations, one of which was shortened after its second step."""
    rng = np.random.default_rng(3)
    rows = []
    for trajectory, turns in enumerate([4, 1, 5]):
        prompt = rng.integers(0, 300, 6).tolist()
        for turn in range(turns):
            response = rng.integers(0, 300, int(rng.integers(1, 5))).tolist()
            rows.append(
                (
                    trajectory,
                    turn,
                    prompt,
                    response,
                    [-5.5] * len(response),
                    rng.normal(),
                )
            )
            prompt = [*prompt, *response, *rng.integers(0, 300, 5).tolist()]
            if (trajectory, turn) == (2, 1):
                prompt = [*prompt[:6], *prompt[-5:]]
    names = [
        "trajectory",
        "step",
        "prompt_token_ids",
        "response_token_ids",
        "response_logprobs",
        "advantage",
    ]
    return pl.DataFrame(rows, schema=names, orient="row")


def in_float64(model):
    """Return the model in float64, with norms that do not compute in float32 as those of Transformers do."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                norm = torch.nn.RMSNorm(child.weight.shape, child.variance_epsilon)
                norm.weight.data.copy_(child.weight.data)
                setattr(module, name, norm)
    return model.double()


@pytest.mark.parametrize(
    "changes",
    [{}, {"layout": "packed", "micro_batch_tokens": 45}, {"micro_batch_tokens": 50}],
)
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_loss_and_gradient_are_those_of_separate_rows(
    model, conversations, changes, aggregation
):
    config = replace(
        Config(),
        model={"compute_dtype": "float32", "gradient_checkpointing": False},
        update={
            "kl_weight": 0.05,
            "entropy_weight": 0.02,
            "aggregation": aggregation,
            **changes,
        },
    )
    learner = Learner(in_float64(model), config)
    learner.reference.double()
    results = []
    for shared in (False, True):
        samples = samples_from_steps(conversations, share_prefixes=shared)
        old = learner.logprobs(samples)
        values = learner.accumulate(
            samples,
            np.arange(len(samples)),
            LossInputs(old, learner.reference_logprobs(samples)),
        )
        results.append(
            (values, [parameter.grad.clone() for parameter in model.parameters()], old)
        )
        model.zero_grad()
    (apart, gradients, old), (together, shared_gradients, shared_old) = results
    assert together["loss"] == pytest.approx(apart["loss"], rel=1e-12)
    np.testing.assert_allclose(shared_old, old, rtol=1e-6)  # stored in float32
    for first, second in zip(gradients, shared_gradients, strict=True):
        torch.testing.assert_close(second, first, rtol=1e-9, atol=1e-12)


def test_tokens_of_past_turns_are_computed_once(conversations):
    samples = samples_from_steps(conversations, share_prefixes=True)
    assert samples.sequence.tolist() == [0, 0, 0, 0, 1, 2, 2, 3, 3, 3]
    longest = [
        int(samples.length[samples.sequence == number].max()) for number in range(4)
    ]
    assert samples.sequence_length.tolist() == longest
    assert sum(longest) < samples.start[-1] / 2
    assert samples_from_steps(conversations).sequence_length.sum() == samples.start[-1]


def test_mini_batches_contain_whole_conversations_and_every_row_once(conversations):
    samples = samples_from_steps(conversations, share_prefixes=True)
    batches = mini_batches(np.arange(10), 5, np.random.default_rng(1), samples.sequence)
    assert len(batches) == 2
    assert sorted(np.concatenate(batches).tolist()) == list(range(10))
    assert not set(samples.sequence[batches[0]]) & set(samples.sequence[batches[1]])
