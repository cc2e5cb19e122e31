"""`hgpo check gpu` on a CPU: what needs CUDA or vLLM says so, the rest is measured, and faults are found."""

import copy
import io
import json
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from lazily import Lazy
from rich.console import Console

from hgpo_envs.errors import InputError
from hgpo_train.settings import to_toml
from hgpo_train.training.config import replace
from hgpo_train.training.display import Display

torch = Lazy("torch")
gpu_check = Lazy("hgpo_train.training.gpu_check")
Learner = Lazy("hgpo_train.training.update.learner:Learner")


@pytest.mark.slow
def test_the_command_runs_on_a_cpu(config, tmp_path, hgpo):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: run `hgpo check gpu`")
    path = tmp_path / "config.toml"
    path.write_text(to_toml(replace(config, update={"micro_batch_tokens": 1024})))
    code, output, errors = hgpo("check", "gpu", path, "--json")
    findings = {finding["check"]: finding for finding in json.loads(output)}
    failed = {name: finding for name, finding in findings.items() if finding["verdict"] == "fail"}
    assert failed.keys() <= {"/dev/shm"}, errors  # containers often have 64 MB of it
    assert code == bool(failed)
    passed = {name for name, finding in findings.items() if finding["verdict"] == "pass"}
    assert passed >= {"KL and ratio, sdpa 64", "KL and ratio, sdpa 4096", "gradients, packed"}
    assert passed >= {"gradients, checkpointed", "AdamW, offload and resume", "one step of CONFIG"}
    for name in ("bfloat16", "gradients, GPU and CPU", "varlen_attn"):
        assert (findings[name]["verdict"], findings[name]["value"]) == ("skip", "needs CUDA")
    assert "is not built for CUDA" in findings["device"]["value"] or torch.version.cuda
    assert "tokens/s" in findings["one step of CONFIG"]["value"]


@pytest.mark.slow
def test_a_wrong_reference_and_wrong_gradients_are_found(monkeypatch):
    """The reference is another model, and padded rows give another gradient than packed ones."""
    reference = Learner.reference_logprobs
    wrong = "hgpo_train.training.gpu_check.Learner.reference_logprobs"
    monkeypatch.setattr(wrong, lambda *args: reference(*args) + 0.01)
    findings = list(gpu_check.check_gpu(short=True))
    (start,) = (finding for finding in findings if finding.check.startswith("KL"))
    assert start.verdict == "fail"
    assert start.repair in start.line()
    cpu = torch.device("cpu")
    assert gpu_check._gradients(cpu, {"update": {"layout": "packed"}})[0]
    assert not gpu_check._gradients(cpu, {"update": {"entropy_weight": 1.0}})[0]


def test_an_exception_is_a_finding_and_the_other_checks_run():
    raises = Mock(side_effect=RuntimeError("CUDA error: an illegal memory access\nmore"))
    skips = Mock(side_effect=gpu_check.Skipped("needs CUDA"))
    checks = [("first", "update", raises), ("second", "", skips), ("third", "", lambda: (True, "1", "2"))]
    first, second, third = gpu_check._findings(checks)
    assert " ".join(first.line().split()) == "✗ first RuntimeError: CUDA error: an illegal memory access more → update"
    assert (second.verdict, third.verdict) == ("skip", "pass")


class StandIn:
    """Plays vLLM's policy and engine with a model of its own."""

    _adapter, _by_device = None, False

    def __init__(self, model, *, publishes: bool) -> None:
        self._llm, self._served, self._publishes = self, copy.deepcopy(model), publishes

    def publish(self, model, version):
        if self._publishes:
            self._served.load_state_dict(model.state_dict())

    def collective_rpc(self, method):
        weights = self._served.state_dict()
        if method == "reset_weights":
            self._served.load_state_dict({name: weight + 1 for name, weight in weights.items()})
        return [{name: float(weight.double().sum()) for name, weight in weights.items()}]

    def generate(self, prompts, params, **_):
        outputs = []
        for prompt in prompts:
            tokens, logprobs = list(prompt["prompt_token_ids"]), []
            for _ in range(params.max_tokens):
                with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                    distribution = self._served(torch.tensor([tokens])).logits[0, -1].float().log_softmax(-1)
                tokens.append(int(distribution.argmax()))
                logprobs.append({tokens[-1]: SimpleNamespace(logprob=float(distribution.max()))})
            answer = SimpleNamespace(token_ids=tokens[-params.max_tokens :], logprobs=logprobs)
            outputs.append(SimpleNamespace(outputs=[answer]))
        return outputs


def test_an_engine_that_keeps_old_weights_is_found(monkeypatch):
    """The checks of vLLM, which need its package, with a stand-in for it."""
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SimpleNamespace))
    monkeypatch.setattr("hgpo_train.training.gpu_check.RESPONSE", 2)
    cpu = torch.device("cpu")
    engine = gpu_check._Engine.__new__(gpu_check._Engine)
    engine.device, engine.model = cpu, gpu_check._tiny(cpu)
    for publishes in (True, False):
        engine.policy = StandIn(engine.model, publishes=publishes)
        passed, value, _ = gpu_check._published(engine, by_device=False)
        assert (passed, "through the host's memory" in value) == (publishes, True)
        passed, value, _ = gpu_check._gap(engine)
        assert passed == publishes, value
    with pytest.raises(gpu_check.Skipped):
        gpu_check._slept(engine)


def test_training_on_a_gpu_begins_with_the_short_part(config, runs, monkeypatch):
    from hgpo_train.training import memory_plan

    plan = memory_plan.plan_memory(config, memory_plan.meta_model(config.model.path), memory_plan.CARDS[0])
    monkeypatch.setattr("hgpo_train.training.trainer.check_memory", lambda *_: plan)  # as if there were a GPU
    findings = [gpu_check.Finding(name, "fail", "1", "2", "repair it") for name in ("/dev/shm", "free memory")]
    monkeypatch.setattr("hgpo_train.training.gpu_check.check_gpu", lambda *_, short: iter(findings) if short else None)
    shown = Console(record=True, width=200, quiet=False, file=io.StringIO())
    with pytest.raises(InputError, match=r"free memory.*repair it; check_memory = false"):
        runs.trainer(config, display=Display(shown, 1))
    runs.trainer(replace(config, check_memory=False), display=Display(shown, 1)).close()
    assert shown.export_text().count("/dev/shm") == 2
