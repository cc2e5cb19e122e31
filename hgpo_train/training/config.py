"""The configuration of a training run: one frozen dataclass per section, one docstring per field.

`hgpo train CONFIG.toml --set section.field=value --print-config` prints all settings with these docstrings. The
complete configuration, after all overrides, is stored in the run's folder as `config.toml`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta

from hgpo_datasets.sources import is_run
from hgpo_envs.episode_options import EpisodeOptions
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.plugins import check_code_in_file
from hgpo_envs.registration import code_of
from hgpo_train.advantages import get
from hgpo_train.models.config import ChatTemplate, ModelConfig
from hgpo_train.rollout import branch_rules
from hgpo_train.rollout.branch_rules import WIDTH, Width
from hgpo_train.rollout.failures import MAX_FAILED
from hgpo_train.settings import (
    MAY_CHANGE,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Settings,
    StopTexts,
    annotation_of,
    build,
    check,
    merge,
    read_toml,
    read_value,
    split_assignment,
    types_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from hgpo_train.advantages import Estimator

C = TypeVar("C", "Config", "SftConfig")
Decay = Annotated[float, Meta(ge=0, lt=1)]
Seed = Annotated[int, Meta(ge=0, lt=1 << 62)]  # the sum of two is below 2⁶³

_WHOLE: Final = "the update computes the probabilities of the whole distribution at rollout.temperature"
_DETERMINED: Final = {
    "model": "model.path",
    "tokenizer": "model.path",
    "hf_config_path": "model.path",
    "max_tokens": "rollout.max_response_tokens",
    "enable_sleep_mode": "rollout.sleep",
    "logprobs_mode": "it is processed_logprobs",
    **dict.fromkeys(
        ("generation_config", "override_generation_config"),
        "rollout.temperature and rollout.stop",
    ),
    **dict.fromkeys(
        ("top_p", "top_k", "min_p", "repetition_penalty", "logits_processors"), _WHOLE
    ),
}
"""Arguments of engines that cannot be options, because a setting determines them, and what does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentConfig(EpisodeOptions, Settings):
    """The environment that rollouts are collected in."""

    id: str = "HGPO/ALFWorld-v0"
    """A registered environment, such as HGPO/ALFWorld-v0 or HGPO/WebShop-v0."""
    split: str = "train"
    """The split whose tasks are trained on."""
    action_format: Literal["command", "response", "number"] = "response"
    """Form of the policy's output: a response with the action in tags, a command, or the number of an admissible
    action."""
    data: str = "bundled"
    """The set of tasks: bundled, official (the benchmark's own, in one of its usual places, see hgpo envs), or a path.
    options.data takes precedence."""
    options: dict[str, Any] = field(default_factory=dict)
    """Other keyword arguments of gym.make, for example { goals = "human" }."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig(ChatTemplate):
    """How trajectories are collected."""

    engine: str = "transformers"
    """The generation engine: transformers (in the same process) or vllm."""
    engine_options: dict[str, Any] = field(default_factory=dict, metadata=MAY_CHANGE)
    """Other keyword arguments of the engine, for example { tensor_parallel_size = 2 }; they cannot change what settings
    determine. vllm also accepts request_seeds (sample each request with its own seed; slower) and enable_lora = false
    (merge adapters into the served weights)."""
    tasks: PositiveInt = 16
    """Tasks per iteration."""
    group_size: PositiveInt = 8
    """Trajectories per task; they form the group that advantages are computed in."""
    branch: str | None = None
    """The rule at which rollouts branch (hgpo branch --list); none plays no branches. Half of group_size are then
    rollouts of their own, and their branches take as many steps as the others would, on average. Needs an estimator
    over trees."""
    branch_width: Width = WIDTH
    """Number of branches at each step where rollouts branch."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature. It cannot be 0, because the greedy trajectories of a group would be identical."""
    max_prompt_tokens: PositiveInt = 4096
    """Maximum prompt length in tokens; overflow sets how longer prompts are truncated."""
    max_response_tokens: PositiveInt = 512
    """Maximum response length in tokens; longer responses are truncated."""
    overflow: Literal["left", "history", "error"] = "left"
    """What happens to a prompt that is too long: left drops its beginning, history first removes past steps, error
    stops the run."""
    stop: StopTexts = ()
    """Texts that end a response, which includes the one that ended it, up to the end of that token."""
    slots: PositiveInt = field(default=1024, metadata=MAY_CHANGE)
    """Number of environments that run at the same time; affects only the speed."""
    filter_groups: bool = False
    """Dynamic sampling (DAPO): leave out groups in which all trajectories have the same outcome (the estimator's
    reward), and collect others in their place."""
    max_generation_batches: PositiveInt = 10
    """With filter_groups: how many times tasks are drawn per iteration at most; training then uses the groups that
    were collected."""
    sleep: bool = field(default=False, metadata=MAY_CHANGE)
    """With vllm: free the engine's memory on the GPU during the update, and allocate it again for the rollout. Its
    weights are kept in the memory of the host meanwhile."""
    offload_optimiser: bool = field(default=False, metadata=MAY_CHANGE)
    """Keep the optimiser's state in the memory of the host during the rollout."""
    ahead: bool = False
    """Collect the next iteration's rollouts during the update, with the weights before it (one step off-policy). Needs
    an engine with weights of its own, and a correction: update.rollout_is, or update.old_logprobs = "rollout"."""
    max_failed: Annotated[float, Meta(ge=0, le=1)] = field(
        default=MAX_FAILED, metadata=MAY_CHANGE
    )
    """Stop if more than this share of the rollouts of an iteration or evaluation failed; resuming repeats the failed
    ones. 1 stops only if all of them failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageConfig(Settings):
    """How advantages are computed."""

    estimator: str = "hgpo"
    """A registered estimator, such as hgpo, gigpo or grpo (hgpo advantages --list), or
    one from a plugin."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """The estimator's parameters, for example { history_length = 2, reward_scale = 10.0 }."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConfig(Settings):
    """The policy update."""

    mini_batch_size: PositiveInt = 256
    """Maximum number of rows per optimiser step. The rows of an iteration are split into as few mini-batches as
    possible, of nearly equal size."""
    epochs: PositiveInt = 1
    """Passes over the rows of an iteration."""
    micro_batch_tokens: PositiveInt = field(default=16384, metadata=MAY_CHANGE)
    """Maximum number of tokens per forward pass, including padding; does not affect the result."""
    layout: Literal["auto", "padded", "packed"] = "auto"
    """How the rows of a micro-batch are arranged: padded to one length, or packed into one sequence, without padding.
    auto packs where a kernel computes packed rows like separate ones: torch's with attention = "sdpa" in bfloat16 on an
    NVIDIA GPU, and that of flash_attention_2. Elsewhere the mask of a packed micro-batch has micro_batch_tokens²
    entries, and auto pads."""
    share_prefixes: bool = True
    """Whether the steps of a conversation (prompt_style = "chat") are computed as one sequence, with the advantage of
    each step on its own tokens. The loss is the same as that of separate rows, with fewer tokens. Mini-batches then
    contain whole conversations."""
    logit_chunk: NonNegativeInt | Literal["auto"] = field(
        default="auto", metadata=MAY_CHANGE
    )
    """Number of positions whose logits are in memory at a time; 0 computes all logits together. auto takes 1024 where
    the memory plan of a GPU has room for it, otherwise 128."""
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] = "token_mean"
    """How token losses are averaged; see hgpo_train.training.update.losses.token_weights."""
    ratio: Literal["token", "sequence"] = "token"
    """The ratio that is clipped: of each token, or the geometric mean over the response (GSPO, whose paper uses
    aggregation = "sequence_mean", clip_low = 3e-4 and clip_high = 4e-4)."""
    clip_low: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    """Lower clipping bound of the ratio, 1 - clip_low."""
    clip_high: NonNegativeFloat = 0.2
    """Upper clipping bound of the ratio, 1 + clip_high."""
    dual_clip: Annotated[float, Meta(gt=1)] | None = 3.0
    """Upper bound of the loss of a negative advantage, as a multiple of its absolute value; none disables the bound."""
    kl_weight: NonNegativeFloat = 0.01
    """Weight of the KL divergence (low-variance estimate) from the initial model; 0 uses no reference model."""
    unbiased_kl: bool = False
    """Multiply the estimate of the divergence by the token's ratio, which makes its gradient unbiased, as TRL does."""
    entropy_weight: float = 0.001
    """Weight of the entropy bonus."""
    old_logprobs: Literal["recompute", "rollout"] = "recompute"
    """Source of the ratio's denominator: recomputed by the trainer before the update, or reported by the engine."""
    rollout_is: Literal["token", "sequence", "token_mask", "sequence_mask"] | None = (
        None
    )
    """Importance sampling: multiply policy losses by min(trainer's / engine's probability, threshold), of each token or
    of each response (sequence); with _mask by 0 instead, where the quotient is outside of least and threshold (IcePop,
    MIS). none applies no correction; requires old_logprobs = "recompute"."""
    rollout_is_threshold: PositiveFloat = 2.0
    """With rollout_is: the largest weight."""
    rollout_is_least: NonNegativeFloat = 0.0
    """With a mask: the smallest quotient that is trained on."""
    overlong: Literal["keep", "mask"] = "keep"
    """What happens to a response that reached max_response_tokens before its end: mask does not train on it (DAPO's
    filter). The estimator's overlong_penalty lowers the reward of long ones."""
    max_policy_lag: NonNegativeInt | None = None
    """Do not train on steps whose weights are more than this number of updates old; none trains on all."""
    gap_warning: float = field(default=0.05, metadata=MAY_CHANGE)
    """Warn if the engine's log-probabilities differ from the trainer's by more than this on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserConfig(Settings):
    """AdamW (arXiv 1711.05101) and its schedule."""

    learning_rate: NonNegativeFloat = 1e-6
    """The peak learning rate."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled weight decay."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay of the first and second moments."""
    epsilon: PositiveFloat = 1e-8
    """Added to the square root of the second moment."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning-rate schedule after the warm-up; linear and cosine fall to 0 by the last of the
    iterations, also if environment_steps ends the run earlier."""
    warmup_iterations: NonNegativeInt = 0
    """Iterations over which the learning rate rises linearly from 0."""
    gradient_clip: NonNegativeFloat = 1.0
    """Maximum gradient norm; 0 disables clipping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig(Settings):
    """How the policy is evaluated on held-out tasks."""

    every: NonNegativeInt = field(default=5, metadata=MAY_CHANGE)
    """Iterations between evaluations; 0 disables them, also that before training."""
    split: str = "valid_seen"
    """The held-out split."""
    tasks: PositiveInt = 128
    """Maximum number of tasks; all tasks of a smaller split are evaluated."""
    before_training: bool = field(default=True, metadata=MAY_CHANGE)
    """Evaluate the initial policy as well."""
    group_size: PositiveInt = 1
    """Trajectories per task."""
    patience: NonNegativeInt = field(default=0, metadata=MAY_CHANGE)
    """Stop after this number of evaluations in a row whose success is not above the best before; 0 never stops."""
    temperature: NonNegativeFloat = 0.4
    """Sampling temperature."""
    seed: Seed = 1000
    """Added to the run's seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig(Settings):
    """When checkpoints are written and how many are kept."""

    every: PositiveInt = field(default=5, metadata=MAY_CHANGE)
    """Iterations between checkpoints; the last iteration always writes one. An interrupted run repeats at most this
    many iterations."""
    keep: NonNegativeInt = field(default=2, metadata=MAY_CHANGE)
    """Number of checkpoints to keep, the newest ones; 0 keeps all. The iteration with the highest success on held-out
    tasks is kept as well, without the optimiser's state."""
    optimiser: Literal["all", "last"] = field(default="all", metadata=MAY_CHANGE)
    """Which checkpoints contain the optimiser's state, two thirds of a checkpoint's size. A run can only be resumed
    from a checkpoint that contains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingConfig(Settings):
    """Trackers that receive the metrics; metrics.jsonl is always written."""

    tensorboard: bool = field(default=True, metadata=MAY_CHANGE)
    """Write TensorBoard events, if tensorboard is installed."""
    wandb: str | None = field(default=None, metadata=MAY_CHANGE)
    """A Weights & Biases project."""
    trackio: str | None = field(default=None, metadata=MAY_CHANGE)
    """A trackio project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Settings):
    """A training run."""

    name: str = "hgpo"
    """The run's name in trackers and step tables."""
    seed: Seed = 0
    """Seed of the task order, sampling and mini-batches."""
    iterations: PositiveInt = 160
    """Number of iterations; each collects rollouts, computes advantages and updates the policy."""
    environment_steps: PositiveInt | None = field(default=None, metadata=MAY_CHANGE)
    """Stop after the iteration that reaches this number of environment steps, to compare runs of equal length."""
    check_memory: bool = field(default=True, metadata=MAY_CHANGE)
    """On a GPU, refuse to start if the memory plan (hgpo train --plan) does not fit."""
    environment: EnvironmentConfig = EnvironmentConfig()
    """The environment that rollouts are collected in."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The policy."""
    rollout: RolloutConfig = RolloutConfig()
    """How trajectories are collected."""
    advantage: AdvantageConfig = AdvantageConfig()
    """How advantages are computed."""
    update: UpdateConfig = UpdateConfig()
    """The policy update."""
    optimiser: OptimiserConfig = OptimiserConfig()
    """AdamW and its schedule."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """How the policy is evaluated on held-out tasks."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When checkpoints are written and how many are kept."""
    tracking: TrackingConfig = TrackingConfig()
    """Trackers that receive the metrics."""

    def __post_init__(self) -> None:
        check(self)
        determined = {
            each.name: f"rollout.{each.name}" for each in fields(RolloutConfig)
        } | _DETERMINED
        for name, value in self.rollout.engine_options.items():
            is_harmless = name == "generation_config" and value in ("auto", "vllm")
            if name in determined and not is_harmless:
                raise InputError(
                    f"setting rollout.engine_options.{name}: expected an option that no setting determines, received "
                    f"{value!r}, with which rollouts would not be what is trained on; remove it ({determined[name]})"
                )
        update = self.update
        if update.rollout_is is not None and update.old_logprobs != "recompute":
            raise InputError(
                f'setting update.rollout_is: expected old_logprobs = "recompute" with {update.rollout_is!r}, received '
                f"{update.old_logprobs!r}, with which the ratio already corrects for the engine; set rollout_is to none"
            )
        if self.rollout.group_size == 1 and self.advantage.estimator != "reinforce_pp":
            raise InputError(
                f"setting rollout.group_size: expected at least 2 for the estimator {self.advantage.estimator!r}, "
                "received 1; a singleton group has no advantage"
            )
        if self.evaluation.patience and not self.evaluation.every:
            raise InputError(
                f"setting evaluation.patience: expected evaluations (evaluation.every > 0) with "
                f"{self.evaluation.patience}, received none; set patience = 0"
            )
        if self.model.compile and self.rollout.engine == "transformers":
            raise InputError(
                'setting model.compile: expected an engine with weights of its own, such as rollout.engine = "vllm"; '
                "generation with the learner's layers would compile them again for every length"
            )
        if self.rollout.ahead:
            self._check_ahead()

    def _check_ahead(self) -> None:
        rollout = self.rollout
        update = self.update
        if rollout.engine == "transformers":
            expected = (
                'an engine with weights of its own, such as rollout.engine = "vllm"'
            )
        elif rollout.sleep or rollout.offload_optimiser:
            expected = "rollout.sleep = false and rollout.offload_optimiser = false"
        elif update.rollout_is is None and update.old_logprobs == "recompute":
            expected = 'update.rollout_is = "token"'
        else:
            return
        raise InputError(
            f"setting rollout.ahead: rollouts and update overlap, which needs {expected}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig(ChatTemplate):
    """Supervised training on a step table (`hgpo sft`)."""

    name: str = "sft"
    """The run's name."""
    seed: Seed = 0
    """Seed of the row order."""
    rows: Literal["won", "all"] = "won"
    """Rows to train on: won takes the valid steps of trajectories that solved their task, all takes every step."""
    max_prompt_tokens: PositiveInt = 4096
    """Maximum prompt length in tokens; longer prompts lose their beginning."""
    prompt_loss: bool = False
    """Compute the loss on prompt tokens as well, for untrained models. The held-out loss covers responses only."""
    held_out: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    """Share of trajectories (at least one, and not all) that are not trained on and on which the loss is reported."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The model to train."""
    update: UpdateConfig = UpdateConfig(
        mini_batch_size=64,
        epochs=3,
        kl_weight=0.0,
        entropy_weight=0.0,
        dual_clip=None,
    )
    """Batches and epochs; clipping has no effect."""
    optimiser: OptimiserConfig = OptimiserConfig(learning_rate=1e-5, schedule="cosine")
    """AdamW and its schedule, which runs over optimiser steps instead of iterations."""
    tracking: TrackingConfig = TrackingConfig()
    """Trackers that receive the metrics."""


SHIPPED: Final = {
    path.stem: path
    for path in sorted((Path(__file__).parent / "configs").glob("*.toml"))
}
"""The files of the bundled configurations by name."""


def load_config(
    source: str | Path | None,
    overrides: Iterable[str] = (),
    cls: type[C] = Config,  # type: ignore[assignment]
    allow: Collection[str] | None = None,
) -> C:
    """Read a configuration from a file or by the name of a bundled one, and apply overrides.

    Args:
        source: A TOML file, or a name from `SHIPPED`; None starts from the defaults.
        overrides: Strings of the form `section.field=value`; later ones take precedence.
        cls: `Config` or `SftConfig`.
        allow: Names of code, such as `module:object`, that the configuration of a run may name, because the run can be
            a stranger's. None for files of the user, which may name any.

    Raises:
        InputError: The file or name does not exist, a key is unknown, a value has the wrong type or is out of range,
            or a run's configuration names code that neither `allow` nor an override does.
    """
    # 1. The file, over the defaults.
    merged: dict[str, Any] = asdict(cls())
    if source is not None:
        path = Path(source)
        if not path.is_file():
            name = str(source)
            if name not in SHIPPED:
                what = "configuration or missing file"
                raise InputError(unknown(what, name, SHIPPED, limit=6))
            path = SHIPPED[name]
        if is_run(path.parent):
            allow = allow or ()
        # A user's file can extend others. A run's is one layer: merging several imports an estimator.
        layer = read_toml(path, _merge, SHIPPED) if allow is None else read_toml(path)
        merged = _merge(merged, layer)

    # 2. The overrides; the estimator first, because it drops the parameters of the one before.
    form = "an override of the form section.field=value"
    assigned = [split_assignment(text, "--set", form) for text in overrides]
    assigned.sort(key=lambda each: each[0] != "advantage.estimator")
    for name, text in assigned:
        value = read_value(text, annotation_of(cls, name))
        for key in reversed(name.split(".")):
            value = {key: value}
        merged = _merge(merged, value)
    config = build(cls, merged)

    # 3. The code that a stranger's run names is imported only if the user names it, too.
    if allow is not None:
        given = {text for _, text in assigned}
        check_code_in_file(code_named(config), source, frozenset(allow) | given)
    return config


def stored_config(path: Path) -> Config:
    """Read the configuration of a run, of which nothing is imported. Errors are those of `load_config`."""
    return build(Config, merge(asdict(Config()), read_toml(path)))


def code_named(config: Config | SftConfig) -> dict[str, object]:
    """Return what `check_code_in_file` checks of a configuration."""
    if not isinstance(config, Config):
        return {}
    named = code_of(config.environment.id, config.environment.options)
    estimator = config.advantage.estimator
    state_key = config.advantage.parameters.get("state_key")
    named["the estimator"] = estimator if ":" in estimator else None
    branch = config.rollout.branch
    named["the branch rule"] = branch if ":" in str(branch) else None
    named["the state key"] = state_key if ":" in str(state_key) else None
    # vLLM imports what some of them name
    for name, value in config.rollout.engine_options.items():
        plain = isinstance(value, int | float) and name != "trust_remote_code"
        named[f"the engine option {name}"] = None if plain else value
    return named


def configured_estimator(config: Config) -> Estimator:
    """Return the estimator with its parameters. A stored configuration is read without it: it may be elsewhere.

    Raises:
        InputError: There is no such estimator, a parameter is unknown or not valid, groups are too small for it, it
            takes no branches and rollouts have some, or it reads log-probabilities of a reference model, which is kept
            for the KL term alone.
    """
    estimator = get(config.advantage.estimator)
    rollout = config.rollout
    if rollout.branch is not None:
        branch_rules.check_in_rollouts(rollout.branch, rollout.group_size)
        if not estimator.branches:
            raise InputError(
                f"setting advantage.estimator: expected one over trees with rollout.branch = {rollout.branch!r} "
                f"(tree_hgpo, tree_grpo, tree_loo or carl), received {config.advantage.estimator!r}, which would count "
                "branches as rollouts; add --set advantage.estimator=tree_hgpo, or --set rollout.branch=none"
            )
    if config.rollout.group_size < estimator.smallest_group:
        raise InputError(
            f"setting rollout.group_size: expected at least {estimator.smallest_group} for the estimator "
            f"{config.advantage.estimator!r}, received {config.rollout.group_size}"
        )
    if "reference_logprobs" in estimator.scores and not config.update.kl_weight:
        raise InputError(
            f"setting update.kl_weight: expected more than 0 for the estimator {config.advantage.estimator!r}, which "
            "reads the log-probabilities of the reference model (the one that training starts from), received 0; add "
            "--set update.kl_weight=0.01"
        )
    try:
        estimator = estimator.with_parameters(**config.advantage.parameters)
    except InputError as error:
        raise InputError(
            f"advantage.parameters of {config.advantage.estimator}: {error}"
        ) from None
    # The penalty begins below the longest response: with another limit it would fall on none, or on most of them.
    limit = estimator.parameters.overlong_limit
    longest = config.rollout.max_response_tokens
    if estimator.parameters.overlong_penalty and limit != longest:
        raise InputError(
            f"advantage.parameters: expected overlong_limit = {longest}, the value of rollout.max_response_tokens, "
            f"received {limit}; set it with --set advantage.parameters.overlong_limit={longest}"
        )
    return estimator


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two layers of a configuration. A new estimator drops the parameters below that it does not have."""
    # Either can be anything, because it is validated after the last layer.
    match base, over:
        case (
            {"advantage": {"parameters": dict(parameters), **others}},
            {"advantage": {"estimator": str(estimator)}},
        ) if parameters:
            known = types_of(type(get(estimator).parameters))
            kept = {name: value for name, value in parameters.items() if name in known}
            base = {**base, "advantage": {**others, "parameters": kept}}
    return merge(base, over)


def replace(config: C, **changes: object) -> C:
    """Return a copy of a configuration with changed values; a section takes a dictionary of its changed fields.

    >>> replace(Config(), seed=1, update={"epochs": 2}).update.epochs
    2
    """
    return build(type(config), merge(asdict(config), changes))
