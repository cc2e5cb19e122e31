"""Evaluation: every task of a split or of a panel is played once per seed.

A panel fixes everything but the policy, and the result is a certificate.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError
from hgpo_train.evaluation.certificate import write_certificate
from hgpo_train.evaluation.summary import write_summary
from hgpo_train.panels.data import find_data
from hgpo_train.panels.loading import load_panel
from hgpo_train.policies.registry import find_policy
from hgpo_train.rollout.collection import CollectedRun, collect
from hgpo_train.rollout.env_handle import evaluation_split
from hgpo_train.rollout.failures import RolloutError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from hgpo_train.panels.panel import Panel
    from hgpo_train.rollout.collection import AnyEnv

SEEDS: Final = (123, 456, 789)
"""The seeds of the published evaluations."""

TEMPERATURE: Final = 0.4
"""The sampling temperature of the published evaluations."""

SAMPLING: Final = ("openai", "transformers", "vllm")
"""The policies that sample from a language model."""


FIXED: Final = ("temperature", "max_prompt_tokens", "max_response_tokens")
"""The options of policies that a panel fixes, of those that a policy has."""


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


def evaluate_panel(
    panel: str | Panel,
    policy: object,
    out: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    policy_options: Mapping[str, Any] | None = None,
    **execution: Any,
) -> CollectedRun:
    """Play a panel into a run's folder and write its certificate, `RUN/certificate.json`.

    A run of the same panel and policy in the folder is resumed.

    Args:
        panel: A panel, or its name as of `hgpo_train.panels.load_panel`.
        policy: As of `hgpo_train.rollout.collect`.
        out: The run's folder.
        data: Where the data are. Default: the bundled data, or the environment's usual places.
        policy_options: Options of a policy that is selected by name, other than those that the panel fixes.
        **execution: Arguments of `collect` that affect no result: `slots`, `workers`, `retry_failed`, `max_failed`,
            `progress`.

    Raises:
        InputError: There is no such panel, the data are not the panel's, or an option is fixed by the panel.
        RolloutError: Too many rollouts failed. The certificate is written and counts them.

    >>> import json, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = evaluate_panel("alfworld-bundled@1+max_steps=3+seeds=[1]", "random", folder, progress=False)
    ...     json.loads((run.path / "certificate.json").read_text())["panel"]["title"]
    'alfworld-bundled@1+max_steps=3+seeds=[1]'
    """
    panel = load_panel(panel) if isinstance(panel, str) else panel
    options = dict(policy_options or {})
    known = find_policy(policy)[0].option_types
    for name in FIXED:
        value = getattr(panel, name)
        if name in options and options[name] != value:
            raise InputError(
                f"policy option {name}: panel {panel.title} fixes it at {value}; leave it out, or use another panel: "
                f"{panel.title}+{name}={options[name]}"
            )
        if name in known:
            options[name] = value
    arguments, checksum = find_data(panel, data)
    try:
        run = evaluate(
            policy=policy,
            out=out,
            tasks=panel.tasks,
            seeds=panel.seeds,
            policy_options=options,
            metadata={
                "panel": {
                    "title": panel.title,
                    "digest": panel.digest,
                    "tasks": checksum,
                }
            },
            **arguments,
            **execution,
        )
    except RolloutError as error:
        if isinstance(error.run, CollectedRun):
            write_certificate(Path(out), panel)
        raise
    write_certificate(run.path, panel)
    return run
