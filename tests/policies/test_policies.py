"""Policies: random, outdated, mixtures, scripted players, asynchronous ones, and those of other distributions."""

import asyncio
import contextlib
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from asked import ask, request
from distribution import write_distribution
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refused_saying

from hgpo_envs.plugins import installed
from hgpo_train.models.config import ModelConfig
from hgpo_train.policies import base
from hgpo_train.policies.base import (
    AsyncPolicy,
    BatchPolicy,
    Failure,
    Reply,
    attempt,
)
from hgpo_train.policies.generation import FittedPrompt, GenerationOptions
from hgpo_train.policies.registry import (
    PolicyContext,
    TrainableContext,
    find_policy,
    make_policy,
    policy_names,
    trainable_factory,
)
from hgpo_train.policies.scripted import (
    MixturePolicy,
    OutdatedActionPolicy,
    RandomPolicy,
    ScriptedPolicy,
)
from hgpo_train.policies.vllm import VLLMPolicy


class Panic(BaseException):
    """A panic as extensions written in Rust raise it, which does not derive from `Exception`."""


RAISED = {
    "cancel": asyncio.CancelledError(),
    "exit": SystemExit(0),
    "panic": Panic("at the disco"),
    "interrupt": KeyboardInterrupt(),
    "generator": GeneratorExit(),
}


class Acting(AsyncPolicy):
    """A policy whose prompt selects its behaviour."""

    async def reply(self, request):
        if request.prompt in RAISED:
            raise RAISED[request.prompt]
        if request.prompt == "block":
            self.blocking.wait(60)
        if request.prompt == "cancel itself":
            asyncio.current_task().cancel()
        if request.prompt in ("wait", "cancel itself"):
            await asyncio.sleep(3600)
        while request.prompt == "refuse to end":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        return Reply(request.prompt)


def of_prompts(*prompts):
    return [request(number, prompt) for number, prompt in enumerate(prompts)]


@pytest.mark.parametrize("concurrency", [1, 8])
def test_any_exception_of_a_coroutine_becomes_a_failure(concurrency):
    prompts = (
        "a",
        "cancel",
        "exit",
        "b",
        "panic",
        "cancel itself",
        "interrupt",
        "generator",
        "c",
    )
    with contextlib.closing(Acting(concurrency)) as policy:
        said = ask(policy, of_prompts(*prompts))
    lines = [
        answer.response if isinstance(answer, Reply) else answer.message.rstrip(": ")
        for answer in said
    ]
    reasons = [
        "CancelledError",
        "SystemExit: 0",
        "Panic: at the disco",
        "CancelledError",
        "KeyboardInterrupt",
    ]
    assert lines == ["a", *reasons[:2], "b", *reasons[2:], "GeneratorExit", "c"]


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [[], ["wait"] * 300, ["refuse to end"], ["block"]])
def test_closing_is_bounded_with_running_coroutines(monkeypatch, prompts):
    monkeypatch.setattr(base, "CLOSING_S", 1.0)
    policy = Acting(concurrency=200)
    policy.blocking = threading.Event()
    policy.submit(of_prompts(*prompts))
    began = time.monotonic()
    policy.close()
    policy.close()
    # two closings of a second each, on a busy machine
    assert time.monotonic() - began < 20
    policy.blocking.set()


def test_a_loop_that_has_ended_raises_instead_of_waiting():
    policy = Acting()
    policy.close()
    with pytest.raises(RuntimeError):
        policy.submit([request()])
    with pytest.raises(RuntimeError, match="event loop has ended"):
        policy.collect(60.0)


class Raising(BatchPolicy):
    def respond(self, requests):
        if any(request.prompt == "exit" for request in requests):
            raise SystemExit(0)
        return (Reply(request.prompt) for request in requests)


def test_system_exit_in_a_batch_fails_only_its_request():
    failure = Failure("PolicyFailed", "SystemExit: 0")
    assert ask(Raising(), of_prompts("a", "exit", "b")) == [
        Reply("a"),
        failure,
        Reply("b"),
    ]


def test_attempt_raises_keyboard_interrupts():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt("PolicyFailed", interrupted)
    assert attempt("PolicyFailed", int, "3") == 3


MODULE = """
from hgpo_train.policies.base import BatchPolicy, Reply
from hgpo_train.policies.registry import PolicySpec


class First(BatchPolicy):
    name, reproducible = "first", True

    def __init__(self, model=None, options=None):
        super().__init__()
        self.model, self.options = model, options

    def publish(self, model, version):
        self.model, self.version = model, version

    def respond(self, requests):
        return [Reply(request.state.actions[0]) for request in requests]


def make(argument, context):
    return First()


PLAIN = PolicySpec(make)
SPEC = PolicySpec(make, lambda model, tokenizer, context: First(model, context.generation))
"""


