"""The configuration of a training run: one frozen dataclass a section, one docstring a field.

`hgpo train CONFIG.toml --set section.field=value --print-config` shows all of it with these docstrings. The whole
configuration is stored with the run (`config.toml`), as it was after all overrides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from msgspec import Meta

from hgpo_envs.errors import InputError, unknown
from hgpo_train.assignments import read_value, split
from hgpo_train.models.config import ModelConfig
from hgpo_train.rollout.failures import MAX_FAILED
from hgpo_train.settings import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Settings,
    annotation_of,
    build,
    check,
    merge,
    read_toml,
    to_dict,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

C = TypeVar("C", "Config", "SftConfig")
Decay = Annotated[float, Meta(ge=0, lt=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentConfig(Settings):
    """What is played."""

    id: str = "HGPO/ALFWorld-v0"
    """A registered environment, such as HGPO/ALFWorld-v0 or HGPO/WebShop-v0."""
    split: str = "train"
    """The split whose tasks are trained on."""
    max_steps: PositiveInt = 50
    """Steps after which a trajectory is cut off."""
    history_length: NonNegativeInt = 2
    """K of the prompt: how many past steps the prompt shows."""
    action_format: Literal["response", "command", "number"] = "response"
    """What the policy writes: a response with the action in tags, the command, or an admissible action's number."""
    prompt_template: str | None = None
    """A Jinja file that replaces the environment's own prompt, or the name of one that is shipped, such as compact."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of gym.make, for example { data = "/data/json_2.1.1" } or { goals = "human" }."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig(Settings):
    """How trajectories are collected."""

    engine: str = "transformers"
    """Who generates: transformers in process, or vllm."""
    engine_options: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the engine, for example { tensor_parallel_size = 2 }."""
    tasks: PositiveInt = 16
    """Tasks an iteration."""
    group_size: PositiveInt = 8
    """Trajectories a task, the group of group advantages."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature. Not 0: greedy trajectories of a group are all alike."""
    max_prompt_tokens: PositiveInt = 4096
    """Longer prompts are cut, see overflow."""
    max_response_tokens: PositiveInt = 512
    """Responses are cut off here."""
    overflow: Literal["left", "history"] = "left"
    """How too long a prompt is cut: left drops its beginning, history first shows fewer past steps."""
    slots: PositiveInt = 1024
    """Environments at once; changes the speed alone."""
    filter_groups: bool = False
    """Dynamic sampling (DAPO): groups whose trajectories all end the same, by the estimator's reward, are left out and
    others collected."""
    max_generation_batches: PositiveInt = 10
    """With filter_groups: how many times tasks are drawn an iteration before going on with what there is."""
    max_failed: NonNegativeFloat = MAX_FAILED
    """Training stops if more than this share of an iteration's rollouts failed, or of an evaluation's; resuming plays
    the failed ones again. 1 stops only if all of them failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageConfig(Settings):
    """How steps are credited."""

    estimator: str = "hgpo"
    """A registered estimator: hgpo, gigpo, grpo, g2po, graphgpo, rloo, reinforce_pp, or an installed one."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """The estimator's parameters by name, for example { history_length = 2, reward_scale = 10.0 }."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConfig(Settings):
    """The policy update."""

    mini_batch_size: PositiveInt = 256
    """Most rows an optimiser step sees. An iteration's rows are cut into the fewest mini-batches of equal size."""
    epochs: PositiveInt = 1
    """Passes over an iteration's rows."""
    micro_batch_tokens: PositiveInt = 16384
    """Most tokens in memory at a time, padding included; has no influence on the result."""
    layout: Literal["padded", "packed"] = "padded"
    """Rows of a micro-batch padded to one length, or packed one after another."""
    logit_chunk: NonNegativeInt = 128
    """Positions whose logits exist at a time; 0 holds all."""
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] = "token_mean"
    """How token losses are averaged, see hgpo_train.training.update.losses.token_weights."""
    clip_low: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    """The ratio is clipped below 1 - clip_low."""
    clip_high: NonNegativeFloat = 0.2
    """The ratio is clipped above 1 + clip_high."""
    dual_clip: Annotated[float, Meta(gt=1)] | None = 3.0
    """Bounds the loss of negative advantages at this multiple; none leaves it out."""
    kl_weight: NonNegativeFloat = 0.01
    """Weight of the low-variance KL to the model at the start; 0 keeps no reference model."""
    entropy_weight: float = 0.001
    """Weight of the entropy bonus."""
    old_logprobs: Literal["recompute", "rollout"] = "recompute"
    """Denominator of the ratio: computed by the trainer before the update, or as the rollout engine reported it."""
    gap_warning: float = 0.05
    """Warn if engine and trainer disagree on log-probabilities by more than this on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserConfig(Settings):
    """AdamW (arXiv 1711.05101) and its schedule."""

    learning_rate: NonNegativeFloat = 1e-6
    """The peak learning rate."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled weight decay."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay of the first and second moments."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls to 0 over the run's iterations, after the warm-up."""
    warmup_iterations: NonNegativeInt = 0
    """Iterations over which the learning rate rises from 0."""
    gradient_clip: NonNegativeFloat = 1.0
    """Largest norm of the gradient; 0 never clips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig(Settings):
    """How the policy is measured on held-out tasks."""

    every: NonNegativeInt = 5
    """Iterations between evaluations; 0 never evaluates. The policy before the first iteration is evaluated too."""
    split: str = "valid_seen"
    """The held-out split."""
    tasks: PositiveInt = 128
    """Most tasks; a smaller split is played whole."""
    group_size: PositiveInt = 1
    """Trajectories a task."""
    temperature: NonNegativeFloat = 0.4
    """Sampling temperature."""
    seed: int = 1000
    """Added to the run's seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig(Settings):
    """What is kept to resume from."""

    every: PositiveInt = 1
    """Iterations between checkpoints; the last iteration always makes one. A killed run replays at most this many."""
    keep: NonNegativeInt = 2
    """Checkpoints kept, the newest ones; 0 keeps all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingConfig(Settings):
    """Further trackers that receive the metrics; metrics.jsonl is always written."""

    tensorboard: bool = True
    """Write TensorBoard events, if tensorboard is installed."""
    wandb: str | None = None
    """A Weights & Biases project."""
    trackio: str | None = None
    """A trackio project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Settings):
    """A training run."""

    name: str = "hgpo"
    """The run's name in trackers and step tables."""
    seed: int = 0
    """Seeds tasks, sampling and mini-batches."""
    iterations: NonNegativeInt = 160
    """Iterations of collect, estimate, update."""
    environment_steps: PositiveInt | None = None
    """End earlier, with the iteration that reaches so many environment steps: to compare runs at equal ones."""
    environment: EnvironmentConfig = EnvironmentConfig()
    """What is played."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The policy."""
    rollout: RolloutConfig = RolloutConfig()
    """How trajectories are collected."""
    advantage: AdvantageConfig = AdvantageConfig()
    """How steps are credited."""
    update: UpdateConfig = UpdateConfig()
    """The policy update."""
    optimiser: OptimiserConfig = OptimiserConfig()
    """AdamW and its schedule."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Measuring on held-out tasks."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """What is kept to resume from."""
    tracking: TrackingConfig = TrackingConfig()
    """Trackers that receive the metrics."""

    def __post_init__(self) -> None:
        check(self)
        if self.rollout.group_size == 1 and self.advantage.estimator != "reinforce_pp":
            raise InputError(
                f"setting rollout.group_size: expected at least 2 for the estimator {self.advantage.estimator!r}, got "
                "1; a group of one has nothing to be compared with"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig(Settings):
    """Supervised training on a step table (`hgpo sft`)."""

    name: str = "sft"
    """The run's name."""
    seed: int = 0
    """Seeds the order of rows."""
    rows: Literal["won", "all"] = "won"
    """The valid steps of trajectories that solved their task, or all steps."""
    max_trajectories: Annotated[int, Meta(ge=2)] | None = None
    """Take the first so many trajectories, at least 2 (one is held out); none takes all."""
    max_prompt_tokens: PositiveInt = 4096
    """Longer prompts lose their beginning."""
    prompt_loss: bool = False
    """Learn to predict the prompts too: for models that have not learnt to read yet. Held-out rows stay as they are."""
    held_out: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    """Share of trajectories that are not trained on and on which the loss is reported, at least one."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """What is trained."""
    update: UpdateConfig = UpdateConfig(mini_batch_size=64, epochs=3, kl_weight=0.0, entropy_weight=0.0, dual_clip=None)
    """Batches and epochs; clips do not matter."""
    optimiser: OptimiserConfig = OptimiserConfig(learning_rate=1e-5, schedule="cosine")
    """AdamW; its schedule runs over optimiser steps here."""
    tracking: TrackingConfig = TrackingConfig()
    """Trackers that receive the metrics."""


def shipped() -> dict[str, Path]:
    """The configurations that come with the package, by name."""
    folder = Path(str(files("hgpo_train.training") / "configs"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def template_path(config: EnvironmentConfig) -> str | None:
    """The prompt template's file: the one named, or the shipped one of that name.

    Raises:
        InputError: There is neither.
    """
    name = config.prompt_template
    if name is None or Path(name).is_file():
        return name
    folder = Path(str(files("hgpo_train.training") / "configs"))
    known = {path.stem: str(path) for path in sorted(folder.glob("*.j2"))}
    if name not in known:
        raise InputError(unknown("prompt template (no such file either)", name, known))
    return known[name]


def load_config(source: str | Path | None, overrides: Iterable[str] = (), cls: type[C] = Config) -> C:  # type: ignore[assignment]
    """Reads a configuration file, or one that is shipped by its name, and applies overrides of the form a.b=c.

    Args:
        source: A TOML file, or a name of `shipped`; None starts from the defaults.
        overrides: `section.field=value` texts, later ones over earlier ones.
        cls: `Config` or `SftConfig`.

    Raises:
        InputError: No such file or name, an unknown key, a value of another type or an impossible size.
    """
    merged: dict[str, Any] = to_dict(cls())
    if source is not None:
        path = Path(source)
        if not path.is_file():
            known = shipped()
            if str(source) not in known:
                raise InputError(unknown("configuration (no such file either)", str(source), known, limit=6))
            path = known[str(source)]
        merged = merge(merged, read_toml(path))
    for text in overrides:
        merged = merge(merged, _override(text, cls))
    return build(cls, merged)


def _override(text: str, cls: type) -> dict[str, Any]:
    """One `section.field=value`, as a table."""
    form = "an override of the form section.field=value"
    name, given = split(text, "--set", form)
    value = read_value(given, annotation_of(cls, name))
    for key in reversed(name.split(".")):
        value = {key: value}
    return dict(value)


def replace(config: C, **changes: object) -> C:
    """A configuration with other values: sections take a dictionary of their changed fields.

    >>> replace(Config(), seed=1, update={"epochs": 2}).update.epochs
    2
    """
    return build(type(config), merge(to_dict(config), changes))
