"""Protocols that play other episodes: the same policy under other settings of an evaluation.

Each is a few settings that replace those of the reference, and is compared with it: paired by task where a task's id
means the same task, otherwise as two samples of tasks.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hgpo_datasets import manifest
from hgpo_envs.environment_spec import environment_spec
from hgpo_train.evaluation.panel_evaluation import SAMPLING as FIXED
from hgpo_train.evaluation.play import SAMPLING, SEEDS, TEMPERATURE, evaluate
from hgpo_train.evaluation.protocols import (
    LIMITS,
    SEEDS_SOURCE,
    Effect,
    Reference,
    cannot_move,
    paired_difference,
    read_reference,
)
from hgpo_train.panels.data import find_data
from hgpo_train.panels.loading import load_panel
from hgpo_train.policies.registry import find_policy
from hgpo_train.proportions import wilson_interval

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

OTHER_SEED: Final = 1000
"""What verl-agent adds to a seed for its validation; here, to all seeds for the repetition."""


class Variation(NamedTuple):
    """A protocol that plays other episodes.

    Attributes:
        name: Its name.
        sentence: What it does.
        source: Where it was seen.
        settings: What replaces the reference's settings: ``temperature``, or arguments of the environment.
        benchmark: The only benchmark that has it; None for all.
        has_other_tasks: Whether a task's id means another task than in the reference.
    """

    name: str
    sentence: str
    source: str
    settings: Mapping[str, Any]
    benchmark: str | None = None
    has_other_tasks: bool = False


_WORDING: Final = "alfworld/alfworld #96, #106; WooooDyy/AgentGym #41; LeapLabTHU/ExpeL #8"
_SPLIT: Final = "aiming-lab/SkillRL #24, #66; mll-lab-nu/RAGEN #134"
_GOALS: Final = "ZJU-REAL/Agent-G2 #1, WillDreamer/ARL-Arena #7, langfengQ/verl-agent #262"
_PRICES: Final = "Yifan-Song793/ETO #17"
_SAMPLED: Final = "verl-agent validates with 0.4 and trains with 1"
_OTHER: Final = {"price_seed": OTHER_SEED}

VARIATIONS: Final = (
    Variation("put in/on", "The wording until alfworld 0.3.", _WORDING, {"grammar": "put"}, "ALFWorld"),
    Variation("move to", "The wording since alfworld 0.4.", _WORDING, {"grammar": "move"}, "ALFWorld"),
    Variation("valid_seen", "Rooms of training.", _SPLIT, {"split": "valid_seen"}, "ALFWorld", has_other_tasks=True),
    Variation("valid_unseen", "Other rooms.", _SPLIT, {"split": "valid_unseen"}, "ALFWorld", has_other_tasks=True),
    Variation("limit 50", "A limit of 50 steps.", LIMITS, {"max_steps": 50}, "ALFWorld"),
    Variation("limit 30", "A limit of 30 steps.", LIMITS, {"max_steps": 30}, "WebShop"),
    Variation("other prices", "The same goals with another seed of prices.", _PRICES, _OTHER, "WebShop"),
    Variation(
        "a worker's goals",
        "Goals and prices by a worker's seed: an id is another task.",
        _GOALS,
        _OTHER | {"shuffle_seed": OTHER_SEED},
        "WebShop",
        has_other_tasks=True,
    ),
    Variation("temperature 0", "Greedy sampling.", _SAMPLED, {"temperature": 0.0}),
    Variation("temperature 0.4", "Sampling at 0.4.", _SAMPLED, {"temperature": 0.4}),
    Variation("temperature 1", "Sampling at 1.", _SAMPLED, {"temperature": 1.0}),
)


def unpaired_difference(first: Reference, second: Reference) -> Effect:
    """Return the difference of the success of two evaluations of other tasks, and Newcombe's interval.

    Source: R. G. Newcombe, Interval estimation for the difference between independent proportions, Statistics in
    Medicine 17 (1998), pp. 873-890, method 10, with tasks as trials.
    """
    shares = [first.success, second.success]
    bounds = [wilson_interval(each.success, each.tasks) for each in (first, second)]
    (low, high), (other_low, other_high) = bounds
    difference = shares[0] - shares[1]
    below = math.hypot(shares[0] - low, other_high - shares[1])
    above = math.hypot(high - shares[0], shares[1] - other_low)
    return Effect("shift", difference, difference - below, difference + above)


def played_effects(policy: str, out: str | os.PathLike[str], **settings: Any) -> tuple[Reference, list[Effect]]:
    """Play the reference and every variation that the benchmark has, each into its folder of `out`; resume them.

    Args:
        policy: The policy's name.
        out: The folder.
        **settings: Arguments of `hgpo_train.evaluation.evaluate`, with `env`.

    Returns:
        The reference, and the effects of the variations that differ from it.

    Raises:
        InputError: As `evaluate`, like the other exceptions.
    """
    reference_settings = {"seeds": SEEDS, "policy_options": {}} | settings
    sampling = reference_settings["policy_options"]

    def play(name: str, **replaced: Any) -> Reference:
        folder = Path(out) / name.replace(" ", "-").replace("/", "-")
        evaluate(policy=policy, out=folder, **reference_settings | replaced)
        return read_reference(folder)

    # 1. The reference, its settings, and what chance gives without any difference.
    reference = play("reference")
    header = manifest.read(Path(out) / "reference").header
    assert header is not None
    spec = environment_spec(header.config["env"]["id"])
    known = {"max_steps": spec.max_steps, "temperature": TEMPERATURE}
    known |= header.config["tasks"] | header.config["env"] | sampling
    again = play("other seeds", seeds=[seed + OTHER_SEED for seed in reference_settings["seeds"]])
    chance = paired_difference(again, reference)
    sentence = "A/A: the reference played again with other seeds."
    effects = [chance._replace(protocol="played again", sentence=sentence, source=SEEDS_SOURCE)]

    # 2. Every variation that is not the reference itself.
    for name, sentence, source, changes, benchmark, has_other_tasks in VARIATIONS:
        is_reference = all(known.get(key) == value for key, value in changes.items())
        if benchmark not in (None, spec.name) or is_reference:
            continue
        replaced = dict(changes)
        if "split" in changes and "tasks" in reference_settings:
            replaced["tasks"] = None  # those of a panel are of its split
        if "temperature" in changes:
            replaced = {"policy_options": sampling | changes}
        if "temperature" in changes and policy.partition(":")[0] not in SAMPLING:
            effect = cannot_move("the policy does not sample from a model")
        elif has_other_tasks:
            effect = unpaired_difference(play(name, **replaced), reference)
        else:
            effect = paired_difference(play(name, **replaced), reference)
        effects.append(effect._replace(protocol=name, sentence=sentence, source=source))
    return reference, effects


def panel_settings(panel: str, policy: str, data: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a panel's settings for `played_effects`.

    Args:
        panel: The panel (`hgpo_train.panels.load_panel`).
        policy: The policy's name.
        data: Where the panel's data are. Default: the bundled data, or the usual places.
        options: Options of the policy; those that the panel fixes replace them.

    Raises:
        InputError: There is no such panel, or the data are not the panel's.
    """
    found = load_panel(panel)
    arguments, _ = find_data(found, data)
    known = find_policy(policy)[0].option_types
    sampling = dict(options)
    sampling |= {name: getattr(found, name) for name in FIXED if name in known}
    return arguments | {"tasks": found.tasks, "seeds": found.seeds, "policy_options": sampling}
