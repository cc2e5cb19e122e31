"""The gradient of log π of each step of a run, with respect to all parameters of a language model, as sketches.

A gradient has as many entries as the model has parameters, for every step. A comparison needs only inner products of
weighted sums of them, so each gradient is replaced by its *count sketch*: every parameter's entry is multiplied by a
random sign and added to one of `size` buckets, chosen at random (K. Weinberger et al., Feature Hashing for Large Scale
Multitask Learning, ICML 2009, arXiv 0902.2206). The sketch of a weighted sum is the weighted sum of the sketches, and
inner products of sketches are those of the gradients in expectation over signs and buckets (Lemma 2 there). A cosine ρ
has a standard error of about (1 - ρ²) / √size: at most 0.008 for the default. Proportional gradients have the cosine 1
or -1 exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_envs.wording import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from numpy.typing import NDArray

    from hgpo_research.arrays import Array, Floats, Integers
    from hgpo_train.models.hf import Model

    Sketches = NDArray[np.float32]
    Fisher = Callable[[Sketches, Integers, Floats], Floats]

BUCKETS: Final = 1 << 14
"""The default size of sketches."""
TOKENS: Final = (
    "prompt_token_ids",
    "response_token_ids",
    "response_logprobs",
)
"""The columns of a run that gradients need."""
LARGEST_GAP: Final = 0.01
"""The largest mean difference of log-probabilities per token between the run and the model."""


@dataclass(frozen=True)
class RowGradients:
    """Sketches of the gradients of a run's steps.

    Attributes:
        rows: One row per step that has tokens: `trajectory`, `step`, and `sketch`, its number in `sketches`.
        sketches: The gradients of the distinct pairs of prompt and response, float32 of shape (pairs, size).
        parameters: Number of parameters of the model.
        gap: Mean absolute difference, per token, between a response's log-probability in the run and under the model.
        fisher: Where the policy's actions are known, their exact Fisher information (`fisher_of`); else None.
    """

    rows: pl.DataFrame
    sketches: Sketches
    parameters: int
    gap: float
    fisher: Fisher | None = None

    @property
    def exact(self) -> bool:
        """Whether the policy's probabilities are known."""
        return self.fisher is not None

    def summed(self, weights: Floats, numbers: Integers) -> Array:
        """Return Σ w ∇ log π over steps, float32 of shape (estimators, size).

        Args:
            weights: w, of shape (estimators, steps).
            numbers: The sketch of each step, of shape (steps,).
        """
        directions: Array = weights.astype(np.float32) @ self.sketches[numbers]
        return directions

    def slopes(self, directions: Array, numbers: Integers) -> Floats:
        """Return x · ∇ log π of steps along directions x, float64 of shape (steps, directions)."""
        return (self.sketches[numbers] @ directions.T).astype(np.float64)

    def products(self, directions: Array, numbers: Integers, weights: Floats) -> Floats:
        """Return Σ w E[(x · ∇ log π) (y · ∇ log π)] over steps, for all pairs of directions x, y.

        The mean is over the policy's actions where these are known; else the step's own action stands for it.

        Args:
            directions: Of shape (directions, size).
            numbers: The sketch of each step, of shape (steps,).
            weights: w, of shape (steps,).
        """
        if self.fisher is not None:
            return self.fisher(directions, numbers, weights)
        # Without probabilities, the mean over the policy's actions is estimated from the actions that it took.
        slopes = self.slopes(directions, numbers)
        return (slopes.T * weights) @ slopes


def fisher_of(
    changes: Callable[[Sketches, int], tuple[Floats, Floats]],
) -> Fisher:
    """Return the function that sums the covariances of the changes of log π along directions; see `products`.

    Args:
        changes: Returns, for directions and the number of a sketch, the probabilities of its step's actions, of shape
            (actions,), and the changes of their logits, of shape (actions, directions).
    """

    def fisher(directions: Sketches, numbers: Integers, weights: Floats) -> Floats:
        total = np.zeros((len(directions), len(directions)))
        for number, weight in zip(numbers.tolist(), weights.tolist(), strict=True):
            probability, change = changes(directions, number)
            # A change of all logits by the same number changes no probability.
            change = change - probability @ change
            total += weight * (change.T * probability) @ change
        return total

    return fisher


