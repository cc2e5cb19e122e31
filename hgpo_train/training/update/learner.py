"""The learner: updates a policy from samples with advantages; owns the optimiser and the reference model."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from hgpo_envs.errors import InputError
from hgpo_train.models.hf import compile_layers
from hgpo_train.models.reference import frozen_copy
from hgpo_train.training.memory_plan import memory_advice
from hgpo_train.training.update.batches import micro_batches, mini_batches
from hgpo_train.training.update.losses import policy_loss, token_weights
from hgpo_train.training.update.optimiser import make_optimiser
from hgpo_train.training.update.rollout_correction import rollout_correction
from hgpo_train.training.update.scorer import TokenScorer
from hgpo_train.training.update.throughput import model_flops, peak_flops

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hgpo_train.models.hf import Model
    from hgpo_train.training.config import Config, SftConfig
    from hgpo_train.training.update.batches import Samples


class LossInputs(NamedTuple):
    """What the loss takes as given during an update, float arrays of shape (response tokens,).

    Attributes:
        old: log π_old. None uses the present policy, so that all ratios are 1; with advantages of 1 the loss is then
            the negative log-likelihood of supervised training.
        reference: log π_ref, or None without a KL term.
        rollout_is: Importance weights of the rollout correction, or None.
    """

    old: NDArray[np.float32] | None = None
    reference: NDArray[np.float32] | None = None
    rollout_is: NDArray[np.float64] | None = None


class Learner(TokenScorer):
    """A policy with its optimiser and, for the KL term, a frozen reference model.

    Args:
        model: A causal language model, bare or wrapped by peft, with trainable weights in float32.
        config: The run's configuration, of which the sections `update`, `optimiser` and `model` are used.
        temperature: Sampling temperature that log-probabilities are computed at.
        reference: Whether to keep a frozen copy of the present model for the KL term; by default, if `kl_weight` is
            greater than 0.
    """

    def __init__(
        self,
        model: Model,
        config: Config | SftConfig,
        *,
        temperature: float = 1.0,
        reference: bool | None = None,
    ) -> None:
        super().__init__(model, config, temperature=temperature)
        keep = config.update.kl_weight > 0 if reference is None else reference
        with memory_advice(config):
            self.optimiser = make_optimiser(model, config.optimiser)
            if keep:
                is_adapted = hasattr(model, "disable_adapter")
                self.reference = model if is_adapted else frozen_copy(model, self.dtype)
        if config.model.compile:
            compile_layers(model)
            if self.reference not in (None, model):
                compile_layers(self.reference)

    def loss_inputs(self, samples: Samples) -> LossInputs:
        """Score samples by what the configured loss takes as given, before the update changes the policy."""
        old = None
        if self.config.update.old_logprobs == "recompute":
            old = self.logprobs(samples)
        reference = None if self.reference is None else self.reference_logprobs(samples)
        return LossInputs(old, reference)

    def update(
        self,
        samples: Samples,
        rng: np.random.Generator,
        rate: float | None = None,
        progress: Callable[[int, int], None] | None = None,
        *,
        inputs: LossInputs | None = None,
    ) -> dict[str, float]:
        """Update the policy on samples: one optimiser step per mini-batch, over all epochs.

        Args:
            samples: Rows with advantages.
            rng: Random generator that draws the mini-batches.
            rate: The learning rate; None leaves it unchanged.
            progress: Called after each optimiser step with the number of finished steps and of all steps.
            inputs: The samples' log-probabilities before the update; None computes them (`loss_inputs`). The engine's
                replace `old` with `old_logprobs = "rollout"`.

        Returns:
            Metrics under verl's names (`actor/…`, `perf/…`), averaged over optimiser steps.

        Raises:
            InputError: The device ran out of memory, or the configuration uses the engine's log-probabilities and some
                are missing.
        """
        begin = time.perf_counter()
        config = self.config.update
        rows = np.flatnonzero(samples.response_length > 0)
        if not len(rows):
            return {"actor/optimiser_steps": 0.0}

        # 1. What the loss takes as given, before the first step changes the policy.
        if inputs is None:
            inputs = self.loss_inputs(samples)
        reported = samples.rollout_logprob
        is_old = config.old_logprobs == "rollout" or inputs.old is None
        is_read = is_old or config.rollout_is is not None
        if is_read and np.isnan(reported).any():
            setting = "update.rollout_is to none"
            if is_old:
                setting = 'update.old_logprobs = "recompute"'
            raise InputError(
                "expected response_logprobs for every response token, but the engine reported none for some; "
                f"set {setting}"
            )
        metrics: dict[str, float] = {}
        if is_old:
            inputs = inputs._replace(old=reported)
        else:
            inputs, metrics = self._corrected(samples, inputs)

        # 2. One optimiser step per mini-batch.
        update_begin = time.perf_counter()
        batches: list[NDArray[np.int64]] = []
        for _ in range(config.epochs):
            batches += mini_batches(rows, config.mini_batch_size, rng, samples.sequence)
        steps = []
        for done, batch in enumerate(batches):
            steps.append(self.step(samples, batch, inputs, rate))
            if progress is not None:
                progress(done + 1, len(batches))
        end = time.perf_counter()

        # 3. Metrics: means over optimiser steps, and throughput.
        metrics |= {
            name: float(np.mean([step[name] for step in steps])) for name in steps[0]
        }
        metrics["actor/lr"] = self.optimiser.param_groups[0]["lr"]
        metrics["actor/optimiser_steps"] = float(len(steps))
        length = samples.sequence_length
        computed = float(length.sum())
        metrics["perf/update_tokens_per_s"] = computed / (end - begin)
        metrics["perf/shared_tokens"] = 1.0 - computed / float(samples.start[-1])
        peak = peak_flops(self.device, self.dtype)
        if peak is not None:
            # as verl's: without scoring
            flops = model_flops(self.model, length, samples.response_length)
            rate_of_flops = flops * config.epochs / (end - update_begin)
            metrics["perf/mfu/actor"] = rate_of_flops / peak
        return metrics

    def _corrected(
        self, samples: Samples, inputs: LossInputs
    ) -> tuple[LossInputs, dict[str, float]]:
        """Add the weights of the rollout correction; return how far the engine's log-probabilities are from `old`."""
        config = self.config.update
        old = inputs.old
        assert old is not None
        metrics: dict[str, float] = {}
        if config.rollout_is is not None:
            weights, metrics = rollout_correction(
                old,
                samples.rollout_logprob,
                samples.response_start,
                config.rollout_is,
                config.rollout_is_threshold,
                config.rollout_is_least,
            )
            inputs = inputs._replace(rollout_is=weights)
        known = ~np.isnan(samples.rollout_logprob)
        if known.any():
            gap = np.abs(old[known] - samples.rollout_logprob[known])
            metrics["training/rollout_logprobs_abs_diff_mean"] = float(gap.mean())
            metrics["training/rollout_logprobs_abs_diff_max"] = float(gap.max())
        return inputs, metrics

    def step(
        self,
        samples: Samples,
        rows: NDArray[np.int64],
        inputs: LossInputs,
        rate: float | None = None,
    ) -> dict[str, float]:
        """Take one optimiser step on a mini-batch, with the gradient accumulated over micro-batches.

        The step is skipped and counted (`actor/skipped`) if the loss or the gradient is not finite. Arguments and
        result are those of `accumulate`, with the gradient norm before clipping, under verl's names (`actor/…`); the
        learning rate is that of this and the following steps, and None leaves it unchanged.
        """
        if rate is not None:
            for group in self.optimiser.param_groups:
                group["lr"] = rate
        with memory_advice(self.config):
            parts = self.accumulate(samples, rows, inputs)
            # 0 does not clip; the norm is computed nevertheless
            largest = self.config.optimiser.gradient_clip or math.inf
            parameters = list(self.model.parameters())
            norm = float(torch.nn.utils.clip_grad_norm_(parameters, largest))
            finite = bool(np.isfinite(norm) and np.isfinite(parts["loss"]))
            if finite:
                self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        metrics = {f"actor/{name}": value for name, value in parts.items()}
        return metrics | {"actor/grad_norm": norm, "actor/skipped": float(not finite)}

    def accumulate(
        self,
        samples: Samples,
        rows: NDArray[np.int64],
        inputs: LossInputs,
    ) -> dict[str, float]:
        """Add the gradient of a mini-batch's loss to the parameters' gradients.

        Args:
            samples: All samples.
            rows: int64 of shape (n,), the indices of the mini-batch's samples.
            inputs: What the loss takes as given, for all samples.

        Returns:
            The loss, its parts, and means over response tokens, by name (`policy_loss`).
        """
        config = self.config.update
        # A token's weight is that in the whole mini-batch, so that the sum of the micro-batches' losses is its loss.
        row_weight = np.zeros_like(samples.advantage)
        row_weight[rows] = token_weights(
            samples.response_length[rows], config.aggregation
        )
        tokens = int(samples.response_length[rows].sum())
        self.model.train()
        sums: dict[str, float] = {}
        limit = config.micro_batch_tokens
        tensor = partial(torch.as_tensor, dtype=torch.float32, device=self.device)
        for micro in micro_batches(samples, rows, max_tokens=limit, layout=self.layout):
            logprob, entropy = self.forward(
                self.model, micro, entropy_gradient=config.entropy_weight != 0
            )
            old, reference, rollout_is = [
                None if values is None else tensor(values[micro.token])
                for values in inputs
            ]
            loss, parts, totals = policy_loss(
                logprob,
                entropy,
                logprob.detach() if old is None else old,
                reference,
                tensor(samples.advantage[micro.row]),
                tensor(row_weight[micro.row]),
                config,
                rollout_is,
                torch.from_numpy(micro.row).to(self.device),
            )
            loss.backward()  # type: ignore[no-untyped-call]
            means = {name: total / tokens for name, total in totals.items()}
            for name, value in (parts | means).items():
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums
