"""What the protocols of published evaluations add to the numbers of scripted policies and of the bundled model.

    python -m benchmarks protocols                     an hour on two cores, most of it for the model; it is resumed

The figures also say whether the numbers of a public issue can be explained by the number of environments
(`reach`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.runner import Part
from hgpo_envs.environment_spec import environment_spec
from hgpo_envs.episode import settings_for
from hgpo_train.evaluation import evaluate_panel
from hgpo_train.evaluation.play import SAMPLING
from hgpo_train.evaluation.protocols import (
    LIMITS,
    POPULATION,
    SEEDS_SOURCE,
    Effect,
    Reference,
    cannot_move,
    paired_difference,
    read_reference,
    table_effects,
)
from hgpo_train.panels import load_panel
from hgpo_train.proportions import Z, wilson_interval

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hgpo_train.panels import Panel

MODEL: Final = {
    "action_format": "command",
    "history_length": 8,
    "max_steps": 24,
    "prompt_template": "compact",
}
"""The episodes with which the bundled model was trained."""


_WORDING: Final = "alfworld/alfworld #96, #106; WooooDyy/AgentGym #41; LeapLabTHU/ExpeL #8"
_SPLIT: Final = "aiming-lab/SkillRL #24, #66; mll-lab-nu/RAGEN #134"
_GOALS: Final = "ZJU-REAL/Agent-G2 #1, WillDreamer/ARL-Arena #7, langfengQ/verl-agent #262"
_PRICES: Final = "Yifan-Song793/ETO #17"
_SAMPLED: Final = "verl-agent validates with 0.4 and trains with 1"
_OTHER: Final = 1000
"""What verl-agent adds to a seed for its validation."""

VARIATIONS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "put in/on": ("The wording until alfworld 0.3.", _WORDING, {"grammar": "put"}),
    "move to": ("The wording since alfworld 0.4.", _WORDING, {"grammar": "move"}),
    "valid_seen": ("Rooms of training.", _SPLIT, {"split": "valid_seen"}),
    "limit 50": ("A limit of 50 steps.", LIMITS, {"max_steps": 50}),
    "limit 30": ("A limit of 30 steps.", LIMITS, {"max_steps": 30}),
    "other prices": ("The same goals with another seed of prices.", _PRICES, {"price_seed": _OTHER}),
    "goals of a worker": (
        "Goals and prices by a worker's seed: an id is another task.",
        _GOALS,
        {"price_seed": _OTHER, "shuffle_seed": _OTHER},
    ),
    "temperature 0": ("Greedy sampling.", _SAMPLED, {"temperature": 0.0}),
    "temperature 0.4": ("Sampling at 0.4.", _SAMPLED, {"temperature": 0.4}),
    "temperature 1": ("Sampling at 1.", _SAMPLED, {"temperature": 1.0}),
}
"""What is played besides: a sentence, where it was seen, and the panel's settings that are replaced."""

OF: Final = {
    "ALFWorld": ("put in/on", "move to", "valid_seen", "limit 50"),
    "WebShop": ("limit 30", "other prices", "goals of a worker"),
}
"""The variations of one benchmark; the others are of both."""


def bundled_panel(env: str, split: str, **environment: Any) -> Panel:
    """Return a panel of all bundled tasks of a split, three seeds each.

    Args:
        env: The environment's id.
        split: The split.
        **environment: Further options of the environment.
    """
    spec = environment_spec(env)
    base = load_panel(f"{spec.name.lower()}-bundled")
    known = {name: value for name, value in base.environment.items() if name in spec.parameters()}
    template = settings_for(spec.name, prompt_template=environment.get("prompt_template")).template
    return replace(
        base,
        name=f"{spec.name.lower()}-{split.replace('_', '-')}",
        environment={**base.environment, "split": split, **environment},
        prompt_hash=template.fingerprint,
        tasks=tuple(spec.open_source(**known).source.ids(split)),
        checksum="",
    )


def policies() -> dict[str, tuple[str, Panel]]:
    """Return the policies and the panels that they play, by title: 36 games, and 500 goals that people wrote."""
    games = bundled_panel("HGPO/ALFWorld-v0", "valid_unseen")
    of_model = bundled_panel("HGPO/ALFWorld-v0", "valid_unseen", **MODEL)
    goals = bundled_panel("HGPO/WebShop-v0", "test")
    return {
        "random, ALFWorld": ("random", games),
        "explorer, ALFWorld": ("explorer", games),
        "1/5 explorer, 4/5 random, ALFWorld": ("mixture:explorer=0.2,random=0.8", games),
        "tiny-alfworld, ALFWorld": (
            "transformers:tiny-alfworld",
            replace(of_model, temperature=1.0, max_prompt_tokens=512, max_response_tokens=16),
        ),
        "random, WebShop": ("random", goals),
        "explorer, WebShop": ("explorer", goals),
    }


