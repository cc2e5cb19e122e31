"""The estimators, one file each: equation, source, special cases, and where official code and paper differ."""

from __future__ import annotations

from hgpo_train.advantages.estimators import grpo, hgpo

__all__ = ["grpo", "hgpo"]
