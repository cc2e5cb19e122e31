"""The gradients of the policy that played a run, opened by name."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    import polars as pl

    from hgpo_research.comparison.logit_table import Gradients

    Show = Callable[[str, int, int], object]


class OpenGradients(NamedTuple):
    """The gradients of a policy.

    Attributes:
        of: Returns those at the steps of a table.
        title: What the parameters are.
    """

    of: Callable[[pl.LazyFrame], Gradients]
    title: str


@contextmanager
def open_gradients(
    run: Path,
    model: str | None,
    *,
    device: str = "auto",
    seed: int = 0,
    allow: Collection[str] = (),
    show: Show = lambda _stage, _done, _total: None,
) -> Iterator[OpenGradients]:
    """Open the gradients of a run's policy.

    Args:
        run: The run.
        model: ``softmax``, for the weights of its features; a language model; or None for the policy that the run
            names: its model, or one logit for each task, state and response.
        device: The torch device of a language model.
        seed: Seed of its sketches.
        allow: Code that the run may name.
        show: Called with a name, the number of finished gradients and of all of them.

    Raises:
        InputError: The policy's probabilities are not known.
    """
    if model is None:
        named = _named_policy(run, allow)
        kind, _, path = named.partition(":")
        model = path if kind == "transformers" else None
    if model is None or model == "softmax":
        with _known(run, model, allow) as opened:
            yield opened
        return
    yield _of_model(model, device, seed, show)


def _named_policy(run: Path, allow: Collection[str]) -> str:
    from hgpo_research.truth import Budget, Rewards, plan_truth

    try:
        return plan_truth(run, Rewards(), Budget(), allow=allow).policy
    except InputError as error:
        # Another policy would have other gradients: only the one that played the run can be named.
        reason = str(error).removesuffix("; choose one with --policy")
        raise InputError(
            f"{reason}; or name the model that played the run with --model"
        ) from None


@contextmanager
def _known(
    run: Path, model: str | None, allow: Collection[str]
) -> Iterator[OpenGradients]:
    """Open a policy whose probabilities depend on what the run stores."""
    from contextlib import closing

    from hgpo_research.comparison.feature_gradients import feature_gradients
    from hgpo_research.comparison.logit_table import logit_table
    from hgpo_research.policies.distributions import known_policy
    from hgpo_research.truth import Budget, Rewards, plan_truth
    from hgpo_train.policies.registry import PolicyContext, make_policy
    from hgpo_train.rollout.env_handle import open_env

    plan = plan_truth(run, Rewards(), Budget(), allow=allow)
    if model is not None and plan.policy != model:
        raise InputError(
            f"--model: expected the policy that played {run}, {plan.policy}, received {model}"
        )
    with closing(open_env(plan.env_id, **plan.env_options)) as handle:
        context = PolicyContext(
            handle.shared.source.name,
            handle.settings.action_format,
            plan.policy_options,
        )
        length = handle.settings.history_length
        if model is not None:
            policy: Any = make_policy(model, context)
            yield OpenGradients(
                lambda steps: feature_gradients(steps, policy, length),
                f"weights of {model}",
            )
            return
        with closing(known_policy(plan.policy, context)) as known:
            if not known.memoryless or known.prompt_read:
                raise InputError(
                    f"expected a run of a policy whose probabilities depend on its state and history alone (random, "
                    f"softmax or a mixture of them), received one of {plan.policy}; name a language model with --model"
                )
            title = f"one logit for each state and action of {known.name}"
            yield OpenGradients(lambda steps: logit_table(steps, known, length), title)


def _of_model(model: str, device: str, seed: int, show: Show) -> OpenGradients:
    from hgpo_research.comparison.row_gradients import row_gradients
    from hgpo_train.models.config import ModelConfig
    from hgpo_train.models.device import choose_device
    from hgpo_train.models.loading import load_model
    from hgpo_train.models.preflight import check_model_source

    choose_device(device)
    check_model_source(model)
    config = ModelConfig(
        path=model, device=device, compute_dtype="float32", gradient_checkpointing=False
    )
    loaded = load_model(config)

    def of(steps: pl.LazyFrame) -> Gradients:
        return row_gradients(
            steps,
            loaded,
            seed=seed,
            progress=lambda done, total: show("gradients", done, total),
        )

    return OpenGradients(of, f"parameters of {model}")
