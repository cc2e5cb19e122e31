"""Generate the tables of docs/configurations.md: the shipped configurations beside the official scripts.

python -m tools.configurations_page docs/configurations.md     update the page in place

The official values are data (tools/official_scripts.toml), the others are read from the configurations.
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_train.training.config import SHIPPED, load_config

if TYPE_CHECKING:
    from collections.abc import Mapping

BEGIN: Final = "<!-- configurations: written by python -m tools.configurations_page -->"
END: Final = "<!-- end of configurations -->"

_DEFAULTS: Final = "verl-agent/verl/trainer/config/ppo_trainer.yaml"
_METHODS: Final = (
    "grpo",
    "gigpo",
    "g2po",
    "graphgpo",
    "hgpo-k2",
    "hgpo-k4",
    "hgpo-k2-lora",
)
_WORLDS: Final = {"alfworld": "ALFWorld", "webshop": "WebShop"}
_SIZES: Final = ("1.5b", "7b")


@dataclass(frozen=True)
class Script:
    """The official script of a configuration.

    Attributes:
        name: Its name in official_scripts.toml.
        exact: Whether it is the script of the configuration's own estimator and model. If not, it is the nearest one.
    """

    name: str
    exact: bool = True


@cache
def scripts() -> dict[str, dict[str, Any]]:
    """Return the official values by script and option."""
    return tomllib.loads(
        (Path(__file__).parent / "official_scripts.toml").read_text("utf-8")
    )


def script_of(world: str, size: str, method: str) -> Script:
    """Return the official script of a configuration, or the nearest one."""
    if method in ("grpo", "gigpo"):
        return Script(
            f"verl-agent/examples/{method}_trainer/run_{world}.sh", size == "1.5b"
        )
    if method == "g2po":
        return Script(f"G2PO/examples/g2po_trainer/run_{world}.sh", size == "1.5b")
    recipe = "GraphGPO" if method == "graphgpo" else "hgpo"
    return Script(
        f"verl-agent/recipe/{recipe}/run_qwen2.5_{size}_{world}_train.sh",
        not method.endswith("lora"),
    )


def official_values(script: Script, method: str) -> dict[str, Any]:
    """Return a script's values and the trainer's defaults; with adapters also those of GiGPO's script for adapters."""
    values = scripts()[_DEFAULTS] | scripts()[script.name]
    if method.endswith("lora"):
        world = "alfworld" if "alfworld" in script.name else "webshop"
        adapted = scripts()[f"verl-agent/examples/gigpo_trainer/run_{world}_lora.sh"]
        for option in (
            "model.lora_rank",
            "model.lora_alpha",
            "actor.optim.lr",
            "actor.use_kl_loss",
        ):
            values[f"actor_rollout_ref.{option}"] = adapted[
                f"actor_rollout_ref.{option}"
            ]
    if method == "hgpo-k4":
        values["env.history_length"] = 4  # the script's variable, "2 or 4"
    if method == "graphgpo" and "webshop" not in script.name:
        values.pop("env.webshop.observation_mode", None)
    return values


def _kl(values: Mapping[str, Any]) -> float:
    return (
        float(values["actor_rollout_ref.actor.kl_loss_coef"])
        if values["actor_rollout_ref.actor.use_kl_loss"]
        else 0.0
    )


def _mode(values: Mapping[str, Any], method: str) -> str:
    if method == "grpo":
        return (
            "mean_std_norm"
            if values["algorithm.norm_adv_by_std_in_grpo"]
            else "mean_norm"
        )
    return str(values[f"algorithm.{method.partition('-')[0]}.mode"])


def _option_of(method: str, name: str) -> str:
    return f"algorithm.{method.partition('-')[0]}.{name}"


_ACTOR: Final = "actor_rollout_ref.actor."
_ROLLOUT: Final = "actor_rollout_ref.rollout."
_OPTIONS: Final = {
    "model.path": "actor_rollout_ref.model.path",
    "iterations": "trainer.total_epochs",
    "environment.max_steps": "env.max_steps",
    "environment.history_length": "env.history_length",
    "seed": "env.seed",
    "rollout.tasks": "data.train_batch_size",
    "rollout.group_size": "env.rollout.n",
    "rollout.temperature": _ROLLOUT + "temperature",
    "rollout.max_prompt_tokens": "data.max_prompt_length",
    "rollout.max_response_tokens": "data.max_response_length",
    "rollout.overflow": "data.truncation",
    "update.mini_batch_size": _ACTOR + "ppo_mini_batch_size",
    "update.epochs": _ACTOR + "ppo_epochs",
    "update.aggregation": _ACTOR + "loss_agg_mode",
    "update.clip_low": _ACTOR + "clip_ratio_low",
    "update.clip_high": _ACTOR + "clip_ratio_high",
    "update.dual_clip": _ACTOR + "clip_ratio_c",
    "update.entropy_weight": _ACTOR + "entropy_coeff",
    "optimiser.learning_rate": _ACTOR + "optim.lr",
    "optimiser.weight_decay": _ACTOR + "optim.weight_decay",
    "optimiser.schedule": _ACTOR + "optim.warmup_style",
    "optimiser.gradient_clip": _ACTOR + "grad_clip",
    "model.lora.rank": "actor_rollout_ref.model.lora_rank",
    "model.gradient_checkpointing": "actor_rollout_ref.model.enable_gradient_checkpointing",
    "evaluation.every": "trainer.test_freq",
    "evaluation.tasks": "prepare.val_data_size",
    "evaluation.temperature": _ROLLOUT + "val_kwargs.temperature",
    "evaluation.before_training": "trainer.val_before_train",
    "checkpoint.every": "trainer.save_freq",
    "checkpoint.keep": "trainer.max_actor_ckpt_to_keep",
}
"""The option of the scripts that says the same as a setting."""


