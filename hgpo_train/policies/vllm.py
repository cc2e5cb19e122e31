"""`vllm:MODEL`: vLLM in process as a policy, with continuous batching.

New weights are saved to a folder, from which vLLM loads them in place (`vllm_worker.py`). Then the prefix cache is
cleared, which contains keys and values of the old weights.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hgpo_envs.errors import InputError
from hgpo_train.models.checkpoint_files import resolve_model
from hgpo_train.models.preflight import check_model_source
from hgpo_train.policies.base import Failure, Reply, attempt
from hgpo_train.policies.generation import FittedPrompt, GenerationOptions, fit_prompts
from hgpo_train.policies.registry import PolicySpec
from hgpo_train.settings import build

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_train.models.hf import Model, Tokenizer
    from hgpo_train.policies.base import Request
    from hgpo_train.policies.registry import PolicyContext, TrainableContext


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMOptions(GenerationOptions):
    """Options of `vllm:MODEL`."""

    engine: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `vllm.LLM`, for example { tensor_parallel_size = 2 }."""


class VLLMPolicy:
    """A policy that runs vLLM's engine in the caller's thread (`hgpo_train.policies.base.Policy`).

    Log-probabilities are those of the distribution that was sampled from, after temperature and top-p, as the ratio of
    a policy update requires.

    Args:
        model: A model's folder or a Hugging Face name.
        options: Options of tokenization and sampling; may be replaced between calls.
        engine: Further arguments of `vllm.LLM` (tensor_parallel_size, gpu_memory_utilization, enforce_eager, …).
    """

    name = "vllm"
    reproducible = False  # the composition of batches depends on timing, and rounding depends on the batch
    version = 0

    def __init__(self, model: str, options: GenerationOptions, engine: Mapping[str, Any] | None = None) -> None:
        check_vllm()
        from vllm import LLM

        self.options = options
        given = {
            "max_model_len": options.max_prompt_tokens + options.max_response_tokens,
            "trust_remote_code": False,
            "logprobs_mode": "processed_logprobs",
            "worker_extension_cls": "hgpo_train.policies.vllm_worker.WeightUpdate",
            **_device_arguments(),
            **(engine or {}),
        }
        self._llm = LLM(model, **given)
        self._engine: Any = self._llm.llm_engine
        self._tokenizer = self._llm.get_tokenizer()
        self._running: dict[str, tuple[int, FittedPrompt]] = {}
        self._refused: list[tuple[int, Failure]] = []
        self._weights = tempfile.TemporaryDirectory(prefix="hgpo-weights-")

    def submit(self, requests: Sequence[Request]) -> None:
        """See `Policy`."""
        from vllm import SamplingParams

        options = self.options
        for request, fitted in zip(requests, fit_prompts(self._tokenizer, requests, options), strict=True):
            if isinstance(fitted, Failure):
                self._refused.append((request.id, fitted))
                continue
            params = SamplingParams(
                temperature=options.temperature,
                top_p=options.top_p,
                max_tokens=options.max_response_tokens,
                stop=list(options.stop) or None,
                include_stop_str_in_output=True,
                seed=request.seed,
                logprobs=0,
            )
            try:
                self._engine.add_request(str(request.id), {"prompt_token_ids": fitted.tokens}, params)
            except ValueError as error:
                self._refused.append((request.id, Failure.of("PolicyFailed", error)))
                continue
            self._running[str(request.id)] = (request.id, fitted)

    def collect(self, timeout: float | None) -> Sequence[tuple[int, Reply | Failure]]:
        """See `Policy`. Steps the engine until a response is finished."""
        answers: list[tuple[int, Reply | Failure]] = list(self._refused)
        self._refused.clear()
        while self._running and not answers:
            try:
                outputs = self._engine.step()
            except Exception as error:  # noqa: BLE001 - an engine that raises aborts the running requests only
                failure = Failure.of("PolicyFailed", error)
                answers = [(number, failure) for number, _ in self._running.values()]
                self._running.clear()
                break
            for output in outputs:
                if output.finished:
                    number, fitted = self._running.pop(output.request_id)
                    answers.append((number, attempt("PolicyFailed", _reply, output, fitted)))
            if timeout == 0:
                break
        return answers

    def publish(self, model: Model, version: int) -> None:
        """Load the model's current weights, with adapters merged, and clear the prefix cache.

        Args:
            model: The model that is trained; its shapes equal those of the served model.
            version: The policy version written to rows from now on.
        """
        if version != self.version:
            folder = Path(self._weights.name) / f"{version:06d}"
            merge_adapters(model).save_pretrained(folder)
            self._llm.collective_rpc("take_weights", kwargs={"weights_path": str(folder)})
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
        self._llm.reset_prefix_cache()
        self.version = version

    def sleep(self) -> None:
        """Free the memory on the GPU: weights move to the host, and the cache is discarded. No request may run."""
        self._llm.sleep(level=1)

    def wake_up(self) -> None:
        """Allocate the memory again; the weights are those of before."""
        self._llm.wake_up()

    def close(self) -> None:
        """Abort running requests and shut the engine down, even if it has died."""
        try:
            with contextlib.suppress(Exception):
                self._engine.abort_request(list(self._running))
            self._running.clear()
            self._engine.engine_core.shutdown()
        finally:
            self._weights.cleanup()