def test_policies_of_other_distributions_and_broken_ones(tmp_path, monkeypatch):
    points = {
        "first": "another:SPEC",
        "plain": "another:PLAIN",
        "absent": "no_module:SPEC",
        "number": "another:NUMBER",
    }
    write_distribution(
        tmp_path,
        "another",
        {"another": f"{MODULE}\nNUMBER = 7\n"},
        {"hgpo.policies": points},
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.cache_clear()
    try:
        assert points.keys() < set(policy_names())
        assert {
            make_policy(name, PolicyContext("ALFWorld")).name
            for name in ("plain", "first")
        } == {"first"}
        context = TrainableContext(ModelConfig(), GenerationOptions(temperature=0.5))
        policy = trainable_factory("first")("a model", None, context)
        policy.publish("newer", 3)
        assert (policy.options, policy.model, policy.version) == (
            context.generation,
            "newer",
            3,
        )
        for name, line in (
            (
                "absent",
                "hgpo.policies 'absent' of the distribution another cannot be loaded from no_module:SPEC",
            ),
            (
                "number",
                "hgpo.policies 'number' of the distribution another: expected a PolicySpec, .* received int 7",
            ),
        ):
            with refused(line):
                make_policy(name, PolicyContext("ALFWorld"))
        with refused(r"unknown rollout.engine 'plain'.*first") as caught:
            trainable_factory("plain")
        assert "absent" not in str(caught.value)
    finally:
        installed.cache_clear()


@pytest.mark.slow
def test_the_registry_lists_policies_that_can_be_trained():
    pytest.importorskip("torch")
    assert {name for name in policy_names() if find_policy(name)[0].make_trainable} == {
        "transformers",
        "vllm",
    }
    with refused(
        r"rollout.engine: openai cannot be trained with, because .* use \"vllm\""
    ):
        trainable_factory("openai")
    for name in ("random", "no-such-policy"):
        with refused(r"unknown rollout.engine .*transformers"):
            trainable_factory(name)


def test_a_policy_of_a_module(tmp_path, monkeypatch):
    (tmp_path / "policy_here.py").write_text(
        MODULE.replace(
            'name, reproducible = "first", True', "reproducible = True"
        ).replace(
            "return First()",
            "policy = First()\n    policy.name = argument\n    return policy",
        )
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    context = PolicyContext("ALFWorld")
    assert (
        make_policy("policy_here:PLAIN:some:argument", context).name == "some:argument"
    )
    assert make_policy("policy_here:SPEC", context).name == ""
    for name, line in (
        (
            "policy_here:absent",
            "expected a policy of your own as module:object, received 'policy_here:absent'",
        ),
        (
            "policy_here:__name__",
            "policy_here:__name__: expected a PolicySpec, .* received str",
        ),
        ("opnai:tiny", "unknown policy 'opnai'; did you mean 'openai'"),
    ):
        with refused(line):
            make_policy(name, context)


CONTEXT = PolicyContext("Doors", "response")


def test_random_is_uniform_and_depends_only_on_the_seed():
    policy = RandomPolicy("command")
    answers = [
        reply.response
        for reply in ask(policy, [request(seed, actions="abc") for seed in range(3000)])
    ]
    assert all(900 < count < 1100 for count in Counter(answers).values())
    assert set(answers) == {"a", "b", "c"}
    again = ask(
        policy, [request(seed, slot=5, actions="abc") for seed in range(3000)][::-1]
    )[::-1]
    assert answers == [reply.response for reply in again]


def test_random_fills_searches_with_words_of_the_instruction():
    policy = RandomPolicy("response")
    search = {"actions": ["search[<your query>]"], "instruction": "find a red shoe"}
    found = [
        reply.response
        for reply in ask(policy, [request(seed, **search) for seed in range(200)])
    ]
    queries = [
        text.removeprefix("<think></think><action>search[").removesuffix("]</action>")
        for text in found
    ]
    assert {len(query.split()) for query in queries} == {1, 2, 3}
    assert {word for query in queries for word in query.split()} == {
        "find",
        "a",
        "red",
        "shoe",
    }


@pytest.mark.slow
@given(
    st.integers(0, 2**63 - 1),
    st.text(max_size=20),
    st.lists(st.text(max_size=9), max_size=4),
)
def test_random_answers_anything(seed, instruction, actions):
    reply = RandomPolicy("command").respond(
        [request(seed, actions=actions, instruction=instruction)]
    )[0]
    if actions:
        assert reply.response in actions or any(
            "<your query>" in action for action in actions
        )
    else:
        assert reply == Failure(
            "PolicyFailed",
            "random draws from the admissible actions, and the state lists none",
        )


@given(
    st.lists(st.lists(st.sampled_from("abcde"), max_size=5, unique=True), max_size=8),
    st.integers(0, 2**62),
)
def test_outdated_draws_actions_that_are_no_longer_admissible(shown, seed):
    policy = OutdatedActionPolicy("command")
    before = set()
    for step, actions in enumerate(shown):
        (reply,) = ask(policy, [request(seed + step, step=step, actions=actions)])
        choices = before - set(actions) or actions
        assert reply.response in choices if choices else isinstance(reply, Failure)
        before |= set(actions)
    other = ask(policy, [request(0, slot=1, actions=["z"]), request(1, actions=["y"])])
    # each slot, and each episode, has its own past
    assert [reply.response for reply in other] == ["z", "y"]


class Stepping:
    """A scripted player that replies with the state that it received."""

    def reset(self, task, state, engine=None):
        self.shown = 0

    def act(self, state):
        self.shown += 1
        return f"step {self.shown}"


class Constant(BatchPolicy):
    reproducible = True

    def __init__(self, word: str) -> None:
        super().__init__()
        self.name = word

    def respond(self, requests):
        return [Reply(self.name) for _ in requests]


def test_mixture_draws_by_weight_and_passes_every_request_to_every_policy():
    scripted = ScriptedPolicy("stepping", Stepping, "command")
    policy = MixturePolicy([(scripted, 3.0), (Constant("dance"), 1.0)])
    assert policy.name == "mixture:stepping=0.75,dance=0.25"
    assert policy.reproducible
    answers = [
        ask(policy, [request(seed, step=seed)])[0].response for seed in range(1000)
    ]
    assert 680 < sum(answer != "dance" for answer in answers) < 820
    assert all(answer in ("dance", f"step {n + 1}") for n, answer in enumerate(answers))


def test_a_part_of_a_mixture_that_fails_is_the_only_one_that_is_asked_again_and_all_are_closed():
    calls = []

    class Part(Constant):
        def respond(self, requests):
            calls.append((self.name, len(requests)))
            if self.name == "fails" and len(requests) > 1:
                raise ConnectionError("once")
            return super().respond(requests)

        def close(self):
            calls.append((self.name, "closed"))

    policy = MixturePolicy([(Part("fails"), 1.0), (Part("works"), 1.0)])
    assert {
        reply.response for reply in ask(policy, [request(n) for n in range(20)])
    } == {
        "fails",
        "works",
    }
    policy.close()
    assert calls == [
        ("fails", 20),
        *[("fails", 1)] * 20,
        ("works", 20),
        ("fails", "closed"),
        ("works", "closed"),
    ]


def test_scripted_players_have_one_instance_per_slot_and_fail_alone():
    policy = ScriptedPolicy("stepping", Stepping, "command")
    first = ask(policy, [request(1), request(2, slot=1)])
    assert [reply.response for reply in first] == ["step 1", "step 1"]
    assert ask(policy, [request(3, step=1, slot=1)])[0].response == "step 2"
    assert ask(policy, [request(4, slot=1)])[0].response == "step 1"  # a new trajectory
    lost, found = ask(policy, [request(5, step=3, slot=9), request(6, step=1)])
    assert isinstance(lost, Failure)
    assert found.response == "step 2"


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("randon", "unknown policy 'randon'; did you mean 'random'?"),
        (
            "Qwen/Qwen2.5-1.5B",
            "a model is named with its engine: vllm:Qwen/Qwen2.5-1.5B or transformers:",
        ),
        ("expert", "unknown benchmark 'Doors'"),
        (
            "outdated:often",
            "policy outdated: expected nothing after its name, received 'often'",
        ),
        (
            "mixture:",
            "mixture: expected name=weight,name=weight with different names and positive weights, received",
        ),
        (
            "mixture:random=1,random=2",
            "mixture: expected name=weight,name=weight with different names",
        ),
        ("mixture:random", "mixture: expected name=weight"),
        ("mixture:random=-1", "mixture: expected name=weight"),
        ("mixture:random=nan", "mixture: expected name=weight"),
        ("mixture:random=inf", "mixture: expected name=weight"),
        ("mixture:rendom=1", "unknown policy 'rendom'"),
    ],
)
def test_bad_names(spec, line):
    with refused_saying(line):
        make_policy(spec, CONTEXT)


