"""What the protocols of published evaluations add to the numbers of scripted policies and of the bundled model.

    python -m benchmarks protocols                     an hour on two cores, most of it for the model; it is resumed

The figures also say whether the numbers of a public issue can be explained by the number of environments
(`reach`).
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.runner import Part
from hgpo_envs.environment_spec import environment_spec
from hgpo_envs.episode import settings_for
from hgpo_train.evaluation.protocol_variations import played_effects
from hgpo_train.evaluation.protocols import POPULATION, table_effects
from hgpo_train.panels import load_panel
from hgpo_train.proportions import Z

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


def bundled_panel(env: str, split: str, **environment: Any) -> Panel:
    """Return a panel of all bundled tasks of a split, three seeds each.

    Args:
        env: The environment's id.
        split: The split.
        **environment: Further options of the environment.
    """
    spec = environment_spec(env)
    name = spec.name.lower()
    base = load_panel(f"{name}-bundled")
    known = base.environment.keys() & spec.parameters()
    shared = spec.open_source(**{each: base.environment[each] for each in known})
    prompt = environment.get("prompt_template")
    return replace(
        base,
        name=f"{name}-{split.replace('_', '-')}",
        environment={**base.environment, "split": split, **environment},
        prompt_hash=settings_for(
            spec.name, prompt_template=prompt
        ).template.fingerprint,
        tasks=tuple(shared.source.ids(split)),
        checksum="",
    )


def policies() -> dict[str, tuple[str, Panel]]:
    """Return the policies and the panels that they play, by title: 36 games, and 500 goals that people wrote."""
    games = bundled_panel("HGPO/ALFWorld-v0", "valid_unseen")
    of_model = replace(
        bundled_panel("HGPO/ALFWorld-v0", "valid_unseen", **MODEL),
        temperature=1.0,
        max_prompt_tokens=512,
        max_response_tokens=16,
    )
    goals = bundled_panel("HGPO/WebShop-v0", "test")
    mixture = "mixture:explorer=0.2,random=0.8"
    return {
        "random, ALFWorld": ("random", games),
        "explorer, ALFWorld": ("explorer", games),
        "1/5 explorer, 4/5 random, ALFWorld": (mixture, games),
        "tiny-alfworld, ALFWorld": ("transformers:tiny-alfworld", of_model),
        "random, WebShop": ("random", goals),
        "explorer, WebShop": ("explorer", goals),
    }


REPORTED: Final = {64: 0.84, 128: 0.77, 140: 0.52}
"""The success of one checkpoint with so many environments, of 140 games (aiming-lab/SkillRL #68)."""


def reach(
    reported: Mapping[int, float] = REPORTED, tasks: int = POPULATION
) -> dict[str, float]:
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
    squares = sum(size * (share - pooled) ** 2 for size, share in reported.items()) / (
        pooled * (1 - pooled)
    )
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
        out = folder / re.sub(", |[/ ]", "-", title)
        reference, played = played_effects(panel, policy, out, progress=False)
        effects = [each._asdict() for each in (*table_effects(reference), *played)]
        found[title] = {
            "success": reference.success,
            "tasks": reference.tasks,
            "effects": effects,
        }
    yield Part(figures={"policies": found, "reach": reach()})
