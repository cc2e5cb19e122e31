"""Policies: random, outdated, mixtures, scripted players, names, and the two base classes."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.engine import State, Task
from hgpo_envs.errors import InputError
from hgpo_train.policies.base import BatchPolicy, Failure, Reply, Request
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.policies.scripted import (
    MixturePolicy,
    OutdatedActionPolicy,
    RandomPolicy,
    ScriptedPolicy,
)

CONTEXT = PolicyContext("Doors", "response")


def request(seed: int = 0, step: int = 0, slot: int = 0, actions=("a", "b", "c"), instruction="find a red shoe"):
    task = Task("t", "train", instruction, "kind")
    state = State("here", actions, True, False, False, 0.0, 0.0, {})
    return Request(seed, "prompt", seed, slot, step, task, state, None, lambda _: "prompt")


def ask(policy, requests):
    policy.submit(requests)
    found = {}
    while len(found) < len(requests):
        found |= dict(policy.collect(None))
    return [found[request.id] for request in requests]


def test_random_is_uniform_and_depends_only_on_the_seed():
    policy = RandomPolicy("command")
    answers = [reply.response for reply in ask(policy, [request(seed) for seed in range(3000)])]
    assert all(900 < count < 1100 for count in Counter(answers).values())
    assert set(answers) == {"a", "b", "c"}
    again = [reply.response for reply in ask(policy, [request(seed, slot=5) for seed in range(3000)][::-1])][::-1]
    assert answers == again


def test_random_fills_searches_with_words_of_the_instruction():
    policy = RandomPolicy("response")
    found = [ask(policy, [request(seed, actions=["search[<your query>]"])])[0].response for seed in range(200)]
    queries = [text.removeprefix("<think></think><action>search[").removesuffix("]</action>") for text in found]
    assert {len(query.split()) for query in queries} == {1, 2, 3}
    assert {word for query in queries for word in query.split()} == {"find", "a", "red", "shoe"}


@given(st.integers(0, 2**63 - 1), st.text(max_size=20), st.lists(st.text(max_size=9), max_size=4))
def test_random_answers_anything(seed, instruction, actions):
    reply = RandomPolicy("command").respond([request(seed, actions=actions, instruction=instruction)])[0]
    if actions:
        assert reply.response in actions or any("<your query>" in action for action in actions)
    else:
        assert reply == Failure("PolicyFailed", "random draws from the admissible actions, and the state lists none")


@given(st.lists(st.lists(st.sampled_from("abcde"), max_size=5, unique=True), max_size=8), st.integers(0, 2**62))
def test_outdated_draws_actions_that_are_no_longer_admissible(shown, seed):
    policy = OutdatedActionPolicy("command")
    before = set()
    for step, actions in enumerate(shown):
        (reply,) = ask(policy, [request(seed + step, step, actions=actions)])
        choices = before - set(actions) or actions
        assert reply.response in choices if choices else isinstance(reply, Failure)
        before |= set(actions)
    other = ask(policy, [request(0, 0, slot=1, actions=["z"]), request(1, 0, actions=["y"])])
    assert [reply.response for reply in other] == ["z", "y"]  # each slot, and each episode, has its own past


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
    answers = [ask(policy, [request(seed, step=seed)])[0].response for seed in range(1000)]
    assert 680 < sum(answer != "dance" for answer in answers) < 820
    assert all(answer in ("dance", f"step {n + 1}") for n, answer in enumerate(answers))


def test_scripted_players_have_one_instance_per_slot_and_fail_alone():
    policy = ScriptedPolicy("stepping", Stepping, "command")
    first = ask(policy, [request(1, 0, slot=0), request(2, 0, slot=1)])
    assert [reply.response for reply in first] == ["step 1", "step 1"]
    assert ask(policy, [request(3, 1, slot=1)])[0].response == "step 2"
    assert ask(policy, [request(4, 0, slot=1)])[0].response == "step 1"  # a new trajectory
    lost, found = ask(policy, [request(5, 3, slot=9), request(6, 1, slot=0)])
    assert isinstance(lost, Failure)
    assert found.response == "step 2"


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("randon", "unknown policy 'randon'; did you mean 'random'?"),
        ("Qwen/Qwen2.5-1.5B", "a model is named with its engine: vllm:Qwen/Qwen2.5-1.5B or transformers:"),
        ("expert", "unknown benchmark 'Doors'"),
        ("outdated:often", "policy outdated: expected nothing after its name, received 'often'"),
        ("mixture:", "mixture: expected name=weight,name=weight with positive weights, received ''"),
        ("mixture:random", "mixture: expected name=weight"),
        ("mixture:random=-1", "mixture: expected name=weight"),
        ("mixture:random=nan", "mixture: expected name=weight"),
        ("mixture:random=inf", "mixture: expected name=weight"),
        ("mixture:rendom=1", "unknown policy 'rendom'"),
    ],
)
def test_bad_names(spec, line):
    with pytest.raises(InputError) as caught:
        make_policy(spec, CONTEXT)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


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

    assert [reply.response for reply in ask(Short("x"), [request(n) for n in range(3)])] == ["x"] * 3
