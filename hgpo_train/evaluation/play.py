"""Playing of every task of a split, once per seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError
from hgpo_train.evaluation.summary import write_summary
from hgpo_train.rollout.collection import collect
from hgpo_train.rollout.env_handle import evaluation_split

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from hgpo_train.rollout.collection import AnyEnv, CollectedRun

SEEDS: Final = (123, 456, 789)
"""The seeds of the published evaluations."""

TEMPERATURE: Final = 0.4
"""The sampling temperature of the published evaluations."""

SAMPLING: Final = ("openai", "transformers", "vllm")
"""The policies that sample from a language model."""


def evaluate(
    env: AnyEnv,
    policy: object,
    out: str | os.PathLike[str],
    *,
    split: str | None = None,
    tasks: Sequence[str] | None = None,
    seeds: Sequence[int] = SEEDS,
    policy_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> CollectedRun:
    """Play every task of a split once per seed, into a run's folder. An evaluation in the folder is resumed.

    The run is a step table whose `iteration` is the seed, for `hgpo_train.evaluation.episode_table`. Its folder also
    contains `summary.json` (`hgpo_train.evaluation.summary`), also if the evaluation was interrupted or stopped.

    Args:
        env: As of `hgpo_train.rollout.collect`.
        policy: Likewise.
        out: The run's folder.
        split: The split. Default: the environment's for evaluations.
        tasks: Ids of the tasks of the split that are played, in this order. Default: all, in the split's order.
        seeds: Distinct integers in [0, 2³¹).
        policy_options: Options of a policy that is selected by name. The default of a model's `temperature` is 0.4.
        **options: Further arguments of `collect`: `slots`, `workers`, `retry_failed`, `max_failed`, `progress`,
            `metadata`, and the keyword arguments of the environment.

    Raises:
        InputError: The seeds are not distinct, or as `collect`, like the other exceptions.
    """
    seeds = [int(seed) for seed in seeds]
    if (
        not seeds
        or len(set(seeds)) != len(seeds)
        or min(seeds) < 0
        or max(seeds) >= 1 << 31
    ):
        raise InputError(
            f"seeds: expected distinct integers from 0 to {(1 << 31) - 1}, received {list(seeds)}"
        )
    if isinstance(env, str):
        options["split"] = split or evaluation_split(env)
    elif split is not None:
        raise InputError(
            "split: expected an id together with a split, received an environment that is open"
        )
    if isinstance(policy, str) and policy.partition(":")[0] in SAMPLING:
        policy_options = {"temperature": TEMPERATURE, **(policy_options or {})}
    options |= {
        "tasks": tasks,
        "group_size": 1,
        "seed": seeds,
        "order": "sweep",
        "policy_options": policy_options,
    }
    try:
        run = collect(env, policy, out, **options)
    except InputError:
        raise
    except BaseException:
        write_summary(Path(out))
        raise
    write_summary(run.path)
    return run
