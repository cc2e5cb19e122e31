"""In-process sampling: correct distribution and log-probabilities, independent of the rest of the batch."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
from asked import request
from doors import DoorsSource
from hypothesis import given
from hypothesis import strategies as st
from lazily import Lazy, lazily
from logits import of_response
from refusals import refused

from hgpo_train.models.chat_format import stop_length
from hgpo_train.models.config import ModelConfig
from hgpo_train.models.tiny import TinyShape, save_tiny
from hgpo_train.policies.base import Failure
from hgpo_train.policies.conversation import encode_conversation
from hgpo_train.policies.generation import GenerationOptions, fit_prompts
from hgpo_train.rollout import collect

torch = Lazy("torch")
Qwen2Config, Qwen2ForCausalLM = lazily("transformers", "Qwen2Config Qwen2ForCausalLM")
load_model, load_tokenizer = lazily(
    "hgpo_train.models.loading", "load_model load_tokenizer"
)
SamplingOptions, cache_keyword, check_sampling, sample_responses, sample_tokens = (
    lazily(
        "hgpo_train.policies.token_sampling",
        "SamplingOptions cache_keyword check_sampling sample_responses sample_tokens",
    )
)
TransformersPolicy = Lazy("hgpo_train.policies.transformers:TransformersPolicy")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)  # several are slower for a model of this size


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    shape = TinyShape(
        vocabulary=384, width=64, layers=2, heads=2, key_value_heads=1, intermediate=96
    )
    source = DoorsSource(10)
    texts = [
        f"{source.task(name).instruction} open door, go on"
        for name in source.ids("train")
    ]
    return save_tiny(tmp_path_factory.mktemp("tiny"), texts * 3, shape, seed=1)


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return load_tokenizer(str(tiny))


@pytest.fixture
def model(tiny):
    return load_model(
        ModelConfig(
            path=str(tiny),
            compute_dtype="float32",
            gradient_checkpointing=False,
            device="cpu",
        )
    )


def prompts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 300, rng.integers(1, 40)).tolist() for _ in range(count)]


OPTIONS = {"max_new_tokens": 8, "temperature": 0.7, "stop": (2,)}


@pytest.mark.parametrize("top_p", [1.0, 0.6])
def test_logprobs_match_a_full_forward_pass(model, top_p):
    options = SamplingOptions(max_new_tokens=8, temperature=0.7, stop=(2,), top_p=top_p)
    asked = prompts(20)
    for prompt, drawn in zip(
        asked, sample_responses(model, asked, list(range(20)), options), strict=True
    ):
        table = of_response(model, prompt, drawn.tokens.tolist(), 0.7)
        for row, token, logprob in zip(
            table, drawn.tokens, drawn.logprobs, strict=True
        ):
            more_likely = row[row > row[token]].exp().sum()
            assert more_likely < top_p + 1e-6
            ordered = row.sort(descending=True).values.exp()
            kept = ordered[: int((ordered.cumsum(0) - ordered < top_p).sum())].sum()
            assert logprob == pytest.approx((row[token] - kept.log()).item(), abs=2e-4)


def test_a_response_does_not_depend_on_the_rest_of_the_batch(model):
    asked = prompts(17)
    seeds = list(range(17))
    together = sample_responses(model, asked, seeds, SamplingOptions(**OPTIONS))
    small = SamplingOptions(8, 0.7, (2,), max_batch_tokens=100)
    for one, drawn, apart in zip(
        range(17), together, sample_responses(model, asked, seeds, small), strict=True
    ):
        alone = sample_responses(
            model, [asked[one]], [seeds[one]], SamplingOptions(**OPTIONS)
        )[0]
        assert drawn.tokens.tolist() == alone.tokens.tolist() == apart.tokens.tolist()
        np.testing.assert_allclose(drawn.logprobs, alone.logprobs, atol=1e-5)


class Forwards:
    """Counts the forward passes of a model's decoder: rows and columns of each."""

    def __init__(self, model):
        self.prefill = []
        self.decode = []
        model.get_decoder().register_forward_pre_hook(self.count, with_kwargs=True)

    def count(self, _, __, given):
        rows, width = given["input_ids"].shape
        # renamed in Transformers 5.24
        cache = given["cache"] if "cache" in given else given["past_key_values"]
        if (before := cache.get_seq_length()) == 0:
            self.prefill.append((rows, width))
        else:
            assert width == 1
            self.decode.append((rows, before + 1))


