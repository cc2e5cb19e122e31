"""A configuration of `hgpo train` as a configuration of verl.

Every setting of `hgpo_train.training.config.Config` has one of four rules: it is *translated* into verl's settings; it
is *read* by HGPO's agent loop, data set or trainer, to which the launch file carries the whole configuration; it has
*no effect* on what is learned, and verl's own setting is used; or it is *refused* by name, unless it has the one value
that verl can reproduce. `RULES` is that list; nothing is left out silently.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import gymnasium
from gymnasium.envs.registration import find_highest_version, parse_env_id

from hgpo_envs.environment_spec import environment_ids
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_envs.registration import resolve_id
from hgpo_verl.run_settings import EVALUATION, TRAINING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from _typeshed import DataclassInstance

    from hgpo_train.training.config import Config

    Values = Mapping[str, object]
    Apply = Callable[[Any, Config], Values]

_ACTOR: Final = "actor_rollout_ref.actor"
_REF: Final = "actor_rollout_ref.ref"
_ROLLOUT: Final = "actor_rollout_ref.rollout"
_MODEL: Final = "actor_rollout_ref.model"
_NEVER: Final = 1e9
"""A bound of a norm or a loss that nothing reaches."""


class Rule(NamedTuple):
    """What happens to one setting.

    Attributes:
        kind: ``translated``, ``read``, ``no effect`` or ``refused``.
        how: verl's settings, who reads it, why it has no effect, or which values are accepted and why.
        apply: Returns verl's settings for a value, and raises `InputError` for a value that is refused.
    """

    kind: str
    how: str
    apply: Apply = lambda _, __: {}


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines of a run.

    Attributes:
        gpus: Number of GPUs of each machine.
        nodes: Number of machines.
    """

    gpus: int = 4
    nodes: int = 1

    def __post_init__(self) -> None:
        for name in ("gpus", "nodes"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"{name}: expected at least 1, received {getattr(self, name)}"
                )


def _to(*names: str, change: Callable[[Any], object] = lambda value: value) -> Rule:
    return Rule(
        "translated",
        ", ".join(names),
        lambda value, _: dict.fromkeys(names, change(value)),
    )


def _by(how: str, apply: Apply) -> Rule:
    return Rule("translated", how, apply)


def _read(reader: str) -> Rule:
    return Rule("read", reader)


def _unused(why: str) -> Rule:
    return Rule("no effect", why)


def _only(value: object, why: str, then: Values | None = None) -> Rule:
    def apply(given: object, _: Config) -> Values:
        if given != value:
            raise InputError(
                f"expected {_shown(value)}: {why}; received {_shown(given)}"
            )
        return then or {}

    return Rule("refused", f"unless {_shown(value)}: {why}", apply)


def _shown(value: object) -> str:
    return (
        "none"
        if value is None
        else repr(value).lower()
        if isinstance(value, bool)
        else repr(value)
    )


