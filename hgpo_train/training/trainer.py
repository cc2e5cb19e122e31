"""The training loop: a loop over the stages (`stages.py`), on the files of a run (`run_folder.py`).

Rollouts, scores and advantages are written before they are trained on, and all random numbers are derived from the seed
and the iteration. An interrupted run therefore resumes from its last checkpoint: what the files after it contain is
used again, the rest is computed again. On a CPU the resulting weights are byte for byte those of an uninterrupted run.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

import polars as pl
import torch

from hgpo_datasets import StepWriter
from hgpo_datasets.sources import is_run
from hgpo_envs.errors import InputError
from hgpo_envs.wording import counted
from hgpo_train.models.checkpoint_files import stored_model
from hgpo_train.models.loading import load_model, load_tokenizer
from hgpo_train.policies.generation import generation_options
from hgpo_train.policies.registry import TrainableContext, trainable_factory
from hgpo_train.rollout import branch_rules
from hgpo_train.rollout.collection import removed_if_unused
from hgpo_train.training import stages
from hgpo_train.training.checkpoint import resume_checkpoint, save_checkpoint
from hgpo_train.training.config import configured_estimator
from hgpo_train.training.data import env_options, open_training_env
from hgpo_train.training.memory_plan import check_memory, memory_advice, memory_metrics
from hgpo_train.training.metrics import episode_metrics
from hgpo_train.training.progress import (
    after_evaluation,
    after_iteration,
    is_finished,
)
from hgpo_train.training.run_folder import (
    CHECKPOINTS,
    CONFIG,
    EVALUATION,
    check_new,
    open_run,
    write_config,
)
from hgpo_train.training.tracking import Trackers
from hgpo_train.training.update.learner import Learner
from hgpo_train.training.update.optimiser import move_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hgpo_train.advantages import Estimator
    from hgpo_train.models.checkpoint_files import TrainingState
    from hgpo_train.models.hf import Tokenizer
    from hgpo_train.policies.generation import TrainablePolicy
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.training.config import Config, RolloutConfig
    from hgpo_train.training.display import Display


class Trainer:
    """A training run: the policy, its learner and the folder that everything is written to.

    Args:
        config: The run's configuration.
        folder: The run's folder, locked until `run` returns or raises. A run in it is resumed from its newest valid
            checkpoint.
        display: Shows the progress.
        resume: Whether to resume a run that the folder already contains.

    Attributes:
        shared: What the stages share, such as the learner and the progress.
        policy: The engine that plays.

    Raises:
        InputError: The configuration cannot be used, another process trains in the folder, or the run in it was started
            with another configuration, model, prompt template or data.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        display: Display,
        *,
        resume: bool = False,
    ) -> None:
        rollout = config.rollout

        # 1. What can be refused without a model: the folder, the estimator, the engine, the memory, the tasks.
        check_new(folder, resume=resume)
        estimator = configured_estimator(config)
        rule = rollout.branch
        if rule and branch_rules.get(rule).outcomes and estimator.biased_by_outcomes:
            stages.warn(
                f"branches are chosen by outcomes ({rule}), which biases {estimator.name}; use "
                "tree_loo or carl with advantage.parameters = {fresh = true} (docs/branches.md)"
            )
        make_policy = trainable_factory(rollout.engine, rollout.engine_options)
        plan = check_memory(config, display)
        if plan is not None:
            _check_machine(config, display)
        with removed_if_unused(folder, CONFIG), ExitStack() as resources:
            env = open_training_env(config, config.environment.split)
            resources.enter_context(closing(env))
            self._held_out: EnvHandle | None = None
            # a split that does not exist is an error before training
            if config.evaluation.every:
                self._held_out = open_training_env(config, config.evaluation.split)
                resources.enter_context(closing(self._held_out))
            tokenizer = load_tokenizer(config.model.path, rollout.chat_template)

            # 2. The folder, with what must be the same when the run is resumed; of settings that are paths, the files.
            inputs = {
                **env.identity(env_options(config, config.environment.split)),
                "model": stored_model(config.model.path),
            }
            if rule:
                inputs |= branch_rules.identity(rule, rollout.branch_width)
            if rollout.chat_template:
                inputs["chat_template"] = tokenizer.chat_template
            self._table = resources.enter_context(open_run(folder, config, inputs))

            # 3. The policy as the newest checkpoint left it, and its learner.
            planned = config if plan is None else plan.config
            run = load_run(planned, folder, display, tokenizer, estimator)
            self.shared = run
            learner = run.learner
            if rollout.offload_optimiser:
                move_state(learner.optimiser, torch.device("cpu"))
            torch.cuda.empty_cache()

            # 4. The engine is last: its share is fixed by the plan, and what the learner holds by then is not its own.
            # vLLM takes a minute or two.
            options = rollout.engine_options if plan is None else plan.engine_options()
            if rollout.sleep and rollout.engine == "vllm":
                options = options | {"enable_sleep_mode": True}
            generation = generation_options(rollout)
            with display.stage(f"start {rollout.engine}"):
                context = TrainableContext(config.model, generation, options)
                self.policy = make_policy(learner.model, tokenizer, context)
            resources.enter_context(closing(self.policy))
            with memory_advice(config):
                self.policy.publish(learner.model, run.state.iteration)

            # 5. The thread of rollouts beside an update. At the end they are stopped, which is waited for.
            thread = ThreadPoolExecutor(1, "hgpo-rollouts")
            self._thread = resources.enter_context(thread)
            self._ahead: Future[tuple[pl.DataFrame, float]] | None = None
            is_closing = Event()
            resources.callback(is_closing.set)
            self._collect = partial(
                stages.collect,
                run,
                env=env,
                policy=self.policy,
                table=self._table,
                should_stop=is_closing.is_set,
            )

            # 6. Line 0 of the metrics is the evaluation before training, repeated if no iteration is complete.
            first_line = run.state.iteration + 1 if run.state.iteration else 0
            trackers = Trackers(config, folder, first_line)
            self._trackers = resources.enter_context(trackers)
            write_config(folder, config)
            self._resources = resources.pop_all()

    def run(self) -> TrainingState:
        """Train until the configured number of iterations or environment steps is reached; return the final state."""
        run = self.shared
        config = run.config
        evaluation = config.evaluation
        with self._resources:
            if (
                run.state.iteration == 0
                and evaluation.every
                and evaluation.before_training
            ):
                with run.display.stage("evaluate"):
                    metrics = self.evaluate()
                metrics["training/environment_steps"] = 0.0
                self._trackers.log(metrics, 0)
                run.display.row(0, metrics)
            if is_finished(config, run.state):
                done = counted(run.state.iteration, "iteration")
                run.display.show(
                    f"Nothing is left to do: the run has reached its end after {done}."
                )
            while not is_finished(config, run.state):
                self.iterate()
        return run.state

    def close(self) -> None:
        """End the engine and the trackers, and unlock the folder; `run` does this in any case."""
        self._resources.close()

    def iterate(self) -> None:
        """Run one iteration: its stages, then metrics and a checkpoint.

        Raises:
            InputError: The data, the rows or the device's memory do not allow training.
            RolloutError: As `stages.collect`.
        """
        run = self.shared
        config = run.config
        rollout = config.rollout
        learner = run.learner
        seconds = run.seconds
        stage = run.display.stage
        begin = time.perf_counter()
        seconds.clear()
        if learner.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(learner.device)

        # 1. Collect, if that was not done beside the update before. With `rollout.ahead`, the next rollouts begin now,
        # without a line of progress, which is the update's.
        if self._ahead is None:
            with stage("collect"):
                steps, seconds["gen"] = self._collect(run.state, run.display.tally)
        else:
            steps, seconds["gen"] = self._ahead.result()
            self._ahead = None
        trained = after_iteration(run.state, steps)
        if rollout.ahead and not is_finished(config, trained):
            self._ahead = self._thread.submit(self._collect, trained)

        # 2. Score, estimate and update, while the engine sleeps if it can.
        with memory_advice(config), gpu_for_update(rollout, self.policy, learner):
            with stage("score", seconds, "score"):
                rows = stages.score(run, steps)
            with stage("estimate", seconds, "adv"):
                rows, estimated = stages.estimate(run, rows)
            with stage("update", seconds, "update_actor"):
                metrics = stages.update(run, rows)
        run.state = trained

        # 3. Publish. The next iteration's rollouts end before the engine receives other weights.
        if self._ahead is not None:
            with stage("collect", seconds, "gen_wait"):
                self._ahead.result()
        with stage("publish", seconds, "publish"), memory_advice(config):
            self.policy.publish(learner.model, run.state.iteration)

        # 4. Evaluate.
        is_best = False
        every = config.evaluation.every
        is_last = is_finished(config, run.state)
        if every and (is_last or run.state.iteration % every == 0):
            with stage("evaluate", seconds, "testing"):
                metrics |= self.evaluate()
            success = metrics.get("val/success_rate", math.nan)
            run.state = after_evaluation(run.state, success)
            is_best = run.state.stalled == 0 and config.checkpoint.keep > 0
            is_last = is_finished(config, run.state)

        # 5. Metrics, then the checkpoint: an iteration that it counts has its metrics and its evaluation on disk.
        seconds["step"] = time.perf_counter() - begin
        metrics |= estimated | self._iteration_metrics(steps, metrics)
        self._trackers.log(metrics, run.state.iteration)
        run.display.row(run.state.iteration, metrics)
        is_due = run.state.iteration % config.checkpoint.every == 0
        if is_best or is_last or is_due:
            with stage("checkpoint"):
                save_checkpoint(
                    run.folder / CHECKPOINTS,
                    run.state,
                    learner.model,
                    run.tokenizer,
                    learner.optimiser,
                    config.checkpoint,
                )

    def _iteration_metrics(
        self, steps: pl.DataFrame, updated: dict[str, float]
    ) -> dict[str, float]:
        """Return the metrics of an iteration's rollouts, of its durations and of the device's memory."""
        seconds = self.shared.seconds
        metrics = episode_metrics(steps)
        device = self.shared.learner.device
        if device.type == "cuda":
            metrics |= memory_metrics(device)
        lag = steps.select(
            (pl.col("iteration") - pl.col("policy_version")).mean()
        ).item()
        metrics["training/policy_lag"] = lag or 0.0
        environment_steps = float(self.shared.state.environment_steps)
        metrics["training/environment_steps"] = environment_steps
        metrics |= {
            f"timing_s/{stage}": duration for stage, duration in seconds.items()
        }
        metrics["perf/throughput"] = updated["perf/total_num_tokens"] / seconds["step"]
        generated = int(steps["response_token_ids"].list.len().sum())
        metrics["perf/rollout_tokens_per_s"] = generated / max(seconds["gen"], 1e-9)
        return metrics

    def evaluate(self) -> dict[str, float]:
        """Evaluate the policy on held-out tasks and return metrics named ``val/…``."""
        assert self._held_out is not None
        folder = self.shared.folder / EVALUATION
        # `open_run` has compared that
        stored = None if is_run(folder) else self._table.header.config
        with StepWriter(folder, run=self._table.header.run, config=stored) as table:
            return stages.evaluate(self.shared, self._held_out, self.policy, table)