ENDING = {"max_new_tokens": 24, "temperature": 1.0, "stop": tuple(range(360, 384))}


def test_rows_that_have_ended_are_not_computed(model):
    forwards = Forwards(model)
    drawn = sample_responses(
        model, prompts(40), list(range(40)), SamplingOptions(**ENDING)
    )
    lengths = [len(one.tokens) for one in drawn]
    assert len(set(lengths)) > 10
    # The last token of a response is drawn from the hidden state of the one before it.
    assert sum(rows for rows, _ in forwards.decode) == sum(
        length - 1 for length in lengths
    )


@pytest.mark.parametrize("memory", [10, 300])
def test_a_batch_stays_within_memory(model, memory):
    forwards = Forwards(model)
    sample_responses(
        model,
        prompts(30),
        list(range(30)),
        SamplingOptions(**ENDING, max_batch_tokens=memory),
    )
    assert all(rows * width <= memory or rows == 1 for rows, width in forwards.decode)


@pytest.mark.parametrize("seed", range(2))
def test_waiting_requests_take_the_place_of_ended_ones(model, seed):
    forwards = Forwards(model)
    asked = prompts(30, seed)
    places = 3
    options = SamplingOptions(
        **ENDING, max_batch_tokens=places * (max(map(len, asked)) + 24)
    )
    drawn = sample_responses(model, asked, list(range(30)), options)
    lengths = [len(one.tokens) for one in drawn]
    # Graham's bound on list scheduling (1966): no place is empty while a request waits.
    assert len(forwards.decode) <= sum(lengths) / places + max(lengths)


def test_a_cache_has_the_name_that_the_decoder_gives_it():
    class Renamed:
        def forward(self, input_ids, cache=None, **options): ...

    class Older:
        def forward(self, input_ids, past_key_values=None, **options): ...

    assert cache_keyword(Renamed.forward) == "cache"
    assert cache_keyword(Older.forward) == "past_key_values"


def test_equal_prompts_are_computed_once(model):
    forwards = Forwards(model)
    asked = [prompt for prompt in prompts(4) for _ in range(8)]
    drawn = sample_responses(model, asked, list(range(32)), SamplingOptions(**OPTIONS))
    assert sum(rows for rows, _ in forwards.prefill) == 4
    for prompt, seed, one in zip(asked, range(32), drawn, strict=True):
        (alone,) = sample_responses(model, [prompt], [seed], SamplingOptions(**OPTIONS))
        assert alone.tokens.tolist() == one.tokens.tolist()


def test_sliding_windows_are_those_of_a_full_forward_pass():
    torch.manual_seed(0)
    shape = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    window = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=384, num_key_value_heads=1, **shape, **window)
    ).eval()
    assert model.config.layer_types == ["full_attention", "sliding_attention"]
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8.0)  # attention that differs between positions
    asked = prompts(20)
    options = SamplingOptions(**ENDING, max_batch_tokens=300)
    for prompt, drawn in zip(
        asked, sample_responses(model, asked, list(range(20)), options), strict=True
    ):
        table = of_response(model, prompt, drawn.tokens.tolist())
        expected = table.gather(1, torch.from_numpy(drawn.tokens).long()[:, None])[:, 0]
        np.testing.assert_allclose(drawn.logprobs, expected, atol=2e-4)


def test_a_model_whose_cache_is_not_what_it_computes_is_refused(model, monkeypatch):
    check_sampling(model)
    layer = model.model.layers[0]
    forward = layer.forward

    # forgets the prompt when single tokens follow it
    def forgetful(hidden, *arguments, **options):
        states = forward(hidden, *arguments, **options)
        return hidden if hidden.shape[1] == 1 else states

    monkeypatch.setattr(layer, "forward", forgetful)
    with refused(
        "received Qwen3ForCausalLM, which in-process sampling does not support"
    ):
        check_sampling(model)


