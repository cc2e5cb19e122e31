"""Policies of another distribution: found by entry point, played, and trained where their specification says so."""

import subprocess
import sys
from pathlib import Path

import pytest

from hgpo_envs.errors import InputError
from hgpo_train.policies.registry import PolicyContext, check_trainable, make_policy, policy_names, policy_spec

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


SPEC = PolicySpec(make, lambda model, tokenizer, context: First(model, context.generation))
"""
SCRIPT = """
from hgpo_train.models.config import ModelConfig
from hgpo_train.policies.generation import GenerationOptions
from hgpo_train.policies.registry import (
    PolicyContext, TrainableContext, check_trainable, make_policy, make_trainable, policy_names,
)

assert {"first", "plain"} < set(policy_names())
assert make_policy("plain", PolicyContext("ALFWorld")).name == "first"
assert make_policy("first", PolicyContext("ALFWorld")).name == "first"
check_trainable("first")
options = GenerationOptions(temperature=0.5)
policy = make_trainable("first", "a model", None, TrainableContext(ModelConfig(), options))
assert policy.options is options
policy.publish("newer", 3)
assert (policy.model, policy.version) == ("newer", 3)
try:
    check_trainable("plain")
except ValueError as error:
    print(error)
"""


def test_a_policy_of_another_distribution(tmp_path: Path) -> None:
    info = tmp_path / "another-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hgpo.policies]\nfirst = another:SPEC\nplain = another:make\n")
    (tmp_path / "another.py").write_text(MODULE)
    path = [str(tmp_path), str(ROOT), str(ROOT / "datasets")]
    command = f"import sys; sys.path[:0] = {path!r}\n{SCRIPT}"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("unknown rollout.engine 'plain'")
    assert "first" in done.stdout


def test_the_registry_says_which_policies_can_be_trained() -> None:
    pytest.importorskip("torch")
    assert {name for name in policy_names() if policy_spec(name).trainable} == {"transformers", "vllm"}
    for name in ("random", "openai", "no-such-policy"):
        with pytest.raises(InputError, match=r"unknown rollout.engine .*transformers"):
            check_trainable(name)


def test_the_name_of_version_0_1() -> None:
    context = PolicyContext("ALFWorld")
    assert type(make_policy("stale", context)) is type(make_policy("outdated", context))
