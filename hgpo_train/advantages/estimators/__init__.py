"""The estimators, one file each: equation, source, special cases, and where official code and paper differ."""

from __future__ import annotations

from hgpo_train.advantages.estimators import g2po, gigpo, graphgpo, grpo, hgpo, reinforce_pp, rloo

__all__ = ["g2po", "gigpo", "graphgpo", "grpo", "hgpo", "reinforce_pp", "rloo"]