def test_greedy_sampling_matches_generate(model):
    options = SamplingOptions(max_new_tokens=8, temperature=0.0, stop=(2,))
    for prompt in prompts(6):
        greedy = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": 2}
        mask = torch.ones(1, len(prompt))
        expected = model.generate(
            torch.tensor([prompt]), attention_mask=mask, **greedy
        )[0, len(prompt) :]
        assert (
            sample_responses(model, [prompt], [0], options)[0].tokens.tolist()
            == expected.tolist()
        )


@given(
    st.lists(st.floats(-6, 6), min_size=2, max_size=9),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([0.3, 0.9, 1.0]),
)
def test_draw_inverts_the_cumulative_distribution(logits, uniform, top_p):
    token, logprob = sample_tokens(
        torch.tensor([logits]), torch.tensor([uniform], dtype=torch.float64), 1.0, top_p
    )
    probability = np.exp(np.array(logits) - np.max(logits))
    probability /= probability.sum()
    assert np.exp(logprob.item()) >= probability[token.item()] - 1e-4
    if top_p == 1.0:
        below = probability[: token.item()].sum()
        assert below - 1e-5 <= uniform <= below + probability[token.item()] + 1e-5


def test_replies_contain_the_prompt_and_response_tokens(model, tokenizer):
    policy = TransformersPolicy(
        model, tokenizer, GenerationOptions(max_response_tokens=5)
    )
    policy.submit([request(1, "open door"), request(2, "go on")])
    for (_, reply), text in zip(
        policy.collect(None), ["open door", "go on"], strict=True
    ):
        prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        assert tokenizer.decode(reply.prompt_token_ids) == prompt
        assert (
            tokenizer.decode(reply.response_token_ids, skip_special_tokens=True)
            == reply.response
        )
        assert len(reply.response_logprobs) == len(reply.response_token_ids)
        assert reply.finish_reason == (
            "stop"
            if reply.response_token_ids[-1] == tokenizer.eos_token_id
            else "length"
        )


def test_prompts_over_the_budget_are_truncated(model, tokenizer):
    long = request(1, "open door " * 50, step=3, shorter=lambda _: "go")
    few = {"max_response_tokens": 2}

    def policy(**options):
        return TransformersPolicy(
            model, tokenizer, GenerationOptions(max_prompt_tokens=20, **few, **options)
        )

    (cut,) = policy().respond([long])
    assert len(cut.prompt_token_ids) == 20
    whole = len(encode_conversation(tokenizer, "", (), long.prompt))
    assert (cut.cut_pairs, cut.cut_tokens) == (0, whole - 20)
    assert whole > 20
    (shorter,) = policy(overflow="history").respond([long])
    assert (shorter.prompt, shorter.cut_pairs, shorter.cut_tokens) == ("go", 1, 0)
    refused, answered = policy(overflow="error").respond([long, request(2, "go")])
    assert isinstance(refused, Failure)
    assert answered.response_token_ids


def test_a_stop_text_can_begin_and_end_inside_of_tokens(model, tokenizer, monkeypatch):
    def reply(*stop, ids):
        sampled = SimpleNamespace(
            tokens=np.array(ids), logprobs=np.linspace(-1, -2, len(ids))
        )
        monkeypatch.setattr(
            "hgpo_train.policies.token_sampling.sample_responses", lambda *_: [sampled]
        )
        policy = TransformersPolicy(model, tokenizer, GenerationOptions(stop=stop))
        return policy.respond([request(1, "go")])[0]

    ids = tokenizer(["Go on, open door and go on"])["input_ids"][0]
    pieces = [tokenizer.decode([token]) for token in ids]
    number = next(
        n for n in range(len(ids) - 1) if len(pieces[n]) > 1 < len(pieces[n + 1])
    )
    # from within one token to within the next
    stop = pieces[number][1:] + pieces[number + 1][:1]
    stopped = reply(stop, ids=ids)
    count = len(stopped.response_token_ids)
    assert count <= number + 2
    assert stopped.response_token_ids == ids[:count]
    assert len(stopped.response_logprobs) == count
    assert stopped.response == tokenizer.decode(stopped.response_token_ids)
    assert stop in stopped.response
    assert stop not in tokenizer.decode(ids[: count - 1])
    assert stopped.finish_reason == "stop"


