"""Policies of another distribution: found by entry point, played, and trained if their specification allows it."""

import sys
from pathlib import Path

import pytest
from distribution import write_distribution

from hgpo_envs.errors import InputError
from hgpo_envs.plugins import installed
from hgpo_train.models.config import ModelConfig
from hgpo_train.policies.generation import GenerationOptions
from hgpo_train.policies.registry import (
    PolicyContext,
    TrainableContext,
    make_policy,
    policy_names,
    policy_spec,
    trainable_factory,
)

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


def test_policies_of_other_distributions_and_broken_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"first": "another:SPEC", "plain": "another:PLAIN", "absent": "no_module:SPEC", "number": "another:NUMBER"}
    write_distribution(tmp_path, "another", {"another": f"{MODULE}\nNUMBER = 7\n"}, {"hgpo.policies": points})
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.cache_clear()
    try:
        assert points.keys() < set(policy_names())
        assert {make_policy(name, PolicyContext("ALFWorld")).name for name in ("plain", "first")} == {"first"}
        context = TrainableContext(ModelConfig(), GenerationOptions(temperature=0.5))
        policy = trainable_factory("first")("a model", None, context)
        policy.publish("newer", 3)
        assert (policy.options, policy.model, policy.version) == (context.generation, "newer", 3)
        for name, line in (
            ("absent", "hgpo.policies 'absent' of the distribution another cannot be loaded from no_module:SPEC"),
            ("number", "hgpo.policies 'number' of the distribution another: expected a PolicySpec, .* received int 7"),
        ):
            with pytest.raises(InputError, match=line):
                make_policy(name, PolicyContext("ALFWorld"))
        with pytest.raises(InputError, match=r"unknown rollout.engine 'plain'.*first") as caught:
            trainable_factory("plain")
        assert "absent" not in str(caught.value)
    finally:
        installed.cache_clear()


def test_the_registry_lists_policies_that_can_be_trained() -> None:
    pytest.importorskip("torch")
    assert {name for name in policy_names() if policy_spec(name).make_trainable} == {"transformers", "vllm"}
    for name in ("random", "openai", "no-such-policy"):
        with pytest.raises(InputError, match=r"unknown rollout.engine .*transformers"):
            trainable_factory(name)


def test_a_policy_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policy_here.py").write_text(
        MODULE.replace('name, reproducible = "first", True', "reproducible = True").replace(
            "return First()", "policy = First()\n    policy.name = argument\n    return policy"
        )
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    context = PolicyContext("ALFWorld")
    assert make_policy("policy_here:PLAIN:some:argument", context).name == "some:argument"
    assert make_policy("policy_here:SPEC", context).name == ""
    for name, line in (
        ("policy_here:absent", "expected a policy of your own as module:object, received 'policy_here:absent'"),
        (
            "policy_here:__name__",
            "policy_here:__name__: expected a PolicySpec, .* received str",
        ),
        ("opnai:tiny", "unknown policy 'opnai'; did you mean 'openai'"),
        ("opnai:some-model", "unknown policy 'opnai'; did you mean 'openai'"),
    ):
        with pytest.raises(InputError, match=line):
            make_policy(name, context)