def test_batches_are_as_large_as_the_policy_likes():
    class Sized(Constant):
        batch_size = 3
        sizes: list[int]

        def respond(self, requests):
            self.sizes.append(len(requests))
            return super().respond(requests)

    policy = Sized("x")
    policy.sizes = []
    ask(policy, [request(n) for n in range(8)])
    assert policy.sizes == [3, 3, 2]


def test_a_policy_that_answers_too_few_fails_each_alone():
    class Short(Constant):
        def respond(self, requests):
            return super().respond(requests)[: 1 if len(requests) == 1 else -1]

    assert [
        reply.response for reply in ask(Short("x"), [request(n) for n in range(3)])
    ] == ["x"] * 3


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_request_that_the_engine_gives_up_is_no_reply(reason):
    """vLLM ends requests so when its cache or a worker fails; what it has written by then is not the model's answer."""
    policy = object.__new__(VLLMPolicy)
    policy._refused = []
    policy._running = {"7": (7, FittedPrompt([1]))}
    written = SimpleNamespace(token_ids=[5], logprobs=None, finish_reason=reason)
    ended = SimpleNamespace(finished=True, request_id="7", outputs=[written])
    policy._engine = SimpleNamespace(step=lambda: [ended])
    ((number, answer),) = policy.collect(None)
    assert number == 7
    assert isinstance(answer, Failure)
    assert repr(reason) in answer.message
