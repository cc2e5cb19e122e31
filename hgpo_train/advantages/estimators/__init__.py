"""The estimators. Each module documents equation, source, special cases, and differences of official code and paper."""

from __future__ import annotations

from hgpo_train.advantages.estimators import g2po, gigpo, graphgpo, grpo, hgpo, reinforce_pp, rloo

__all__ = ["g2po", "gigpo", "graphgpo", "grpo", "hgpo", "reinforce_pp", "rloo"]
