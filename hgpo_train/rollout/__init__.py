"""Collection of rollouts: any policy plays any environment, and every step becomes a row of the step table.

`collect` plays groups of rollouts with a policy by name or of one's own. `collect_groups` is its core, for trainers.
"""

from typing import TYPE_CHECKING

from hgpo_train.lazy_names import lazy_names

if TYPE_CHECKING:
    from hgpo_train.policies.base import AsyncPolicy as AsyncPolicy
    from hgpo_train.policies.base import BatchPolicy as BatchPolicy
    from hgpo_train.policies.base import Failure as Failure
    from hgpo_train.policies.base import Policy as Policy
    from hgpo_train.policies.base import Reply as Reply
    from hgpo_train.policies.base import Request as Request
    from hgpo_train.policies.registry import PolicyContext as PolicyContext
    from hgpo_train.policies.registry import PolicySpec as PolicySpec
    from hgpo_train.policies.registry import make_policy as make_policy
    from hgpo_train.rollout.branching import BranchedRun as BranchedRun
    from hgpo_train.rollout.branching import branch_run as branch_run
    from hgpo_train.rollout.collection import CollectedRun as CollectedRun
    from hgpo_train.rollout.collection import collect as collect
    from hgpo_train.rollout.env_handle import EnvHandle as EnvHandle
    from hgpo_train.rollout.env_handle import open_env as open_env
    from hgpo_train.rollout.failures import RolloutError as RolloutError
    from hgpo_train.rollout.plan import ExecutionOptions as ExecutionOptions
    from hgpo_train.rollout.plan import RolloutSpec as RolloutSpec
    from hgpo_train.rollout.run import collect_groups as collect_groups
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
