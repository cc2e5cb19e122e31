"""Scoring of responses: equal to whole forward passes, and to the frequencies of sampled responses."""

from collections import Counter

import numpy as np
import pytest
import torch
from doors import DoorsSource
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen2Config, Qwen2ForCausalLM

from hgpo_envs.engine import State
from hgpo_envs.errors import InputError
from hgpo_research.policies.response_scoring import score_responses
from hgpo_research.policies.scored_model import QUERY_SAMPLES, ScoredModel
from hgpo_train.models.loading import load_model, load_tokenizer
from hgpo_train.policies.base import Request
from hgpo_train.policies.conversation import encode_conversation
from hgpo_train.policies.generation import GenerationOptions
from hgpo_train.policies.token_sampling import (
    SamplingOptions,
    sample_responses,
)
from hgpo_train.policies.transformers import TransformersPolicy

MOST = 5
STOP = (2, 7)
TOLERANCE = 5e-4
"""Of log-probabilities of whole responses, in nats: float32 sums in another order."""


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return load_tokenizer(str(tiny))


def whole_passes(model, prompt, responses, options):
    """Score each response by a forward pass of its own over prompt and response, without a cache."""
    found = []
    for response in responses:
        with torch.no_grad():
            logits = (
                model(torch.tensor([[*prompt, *response]]))
                .logits[0, len(prompt) - 1 :]
                .double()
            )
        table = torch.softmax(logits / options.temperature, -1).numpy()
        for row in table:
            order = np.argsort(-row, kind="stable")
            kept = order[np.cumsum(row[order]) - row[order] < options.top_p]
            row[np.setdiff1d(order, kept)] = 0.0
        table /= table.sum(1, keepdims=True)
        probability = np.prod(
            [table[place, token] for place, token in enumerate(response)]
        )
        if len(response) < options.max_new_tokens:
            probability *= table[len(response), list(options.stop)].sum()
        found.append(probability if len(response) <= options.max_new_tokens else 0.0)
    return np.array(found)


def agree(found, expected):
    assert (found == 0).tolist() == (expected == 0).tolist()
    positive = expected > 0
    assert (
        np.abs(np.log(found[positive]) - np.log(expected[positive])).max(initial=0)
        < TOLERANCE
    )


def some_responses(rng):
    """Return responses that share prefixes, one of them empty, one too long, one repeated."""
    drawn = [rng.integers(8, 14, rng.integers(0, MOST + 1)).tolist() for _ in range(8)]
    return [[], *drawn, [*drawn[0], *[9] * MOST, 9], drawn[1]]


@pytest.mark.parametrize(("temperature", "top_p"), [(0.4, 1.0), (1.0, 0.9)])
def test_scores_equal_whole_forward_passes(model, temperature, top_p):
    rng = np.random.default_rng(1)
    options = SamplingOptions(
        max_new_tokens=MOST, temperature=temperature, stop=STOP, top_p=top_p
    )
    prompts = [rng.integers(3, 300, rng.integers(1, 60)).tolist() for _ in range(12)]
    prompts.append(prompts[3])
    responses = [some_responses(rng) for _ in prompts]
    for prompt, listed, found in zip(
        prompts,
        responses,
        score_responses(model, prompts, responses, options),
        strict=True,
    ):
        agree(found, whole_passes(model, prompt, listed, options))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_sliding_windows_are_kept(attention):
    config = Qwen2Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, use_sliding_window=True, sliding_window=4, max_window_layers=1,
        attn_implementation=attention,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    assert {"full_attention", "sliding_attention"} == set(model.config.layer_types)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(3)  # far from uniform, so that a wrong mask shows
    options = SamplingOptions(max_new_tokens=MOST, temperature=1.0, stop=STOP)
    rng = np.random.default_rng(2)
    prompts = [rng.integers(3, 60, length).tolist() for length in (1, 3, 9, 20)]
    responses = [some_responses(rng) for _ in prompts]
    for prompt, listed, found in zip(
        prompts,
        responses,
        score_responses(model, prompts, responses, options),
        strict=True,
    ):
        agree(found, whole_passes(model, prompt, listed, options))


def test_other_attention_is_refused(model):
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(InputError, match="sdpa or eager"):
        score_responses(
            model,
            [[3]],
            [[[4]]],
            SamplingOptions(max_new_tokens=2, temperature=1.0, stop=STOP),
        )


def test_all_responses_of_at_most_one_token_have_the_sum_1(model):
    options = SamplingOptions(max_new_tokens=1, temperature=1.3, stop=STOP)
    tokens = [token for token in range(model.config.vocab_size) if token not in STOP]
    (found,) = score_responses(
        model, [[5, 6, 7]], [[[], *[[token] for token in tokens]]], options
    )
    assert found.sum() == pytest.approx(1.0, abs=1e-6)


def test_greedy_responses_have_the_probability_1(model):
    options = SamplingOptions(max_new_tokens=MOST, temperature=0.0, stop=(2,))
    (drawn,) = sample_responses(model, [[5, 6, 7]], [0], options)
    greedy = drawn.tokens.tolist()
    assert len(greedy) == MOST
    assert 2 not in greedy
    (found,) = score_responses(
        model,
        [[5, 6, 7]],
        [[greedy, [*greedy[:-1], greedy[-1] + 1], greedy[:-1]]],
        options,
    )
    assert found.tolist() == [1.0, 0.0, 0.0]


# ---------------------------------------------------------------------------------------------------------- the policy

