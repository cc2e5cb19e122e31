"""`vllm:MODEL`: vLLM in process as a policy, with continuous batching.

New weights are handed over in memory (`weight_handover.py`). Adapters are served as adapters, one for each version:
merged into bfloat16 weights, most of a small change would be rounded away. The prefix cache is cleared after each of
them, because it contains keys and values of the old weights.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import secrets
import tempfile
import warnings
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, get_args

from hgpo_envs.errors import InputError, one_line, unknown
from hgpo_envs.plugins import install_command
from hgpo_train.models.chat_format import end_tokens, use_chat_template
from hgpo_train.models.checkpoint_files import resolve_model
from hgpo_train.models.preflight import (
    ADAPTER_SETTINGS,
    check_loads_no_code,
    check_model_source,
    read_settings,
)
from hgpo_train.policies.base import Failure, Reply, Request, attempt
from hgpo_train.policies.generation import (
    FittedPrompt,
    GenerationOptions,
    fit_prompts,
    model_options,
)
from hgpo_train.policies.registry import PolicyContext, PolicySpec, TrainableContext

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from hgpo_train.models.hf import Model, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMOptions(GenerationOptions):
    """Options of `vllm:MODEL`."""

    engine: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `vllm.LLM`, for example { tensor_parallel_size = 2 }."""
    request_seeds: bool = False
    """Sample each response with a generator of its own, seeded by the run. Replies still depend on the composition of
    batches, so they are not reproducible. vLLM draws the tokens of such requests one request at a time, without its
    samplers for GPUs."""


