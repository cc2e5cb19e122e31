"""Playing of every task of a split, once per seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError
from hgpo_train.rollout.collection import play_run
from hgpo_train.rollout.env_handle import evaluation_split
from hgpo_train.rollout.failures import MAX_FAILED
from hgpo_train.rollout.run import RolloutSpec

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from hgpo_train.rollout.collection import AnyEnv, AnyPolicy, CollectedRun
    from hgpo_train.rollout.env_handle import EnvHandle

SEEDS: Final = (123, 456, 789)
"""The seeds of the published evaluations."""

TEMPERATURE: Final = 0.4
"""The sampling temperature of the published evaluations."""

SAMPLING: Final = ("openai", "transformers", "vllm")
"""The policies that sample from a language model."""


def evaluate(
    env: AnyEnv,
    policy: AnyPolicy,
    out: str | os.PathLike[str],
    *,
    split: str | None = None,
    seeds: Sequence[int] = SEEDS,
    policy_options: Mapping[str, Any] | None = None,
    slots: int | None = None,
    workers: bool = False,
    retry_failed: bool = True,
    max_failed: float = MAX_FAILED,
    progress: bool = True,
    **env_options: Any,
) -> CollectedRun:
    """Play every task of a split once per seed, into a run's folder. An evaluation in the folder is resumed.

    The run is a step table whose `iteration` is the seed, for `hgpo_train.evaluation.episode_table`.

    Args:
        env: As of `hgpo_train.rollout.collect`.
        policy: Likewise.
        out: The run's folder.
        split: The split. Default: the environment's for evaluations.
        seeds: Distinct integers in [0, 2³¹).
        policy_options: Options of a policy that is selected by name. The default of a model's `temperature` is 0.4.
        slots: As of `collect`, like all further arguments.
        workers: Likewise.
        retry_failed: Likewise.
        max_failed: Likewise.
        progress: Likewise.
        **env_options: Likewise.

    Raises:
        InputError: The seeds are not distinct, or as `collect`, like the other exceptions.
    """
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0 or max(seeds) >= 1 << 31:
        raise InputError(f"seeds: expected distinct integers from 0 to {(1 << 31) - 1}, received {list(seeds)}")
    if isinstance(env, str):
        env_options = {"split": split or evaluation_split(env), **env_options}
    elif split is not None:
        raise InputError("split: expected an id together with a split, received an environment that is open")
    if isinstance(policy, str) and policy.partition(":")[0] in SAMPLING:
        policy_options = {"temperature": TEMPERATURE, **(policy_options or {})}

    def plan(handle: EnvHandle) -> list[RolloutSpec]:
        return [RolloutSpec(len(handle.tasks), 1, seed, "sweep", iteration=seed) for seed in seeds]

    return play_run(
        env,
        policy,
        out,
        plan,
        {"group_size": 1, "order": "sweep", "dynamic": False, "evaluation": True},
        env_options,
        policy_options=policy_options,
        slots=slots,
        workers=workers,
        retry_failed=retry_failed,
        max_failed=max_failed,
        progress=progress,
        noun="episodes",
    )