def compared(name: str) -> dict[str, tuple[object, object]]:
    """Return our value and the official one of every row, for a shipped configuration; None where it has no meaning."""
    world, size, method = name.split("-", 2)
    config = load_config(name)
    values = official_values(script_of(world, size, method), method)
    found: dict[str, tuple[object, object]] = {}
    for setting, option in _OPTIONS.items():
        found[setting] = (attrgetter(setting)(config), values.get(option))
    # Two values are written in another way.
    aggregation, official_aggregation = found["update.aggregation"]
    found["update.aggregation"] = (
        aggregation,
        str(official_aggregation).replace("-", "_"),
    )
    if found["checkpoint.keep"][1] == "null":
        found["checkpoint.keep"] = (config.checkpoint.keep, 0)
    # the script is for the other size
    if size not in values["actor_rollout_ref.model.path"].lower():
        found["model.path"] = (config.model.path, config.model.path)
    found["update.kl_weight"] = (config.update.kl_weight, _kl(values))
    for parameter, official in _parameters(values, method).items():
        found[f"advantage: {parameter}"] = (
            config.advantage.parameters.get(parameter),
            official,
        )
    if world == "webshop":
        mode = config.environment.options.get("observation_mode", "text")
        found["environment: observation_mode"] = (
            mode,
            values["env.webshop.observation_mode"],
        )
    return found


def _parameters(values: Mapping[str, Any], method: str) -> dict[str, object]:
    """Return the official parameters of the advantages."""
    found: dict[str, object] = {
        "mode": _mode(values, method),
        "invalid_action_penalty": values[_ACTOR + "invalid_action_penalty_coef"],
    }
    if method != "grpo":  # GRPO does not discount
        found["gamma"] = values["algorithm.gamma"]
    if method in ("gigpo", "g2po", "graphgpo"):
        found["step_weight"] = values[_option_of(method, "step_advantage_w")]
    if method == "graphgpo":
        found["episode_weight"] = values[_option_of(method, "episode_advantage_w")]
    if method.startswith("hgpo"):
        found["alpha"] = values[_option_of(method, "length_weight_alpha")]
        found["base_group"] = values[_option_of(method, "base_group")]
        found["history_length"] = values["env.history_length"]
    return found


def configurations() -> list[str]:
    """Return the names of the shipped configurations of the papers' runs."""
    return [name for name in SHIPPED if not name.startswith("tiny")]


def tables() -> str:
    """Return one Markdown table per benchmark and model size."""
    parts = []
    for world, title in _WORLDS.items():
        for size in _SIZES:
            names = {method: f"{world}-{size}-{method}" for method in _METHODS}
            columns = {method: compared(name) for method, name in names.items()}
            head = [
                f"### {title}, Qwen2.5-{size.upper()}-Instruct",
                "",
                f"| | {' | '.join(_METHODS)} |",
            ]
            titles = list(
                dict.fromkeys(row for values in columns.values() for row in values)
            )
            lines = [_line(row, columns) for row in titles]
            official = [
                _script_cell(script_of(world, size, method), method)
                for method in _METHODS
            ]
            gpus = [_machine_cell(world, size, method) for method in _METHODS]
            first = [f"| script | {' | '.join(official)} |"]
            last = [
                f"| GPUs, gpu_memory_utilization of the script | {' | '.join(gpus)} |"
            ]
            parts.append(
                "\n".join(
                    [*head, "|---" * (len(_METHODS) + 1) + "|", *first, *lines, *last]
                )
            )
    return "\n\n".join(parts)


def rewrite(page: str) -> str:
    """Return the page with updated tables."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def _line(row: str, columns: Mapping[str, Mapping[str, tuple[object, object]]]) -> str:
    cells = [
        _cell(*values[row]) if row in values else "" for values in columns.values()
    ]
    return f"| {row} | {' | '.join(cells)} |"


def _cell(ours: object, official: object) -> str:
    """Return our value, and the official one if it differs."""
    return (
        _shown(ours)
        if ours == official
        else f"**{_shown(ours)}** (script: {_shown(official)})"
    )


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    return (
        f"{value:g}" if isinstance(value, float) else str(value).removeprefix("Qwen/")
    )


def _script_cell(script: Script, method: str) -> str:
    path = script.name.partition("/")[2]
    if script.exact:
        return f"`{path}`"
    nearest = (
        "`examples/gigpo_trainer/*_lora.sh` and " if method.endswith("lora") else ""
    )
    return f"none; nearest: {nearest}`{path}`"


def _machine_cell(world: str, size: str, method: str) -> str:
    values = scripts()[script_of(world, size, method).name]
    share = values["actor_rollout_ref.rollout.gpu_memory_utilization"]
    return f"{values['trainer.n_gpus_per_node']}, {share:g}"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(rewrite(target.read_text("utf-8")), "utf-8")
