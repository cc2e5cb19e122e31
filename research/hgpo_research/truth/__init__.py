"""Truth: values and advantages of a policy at the steps of a saved run, with standard errors (docs/truth.md)."""

from typing import TYPE_CHECKING

from hgpo_train.lazy_names import lazy_names

if TYPE_CHECKING:
    from hgpo_research.truth.rewards import Rewards
    from hgpo_research.truth.table import TruthPlan, TruthReport, plan_truth, read_metadata, write_truth
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hgpo_research.truth.rewards": ("Rewards",),
        "hgpo_research.truth.table": ("TruthPlan", "TruthReport", "plan_truth", "read_metadata", "write_truth"),
        "hgpo_research.truth.task": ("Budget",),
    },
)