@given(
    tokens=st.lists(st.integers(0, 383), max_size=20),
    stop=st.text("abcdego <|", min_size=1, max_size=2),
)
def test_the_first_stop_text_ends_a_response(tokenizer, tokens, stop):
    ends = [
        n
        for n in range(1, len(tokens) + 1)
        if stop in tokenizer.decode(tokens[:n], skip_special_tokens=False)
    ]
    assert stop_length(tokenizer, tokens, (stop,)) == (ends[0] if ends else None)


def test_a_file_replaces_the_chat_template_and_is_text_for_a_sandbox(tiny, tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text("{{ messages[0].content }}{% if not enable_thinking %}.{% endif %}")
    theirs = load_tokenizer(str(tiny), str(path))
    for thinking, text in ((True, "go"), (False, "go.")):
        options = GenerationOptions(chat_template_options={"enable_thinking": thinking})
        (fitted,) = fit_prompts(theirs, [request(1, "go")], options)
        assert theirs.decode(fitted.tokens) == text
    for bad in (
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{% if %}",
        "{{ 1 / 0 }}",
        b"\xff",
        None,
    ):
        path = tmp_path / ("missing.jinja" if bad is None else "bad.jinja")
        if bad is not None:
            path.write_bytes(bad if isinstance(bad, bytes) else bad.encode())
        with refused(r"(bad|missing)\.jinja"):
            load_tokenizer(str(tiny), str(path))


def test_a_rollout_is_not_resumed_with_another_chat_template(tiny, tmp_path):
    path = tmp_path / "chat.jinja"
    options = {"chat_template": str(path), "max_response_tokens": 1, "device": "cpu"}

    def play():
        game = {
            "tasks": 1,
            "group_size": 1,
            "max_steps": 1,
            "policy_options": options,
            "progress": False,
        }
        collect(
            "doors_env:HGPO-Test/Doors-v0",
            f"transformers:{tiny}",
            tmp_path / "run",
            **game,
        )

    path.write_text("{{ messages[0].content }}")
    play()
    play()
    path.write_text("{{ messages[0].content }}!")
    with refused("chat_template_hash"):
        play()


def test_the_chat_template_renders_the_tools_of_the_environment(tokenizer):
    tools = ({"type": "function", "function": {"name": "find_user", "parameters": {}}},)
    template = (
        "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[0]['content'] }}"
    )
    ours = copy.deepcopy(tokenizer)
    ours.chat_template = template
    requests = [
        request(number, "look", tools=of)
        for number, of in enumerate(((), tools, tools, ()))
    ]
    fitted = fit_prompts(ours, requests, GenerationOptions())
    texts = [ours.decode(prompt.tokens) for prompt in fitted]
    assert ["find_user" in text for text in texts] == [False, True, True, False]
    # A prompt that names the tools, or a template that renders the first alone, is not enough.
    two = (
        *tools,
        {
            "type": "function",
            "function": {"name": "find_box", "description": "Find a box."},
        },
    )
    named = [request(0, "Call one of the tools: find_user, find_box.", tools=two)]
    for template, missing in (
        ("{{ messages[0]['content'] }}", "find_user, find_box"),
        (
            "{% if tools %}{{ tools[0] | tojson }}{% endif %}{{ messages[0]['content'] }}",
            "find_box",
        ),
    ):
        ours.chat_template = template
        with refused(rf"the model's chat template does not render \({missing}\)"):
            fit_prompts(ours, named, GenerationOptions())
    described = "find_user: Find a user.\nfind_box: Find a box."
    # the prompt describes what is missing
    fit_prompts(ours, [request(0, described, tools=two)], GenerationOptions())
