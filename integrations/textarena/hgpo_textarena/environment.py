"""TextArena, described for Gymnasium, the command line and training."""

from __future__ import annotations

from typing import Final

from hgpo_envs.environment_spec import EnvironmentSpec
from hgpo_textarena.engine import SPLITS, TextArenaSource

TEXTARENA: Final = EnvironmentSpec(
    id="HGPO/TextArena-v0",
    source=TextArenaSource,
    max_steps=254,  # the games have limits of their own, the longest this one
    players={"expert": "hgpo_textarena.expert:Expert"},
    evaluation_split="test",
    splits=SPLITS,
)
