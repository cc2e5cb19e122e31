"""vLLM in process and as a server, with a tiny model; skipped if vLLM is not installed."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from refusals import refused

pytest.importorskip("vllm", reason="vLLM is not installed (extra `vllm`)")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from hgpo_train.models.loading import load_model
from hgpo_train.models.tiny import TinyShape, make_model, train_tokenizer
from hgpo_train.policies.base import Failure, Reply, Request
from hgpo_train.policies.generation import GenerationOptions
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.policies.vllm import VLLMPolicy, adapter_arguments
from hgpo_train.rollout.env_handle import open_env

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

ENGINE = {"dtype": "bfloat16", "enforce_eager": True, "disable_log_stats": True}
OPTIONS = GenerationOptions(max_prompt_tokens=900, max_response_tokens=12)


@pytest.fixture(scope="module")
def handle():
    return open_env("HGPO/ALFWorld-v0", action_format="response")


@pytest.fixture(scope="module")
def requests(handle):
    from hgpo_envs.episode import Episode

    made = []
    for number, task_id in enumerate(handle.tasks[:24]):
        episode = Episode(handle.shared, handle.settings)
        episode.start(task_id)
        task = episode.task
        state = episode.state
        made.append(
            Request(
                number,
                episode.prompt(),
                99 + number,
                number,
                0,
                task,
                state,
                None,
                lambda _: "short",
            )
        )
    return made


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory, requests):
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = train_tokenizer([request.prompt for request in requests], 1024)
    shape = TinyShape(vocabulary=1024, layers=2, positions=1024)
    make_model(tokenizer, shape, seed=1).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def policy(model_folder):
    policy = VLLMPolicy(str(model_folder), OPTIONS, ENGINE, request_seeds=True)
    yield policy
    policy.close()


def answers(policy, requests):
    policy.submit(requests)
    got: dict[int, Reply | Failure] = {}
    while len(got) < len(requests):
        got |= dict(policy.collect(None))
    return got


def gap(model, replies):
    """Return the largest difference between the log-probabilities of vLLM and of Transformers for the same tokens."""
    widest = 0.0
    for reply in replies.values():
        tokens = torch.tensor([[*reply.prompt_token_ids, *reply.response_token_ids]])
        with torch.no_grad():
            logits = (
                model(tokens).logits[0, len(reply.prompt_token_ids) - 1 : -1].float()
            )
        own = (
            torch.log_softmax(logits, -1)
            .gather(-1, tokens[0, len(reply.prompt_token_ids) :, None])
            .squeeze(-1)
        )
        widest = max(
            widest, (own - torch.tensor(reply.response_logprobs)).abs().max().item()
        )
    return widest


def loaded(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def test_log_probabilities_agree_with_transformers(policy, requests, model_folder):
    replies = answers(policy, requests)
    assert all(isinstance(reply, Reply) for reply in replies.values())
    assert all(
        len(r.response_logprobs) == len(r.response_token_ids) > 0
        for r in replies.values()
    )
    assert gap(loaded(model_folder), replies) < 0.01


def test_a_stop_text_ends_a_response_after_the_token_that_completes_it(
    policy, requests, model_folder
):
    decode = AutoTokenizer.from_pretrained(model_folder).decode
    free = answers(policy, requests[:1])[0]
    pieces = [decode([token]) for token in free.response_token_ids]
    number = next(
        n for n in range(1, len(pieces)) if len(pieces[n]) > 2 and pieces[n].isascii()
    )
    stop = pieces[number][1:-1]
    policy.options = replace(OPTIONS, stop=(stop,))
    try:
        stopped = answers(policy, requests[:1])[0]
    finally:
        policy.options = OPTIONS
    count = len(stopped.response_token_ids)
    assert stopped.response_token_ids == free.response_token_ids[:count]
    assert stopped.response == decode(stopped.response_token_ids)
    assert len(stopped.response_logprobs) == count
    assert stop in stopped.response
    assert stop not in decode(stopped.response_token_ids[:-1])
    assert stopped.finish_reason == "stop"


def test_responses_depend_on_seeds_and_length_limits_are_reported(policy, requests):
    first = answers(policy, requests[:4])
    second = answers(policy, requests[:4])
    assert [r.response for r in first.values()] == [r.response for r in second.values()]
    assert {r.finish_reason for r in first.values()} <= {"stop", "length"}
    assert all(
        len(r.response_token_ids) <= OPTIONS.max_response_tokens for r in first.values()
    )


def test_new_weights_change_replies_and_clear_the_cache(
    policy, requests, model_folder, monkeypatch
):
    before = answers(policy, requests[:6])
    model = loaded(model_folder)
    # weights are not written to files
    monkeypatch.delattr(PreTrainedModel, "save_pretrained")
    old = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        torch.manual_seed(3)
        for parameter in model.parameters():
            # as large as the weights themselves
            parameter += 0.02 * torch.randn_like(parameter)
    policy.publish(model, version=1)
    # the same prompts: a stale prefix cache would be used now
    after = answers(policy, requests[:6])
    assert gap(model, after) < 0.01
    assert [r.response for r in after.values()] != [r.response for r in before.values()]
    assert policy.version == 1
    model.load_state_dict(old)
    policy.publish(model, version=2)
    again = answers(policy, requests[:6])
    assert [r.response_token_ids for r in again.values()] == [
        r.response_token_ids for r in before.values()
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="requires a GPU")
def test_new_weights_on_a_gpu_are_mapped(policy, requests, model_folder):
    model = loaded(model_folder).float().cuda()
    with torch.no_grad():
        torch.manual_seed(4)
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    policy.publish(model, version=5)
    expected = loaded(model_folder)
    expected.load_state_dict(model.state_dict())
    assert gap(expected, answers(policy, requests[:6])) < 0.02
    policy.publish(loaded(model_folder), version=6)


def adapted(model_folder, seed):
    """Return the model with adapters whose weights are all random: a change as large as the weights."""
    from hgpo_train.models.adapters import add_adapters
    from hgpo_train.models.config import LoraConfig

    model = add_adapters(
        loaded(model_folder), LoraConfig(rank=4, alpha=16), seed
    ).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(
                    0.05 * torch.randn(parameter.shape, generator=generator)
                )
    return model


def test_adapters_are_merged_for_an_engine_without_adapters(
    policy, requests, model_folder
):
    before = answers(policy, requests[:6])
    model = adapted(model_folder, seed=1)
    policy.publish(model, version=3)
    after = answers(policy, requests[:6])
    assert gap(model, before) > 0.2  # the adapters matter
    assert gap(model, after) < 0.02
    policy.publish(loaded(model_folder), version=4)
    assert gap(loaded(model_folder), answers(policy, requests[:6])) < 0.01


def test_adapters_are_served_as_adapters_and_replaced(model_folder, requests):
    policy = VLLMPolicy(str(model_folder), OPTIONS, {**ENGINE, **adapter_arguments(4)})
    try:
        assert gap(loaded(model_folder), answers(policy, requests[:6])) < 0.01
        # the same prompts: a stale prefix cache would be used
        for version in (1, 2, 3):
            model = adapted(model_folder, seed=version)
            policy.publish(model, version)
            assert gap(model, answers(policy, requests[:6])) < 0.02
            assert set(policy._engine.list_loras()) == {version + 1}
        assert gap(adapted(model_folder, seed=1), answers(policy, requests[:6])) > 0.2
    finally:
        policy.close()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            '{"peft_type": "PREFIX_TUNING"}',
            "expected the model's name as base_model_name_or_path",
        ),
        (
            '{"peft_type": "PREFIX_TUNING", "base_model_name_or_path": "base"}',
            "vLLM serves no adapters of rank None",
        ),
        (
            '{"r": 4096, "base_model_name_or_path": "base"}',
            "vLLM serves no adapters of rank 4096",
        ),
        (
            '{"r": 4, "base_model_name_or_path": "/no/such/folder"}',
            "no folder '/no/such/folder'",
        ),
    ],
)
def test_a_folder_that_is_no_adapter_for_vllm_is_rejected(tmp_path, settings, expected):
    (tmp_path / "adapter_config.json").write_text(settings)
    with refused(expected):
        make_policy(f"vllm:{tmp_path}", PolicyContext("ALFWorld", "response", {}))


@pytest.mark.parametrize("rank", [0, 4], ids=["all weights", "adapters"])
def test_vllm_as_the_engine_of_training_and_for_the_trained_policy(
    model_folder, requests, tmp_path, rank
):
    from rich.console import Console

    from hgpo_train.models.checkpoint_files import list_checkpoints
    from hgpo_train.training.config import Config, replace
    from hgpo_train.training.display import Display
    from hgpo_train.training.tracking import read_metrics
    from hgpo_train.training.trainer import Trainer

    config = replace(
        Config(),
        iterations=2,
        environment={"id": "HGPO/ALFWorld-v0", "max_steps": 3},
        model={
            "path": str(model_folder),
            "device": "cpu",
            "gradient_checkpointing": False,
            "lora": {"rank": rank},
        },
        rollout={
            "engine": "vllm",
            "engine_options": ENGINE,
            "tasks": 2,
            "group_size": 3,
        }
        | {"max_prompt_tokens": 900, "max_response_tokens": 8},
        advantage={"parameters": {"invalid_action_penalty": 0.0, "reward": "score"}},
        # nothing is won: entropy moves the weights
        update={"entropy_weight": 1.0, "kl_weight": 0.0, "logit_chunk": 0},
        optimiser={"learning_rate": 1e-3},
        evaluation={"every": 0},
        tracking={"tensorboard": False},
    )
    run = tmp_path / "run"
    trainer = Trainer(config, run, Display(Console(quiet=True), 2))
    trainer.run()
    first, second = read_metrics(run / "metrics.jsonl")
    assert first["training/rollout_logprobs_abs_diff_mean"] < 0.01
    # weights that were published, not the first ones
    assert second["training/rollout_logprobs_abs_diff_mean"] < 0.01
    original = load_model(config.model, config.seed).parameters()
    moved = [
        (new - old).abs().max().item()
        for new, old in zip(
            trainer.shared.learner.model.parameters(), original, strict=True
        )
    ]
    assert max(moved) > 1e-3
    options = {"max_prompt_tokens": 900, "max_response_tokens": 8, "engine": ENGINE}
    trained = make_policy(f"vllm:{run}", PolicyContext("ALFWorld", "response", options))
    assert isinstance(trained, VLLMPolicy)
    try:
        assert (
            gap(
                loaded(list_checkpoints(run / "checkpoints")[-1]),
                answers(trained, requests[:6]),
            )
            < 0.01
        )
    finally:
        trained.close()


@pytest.fixture(scope="module")
def server(model_folder, policy):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model_folder),
    ]
    command += [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--served-model-name",
        "tiny",
        "--dtype",
        "bfloat16",
    ]
    command += [
        "--enforce-eager",
        "--max-model-len",
        "1000",
        "--logprobs-mode",
        "processed_logprobs",
    ]
    command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096"]
    log = (model_folder / "server.log").open("w")
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
                break
            except (urllib.error.URLError, OSError):
                if process.poll() is not None:
                    pytest.fail((model_folder / "server.log").read_text()[-3000:])
                time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_the_server_answers_like_transformers(server, requests, model_folder):
    options = {
        "base_url": server,
        "max_response_tokens": 12,
        "logprobs": True,
        "token_ids": True,
    }
    policy = make_policy("openai:tiny", PolicyContext("ALFWorld", "response", options))
    policy.submit(requests[:8])
    replies: dict = {}
    while len(replies) < 8:
        replies |= dict(policy.collect(60))
    policy.close()
    assert all(isinstance(reply, Reply) for reply in replies.values()), replies
    assert gap(loaded(model_folder), replies) < 0.01


def test_the_server_reports_that_a_prompt_is_too_long(server, requests):
    from dataclasses import replace

    long = replace(requests[0], prompt=requests[0].prompt * 12, step=4)
    context = PolicyContext(
        "ALFWorld", "response", {"base_url": server, "max_response_tokens": 8}
    )
    policy = make_policy("openai:tiny", context)
    policy.submit([long])
    ((_, reply),) = policy.collect(60)
    policy.close()
    assert isinstance(reply, Reply), reply
    assert reply.prompt == "short"
