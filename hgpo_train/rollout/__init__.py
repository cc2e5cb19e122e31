"""Collection of rollouts: any policy plays any environment, and every step becomes a row of the step table.

`collect` plays groups of rollouts with a policy by name or of one's own. `collect_groups` is its core, for trainers.
"""

from typing import TYPE_CHECKING

from hgpo_train.lazy_names import lazy_names

if TYPE_CHECKING:
    from hgpo_train.policies.base import AsyncPolicy, BatchPolicy, Failure, Policy, Reply, Request
    from hgpo_train.policies.registry import PolicyContext, PolicySpec, make_policy
    from hgpo_train.rollout.branching import BranchedRun, branch_run
    from hgpo_train.rollout.collection import CollectedRun, collect
    from hgpo_train.rollout.env_handle import EnvHandle, open_env
    from hgpo_train.rollout.failures import RolloutError
    from hgpo_train.rollout.plan import ExecutionOptions, RolloutSpec
    from hgpo_train.rollout.run import collect_groups

__all__ = [
    "AsyncPolicy",
    "BatchPolicy",
    "BranchedRun",
    "CollectedRun",
    "EnvHandle",
    "ExecutionOptions",
    "Failure",
    "Policy",
    "PolicyContext",
    "PolicySpec",
    "Reply",
    "Request",
    "RolloutError",
    "RolloutSpec",
    "branch_run",
    "collect",
    "collect_groups",
    "make_policy",
    "open_env",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hgpo_train.policies.base": ("AsyncPolicy", "BatchPolicy", "Failure", "Policy", "Reply", "Request"),
        "hgpo_train.policies.registry": ("PolicyContext", "PolicySpec", "make_policy"),
        "hgpo_train.rollout.branching": ("BranchedRun", "branch_run"),
        "hgpo_train.rollout.collection": ("CollectedRun", "collect"),
        "hgpo_train.rollout.env_handle": ("EnvHandle", "open_env"),
        "hgpo_train.rollout.failures": ("RolloutError",),
        "hgpo_train.rollout.plan": ("ExecutionOptions", "RolloutSpec"),
        "hgpo_train.rollout.run": ("collect_groups",),
    },
)
