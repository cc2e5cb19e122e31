"""Evaluation on a panel: everything but the policy is fixed, and the result is a certificate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError
from hgpo_train.evaluation.certificate import write_certificate
from hgpo_train.evaluation.play import evaluate
from hgpo_train.panels.data import find_data
from hgpo_train.panels.loading import load_panel
from hgpo_train.policies.registry import find_policy
from hgpo_train.rollout.collection import CollectedRun
from hgpo_train.rollout.failures import RolloutError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from hgpo_train.panels.panel import Panel

SAMPLING: Final = ("temperature", "max_prompt_tokens", "max_response_tokens")
"""The options of policies that a panel fixes, of those that a policy has."""


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
    for name in SAMPLING:
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
