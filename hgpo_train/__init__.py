"""Group advantages, statistics, rollouts and training on step tables.

import hgpo_train as hgpo

run = hgpo.collect("HGPO/ALFWorld-v0", lambda request: request.admissible_actions[0], "runs/first", tasks=4)
hgpo.compute(run.path, "hgpo").collect()
"""

from typing import TYPE_CHECKING

from hgpo_train.lazy_names import lazy_names

if TYPE_CHECKING:
    from hgpo_datasets import StepWriter as StepWriter
    from hgpo_datasets import scan_steps as scan_steps
    from hgpo_envs.errors import InputError as InputError
    from hgpo_train.advantages import compute as compute
    from hgpo_train.advantages import estimator as estimator
    from hgpo_train.analysis.statistics import statistics as statistics
    from hgpo_train.policies.base import Failure as Failure
    from hgpo_train.policies.base import Reply as Reply
    from hgpo_train.policies.base import Request as Request
    from hgpo_train.rollout.collection import CollectedRun as CollectedRun
    from hgpo_train.rollout.collection import collect as collect
    from hgpo_train.rollout.env_handle import open_env as open_env
    from hgpo_train.rollout.failures import RolloutError as RolloutError
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