def unpaired_difference(first: Reference, second: Reference) -> Effect:
    """Return the difference of the success of two evaluations of other tasks, and Newcombe's interval.

    Source: R. G. Newcombe, Interval estimation for the difference between independent proportions, Statistics in
    Medicine 17 (1998), pp. 873-890, method 10, with tasks as trials.
    """
    (low, high), (other_low, other_high) = [wilson_interval(each.success, each.tasks) for each in (first, second)]
    difference = first.success - second.success
    below = math.hypot(first.success - low, other_high - second.success)
    above = math.hypot(high - first.success, second.success - other_low)
    return Effect("shift", difference, difference - below, difference + above)


def played_effects(panel: Panel, policy: str, out: Path) -> tuple[Reference, list[Effect]]:
    """Play a panel, and the panel under the settings of `VARIATIONS`; return the reference and what differs from it."""

    def play(name: str, other: Panel) -> Reference:
        folder = out / name.replace(" ", "-").replace("/", "-")
        evaluate_panel(other, policy, folder, progress=False)
        return read_reference(folder)

    reference = play("reference", panel)
    seeds = [seed + _OTHER for seed in panel.seeds]
    again = paired_difference(play("played again", panel.with_overrides({"seeds": seeds})), reference)
    sentence = "A/A: the reference played again with other seeds."
    effects = [again._replace(protocol="played again", sentence=sentence, source=SEEDS_SOURCE)]
    env = panel.environment["env"]
    settings = panel.flat()
    for name, (sentence, source, changes) in VARIATIONS.items():
        is_reference = all(settings.get(key) == value for key, value in changes.items())
        if is_reference or any(name in names and benchmark not in env for benchmark, names in OF.items()):
            continue
        if "temperature" in changes and policy.partition(":")[0] not in SAMPLING:
            effect = cannot_move("the policy does not sample from a model")
        elif "split" in changes:
            environment = panel.environment | changes
            tasks = bundled_panel(env, **changes).tasks
            other = replace(panel, name=f"{panel.name}-other", environment=environment, tasks=tasks)
            effect = unpaired_difference(play(name, other), reference)
        elif "shuffle_seed" in changes:
            effect = unpaired_difference(play(name, panel.with_overrides(changes)), reference)
        else:
            effect = paired_difference(play(name, panel.with_overrides(changes)), reference)
        effects.append(effect._replace(protocol=name, sentence=sentence, source=source))
    return reference, effects


REPORTED: Final = {64: 0.84, 128: 0.77, 140: 0.52}
"""The success of one checkpoint with so many environments, of 140 games (aiming-lab/SkillRL #68)."""


def reach(reported: Mapping[int, float] = REPORTED, tasks: int = POPULATION) -> dict[str, float]:
    """Return what the number of environments can explain of the success rates of one policy.

    Args:
        reported: The success by the number of environments, in ascending order; the last one plays every task.
        tasks: The number of tasks.

    Returns:
        `p`: the probability that draws with repeats differ by so much or more (chi-squared, two degrees of freedom for
        three numbers); `draws` and `tasks`: the largest difference of the first and the last number at 95%, if tasks
        are drawn with and without repeats, for a policy that solves half of them and always ends in the same way;
        `least`: the lowest last number in any order of the tasks, each played once, if the number before it is right.
    """
    first, before, last = reported
    wins = {size: size * share for size, share in reported.items()}
    pooled = sum(wins.values()) / sum(reported)
    squares = sum(size * (share - pooled) ** 2 for size, share in reported.items()) / (pooled * (1 - pooled))
    without = (tasks - first) / (tasks - 1) / first
    return {
        "p": math.exp(-squares / 2),
        "seen": reported[first] - reported[last],
        "draws": Z / 2 * math.sqrt(1 / first + 1 / last),
        "tasks": Z / 2 * math.sqrt(without),
        "least": wins[before] / last,
    }


def run(folder: Path = Path("runs/protocols"), only: str = "") -> Iterator[Part]:
    """Play every policy under every protocol.

    Args:
        folder: Where the runs are written, and resumed.
        only: A policy's title. Default: all, which is what is kept.
    """
    found = {}
    for title, (policy, panel) in policies().items():
        if only not in ("", title):
            continue
        out = folder / title.replace("/", "-").replace(", ", "-").replace(" ", "-")
        reference, played = played_effects(panel, policy, out)
        effects = [each._asdict() for each in (*table_effects(reference), *played)]
        found[title] = {"success": reference.success, "tasks": reference.tasks, "effects": effects}
    yield Part(figures={"policies": found, "reach": reach()})