ACTIONS = ("go to door 1", "go to door 2", "open door 1", "look")


def request(number, actions=ACTIONS, prompt="You see a door."):
    source = DoorsSource()
    state = State("You see a door.", actions)
    return Request(
        number,
        prompt,
        number,
        0,
        3,
        source.task("train-1"),
        state,
        None,
        lambda _: prompt,
    )


@pytest.fixture
def taught(model, tokenizer):
    """A model that replies with one of the actions most of the time, after a few steps of imitation."""
    prompt = encode_conversation(tokenizer, "", (), request(0).prompt)
    rows = [
        prompt
        + tokenizer(action, add_special_tokens=False)["input_ids"]
        + [tokenizer.eos_token_id]
        for action in ACTIONS
    ]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    target = torch.tensor(
        [
            [-100] * len(prompt) + row[len(prompt) :] + [-100] * (width - len(row))
            for row in rows
        ]
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(40):
        optimiser.zero_grad()
        model(tokens, labels=target).loss.backward()
        optimiser.step()
    return model


@pytest.mark.slow
def test_sampled_replies_have_the_stated_frequencies(taught, tokenizer):
    options = GenerationOptions(max_response_tokens=12, temperature=1.1)
    policy = TransformersPolicy(taught, tokenizer, options)
    (distribution,) = ScoredModel(policy, "command").distributions([request(0)])
    assert distribution.responses == (*ACTIONS, "do nothing")
    assert distribution.probabilities.sum() == pytest.approx(1.0, abs=1e-12)
    # the test is about actions and about anything else
    assert 0.01 < distribution.probabilities[-1] < 0.9
    replies = Counter(
        reply.response
        for reply in policy.respond([request(seed) for seed in range(3000)])
    )
    counts = [replies.pop(action, 0) for action in distribution.responses[:-1]]
    counts.append(replies.total())
    expected = 3000 * distribution.probabilities
    # chi-squared of 4 degrees of freedom, p = 0.0001: a right implementation fails for one choice of seeds in 10,000
    assert ((counts - expected) ** 2 / expected).sum() < 23.5


@pytest.mark.parametrize(("action_format", "wrap"), [
    ("command", lambda action: action),
    ("number", lambda action: str(ACTIONS.index(action) + 1)),
    ("response", lambda action: f"<think></think><action>{action}</action>"),
])  # fmt: skip
def test_actions_are_scored_in_the_format_of_the_environment(
    model, tokenizer, action_format, wrap
):
    policy = TransformersPolicy(
        model, tokenizer, GenerationOptions(max_response_tokens=60)
    )
    known = ScoredModel(policy, action_format, "Doors")
    assert known.memoryless
    first, second, again = known.distributions(
        [request(1), request(2, ACTIONS[:2], "A wall."), request(3)]
    )
    assert again.probabilities.tolist() == first.probabilities.tolist()
    assert set(second.responses[:-1]) == {wrap(action) for action in ACTIONS[:2]}
    prompt = encode_conversation(tokenizer, "", (), request(1).prompt)
    encoded = [
        tokenizer(response, add_special_tokens=False)["input_ids"]
        for response in first.responses[:-1]
    ]
    options = SamplingOptions(max_new_tokens=60, temperature=1.0, stop=policy.ends)
    agree(
        first.probabilities[:-1],
        whole_passes(model, prompt, encoded, options),
    )
    assert first.probabilities[-1] == pytest.approx(
        1 - first.probabilities[:-1].sum(), abs=1e-12
    )


def test_open_queries_are_sampled(model, tokenizer):
    options = GenerationOptions(max_response_tokens=3, temperature=0.3)
    policy = ScoredModel(TransformersPolicy(model, tokenizer, options), "command")
    asked = [request(1, ("search[<your query>]", "look"))]
    (distribution,) = policy.distributions(asked)
    assert 2 <= len(distribution.responses) <= QUERY_SAMPLES + 2
    assert len(set(distribution.responses)) == len(distribution.responses)
    assert distribution.probabilities.sum() == pytest.approx(1.0, abs=1e-12)
    assert policy.distributions(asked)[0].responses == distribution.responses


@given(st.permutations(ACTIONS))
def test_the_order_of_actions_is_of_no_importance(fitted_policy, actions):
    found, other = fitted_policy.distributions([request(1), request(1, tuple(actions))])
    ordered = dict(zip(found.responses, found.probabilities, strict=True))
    for response, probability in zip(other.responses, other.probabilities, strict=True):
        assert ordered[response] == pytest.approx(probability, rel=1e-3)


@pytest.fixture(scope="module")
def fitted_policy(tiny, tokenizer):
    from hgpo_train.models.config import ModelConfig

    model = load_model(
        ModelConfig(
            path=str(tiny),
            device="cpu",
            compute_dtype="float32",
            gradient_checkpointing=False,
        )
    )
    return ScoredModel(
        TransformersPolicy(model, tokenizer, GenerationOptions(max_response_tokens=12)),
        "command",
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"stop": ("x",)}, "no stop texts"),
        ({"max_prompt_tokens": 3, "overflow": "error"}, "PromptTooLong"),
    ],
)
def test_what_has_no_known_probabilities_is_refused(model, tokenizer, options, line):
    policy = ScoredModel(
        TransformersPolicy(model, tokenizer, GenerationOptions(**options)),
        "command",
    )
    with pytest.raises(InputError, match=line):
        policy.distributions([request(1)])
