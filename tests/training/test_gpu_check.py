"""`hgpo check gpu` on a CPU: what needs CUDA or vLLM says so, the rest is measured, and faults are found."""

import copy
import io
import json
from unittest.mock import Mock

import pytest
from lazily import Lazy
from refusals import refused
from rich.console import Console

from hgpo_train.models.tiny import train_tokenizer
from hgpo_train.policies.generation import GenerationOptions
from hgpo_train.settings import to_toml
from hgpo_train.training.config import replace
from hgpo_train.training.display import Display

torch = Lazy("torch")
gpu_check = Lazy("hgpo_train.training.gpu_check")
TransformersPolicy = Lazy("hgpo_train.policies.transformers:TransformersPolicy")
Learner = Lazy("hgpo_train.training.update.learner:Learner")


@pytest.mark.slow
def test_the_command_runs_on_a_cpu(config, tmp_path, hgpo):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: run `hgpo check gpu`")
    path = tmp_path / "config.toml"
    path.write_text(to_toml(replace(config, update={"micro_batch_tokens": 1024})))
    code, output, errors = hgpo("check", "gpu", path, "--json")
    findings = {finding["check"]: finding for finding in json.loads(output)}
    failed = {
        name: finding
        for name, finding in findings.items()
        if finding["verdict"] == "fail"
    }
    # containers often have 64 MB of it
    expected = {"/dev/shm"} | ({"device"} if torch.version.cuda else set())
    assert failed.keys() <= expected, errors
    assert code == bool(failed)
    passed = {
        name for name, finding in findings.items() if finding["verdict"] == "pass"
    }
    assert passed >= {
        "KL and ratio, 64 tokens",
        "KL and ratio, 4096 tokens",
        "one update of CONFIG",
    }
    assert (findings["free memory"]["verdict"], findings["free memory"]["value"]) == (
        "skip",
        "needs CUDA",
    )
    assert "is not built for CUDA" in findings["device"]["value"] or torch.version.cuda
    assert "tokens/s" in findings["one update of CONFIG"]["value"]


@pytest.mark.slow
def test_a_wrong_reference_is_found(monkeypatch):
    reference = Learner.reference_logprobs
    wrong = "hgpo_train.training.gpu_check.Learner.reference_logprobs"
    monkeypatch.setattr(wrong, lambda *args: reference(*args) + 0.01)
    findings = list(gpu_check.check_gpu(short=True))
    (start,) = (finding for finding in findings if finding.check.startswith("KL"))
    assert start.verdict == "fail"
    assert start.repair in start.line()


def test_an_exception_is_a_finding_and_the_other_checks_run():
    raises = Mock(
        side_effect=RuntimeError("CUDA error: an illegal memory access\nmore")
    )
    skips = Mock(side_effect=gpu_check.Skipped("needs CUDA"))
    checks = [
        ("first", "update", raises),
        ("second", "", skips),
        ("third", "", lambda: (True, "1", "2")),
    ]
    first, second, third = gpu_check._findings(checks)
    assert (
        " ".join(first.line().split())
        == "FAIL first RuntimeError: CUDA error: an illegal memory access more → update"
    )
    assert (second.verdict, third.verdict) == ("skip", "pass")


class StandIn:
    """An engine in the place of vLLM's, whose weights are those of a model, or of its first state."""

    by_device = False

    def __init__(self, model, tokenizer, *, publishes: bool) -> None:
        self._policy = TransformersPolicy(
            copy.deepcopy(model), tokenizer, GenerationOptions(max_response_tokens=4)
        )
        self._publishes = publishes
        self.submit = self._policy.submit
        self.collect = self._policy.collect

    def publish(self, model, version):
        if self._publishes:
            self._policy.publish(model, version)


@pytest.mark.parametrize("publishes", [True, False])
def test_an_engine_that_keeps_old_weights_is_found(publishes):
    model = gpu_check.small_model(torch.device("cpu"))
    tokenizer = train_tokenizer(gpu_check.TEXTS, gpu_check.VOCABULARY)
    passed, value, _ = gpu_check.published_gap(
        StandIn(model, tokenizer, publishes=publishes), model
    )
    assert passed == publishes, value
    assert "through the host's memory" in value


def test_training_on_a_gpu_begins_with_the_short_part(config, runs, monkeypatch):
    from hgpo_train.training import memory_plan

    plan = memory_plan.plan_memory(
        config, memory_plan.meta_model(config.model.path), memory_plan.CARDS[0]
    )
    # as if there were a GPU
    monkeypatch.setattr("hgpo_train.training.trainer.check_memory", lambda *_: plan)
    findings = [
        gpu_check.Finding(name, "fail", "1", "2", "repair it")
        for name in ("/dev/shm", "free memory")
    ]
    monkeypatch.setattr(
        "hgpo_train.training.gpu_check.check_gpu",
        lambda *_, short: iter(findings) if short else None,
    )
    shown = Console(record=True, width=200, quiet=False, file=io.StringIO())
    with refused(r"free memory.*repair it; check_memory = false"):
        runs.trainer(config, display=Display(shown, 1))
    runs.trainer(replace(config, check_memory=False), display=Display(shown, 1)).close()
    assert shown.export_text().count("/dev/shm") == 2