class VLLMPolicy:
    """A policy that runs vLLM's engine in the caller's thread (`hgpo_train.policies.base.Policy`).

    Log-probabilities are those of the distribution that was sampled from, after temperature and top-p, as the ratio of
    a policy update requires.

    Args:
        model: A model's folder or a Hugging Face name.
        options: Options of tokenization and sampling; may be replaced between calls.
        engine: Further arguments of `vllm.LLM` (tensor_parallel_size, gpu_memory_utilization, enforce_eager, …).
        request_seeds: Whether requests are sampled with their own seeds (`VLLMOptions`).
        adapter: A folder with an adapter of the model to serve; None serves the model itself.

    Attributes:
        tokenizer: The model's tokenizer.
        by_device: Whether weights on a GPU are published in place, by CUDA IPC.
    """

    name = "vllm"
    # the composition of batches depends on timing, and rounding depends on the batch
    reproducible = False
    version = 0

    def __init__(
        self,
        model: str,
        options: GenerationOptions,
        engine: Mapping[str, Any] | None = None,
        *,
        request_seeds: bool = False,
        adapter: str | None = None,
    ) -> None:
        check_vllm()
        from vllm import LLM
        from vllm.v1.engine.core_client import InprocClient

        self.options = options
        arguments = {
            "max_model_len": options.max_prompt_tokens + options.max_response_tokens,
            "trust_remote_code": False,
            "logprobs_mode": "processed_logprobs",
            # vLLM's default is 0: every run would draw the same numbers
            "seed": secrets.randbits(31),
            "worker_extension_cls": "hgpo_train.policies.weight_handover.WeightUpdate",
            **_device_arguments(),
            **(engine or {}),
        }
        self._llm = LLM(model, **arguments)
        self._engine: Any = self._llm.llm_engine
        self.tokenizer = self._llm.get_tokenizer()
        if options.chat_template:
            use_chat_template(self.tokenizer, options.chat_template)
        # vLLM adds those of the model's generation settings
        self._ends = end_tokens(self.tokenizer)
        self._running: dict[str, tuple[int, FittedPrompt]] = {}
        self._refused: list[tuple[int, Failure]] = []
        self._request_seeds = request_seeds
        self._serves_adapters = bool(arguments.get("enable_lora"))
        # A process cannot open its own CUDA IPC handles.
        self.by_device = not isinstance(self._engine.engine_core, InprocClient)
        self._adapter: Any = None  # a LoRARequest
        self._adapter_folder: tempfile.TemporaryDirectory[str] | None = None
        if adapter is not None:
            self._serve_adapter(adapter, 0)

    def submit(self, requests: Sequence[Request]) -> None:
        """See `Policy`."""
        from vllm import SamplingParams

        options = self.options
        for request, fitted in zip(
            requests, fit_prompts(self.tokenizer, requests, options), strict=True
        ):
            if isinstance(fitted, Failure):
                self._refused.append((request.id, fitted))
                continue
            params = SamplingParams(
                temperature=options.temperature,
                top_p=options.top_p,
                max_tokens=options.max_response_tokens,
                stop=list(options.stop) or None,
                stop_token_ids=list(self._ends),
                skip_special_tokens=False,
                include_stop_str_in_output=True,
                seed=request.seed if self._request_seeds else None,
                logprobs=0,
            )
            try:
                prompt = {"prompt_token_ids": fitted.tokens}
                self._engine.add_request(
                    str(request.id), prompt, params, lora_request=self._adapter
                )
            except ValueError as error:
                self._refused.append((request.id, Failure.of("PolicyFailed", error)))
                continue
            self._running[str(request.id)] = (request.id, fitted)

    def collect(self, timeout: float | None) -> Sequence[tuple[int, Reply | Failure]]:
        """See `Policy`. Steps the engine until a response is finished."""
        # What was refused at once needs no step of the engine.
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
                    answers.append(
                        (number, attempt("PolicyFailed", self._reply, output, fitted))
                    )
            if timeout == 0:
                break
        return answers

    def _reply(self, output: Any, fitted: FittedPrompt) -> Reply:  # noqa: ANN401 - mypy treats vLLM as untyped
        (completion,) = output.outputs
        if completion.finish_reason in ("abort", "error"):  # no end of the model's
            raise RuntimeError(
                f"the engine ended the request with {completion.finish_reason!r}"
            )
        tokens = list(completion.token_ids)
        logprobs = [
            at[token].logprob
            for at, token in zip(completion.logprobs or [], tokens, strict=True)
        ]
        # The reason is a stop text, or a token of the model's settings. vLLM's own text ends within the last token.
        ends = (*self._ends, completion.stop_reason)
        finish_reason = completion.finish_reason or "stop"
        return fitted.reply(
            self.tokenizer, self.options, ends, tokens, logprobs, finish_reason
        )

    def publish(self, model: Model, version: int) -> None:
        """Serve the model's current weights, or its adapters if the engine serves adapters; clear the prefix cache.

        No request may be running, and the engine must not be asleep.

        Args:
            model: The model that is trained; its shapes equal those of the served model.
            version: The policy version written to rows from now on.
        """
        if self._serves_adapters and hasattr(model, "disable_adapter"):
            self._publish_adapter(model, version)
        else:
            # with torch
            from hgpo_train.policies.weight_handover import checkpoint_weights

            self._publish_weights(
                checkpoint_weights(model, self._engine.vllm_config.model_config.dtype)
            )
        # Its keys and values are those of the old weights.
        self._llm.reset_prefix_cache()
        self.version = version

    def _publish_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Hand weights to the engine's processes: on a GPU in place, or else, after a failure, in the host's memory."""
        from hgpo_train.policies.weight_handover import share_tensors

        try:
            with share_tensors(weights, by_device=self.by_device) as handle:
                self._llm.collective_rpc("take_weights", kwargs={"handle": handle})
        except Exception as error:  # of vLLM, which wraps that of its worker
            if not self.by_device:
                raise
            # A worker that could not map the memory is not asked to again: the way is changed for good.
            self.by_device = False
            warnings.warn(
                f"the engine cannot map the trainer's memory on the GPU ({one_line(error, 200)}): weights now go "
                "through the host's memory, which is slower; in a container, remove expandable_segments from "
                "PYTORCH_CUDA_ALLOC_CONF, or allow pidfd_getfd",
                RuntimeWarning,
                stacklevel=3,
            )
            self._publish_weights(weights)

    def sleep(self) -> None:
        """Free the memory on the GPU: weights move to the host, and the cache is discarded. No request may run."""
        self._llm.sleep(level=1)

    def wake_up(self) -> None:
        """Allocate the memory again; the weights are those of before."""
        self._llm.wake_up()

    def _publish_adapter(self, model: Model, version: int) -> None:
        """Save the model's adapters in float32, let vLLM load them, and remove those of the previous version."""
        folder = tempfile.TemporaryDirectory(prefix="hgpo-adapter-")
        model.save_pretrained(folder.name, save_embedding_layers=False)
        self._serve_adapter(folder.name, version)
        # The engine has loaded the new version by now, and reads the files of the old one no more.
        if self._adapter_folder is not None:
            self._adapter_folder.cleanup()
        self._adapter_folder = folder

    def _serve_adapter(self, folder: str, version: int) -> None:
        """Load an adapter and use it for all requests from now on.

        Each version has its own number and name: vLLM keeps adapters by number, and the keys of its prefix cache
        contain the name and the path.
        """
        from vllm.lora.request import LoRARequest

        adapter = LoRARequest(f"hgpo-{version}", version + 1, folder)
        self._engine.add_lora(adapter)
        if self._adapter is not None:
            self._engine.remove_lora(self._adapter.lora_int_id)
        self._adapter = adapter

    def close(self) -> None:
        """Abort running requests and shut the engine down, even if it has died."""
        try:
            # An engine that has died answers nothing, and its processes must end all the same.
            with contextlib.suppress(Exception):
                self._engine.abort_request(list(self._running))
            self._running.clear()
            self._engine.engine_core.shutdown()
        finally:
            if self._adapter_folder is not None:
                self._adapter_folder.cleanup()


