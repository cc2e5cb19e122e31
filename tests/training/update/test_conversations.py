"""Steps of conversations that share a sequence: the loss and the gradient are those of separate rows."""

import numpy as np
import polars as pl
import pytest
from lazily import Lazy

from hgpo_train.training.config import Config, replace

torch = Lazy("torch")
samples_from_steps = Lazy("hgpo_train.training.update.batches:samples_from_steps")
mini_batches = Lazy("hgpo_train.training.update.batches:mini_batches")
Fixed = Lazy("hgpo_train.training.update.learner:Fixed")
Learner = Lazy("hgpo_train.training.update.learner:Learner")


@pytest.fixture
def conversations() -> pl.DataFrame:
    """Return the steps of three conversations, one of which was shortened after its second step."""
    rng = np.random.default_rng(3)
    rows = []
    for trajectory, turns in enumerate([4, 1, 5]):
        prompt = rng.integers(0, 300, 6).tolist()
        for turn in range(turns):
            response = rng.integers(0, 300, int(rng.integers(1, 5))).tolist()
            rows.append((trajectory, turn, prompt, response, [-5.5] * len(response), rng.normal()))
            prompt = [*prompt, *response, *rng.integers(0, 300, 5).tolist()]
            if (trajectory, turn) == (2, 1):
                prompt = [*prompt[:6], *prompt[-5:]]
    names = ["trajectory", "step", "prompt_token_ids", "response_token_ids", "response_logprobs", "advantage"]
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


@pytest.mark.parametrize("changes", [{}, {"layout": "packed", "micro_batch_tokens": 45}, {"micro_batch_tokens": 50}])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_loss_and_gradient_are_those_of_separate_rows(model, conversations, changes, aggregation):
    config = replace(
        Config(),
        model={"compute_dtype": "float32", "gradient_checkpointing": False},
        update={"kl_weight": 0.05, "entropy_weight": 0.02, "aggregation": aggregation, **changes},
    )
    learner = Learner(in_float64(model), config)
    learner.reference.double()
    results = []
    for shared in (False, True):
        samples = samples_from_steps(conversations, share_prefixes=shared)
        old = learner.logprobs(samples)
        values = learner.accumulate(samples, np.arange(len(samples)), Fixed(old, learner.reference_logprobs(samples)))
        results.append((values, [parameter.grad.clone() for parameter in model.parameters()], old))
        model.zero_grad()
    (apart, gradients, old), (together, shared_gradients, shared_old) = results
    assert together["loss"] == pytest.approx(apart["loss"], rel=1e-12)
    np.testing.assert_allclose(shared_old, old, rtol=1e-6)  # stored in float32
    for first, second in zip(gradients, shared_gradients, strict=True):
        torch.testing.assert_close(second, first, rtol=1e-9, atol=1e-12)


def test_tokens_of_past_turns_are_computed_once(conversations):
    samples = samples_from_steps(conversations, share_prefixes=True)
    assert samples.sequence.tolist() == [0, 0, 0, 0, 1, 2, 2, 3, 3, 3]
    longest = [int(samples.length[samples.sequence == number].max()) for number in range(4)]
    assert samples.sequence_length.tolist() == longest
    assert sum(longest) < samples.start[-1] / 2
    assert samples_from_steps(conversations).sequence_length.sum() == samples.start[-1]


def test_mini_batches_contain_whole_conversations_and_every_row_once(conversations):
    samples = samples_from_steps(conversations, share_prefixes=True)
    batches = mini_batches(np.arange(10), 5, np.random.default_rng(1), samples.sequence)
    assert len(batches) == 2
    assert sorted(np.concatenate(batches).tolist()) == list(range(10))
    assert not set(samples.sequence[batches[0]]) & set(samples.sequence[batches[1]])