def _mini_batch(rows: int, config: Config) -> Values:
    """Verl counts a mini-batch in tasks: it has `ppo_mini_batch_size` × `rollout.n` rows."""
    size = config.rollout.group_size
    if rows % size:
        raise InputError(
            f"expected a multiple of rollout.group_size = {size}, because verl multiplies; received {rows}"
        )
    return {f"{_ACTOR}.ppo_mini_batch_size": rows // size}


def _micro_batch(tokens: int, config: Config) -> Values:
    longest = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
    if tokens < longest:
        raise InputError(
            f"expected at least the longest sequence, {longest} tokens, received {tokens}"
        )
    # verl counts tokens and then pads them: up to 1.6 times as many
    if config.update.layout != "packed":
        tokens = max(tokens // 2, longest)
    return {
        f"{_ACTOR}.use_dynamic_bsz": True,
        f"{_ACTOR}.ppo_max_token_len_per_gpu": tokens,
    }


def _engine_options(options: Mapping[str, Any], _: Config) -> Values:
    known = {
        "tensor_parallel_size": "tensor_model_parallel_size",
        "gpu_memory_utilization": "gpu_memory_utilization",
        "max_num_seqs": "max_num_seqs",
        "max_num_batched_tokens": "max_num_batched_tokens",
        "enforce_eager": "enforce_eager",
        "enable_prefix_caching": "enable_prefix_caching",
        "enable_chunked_prefill": "enable_chunked_prefill",
    }
    for name in options:
        if name not in known:
            raise InputError(
                f"expected some of {', '.join(known)}, which verl has too, received {name}"
            )
    return {f"{_ROLLOUT}.{known[name]}": value for name, value in options.items()}


def _chat_template(path: str, _: Config) -> Values:
    if not path:
        return {}
    text = read_bytes(Path(path), 1 << 20, "chat template").decode(errors="replace")
    # which OmegaConf would replace
    return {f"{_MODEL}.custom_chat_template": text.replace("${", r"\${")}


def _lora(rank: int, config: Config) -> Values:
    if not rank:
        return {}
    lora = config.model.lora
    return {
        f"{_MODEL}.lora_rank": rank,
        f"{_MODEL}.lora_alpha": lora.alpha,
        f"{_MODEL}.target_modules": lora.targets
        if isinstance(lora.targets, str)
        else list(lora.targets),
    }


def _dtype(name: str, _: Config) -> Values:
    """Verl's engine ignores `fsdp_config.dtype`; what it computes in is `mixed_precision.param_dtype`."""
    short = {"bfloat16": "bf16", "float32": "fp32"}[name]
    mixed = {"param_dtype": short, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    return {
        f"{part}.fsdp_config.mixed_precision": dict(mixed) for part in (_ACTOR, _REF)
    } | {f"{_ROLLOUT}.dtype": name}


def _kl(weight: float, _: Config) -> Values:
    if not weight:
        return {f"{_ACTOR}.use_kl_loss": False}
    return {
        f"{_ACTOR}.use_kl_loss": True,
        f"{_ACTOR}.kl_loss_coef": weight,
        f"{_ACTOR}.kl_loss_type": "low_var_kl",
        f"{_REF}.fsdp_config.param_offload": True,
    }


def _evaluation_every(every: int, config: Config) -> Values:
    before = bool(every) and config.evaluation.before_training
    return {"trainer.test_freq": every or -1, "trainer.val_before_train": before}


def _trackers(_: object, config: Config) -> Values:
    tracking = config.tracking
    chosen = {
        "tensorboard": tracking.tensorboard,
        "wandb": tracking.wandb,
        "trackio": tracking.trackio,
    }
    projects = {tracking.wandb, tracking.trackio} - {None}
    if len(projects) > 1:
        raise InputError(
            "expected the same project for all trackers, because verl has one name for them"
        )
    return {
        "trainer.logger": [
            "console",
            *(name for name, value in chosen.items() if value),
        ],
        "trainer.project_name": projects.pop() if projects else "hgpo",
    }


_VLLM: Final = (
    "verl generates with its own vLLM; transformers is an engine of one process"
)
_SPEED: Final = "speed or memory only; verl's own setting is used"

RULES: Final[dict[str, Rule]] = {
    "name": _to("trainer.experiment_name"),
    "seed": _by(
        f"data.seed, {_ACTOR}.data_loader_seed, {_ACTOR}.fsdp_config.seed, {_ROLLOUT}.seed; the data set's order",
        lambda seed, _: {
            "data.seed": seed,
            f"{_ACTOR}.data_loader_seed": seed,
            f"{_ACTOR}.fsdp_config.seed": seed,
            f"{_ROLLOUT}.seed": seed,
        },
    ),
    "iterations": _to("trainer.total_training_steps"),
    "environment_steps": _only(
        None, "verl counts training steps, not environment steps; set iterations"
    ),
    "check_memory": _unused("the plan is of one card; verl shards the weights"),
    **{
        f"environment.{name}": _read("agent loop and data set")
        for name in (
            *(
                "id",
                "max_steps",
                "history_length",
                "history_depth",
                "action_format",
                "prompt_template",
            ),
            *("prompt_style", "system_prompt", "data", "options"),
        )
    },
    "environment.split": _to(
        "data.train_files", change=lambda split: f"{TRAINING}:{split}"
    ),
    "model.path": _to(f"{_MODEL}.path"),
    "model.device": _only("auto", "Ray gives each process its GPU"),
    "model.compute_dtype": _by(
        f"{_ACTOR}.fsdp_config.mixed_precision, {_REF}.fsdp_config.mixed_precision, {_ROLLOUT}.dtype",
        _dtype,
    ),
    "model.attention": _to(f"{_MODEL}.override_config.attn_implementation"),
    # "auto" is true
    "model.gradient_checkpointing": _to(
        f"{_MODEL}.enable_gradient_checkpointing", change=bool
    ),
    "model.compile": _unused(_SPEED),
    "model.lora.rank": _by(
        f"{_MODEL}.lora_rank, with lora_alpha and target_modules", _lora
    ),
    "model.lora.alpha": _read("model.lora.rank"),
    "model.lora.targets": _read("model.lora.rank"),
    "model.lora.dropout": _only(0.0, "verl's adapters have none"),
    "rollout.engine": _only("vllm", _VLLM, {f"{_ROLLOUT}.name": "vllm"}),
    "rollout.engine_options": _by(
        f"the settings of {_ROLLOUT} of the same names; others are refused",
        _engine_options,
    ),
    "rollout.tasks": _to("data.train_batch_size"),
    "rollout.group_size": _to(f"{_ROLLOUT}.n"),
    "rollout.temperature": _to(f"{_ROLLOUT}.temperature"),
    "rollout.max_prompt_tokens": _to("data.max_prompt_length"),
    "rollout.max_response_tokens": _to("data.max_response_length"),
    "rollout.overflow": _read(
        "agent loop, which shortens prompts before verl sees them"
    ),
    "rollout.stop": _read("agent loop, which sends it to verl's engine"),
    "rollout.chat_template": _by(
        f"the file's text as {_MODEL}.custom_chat_template", _chat_template
    ),
    "rollout.chat_template_options": _read("agent loop"),
    "rollout.slots": _unused(
        "speed only: verl plays all rollouts of an iteration at once"
    ),
    "rollout.filter_groups": _only(
        False, "verl's own filter refills from a stream of tasks, in another order"
    ),
    "rollout.max_generation_batches": _unused("belongs to rollout.filter_groups"),
    "rollout.branch": _only(None, "its trainer plays whole rollouts"),
    "rollout.branch_width": _unused("belongs to rollout.branch"),
    "rollout.sleep": _unused("verl's engine always sleeps during the update"),
    "rollout.offload_optimiser": _to(f"{_ACTOR}.fsdp_config.optimizer_offload"),
    "rollout.ahead": _only(False, "its trainer plays and updates in turns"),
    "rollout.max_failed": _read("trainer"),
    "advantage.estimator": _read("trainer"),
    "advantage.parameters": _read("trainer"),
    "update.mini_batch_size": _by(
        f"{_ACTOR}.ppo_mini_batch_size × {_ROLLOUT}.n", _mini_batch
    ),
    "update.epochs": _to(f"{_ACTOR}.ppo_epochs"),
    "update.micro_batch_tokens": _by(
        f"{_ACTOR}.ppo_max_token_len_per_gpu, with use_dynamic_bsz; half of it for padded rows",
        _micro_batch,
    ),
    "update.layout": _to(
        f"{_MODEL}.use_remove_padding", change=lambda layout: layout == "packed"
    ),
    "update.share_prefixes": _unused(_SPEED),
    "update.logit_chunk": _unused(_SPEED),
    "update.aggregation": _only(
        "token_mean",
        "verl's sequence means count the rows that it adds for padding",
        {f"{_ACTOR}.loss_agg_mode": "token-mean"},
    ),
    "update.ratio": _only(
        "token", "verl's GSPO has a loss of its own, which uses no dual clip"
    ),
    "update.clip_low": _to(f"{_ACTOR}.clip_ratio", f"{_ACTOR}.clip_ratio_low"),
    "update.clip_high": _to(f"{_ACTOR}.clip_ratio_high"),
    "update.dual_clip": _to(
        f"{_ACTOR}.clip_ratio_c",
        change=lambda bound: _NEVER if bound is None else bound,
    ),
    "update.kl_weight": _by(
        f"{_ACTOR}.use_kl_loss, kl_loss_coef, kl_loss_type = low_var_kl", _kl
    ),
    "update.unbiased_kl": _only(
        False, "verl's estimates of the divergence have no such weight"
    ),
    "update.entropy_weight": _to(f"{_ACTOR}.entropy_coeff"),
    "update.old_logprobs": _only(
        "recompute", "verl's bypass of it has not been compared with this package's"
    ),
    "update.rollout_is": _only(
        None, "verl's correction has not been compared with this package's"
    ),
    "update.rollout_is_threshold": _unused("belongs to update.rollout_is"),
    "update.rollout_is_least": _unused("belongs to update.rollout_is"),
    "update.overlong": _only("keep", "it trains on all responses"),
    "update.max_policy_lag": _unused("verl plays with the weights that it updates"),
    "update.gap_warning": _unused("verl logs the difference as a metric"),
    "optimiser.learning_rate": _to(f"{_ACTOR}.optim.lr"),
    "optimiser.weight_decay": _to(f"{_ACTOR}.optim.weight_decay"),
    "optimiser.betas": _to(f"{_ACTOR}.optim.betas", change=list),
    "optimiser.epsilon": _to(f"{_ACTOR}.optim.override_optimizer_config.eps"),
    "optimiser.schedule": _only(
        "constant",
        "verl's schedules end elsewhere than this package's",
        {f"{_ACTOR}.optim.lr_scheduler_type": "constant"},
    ),
    "optimiser.warmup_iterations": _only(
        0,
        "verl's warm-up begins at another rate",
        {f"{_ACTOR}.optim.lr_warmup_steps": 0},
    ),
    "optimiser.gradient_clip": _to(
        f"{_ACTOR}.optim.clip_grad", change=lambda norm: norm or _NEVER
    ),
    "evaluation.every": _by(
        "trainer.test_freq, trainer.val_before_train", _evaluation_every
    ),
    "evaluation.before_training": _read("evaluation.every"),
    "evaluation.split": _to(
        "data.val_files", change=lambda split: f"{EVALUATION}:{split}"
    ),
    "evaluation.tasks": _read("data set"),
    "evaluation.group_size": _to(f"{_ROLLOUT}.val_kwargs.n"),
    "evaluation.temperature": _by(
        f"{_ROLLOUT}.val_kwargs.temperature, do_sample",
        lambda value, _: {
            f"{_ROLLOUT}.val_kwargs.temperature": value,
            f"{_ROLLOUT}.val_kwargs.do_sample": value > 0,
        },
    ),
    "evaluation.seed": _read("agent loop"),
    "evaluation.patience": _only(0, "verl does not stop early"),
    "checkpoint.every": _to("trainer.save_freq"),
    "checkpoint.keep": _to(
        "trainer.max_actor_ckpt_to_keep", change=lambda count: count or None
    ),
    "checkpoint.optimiser": _unused(
        "disk only: verl's checkpoints always contain the optimiser's state"
    ),
    "tracking.tensorboard": _by("trainer.logger, trainer.project_name", _trackers),
    "tracking.wandb": _read("tracking.tensorboard"),
    "tracking.trackio": _read("tracking.tensorboard"),
}


def translate(config: Config, cluster: Cluster, folder: Path) -> dict[str, Any]:
    """Return a launch file of verl as nested dictionaries.

    Args:
        config: A configuration of `hgpo train`.
        cluster: The machines.
        folder: The run's folder, on a disk that the trainer's machine sees.

    Raises:
        InputError: A setting cannot be translated, or the environment is unknown. The error names the setting, its
            value and the reason.
    """
    _check_environment(config.environment.id)
    given = leaves(config)
    values: dict[str, object] = dict(_fixed(config, cluster, folder))
    for name, value in given.items():
        try:
            values.update(RULES[name].apply(value, config))
        except InputError as error:
            raise InputError(f"setting {name}: verl cannot do this: {error}") from error
    section = {
        "folder": folder.as_posix(),
        # with lists instead of tuples, which YAML does not have
        "configuration": json.loads(json.dumps(dataclasses.asdict(config))),
    }
    return {"defaults": ["ppo_trainer", "_self_"], **_nested(values), "hgpo": section}


def _check_environment(env_id: str) -> None:
    """Raise an InputError for an environment that nothing has registered; its data may be on other machines only."""
    try:
        env_id = resolve_id(env_id)
    except InputError as error:
        raise InputError(f"setting environment.id: {error}") from error
    if not (env_id in environment_ids() or _in_gymnasium(env_id)):
        raise InputError(
            f"setting environment.id: {unknown('environment', env_id, environment_ids())}"
        )


def _in_gymnasium(env_id: str) -> bool:
    """Return whether Gymnasium makes an id: ``module:Id-v0`` imports the module, and the version may be left out."""
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            import_module(module)
        namespace, stem, version = parse_env_id(name)
    except (gymnasium.error.Error, ImportError):
        return False
    return name in gymnasium.registry or (
        version is None and find_highest_version(namespace, stem) is not None
    )


def leaves(config: Config) -> dict[str, Any]:
    """Return all settings of a configuration by name: `section.field`, or `field` outside a section."""
    found: dict[str, Any] = {}

    def walk(settings: DataclassInstance, prefix: str) -> None:
        for field in dataclasses.fields(settings):
            value = getattr(settings, field.name)
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                walk(value, f"{prefix}{field.name}.")
            else:
                found[f"{prefix}{field.name}"] = value

    walk(config, "")
    return found


def _fixed(config: Config, cluster: Cluster, folder: Path) -> dict[str, object]:
    """Return the settings that follow from the plug-in and from the machines."""
    plugin = {"VERL_USE_EXTERNAL_MODULES": "hgpo_verl.plugin"}
    longest = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
    return {
        "data.hgpo": "${hgpo}",
        "data.custom_cls": {"path": "pkg://hgpo_verl.tasks", "name": "TaskDataset"},
        "data.shuffle": False,
        "data.validation_shuffle": False,
        "data.dataloader_num_workers": 0,
        # without a critic; the trainer computes its own advantages
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": False,
        f"{_ACTOR}.strategy": "fsdp2",
        f"{_ACTOR}.shuffle": True,
        f"{_ROLLOUT}.top_p": 1.0,
        f"{_ROLLOUT}.top_k": -1,
        f"{_ROLLOUT}.calculate_log_probs": True,
        f"{_ROLLOUT}.tensor_model_parallel_size": math.gcd(cluster.gpus, 2),
        f"{_ROLLOUT}.max_model_len": longest,
        f"{_ROLLOUT}.val_kwargs.top_p": 1.0,
        f"{_ROLLOUT}.agent.default_agent_loop": "hgpo_steps",
        f"{_ROLLOUT}.agent.agent_loop_manager_class": "hgpo_verl.workers.ReplacingAgentLoopManager",
        "trainer.v1.trainer_mode": "hgpo",
        "trainer.v1.sampler.custom_sampler": {
            "path": "pkg://hgpo_verl.workers",
            "name": "WatchfulReplayBuffer",
        },
        "trainer.total_epochs": 1,
        "trainer.n_gpus_per_node": cluster.gpus,
        "trainer.nnodes": cluster.nodes,
        "trainer.default_local_dir": (folder / "checkpoints").as_posix(),
        "ray_kwargs.ray_init.runtime_env.env_vars": plugin,
    }


def _nested(values: Mapping[str, object]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = name.split(".")
        place = nested
        for key in path:
            place = place.setdefault(key, {})
        place[last] = value
    return nested
