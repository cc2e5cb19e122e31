"""`hgpo record`: the calls of any program as a run; `hgpo conform`: checks of anyone's advantage code."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import Annotated, Any

from cyclopts import Parameter

from hgpo_record.recording.settings import Settings  # noqa: TC001
from hgpo_train.cli import options  # noqa: TC001


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
        raise InputError(
            f"adapter: expected plain for the estimator {function}, received {adapter}"
        )
    if is_estimator and code.scores:
        raise InputError(
            f"{function} reads the scores {listed(code.scores)} of a model, which the tables of the checks do not have"
        )
    settings = read_assignments("--set", setting or (), {})
    if is_estimator:
        # An unknown name, or a value of another type, is no fault of the code.
        code.with_parameters(**settings)
    findings = check(code, adapter, scope=scope, settings=settings)
    faults = [finding for finding in findings if finding.kind == "fault"]
    if as_json:
        print_json(
            {
                "function": function,
                "adapter": adapter,
                "findings": [asdict(finding) for finding in findings],
            }
        )
    else:
        for finding in findings:
            print(finding)
        print(f"{len(faults)} of {len(findings)} checks found a fault in {function}.")
    if faults:
        sys.exit(1)


def record(*command: str, settings: Settings) -> None:
    """Run a program, and record the calls that it makes to an OpenAI-compatible server as step rows.

    Args:
        command: The program and its arguments, after --.
        settings: The options.
    """
    from hgpo_envs.errors import InputError
    from hgpo_record.recording.report import report
    from hgpo_record.recording.run import run_program

    if not command:
        raise InputError(
            "expected a program after --, as in: hgpo record --upstream URL --out RUN -- python agent.py"
        )
    status, recording = run_program(command, settings, _say)
    for line in report(recording, settings.out):
        _say(line)
    sys.exit(status)


def _say(line: str) -> None:
    """Print a line beside the output of the program, which has stdout for itself."""
    print(line, file=sys.stderr, flush=True)


def reward(
    run: Path,
    /,
    *,
    function: Annotated[str, Parameter("--from")],
    out: Path | None = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Reward the rollouts of a recorded run by a function of their rows.

    Args:
        run: The run.
        function: The function, as module:function. It takes the rows of a rollout as a list of dictionaries, and
            returns the reward of the last step, a list with one of each step, or None.
        out: The new run.
        overwrite: Whether the rows of the run are replaced.
    """
    from hgpo_envs.errors import InputError
    from hgpo_envs.plugins import import_object
    from hgpo_envs.wording import counted
    from hgpo_record.recording.rewards import reward_run
    from hgpo_train.cli.common import check_output_path, next_commands

    if (out is None) != overwrite:
        raise InputError("expected --out with a new folder, or --overwrite")
    if out is not None:
        check_output_path(out)
    code: Any = import_object(function, "a function")
    rewarded = reward_run(run, code, out)
    print(
        f"Rewarded {counted(rewarded, 'rollout')}. {next_commands(('advantages', out or run))}"
    )