def check_vllm() -> None:
    """Check that vLLM is installed and finds a device.

    Raises:
        InputError: It is not installed, or finds no device, such as a build for GPUs on a machine without one.
    """
    try:
        from vllm import LLM
        from vllm.platforms import current_platform
    except ImportError as error:
        raise InputError("policy vllm needs vLLM 0.32 or newer: pip install 'hgpo[vllm]'") from error
    del LLM
    if not current_platform.device_type:
        raise InputError(
            "policy vllm: vLLM finds no GPU here; use a machine with one, vLLM's build for CPUs, or the policy "
            "transformers:MODEL"
        )


def _reply(output: Any, fitted: FittedPrompt) -> Reply:  # noqa: ANN401 - mypy treats vLLM as untyped
    (completion,) = output.outputs
    tokens = list(completion.token_ids)
    return Reply(
        response=completion.text,
        prompt=fitted.prompt,
        prompt_token_ids=fitted.tokens,
        response_token_ids=tokens,
        response_logprobs=[at[token].logprob for at, token in zip(completion.logprobs or [], tokens, strict=True)],
        finish_reason=completion.finish_reason or "stop",
        cut_pairs=fitted.cut_pairs,
        cut_tokens=fitted.cut_tokens,
    )


def _device_arguments() -> dict[str, Any]:
    """Return arguments for the device. On a CPU, chunked prefill of a request with a seed crashes vLLM 0.32."""
    from vllm.platforms import current_platform

    return {"enable_chunked_prefill": False, "max_num_batched_tokens": 16_384} if current_platform.is_cpu() else {}


def merge_adapters(model: Model) -> Model:
    """Return a copy of the model with its adapters merged into its weights; a model without adapters is not copied."""
    if not hasattr(model, "merge_and_unload"):
        return model
    import copy

    return copy.deepcopy(model).merge_and_unload()


def make(argument: str, context: PolicyContext) -> VLLMPolicy:
    """Create the policy `vllm:MODEL`. The option `engine` contains further arguments of `vllm.LLM`.

    Args:
        argument: A model's folder, the folder of a training run, or a Hugging Face name.
        context: The properties of the run.

    Raises:
        InputError: The model is missing, an option is not valid, or vLLM is not installed or finds no device.
            Nothing is downloaded if that can be known before.
    """
    if not argument:
        raise InputError("policy vllm: expected a model, as in vllm:Qwen/Qwen2.5-1.5B-Instruct")
    options = build(VLLMOptions, context.options, "policy option")
    check_vllm()
    check_model_source(argument)
    return VLLMPolicy(resolve_model(argument), options, options.engine)


def make_trainable(model: Model, tokenizer: Tokenizer, context: TrainableContext) -> VLLMPolicy:
    """Create a policy that serves a copy of the trained weights. The engine options are arguments of `vllm.LLM`.

    Raises:
        InputError: vLLM is not installed.
    """
    del tokenizer
    path = resolve_model(getattr(model, "name_or_path", "") or context.model.path)
    return VLLMPolicy(path, context.generation, {"trust_remote_code": False, **context.engine_options})


VLLM = PolicySpec(make, make_trainable, VLLMOptions)
