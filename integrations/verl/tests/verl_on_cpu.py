"""verl on a machine without a GPU, for the test of its plug-in: what verl itself does not have for one.

Besides a platform (`verl_cpu_platform`):

- verl's own FSDP engine, registered for CPUs: verl registers it for CUDA and NPU only.
- A stand-in for the generating server: verl's are vLLM, SGLang and TensorRT-LLM. This one samples from the trained
  model with Transformers, and receives its weights from verl's trainer as they do.

And a trainer that writes down what verl trains on.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import ray
import torch
import transfer_queue as tq
from verl.trainer.ppo.v1 import register_trainer
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import FSDPEngineWithLMHead
from verl.workers.rollout import base as rollout_base
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import (
    RolloutReplica,
    RolloutReplicaRegistry,
    TokenOutput,
)

from hgpo_verl.trainer import HgpoTrainer

NAME = "tiny"


@ray.remote
class TinyServer:
    """Samples from a model with Transformers. Requests that arrive together are one batch."""

    def __init__(self, path: str, seed: int) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32
        ).eval()
        self.stop = (self.model.config.eos_token_id,)
        self.version = None
        self.seed = seed
        self.requests = 0
        self.waiting = []

    async def generate(self, prompt_ids, sampling_params, request_id, **_):
        done = asyncio.get_running_loop().create_future()
        self.waiting.append((list(prompt_ids), sampling_params, done))
        if len(self.waiting) == 1:
            asyncio.get_running_loop().call_later(0.02, self._sample)
        return await done

    def _sample(self):
        from hgpo_train.policies.token_sampling import SamplingOptions, sample_responses

        self._pause()
        batch = self.waiting
        self.waiting = []
        sampling = batch[0][1]
        seeds = [self.seed + self.requests + number for number in range(len(batch))]
        self.requests += len(batch)
        options = SamplingOptions(
            max_new_tokens=sampling["max_tokens"],
            temperature=sampling["temperature"],
            top_p=sampling["top_p"],
            stop=self.stop,
            max_batch_tokens=1 << 17,
        )
        for (_, _, done), drawn in zip(
            batch,
            sample_responses(self.model, [one[0] for one in batch], seeds, options),
            strict=True,
        ):
            tokens = drawn.tokens.tolist()
            if not done.done():
                fields = {"global_steps": self.version}
                done.set_result(
                    TokenOutput(
                        token_ids=tokens,
                        log_probs=drawn.logprobs.tolist(),
                        stop_reason="completed",
                        extra_fields=fields,
                    )
                )

    def _pause(self):
        """After `VERL_TEST_PAUSE` requests, say so and wait until the test has killed a worker."""
        folder = os.environ.get("VERL_TEST_FOLDER")
        count = int(os.environ.get("VERL_TEST_PAUSE", "0"))
        if (
            folder is None
            or self.requests < count
            or (Path(folder) / "paused").exists()
        ):
            return
        (Path(folder) / "paused").touch()
        while not (Path(folder) / "go on").exists():
            time.sleep(0.05)

    async def set_weights(self, weights, version):
        own = self.model.state_dict()
        # tied to the embedding
        missing = own.keys() - weights.keys() - {"lm_head.weight"}
        if missing or weights.keys() - own.keys():
            raise ValueError(
                f"weights: missing {missing}, unknown {weights.keys() - own.keys()}"
            )
        self.model.load_state_dict(weights, strict=False)
        self.version = version

    async def sleep(self):
        pass

    wake_up = resume_generation = clear_kv_cache = release_kv_cache = (
        resume_kv_cache
    ) = sleep

    async def abort_all_requests(self, reject_request=False):
        pass


class TinyReplica(RolloutReplica):
    """verl's handle of the server."""

    async def launch_servers(self):
        path = self.model_config["path"]
        server = TinyServer.options(name=f"tiny_server_{self.replica_rank}").remote(
            path, 1000 * self.replica_rank
        )
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"tiny_{self.replica_rank}"


class TinyAdapter(BaseRollout):
    """The trainer's side of the server, in each training process."""

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, global_steps=None, **_):
        full = {
            name: weight.detach().to(torch.float32).cpu().clone()
            for name, weight in weights
        }
        if torch.distributed.get_rank() == 0:
            for actor in ray.util.list_named_actors():
                if actor.startswith("tiny_server_"):
                    await ray.get_actor(actor).set_weights.remote(full, global_steps)


RolloutReplicaRegistry.register(NAME, lambda: TinyReplica)
rollout_base._ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.TinyAdapter"
EngineRegistry.register(
    model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu"
)(FSDPEngineWithLMHead)


@register_trainer("hgpo_watched")
class WatchedTrainer(HgpoTrainer):
    """The plug-in's trainer, which writes down what verl is about to train on."""

    def _update_actor(self, batch, metrics):
        fields = [
            "advantages",
            "response_mask",
            "extra_fields",
            "rollout_log_probs",
            "old_log_probs",
        ]
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=fields
        )
        columns = [
            [one.tolist() for one in data[name].unbind()]
            for name in fields
            if name != "extra_fields"
        ]
        lines = []
        for key, tag, extra, *values in zip(
            batch.keys, batch.tags, list(data["extra_fields"]), *columns, strict=True
        ):
            row = getattr(extra, "data", extra)["hgpo"]
            lines.append(
                {
                    "key": key,
                    "padding": bool(tag.get("is_padding", False)),
                    "trajectory": row["trajectory"],
                    "step": row["step"],
                    **dict(
                        zip(
                            (name for name in fields if name != "extra_fields"),
                            values,
                            strict=True,
                        )
                    ),
                }
            )
        batch = super()._update_actor(batch, metrics)
        seen = {
            "rows": lines,
            "metrics": {name: float(value) for name, value in metrics.items()},
        }
        (self.settings.folder / f"trained-{self.global_steps}.json").write_text(
            json.dumps(seen)
        )
        return batch