def load_run(
    config: Config,
    folder: Path,
    display: Display,
    tokenizer: Tokenizer,
    estimator: Estimator,
) -> stages.Run:
    """Load the model and its learner, as the newest checkpoint of a run's folder left them.

    Raises:
        InputError: The model, its checkpoint or its length of context cannot be used, or memory ran out.
    """
    with display.stage("load the model"), memory_advice(config):
        model = load_model(config.model, config.seed)
        rollout = config.rollout
        learner = Learner(model, config, temperature=rollout.temperature)
        longest = rollout.max_prompt_tokens + rollout.max_response_tokens
        if learner.context_length is not None and longest > learner.context_length:
            raise InputError(
                f"rollout.max_prompt_tokens + rollout.max_response_tokens is {longest}, but the model accepts at most "
                f"{learner.context_length} tokens; reduce one of them"
            )
        state = resume_checkpoint(
            folder / CHECKPOINTS, model, learner.optimiser, config.checkpoint
        )
    return stages.Run(config, folder, display, learner, tokenizer, estimator, state)


@contextmanager
def gpu_for_update(
    config: RolloutConfig, policy: TrainablePolicy, learner: Learner
) -> Iterator[None]:
    """Within the block, the optimiser's state is on the device, and the engine sleeps if it can."""
    sleeper: Any = policy if config.sleep and hasattr(policy, "sleep") else None
    if sleeper is not None:
        sleeper.sleep()
    if config.offload_optimiser:
        move_state(learner.optimiser, learner.device)
    yield
    if config.offload_optimiser:
        move_state(learner.optimiser, torch.device("cpu"))
    if sleeper is not None or config.offload_optimiser:
        torch.cuda.empty_cache()
    if sleeper is not None:
        sleeper.wake_up()


def _check_machine(config: Config, display: Display) -> None:
    """Show what the short part of `hgpo check gpu` finds; raise `InputError` if memory is in use by other programs."""
    from hgpo_train.training import gpu_check

    for finding in gpu_check.check_gpu(config, short=True):
        if finding.verdict == "fail":
            if finding.check == gpu_check.FREE_MEMORY and config.check_memory:
                raise InputError(
                    f"{finding.line()}; check_memory = false starts nevertheless"
                )
            display.show(finding.line())
