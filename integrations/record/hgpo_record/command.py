"""`hgpo conform`: checks of anyone's advantage code."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from cyclopts import Parameter

from hgpo_train.cli import options  # noqa: TC001 - cyclopts reads the annotations


def conform(
    function: str,
    /,
    *,
    adapter: str = "plain",
    scope: str = "group",
    setting: Annotated[list[str] | None, Parameter("--set")] = None,
    as_json: options.Json = False,
) -> None:
    """Check advantage code on tables whose right values are known. The exit code is 1 if it has a fault.

    Args:
        function: The code, as module:function; or the name of an estimator.
        adapter: How it is called: plain (with a step table), verl, skyrl or trl.
        scope: batch if it normalises over all tasks, as REINFORCE++ does; otherwise group.
        setting: A keyword argument of the function, name=value, which must have an effect; may be repeated.
        as_json: Whether to print JSON.
    """
    from dataclasses import asdict

    from hgpo_envs.errors import InputError
    from hgpo_envs.plugins import import_object
    from hgpo_envs.wording import listed
    from hgpo_record.conform import conform as check
    from hgpo_train.advantages import get
    from hgpo_train.cli.display import print_json
    from hgpo_train.settings import read_assignments

    is_estimator = ":" not in function
    code: Any = get(function) if is_estimator else import_object(function, "a function")
    if is_estimator and adapter != "plain":
        raise InputError(f"adapter: expected plain for the estimator {function}, received {adapter}")
    if is_estimator and code.scores:
        raise InputError(
            f"{function} reads the scores {listed(code.scores)} of a model, which the tables of the checks do not have"
        )
    findings = check(code, adapter, scope=scope, settings=read_assignments("--set", setting or (), {}))
    faults = [finding for finding in findings if finding.kind == "fault"]
    if as_json:
        print_json({"function": function, "adapter": adapter, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            print(finding)
        print(f"{len(faults)} of {len(findings)} checks found a fault in {function}.")
    if faults:
        sys.exit(1)
