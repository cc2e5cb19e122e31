"""Truth: values and advantages of a policy at the steps of a saved run, with standard errors (docs/truth.md)."""

from hgpo_research.truth.rewards import Rewards
from hgpo_research.truth.table import (
    TruthPlan,
    TruthReport,
    plan_truth,
    read_metadata,
    write_truth,
)
from hgpo_research.truth.task import Budget

__all__ = [
    "Budget",
    "Rewards",
    "TruthPlan",
    "TruthReport",
    "plan_truth",
    "read_metadata",
    "write_truth",
]