class Sketch:
    """A count sketch of the gradients of a model's trainable parameters.

    Args:
        model: The model.
        size: Number of buckets.
        seed: Seed of signs and buckets.
    """

    def __init__(self, model: Model, size: int = BUCKETS, seed: int = 0) -> None:
        import torch

        self._parameters = [each for each in model.parameters() if each.requires_grad]
        self.parameters = sum(each.numel() for each in self._parameters)
        self._size = size
        rng = np.random.default_rng([seed, self.parameters, size])
        device = self._parameters[0].device
        self._bucket = torch.from_numpy(rng.integers(0, size, self.parameters)).to(
            device
        )
        self._sign = torch.from_numpy(
            rng.integers(0, 2, self.parameters).astype(np.float32) * 2 - 1
        ).to(device)

    def gradient(self, value: torch.Tensor) -> torch.Tensor:
        """Return the gradient of a number with respect to all parameters, float32 of shape (parameters,)."""
        import torch

        # A parameter that the response does not use has the gradient 0, and keeps its place in the vector.
        found = torch.autograd.grad(
            value,
            self._parameters,
            allow_unused=True,
            materialize_grads=True,
        )
        return torch.cat([each.float().reshape(-1) for each in found])

    def __call__(self, gradient: torch.Tensor) -> Sketches:
        """Return the sketch of a gradient, float32 of shape (size,)."""
        # Collisions of buckets cancel in expectation, because their signs are independent.
        buckets = gradient.new_zeros(self._size).index_add_(
            0, self._bucket, gradient * self._sign
        )
        return np.asarray(buckets.cpu().numpy(), np.float32)


def log_probability(
    model: Model, prompt: Sequence[int], response: Sequence[int]
) -> torch.Tensor:
    """Return log π(response | prompt) at temperature 1, the sum over the response's tokens, with its graph."""
    import torch

    tokens = torch.tensor([[*prompt, *response]], device=model.device)
    # The logits of a token are at the position before it: those of the last one are of what would follow.
    logits = model(
        input_ids=tokens, use_cache=False, logits_to_keep=len(response) + 1
    ).logits[0, :-1]
    return (
        torch.log_softmax(logits.float(), -1)
        .gather(1, tokens[0, -len(response) :, None])
        .sum()
    )


def row_gradients(
    steps: pl.LazyFrame,
    model: Model,
    *,
    size: int = BUCKETS,
    seed: int = 0,
    progress: Callable[[int, int], object] = lambda _done, _total: None,
) -> RowGradients:
    """Compute the sketches of a run's steps; equal pairs of prompt and response are computed once.

    Args:
        steps: A step table with `trajectory`, `step` and `TOKENS`.
        model: The model that played the run, at temperature 1.
        size: Number of buckets.
        seed: Seed of signs and buckets.
        progress: Called with the number of finished pairs and of all pairs.

    Raises:
        InputError: A column is missing, no step has tokens, or the run was played with other probabilities.
    """
    schema = steps.collect_schema()
    if missing := [
        name for name in ("trajectory", "step", *TOKENS) if name not in schema
    ]:
        raise InputError(
            f"expected a run with the tokens of a language model, received one without {listed(missing)}"
        )
    pair = (
        pl.struct("prompt_token_ids", "response_token_ids").rank("dense").cast(pl.Int64)
        - 1
    )
    # Steps of failed calls have no tokens; equal prompts with equal responses have one gradient.
    known = [pl.col(name).list.len() > 0 for name in TOKENS]
    table = (
        steps.select("trajectory", "step", *TOKENS)
        .filter(*known)
        .collect()
        .with_columns(pair.alias("sketch"))
    )
    if table.is_empty():
        raise InputError(
            "expected a run with the tokens of a language model, received one whose steps have none"
        )
    # Dropout would make the gradients those of another policy.
    model.eval()
    sketch = Sketch(model, size, seed)
    pairs = table.unique("sketch").sort("sketch")
    sketches = np.zeros((pairs.height, size), np.float32)
    gaps = np.zeros(pairs.height)
    for number, (prompt, response, logprobs) in enumerate(
        pairs.select(TOKENS).iter_rows()
    ):
        logprob = log_probability(model, prompt, response)
        sketches[number] = sketch(sketch.gradient(logprob))
        gaps[number] = abs(logprob.item() - sum(logprobs)) / len(response)
        progress(number + 1, pairs.height)
    # Another model, or another temperature, would have other gradients, and nothing else would show it. A gap of NaN
    # is in no order, and refused as well.
    if not (gap := float(gaps.mean())) <= LARGEST_GAP:
        raise InputError(
            f"expected the model that played the run, at temperature 1; its log-probabilities per token differ from "
            f"those of the run by {gap:.3f} on average"
        )
    return RowGradients(
        table.select("trajectory", "step", "sketch"),
        sketches,
        sketch.parameters,
        gap,
    )
