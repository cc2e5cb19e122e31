"""The rollouts of each iteration; with `rollout.ahead`, those of the next one run in a thread during the update."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, TypeAlias

from hgpo_train.training import stages
from hgpo_train.training.progress import after_iteration, is_finished

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from hgpo_datasets import StepWriter
    from hgpo_train.models.checkpoint_files import TrainingState
    from hgpo_train.policies.generation import TrainablePolicy
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.tally import Tally

Collected: TypeAlias = "tuple[pl.DataFrame, float]"
"""The steps of an iteration, and the seconds that their rollouts took."""


class TrainingRollouts:
    """Collects the steps of one iteration after another.

    Args:
        run: The run, whose state says which iteration is next.
        env: The environment.
        policy: The policy.
        table: The step table of the run.
    """

    def __init__(
        self,
        run: stages.Run,
        env: EnvHandle,
        policy: TrainablePolicy,
        table: StepWriter,
    ) -> None:
        self._run = run
        self._env = env
        self._policy = policy
        self._table = table
        self._thread = ThreadPoolExecutor(1, "hgpo-rollouts")
        self._next: Future[Collected] | None = None
        self._is_closing = Event()

    def collect(self) -> Collected:
        """Return the steps of the present iteration; with `rollout.ahead`, begin those of the next one.

        Raises:
            RolloutError: As `stages.collect`.
        """
        run = self._run
        if self._next is None:
            with run.display.stage("collect"):
                collected = self._collect(run.state, run.display.tally)
        else:
            collected = self._next.result()
            self._next = None
        following = after_iteration(run.state, collected[0])
        if run.config.rollout.ahead and not is_finished(run.config, following):
            # without a line of progress, which is the update's meanwhile
            self._next = self._thread.submit(self._collect, following, lambda _: None)
        return collected

    @property
    def is_ahead(self) -> bool:
        """Whether the rollouts of the next iteration have begun."""
        return self._next is not None

    def wait(self) -> None:
        """Wait until the rollouts of the next iteration have ended."""
        if self._next is not None:
            self._next.result()

    def close(self) -> None:
        """Stop the rollouts that are still running, and wait for that."""
        self._is_closing.set()
        self._thread.shutdown()

    def _collect(
        self, state: TrainingState, progress: Callable[[Tally], None]
    ) -> Collected:
        begin = time.perf_counter()
        steps = stages.collect(
            self._run,
            state,
            progress,
            env=self._env,
            policy=self._policy,
            table=self._table,
            should_stop=self._is_closing.is_set,
        )
        return steps, time.perf_counter() - begin
