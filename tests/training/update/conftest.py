"""A small model and step rows of random tokens for it."""

import numpy as np
import polars as pl
import pytest

from hgpo_train.models.tiny import TinyShape, make_model, train_tokenizer

VOCABULARY = 300


@pytest.fixture(scope="session")
def tokenizer():
    return train_tokenizer(
        [
            "You are in the middle of a room. go to cabinet 1",
            "take plate 1 from shelf 2",
        ]
        * 5,
        VOCABULARY,
    )


@pytest.fixture
def model(tokenizer):
    shape = TinyShape(
        vocabulary=VOCABULARY,
        width=64,
        layers=2,
        heads=2,
        key_value_heads=1,
        intermediate=96,
    )
    import torch

    model = make_model(tokenizer, shape, seed=3)
    # logits of magnitude 1, so that ratios and entropies differ between tokens
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    return model


@pytest.fixture
def steps():
    """Return nine rows of different lengths, one without a response, with log-probabilities of another policy."""
    rng = np.random.default_rng(5)
    of_prompts = (5, 17, 3, 30, 9, 1, 12, 8, 21)
    of_responses = (4, 1, 9, 2, 6, 3, 0, 5, 7)
    prompts = [rng.integers(0, VOCABULARY, n).tolist() for n in of_prompts]
    responses = [rng.integers(0, VOCABULARY, n).tolist() for n in of_responses]
    return pl.DataFrame(
        {
            "prompt_token_ids": prompts,
            "response_token_ids": responses,
            "response_logprobs": [[-5.5] * len(response) for response in responses],
            "advantage": rng.normal(size=len(prompts)),
        },
        schema_overrides={
            "response_token_ids": pl.List(pl.Int32),
            "response_logprobs": pl.List(pl.Float32),
        },
    )
