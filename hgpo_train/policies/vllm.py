"""vLLM in process as a policy: `vllm:MODEL`. Requests join the running batch as they come, nothing waits for a batch.

New weights come by a folder that vLLM loads in place (`vllm_worker.py`), and the prefix cache is emptied afterwards: it
holds keys and values of the old weights.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hgpo_envs.errors import InputError
from hgpo_train.models.checkpoint_files import resolve_model
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
    """Answers by vLLM's engine, stepped in the caller's thread (`hgpo_train.policies.base.Policy`).

    Log-probabilities are those of the distribution that was sampled from (temperature and top-p taken in), as the
    ratio of a policy update needs them.

    Args:
        model: A folder or a Hugging Face name.
        options: How prompts are read and responses drawn; may be replaced between calls.
        engine: Further arguments of `vllm.LLM` (tensor_parallel_size, gpu_memory_utilization, enforce_eager, …).
    """

    name = "vllm"
    reproducible = False  # batches differ with timing, and rounding with batches
    version = 0

    def __init__(self, model: str, options: GenerationOptions, engine: Mapping[str, Any] | None = None) -> None:
        try:
            from vllm import LLM
        except ImportError as error:
            raise InputError("policy vllm needs vLLM 0.32 or newer: pip install 'hgpo[vllm]'") from error
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
        """See `Policy`: steps the engine until a response is finished."""
        answers: list[tuple[int, Reply | Failure]] = list(self._refused)
        self._refused.clear()
        while self._running and not answers:
            try:
                outputs = self._engine.step()
            except Exception as error:  # noqa: BLE001 - a dead engine costs what it was answering
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
        """Takes the weights as they are now, adapters merged in, and forgets what was cached under the old ones.

        Args:
            model: The model that is trained: the same shapes as the one that is served.
            version: Written into the rows from here on.
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

    def close(self) -> None:
        """Drops what is running and frees the engine, also one that has died."""
        try:
            with contextlib.suppress(Exception):
                self._engine.abort_request(list(self._running))
            self._running.clear()
            self._engine.engine_core.shutdown()
        finally:
            self._weights.cleanup()


def _reply(output: Any, fitted: FittedPrompt) -> Reply:  # noqa: ANN401 - vLLM has no types to be followed
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
    """On a CPU, vLLM 0.32 dies when a request with a seed is prefilled in chunks: it is prefilled whole there."""
    from vllm.platforms import current_platform

    return {"enable_chunked_prefill": False, "max_num_batched_tokens": 16_384} if current_platform.is_cpu() else {}


def merge_adapters(model: Model) -> Model:
    """The model with its adapters folded into its weights, in a copy; a model without adapters as it is."""
    if not hasattr(model, "merge_and_unload"):
        return model
    import copy

    return copy.deepcopy(model).merge_and_unload()


def make(argument: str, context: PolicyContext) -> VLLMPolicy:
    """`vllm:MODEL`, MODEL being a model or a run's folder; the option `engine` holds further arguments of `vllm.LLM`.

    Raises:
        InputError: No model is named, an option is unknown, or vLLM is not installed.
    """
    if not argument:
        raise InputError("policy vllm: expected a model, as in vllm:Qwen/Qwen2.5-1.5B-Instruct")
    options = build(VLLMOptions, context.options, "policy option")
    return VLLMPolicy(resolve_model(argument), options, options.engine)


def make_trainable(model: Model, tokenizer: Tokenizer, context: TrainableContext) -> VLLMPolicy:
    """Serves a copy of the weights that are trained; the engine options are arguments of `vllm.LLM`.

    Raises:
        InputError: vLLM is not installed.
    """
    del tokenizer
    path = resolve_model(getattr(model, "name_or_path", "") or context.model.path)
    return VLLMPolicy(path, context.generation, {"trust_remote_code": False, **context.engine_options})


VLLM = PolicySpec(make, make_trainable, VLLMOptions)