def check_vllm() -> None:
    """Check that vLLM is installed and finds a device. Only its errors are printed, unless `VLLM_LOGGING_LEVEL` is set.

    Raises:
        InputError: It is not installed, or finds no device, such as a build for GPUs on a machine without one.
    """
    # By default it prints a hundred lines per start and per publication to stdout, where commands print their results.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    try:
        from vllm import LLM
        from vllm.platforms import current_platform
    except ImportError as error:
        raise InputError(
            f"policy vllm needs vLLM 0.32 or newer: {install_command('vllm')}"
        ) from error
    del LLM
    if not current_platform.device_type:
        raise InputError(
            "policy vllm: vLLM finds no GPU here; use a machine with one, vLLM's build for CPUs, or the policy "
            "transformers:MODEL"
        )


def _device_arguments() -> dict[str, Any]:
    """Return arguments for the device. On a CPU, chunked prefill of a request with a seed crashes vLLM 0.32."""
    from vllm.platforms import current_platform

    return (
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 16_384}
        if current_platform.is_cpu()
        else {}
    )


def adapter_arguments(rank: int) -> dict[str, Any]:
    """Return the arguments of `vllm.LLM` for serving one adapter; empty if the rank exceeds what vLLM supports.

    Args:
        rank: Rank of the adapter.
    """
    from vllm.config.lora import MaxLoRARanks

    ranks = [supported for supported in get_args(MaxLoRARanks) if supported >= rank]
    return (
        {"enable_lora": True, "max_loras": 1, "max_lora_rank": min(ranks)}
        if ranks
        else {}
    )


def make(argument: str, context: PolicyContext) -> VLLMPolicy:
    """Create the policy `vllm:MODEL`. The option `engine` contains further arguments of `vllm.LLM`.

    Args:
        argument: A model's folder, the folder of a training run, or a Hugging Face name.
        context: The properties of the run.

    Raises:
        InputError: The model is missing, or is an adapter that vLLM does not support; an option is not valid; or vLLM
            is not installed or finds no device. Nothing is downloaded if that can be known before.
    """
    from hgpo_train.models.loading import load_tokenizer

    options = model_options("vllm", argument, VLLMOptions, context)
    check_vllm()
    check_model_source(argument)
    folder = resolve_model(argument)
    base = check_loads_no_code(folder)
    if base is None:
        # An error of the tokenizer comes before the engine starts, which takes a minute.
        load_tokenizer(folder, options.chat_template)
        return VLLMPolicy(
            folder, options, options.engine, request_seeds=options.request_seeds
        )

    rank = (read_settings(folder, ADAPTER_SETTINGS) or {}).get("r")
    lora = adapter_arguments(rank) if isinstance(rank, int) else {}
    if not lora:
        raise InputError(
            f"{folder}: vLLM serves no adapters of rank {rank} (r in {ADAPTER_SETTINGS}); use the policy "
            f"transformers:{folder}"
        )
    check_model_source(base)
    load_tokenizer(folder, options.chat_template)
    engine = {**lora, "tokenizer": folder, **options.engine}
    return VLLMPolicy(
        base, options, engine, request_seeds=options.request_seeds, adapter=folder
    )


def make_trainable(
    model: Model, tokenizer: Tokenizer, context: TrainableContext
) -> VLLMPolicy:
    """Create a policy that serves a copy of the trained weights, or the trained adapters.

    The engine options are arguments of `vllm.LLM`, and `request_seeds` of `VLLMOptions`. With `enable_lora = false`,
    adapters are merged into the served weights.

    Raises:
        InputError: vLLM is not installed, or its engine did not start.
    """
    del tokenizer
    check_vllm()
    path = resolve_model(getattr(model, "name_or_path", "") or context.model.path)
    options = dict(context.engine_options)
    request_seeds = bool(options.pop("request_seeds", False))
    rank = context.model.lora.rank
    serves_adapters = rank > 0 and options.get("enable_lora") is not False
    engine = {**(adapter_arguments(rank) if serves_adapters else {}), **options}
    try:
        return VLLMPolicy(path, context.generation, engine, request_seeds=request_seeds)
    except InputError:
        raise
    except (ValueError, RuntimeError) as error:
        # the engine's process prints the cause, which its error often lacks
        share = engine.get("gpu_memory_utilization", "vLLM's default")
        raise InputError(
            f"vLLM did not start with gpu_memory_utilization = {share} ({one_line(error, 200)}); if memory is missing, "
            "close other programs on the GPU, set rollout.sleep = true, or see `hgpo train CONFIG --plan`"
        ) from error


def check_engine(engine_options: Mapping[str, Any]) -> None:
    """Check that vLLM can be used, and knows the options of a training run's engine.

    Raises:
        InputError: vLLM is not installed or finds no device, or an option is unknown.
    """
    check_vllm()
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    names = {
        *inspect.signature(LLM).parameters,
        *(each.name for each in fields(EngineArgs)),
        "request_seeds",
    }
    where = "rollout.engine_options."
    known = [f"{where}{name}" for name in sorted(names) if not name.startswith("_")]
    for name in engine_options:
        if f"{where}{name}" not in known:
            raise InputError(unknown("setting", f"{where}{name}", known, limit=4))


VLLM = PolicySpec(make, make_trainable, VLLMOptions, check_engine=check_engine)
