"""TextWorld, described for Gymnasium, the command line and training."""

from __future__ import annotations

from typing import Final

from hgpo_envs.environment_spec import EnvironmentSpec
from hgpo_textworld.source import SPLITS, TextWorldSource

TEXTWORLD: Final = EnvironmentSpec(
    id="HGPO/TextWorld-v0",
    source=TextWorldSource,
    max_steps=50,
    players={"expert": "hgpo_textworld.expert:Expert"},
    evaluation_split="test",
    splits=tuple(SPLITS),
)
