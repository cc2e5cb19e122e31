"""Policies of another distribution: found by entry point, played, and trained if their specification allows it."""

import subprocess
import sys
from pathlib import Path

import pytest
from distribution import write_distribution

from hgpo_envs.errors import InputError
from hgpo_train.policies.registry import PolicyContext, make_policy, policy_names, policy_spec, trainable_factory

ROOT = Path(__file__).parents[2]

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
SCRIPT = """
from hgpo_train.models.config import ModelConfig
from hgpo_train.policies.generation import GenerationOptions
from hgpo_train.policies.registry import (
    PolicyContext, TrainableContext, make_policy, policy_names, trainable_factory,
)

assert {"first", "plain"} < set(policy_names())
assert make_policy("plain", PolicyContext("ALFWorld")).name == "first"
assert make_policy("first", PolicyContext("ALFWorld")).name == "first"
options = GenerationOptions(temperature=0.5)
policy = trainable_factory("first")("a model", None, TrainableContext(ModelConfig(), options))
assert policy.options is options
policy.publish("newer", 3)
assert (policy.model, policy.version) == ("newer", 3)
try:
    trainable_factory("plain")
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_policy_of_another_distribution(tmp_path: Path) -> None:
    info = tmp_path / "another-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hgpo.policies]\nfirst = another:SPEC\nplain = another:PLAIN\n")
    (tmp_path / "another.py").write_text(MODULE)
    path = [str(tmp_path), str(ROOT), str(ROOT / "datasets")]
    command = f"import sys; sys.path[:0] = {path!r}\n{SCRIPT}"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("unknown rollout.engine 'plain'")
    assert "first" in done.stdout


def test_the_registry_lists_policies_that_can_be_trained() -> None:
    pytest.importorskip("torch")
    assert {name for name in policy_names() if policy_spec(name).make_trainable} == {"transformers", "vllm"}
    for name in ("random", "openai", "no-such-policy"):
        with pytest.raises(InputError, match=r"unknown rollout.engine .*transformers"):
            trainable_factory(name)


@pytest.mark.slow
def test_broken_packages_break_no_others(tmp_path: Path) -> None:
    points = {
        "hgpo.policies": {"absent": "absent_module:SPEC", "number": "policies_of_mine:NUMBER", "fine": "fine:SPEC"}
    }
    write_distribution(tmp_path, "half-broken", {"policies_of_mine": "NUMBER = 7", "fine": MODULE}, points)
    script = """
from hgpo_envs.errors import InputError
from hgpo_train.policies.registry import PolicyContext, make_policy, trainable_factory

for name in ("absent", "number"):
    try:
        make_policy(name, PolicyContext("ALFWorld"))
    except InputError as error:
        print(error)
make_policy("fine", PolicyContext("ALFWorld"))
try:
    trainable_factory("random")
except InputError as error:
    print(error)
"""
    path = [str(tmp_path), str(ROOT), str(ROOT / "datasets")]
    command = f"import sys; sys.path[:0] = {path!r}\n{script}"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    absent, number, trainable = done.stdout.splitlines()
    assert "hgpo.policies 'absent' of the distribution half-broken cannot be loaded from absent_module:SPEC" in absent
    assert number == (
        "hgpo.policies 'number' of the distribution half-broken: expected a PolicySpec, a function of one request, an "
        "object with `respond`, or a Policy, received int 7"
    )
    assert "fine" in trainable
    assert "absent" not in trainable


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
