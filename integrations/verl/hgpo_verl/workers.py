"""verl's manager of agent loop workers, with one addition: a worker that dies is replaced and its tasks are played."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import ray
import transfer_queue as tq
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.tensordict_utils import index_select_tensor_dict

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDict
    from transfer_queue import KVBatchMeta

logger = logging.getLogger(__name__)


class ReplacingAgentLoopManager(AgentLoopManagerTQ):
    """Replaces workers that have died. verl alone waits forever for the tasks of such a worker.

    Attributes:
        replaced: Number of workers that were replaced.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.replaced = 0
        # by worker: the partition and tasks of the newest batch
        self._given: dict[int, tuple[str, TensorDict]] = {}
        self._pings: dict[int, ray.ObjectRef[Any]] = {}

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Give each worker its part of the tasks without waiting for results; see verl's method."""
        self.replace_dead_workers()
        has_mode = "validate" in prompts.keys()  # noqa: SIM118
        partition = "val" if has_mode and prompts["validate"] else "train"
        sent = []
        for number, chunk in enumerate(prompts.chunk(len(self.agent_loop_workers))):
            self._given[number] = partition, chunk
            sent.append(
                (
                    number,
                    self.agent_loop_workers[number].generate_sequences.remote(chunk),
                )
            )
        for number, reference in sent:
            try:
                ray.get(reference)
            except RayActorError:
                self._replace(number)

    def replace_dead_workers(self) -> None:
        """Start a new worker for each one that has died, and give it the tasks that are not finished."""
        for number, worker in enumerate(self.agent_loop_workers):
            if number not in self._pings:
                self._pings[number] = worker.__ray_ready__.remote()
            ready, _ = ray.wait([self._pings[number]], timeout=0)
            if not ready:  # busy, or not started yet
                continue
            try:
                ray.get(self._pings.pop(number))
            except RayActorError:
                self._replace(number)

    def _replace(self, number: int) -> None:
        self.replaced += 1
        logger.warning(
            "agent loop worker %d has died; a new one plays its unfinished tasks",
            number,
        )
        node = ray.get_runtime_context().get_node_id()
        self.agent_loop_workers[number] = self.agent_loop_workers_class.options(
            name=f"agent_loop_worker_{number}_{uuid4().hex[:8]}",
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=True),
        ).remote(
            self.config,
            self.llm_client,
            self.teacher_client,
            self.reward_loop_worker_handles,
        )
        if number in self._given:
            self._give_again(number, *self._given[number])

    def _give_again(self, number: int, partition: str, chunk: TensorDict) -> None:
        tags: dict[str, dict[str, Any]] = (tq.kv_list(partition) or {}).get(
            partition, {}
        )
        uids = [str(uid) for uid in chunk["uid"]]
        unfinished = [
            uid
            for uid in uids
            if tags.get(uid, {}).get("status") in ("pending", "running")
        ]
        if not unfinished:
            return
        of_them = set(unfinished)
        stale = [
            key
            for key in tags
            if key not in of_them and key.split("_", 1)[0] in of_them
        ]
        if stale:
            tq.kv_clear(keys=stale, partition_id=partition)
        again = index_select_tensor_dict(chunk, [uids.index(uid) for uid in unfinished])
        ray.get(self.agent_loop_workers[number].generate_sequences.remote(again))


class WatchfulReplayBuffer(ReplayBuffer):
    """verl's buffer of finished rollouts, which calls back while it waits and when it has a batch.

    Attributes:
        on_wait: Called at every poll.
        on_sampled: Called with every batch.
    """

    on_wait: Callable[[], object] = staticmethod(lambda: None)
    on_sampled: Callable[[KVBatchMeta], object] = staticmethod(lambda _: None)

    def sample(self, *args: Any, **kwargs: Any) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Return a batch; see verl's method."""
        batch, metrics = super().sample(*args, **kwargs)
        self.on_sampled(batch)
        return batch, metrics

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        self.on_wait()
        return super()._wait_for_next_poll(partition_id, last_debug_time)
