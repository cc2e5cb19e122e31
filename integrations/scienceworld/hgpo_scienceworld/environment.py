"""ScienceWorld, described for Gymnasium, the command line and training."""

from __future__ import annotations

from typing import Final

from hgpo_envs.environment_spec import EnvironmentSpec
from hgpo_scienceworld.source import SPLITS, ScienceWorldSource

TEMPLATE: Final = """
{{ task }}

You can: activate, close, deactivate, eat, flush, focus on, go, look at, look in, mix, open, pick up, put down, read (each with an object), connect OBJ to OBJ, disconnect OBJ, dunk OBJ in OBJ, move OBJ to OBJ, pour OBJ in OBJ, use OBJ on OBJ, teleport to LOCATION, inventory, look around, wait (ten steps), wait1 (one step). If a request is ambiguous, answer with a number.
{% for pair in pairs %}

{{ pair.observation }}
> {{ pair.action }}
{% endfor %}

{{ observation }}
{% if action_format == "response" %}
Think inside <think> </think>, then give the action inside <action> </action>.
{% endif %}
"""  # noqa: E501 - a state has up to 3,000 admissible actions, so that the prompt shows their kinds

SCIENCEWORLD: Final = EnvironmentSpec(
    id="HGPO/ScienceWorld-v0",
    source=ScienceWorldSource,
    max_steps=100,
    template=TEMPLATE,
    players={"expert": "hgpo_scienceworld.expert:Expert"},
    evaluation_split="test",
    splits=SPLITS,
    accepted={
        "admissible actions": "the simulator lists some commands that it does not execute, such as to pick up a bee"
    },
)
