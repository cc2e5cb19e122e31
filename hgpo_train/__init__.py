"""Group advantages, statistics, rollouts and training on step tables.

import hgpo_train as hgpo

run = hgpo.collect("HGPO/ALFWorld-v0", lambda request: request.admissible_actions[0], "runs/first", tasks=4)
hgpo.compute(run.path, "hgpo").collect()
"""

from typing import TYPE_CHECKING

from hgpo_train.lazy_names import lazy_names

if TYPE_CHECKING:
    from hgpo_datasets import StepWriter, scan_steps
    from hgpo_envs.errors import InputError
    from hgpo_train.advantages import compute, estimator
    from hgpo_train.analysis.statistics import statistics
    from hgpo_train.policies.base import Failure, Reply, Request
    from hgpo_train.rollout.collection import CollectedRun, collect
    from hgpo_train.rollout.env_handle import open_env
    from hgpo_train.rollout.failures import RolloutError

__all__ = [
    "CollectedRun",
    "Failure",
    "InputError",
    "Reply",
    "Request",
    "RolloutError",
    "StepWriter",
    "collect",
    "compute",
    "estimator",
    "open_env",
    "scan_steps",
    "statistics",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "hgpo_datasets": ("StepWriter", "scan_steps"),
        "hgpo_envs.errors": ("InputError",),
        "hgpo_train.advantages": ("compute", "estimator"),
        "hgpo_train.analysis.statistics": ("statistics",),
        "hgpo_train.policies.base": ("Failure", "Reply", "Request"),
        "hgpo_train.rollout.collection": ("CollectedRun", "collect"),
        "hgpo_train.rollout.env_handle": ("open_env",),
        "hgpo_train.rollout.failures": ("RolloutError",),
    },
)
