"""Group advantages of step tables: `compute(steps, "hgpo", history_length=2)`, and one function per estimator.

Each function takes a step table (a LazyFrame or DataFrame) and returns a LazyFrame with an additional column. See
docs/estimators.md.
"""

from __future__ import annotations

from hgpo_train.advantages.estimators.bepo import bepo
from hgpo_train.advantages.estimators.carl import carl
from hgpo_train.advantages.estimators.discounted_grpo import discounted_grpo
from hgpo_train.advantages.estimators.ecpo import ecpo
from hgpo_train.advantages.estimators.empg import empg
from hgpo_train.advantages.estimators.g2po import g2po
from hgpo_train.advantages.estimators.gagpo import gagpo
from hgpo_train.advantages.estimators.gigpo import gigpo
from hgpo_train.advantages.estimators.graphgpo import graphgpo
from hgpo_train.advantages.estimators.grpo import grpo
from hgpo_train.advantages.estimators.hcapo import hcapo
from hgpo_train.advantages.estimators.hgpo import hgpo
from hgpo_train.advantages.estimators.progress import progress
from hgpo_train.advantages.estimators.reinforce_pp import reinforce_pp
from hgpo_train.advantages.estimators.rloo import rloo
from hgpo_train.advantages.estimators.tree_grpo import tree_grpo
from hgpo_train.advantages.estimators.tree_hgpo import tree_hgpo
from hgpo_train.advantages.estimators.tree_loo import tree_loo
from hgpo_train.advantages.estimators.turn import turn
from hgpo_train.advantages.registry import (
    Estimator,
    compute,
    compute_many,
    estimator,
    get,
    names,
)

__all__ = [
    "Estimator",
    "bepo",
    "carl",
    "compute",
    "compute_many",
    "discounted_grpo",
    "ecpo",
    "empg",
    "estimator",
    "g2po",
    "gagpo",
    "get",
    "gigpo",
    "graphgpo",
    "grpo",
    "hcapo",
    "hgpo",
    "names",
    "progress",
    "reinforce_pp",
    "rloo",
    "tree_grpo",
    "tree_hgpo",
    "tree_loo",
    "turn",
]
