"""Protocols that play other episodes: the same policy under other settings of a panel.

Each replaces a few settings of the panel, and is compared with it: paired by task where a task's id means the same
task, otherwise as two samples of tasks.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hgpo_envs.environment_spec import environment_spec
from hgpo_envs.registration import resolve_id
from hgpo_train.evaluation.play import SAMPLING, evaluate_panel
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
from hgpo_train.proportions import wilson_interval

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from hgpo_train.panels import Panel

OTHER_SEED: Final = 1000
"""What verl-agent adds to a seed for its validation; here, to all seeds for the repetition."""


class Variation(NamedTuple):
    """A protocol that plays other episodes.

    Attributes:
        name: Its name.
        sentence: What it does.
        source: Where it was seen.
        settings: What replaces the panel's settings.
        benchmark: The only benchmark that has it; None for all.
        has_other_tasks: Whether a task's id means another task than in the reference.
    """

    name: str
    sentence: str
    source: str
    settings: Mapping[str, Any]
    benchmark: str | None = None
    has_other_tasks: bool = False


_WORDING: Final = (
    "alfworld/alfworld #96, #106; WooooDyy/AgentGym #41; LeapLabTHU/ExpeL #8"
)
_SPLIT: Final = "aiming-lab/SkillRL #24, #66; mll-lab-nu/RAGEN #134"
_GOALS: Final = (
    "ZJU-REAL/Agent-G2 #1, WillDreamer/ARL-Arena #7, langfengQ/verl-agent #262"
)
_PRICES: Final = "Yifan-Song793/ETO #17"
_SAMPLED: Final = "verl-agent validates with 0.4 and trains with 1"
_OTHER: Final = {"price_seed": OTHER_SEED}

VARIATIONS: Final = (
    Variation(
        "put in/on",
        "The wording until alfworld 0.3.",
        _WORDING,
        {"grammar": "put"},
        "ALFWorld",
    ),
    Variation(
        "move to",
        "The wording since alfworld 0.4.",
        _WORDING,
        {"grammar": "move"},
        "ALFWorld",
    ),
    Variation(
        "valid_seen",
        "Rooms of training.",
        _SPLIT,
        {"split": "valid_seen"},
        "ALFWorld",
        has_other_tasks=True,
    ),
    Variation(
        "valid_unseen",
        "Other rooms.",
        _SPLIT,
        {"split": "valid_unseen"},
        "ALFWorld",
        has_other_tasks=True,
    ),
    Variation(
        "limit 50", "A limit of 50 steps.", LIMITS, {"max_steps": 50}, "ALFWorld"
    ),
    Variation("limit 30", "A limit of 30 steps.", LIMITS, {"max_steps": 30}, "WebShop"),
    Variation(
        "other prices",
        "The same goals with another seed of prices.",
        _PRICES,
        _OTHER,
        "WebShop",
    ),
    Variation(
        "goals of a worker",
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


def played_effects(
    panel: Panel,
    policy: str,
    out: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    **execution: Any,
) -> tuple[Reference, list[Effect]]:
    """Play a panel and every variation that its benchmark has, each into its folder of `out`; resume them.

    Args:
        panel: The panel, which is the reference.
        policy: The policy's name.
        out: The folder.
        data: Where the panel's data are. Default: the bundled data, or the environment's usual places.
        **execution: Further arguments of `hgpo_train.evaluation.evaluate_panel`.

    Returns:
        The reference, and the effects of the variations that differ from it.

    Raises:
        InputError: As `evaluate_panel`, like the other exceptions.
    """
    spec = environment_spec(resolve_id(panel.environment["env"]))

    def play(name: str, other: Panel) -> Reference:
        folder = Path(out) / name.replace(" ", "-").replace("/", "-")
        evaluate_panel(other, policy, folder, data=data, **execution)
        return read_reference(folder)

    # 1. The reference, and what chance gives without any difference.
    reference = play("reference", panel)
    seeds = tuple([(seed + OTHER_SEED) % (1 << 31) for seed in panel.seeds])
    again = paired_difference(
        play("played again", panel.with_overrides({"seeds": seeds})), reference
    )
    sentence = "A/A: the reference played again with other seeds."
    effects = [
        again._replace(protocol="played again", sentence=sentence, source=SEEDS_SOURCE)
    ]

    # 2. Every variation that is not the reference itself.
    settings = panel.flat()
    for name, sentence, source, changes, benchmark, has_other_tasks in VARIATIONS:
        is_reference = all(settings.get(key) == value for key, value in changes.items())
        if benchmark not in (None, spec.name) or is_reference:
            continue
        if "temperature" in changes and policy.partition(":")[0] not in SAMPLING:
            effect = cannot_move("the policy does not sample from a model")
        elif has_other_tasks:
            effect = unpaired_difference(
                play(name, _of_split(panel, changes, data)), reference
            )
        else:
            effect = paired_difference(
                play(name, panel.with_overrides(changes)), reference
            )
        effects.append(effect._replace(protocol=name, sentence=sentence, source=source))
    return reference, effects


def _of_split(
    panel: Panel, changes: Mapping[str, Any], data: str | os.PathLike[str] | None
) -> Panel:
    """Return a panel with other settings; one of another split has all of its tasks, and another name."""
    if "split" not in changes:
        return panel.with_overrides(changes)
    split = changes["split"]
    arguments, _ = find_data(panel, data)
    spec = environment_spec(resolve_id(panel.environment["env"]))
    known = {
        name: value for name, value in arguments.items() if name in spec.parameters()
    }
    return replace(
        panel,
        name=f"{panel.name}-{split.replace('_', '-')}",
        environment={**panel.environment, **changes},
        tasks=tuple(spec.open_source(**known).source.ids(split)),
        checksum="",
    )
