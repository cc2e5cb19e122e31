"""`hgpo record`: the calls of any program as a run; `hgpo conform`: checks of anyone's advantage code."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.types import PositiveInt  # noqa: TC002

from hgpo_train.cli import options  # noqa: TC001

if TYPE_CHECKING:
    from hgpo_record.recording.run import Recorded


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


def record(
    *command: str,
    upstream: str,
    out: Path,
    task: str | None = None,
    repeat: PositiveInt = 1,
    state_key: str | None = None,
    reward_file: Path | None = None,
    token_ids: bool = False,
    port: int = 0,
    max_open: PositiveInt = 4096,
    max_body_mb: PositiveInt = 64,
) -> None:
    """Run a program, and record the calls that it makes to an OpenAI-compatible server as step rows.

    Args:
        command: The program and its arguments, after --.
        upstream: Address of the server, up to /v1.
        out: The run's folder. Rollouts are added to a run in it.
        task: Task of calls that name none. Default: the program's name.
        repeat: Number of times that the program runs, each of which is a rollout of the task.
        state_key: A function of the messages that returns the state, as module:function. Default: the last tool result
            or user message.
        reward_file: File in which the program writes its reward.
        token_ids: Ask vLLM for token ids and log-probabilities. This changes requests.
        port: Port of the gateway; 0 for a free one.
        max_open: The most rollouts that are open at the same time.
        max_body_mb: The largest request, in MB.
    """
    from hgpo_envs.errors import InputError
    from hgpo_envs.plugins import import_object
    from hgpo_record.recording.calls import last_input
    from hgpo_record.recording.run import Options, server_address, task_of
    from hgpo_record.recording.run import record as run_program
    from hgpo_train.cli.common import check_output_path

    if not command:
        raise InputError("expected a program after --, as in: hgpo record --upstream URL --out RUN -- python agent.py")
    check_output_path(out)
    function: Any = import_object(state_key, "a function") if state_key else last_input
    options = Options(
        upstream=server_address(upstream),
        out=out,
        task=task or task_of(command),
        repeat=repeat,
        port=port,
        state_key=state_key,
        reward_file=reward_file,
        token_ids=token_ids,
        max_open=max_open,
        max_body=max_body_mb << 20,
    )
    recorded = run_program(command, options, function, lambda at: _say(f"Recording calls at {at}/v1 to {out}."))
    for line in report(recorded, out):
        _say(line)
    sys.exit(recorded.status)


def _say(line: str) -> None:
    """Print a line beside the output of the program, which has stdout for itself."""
    print(line, file=sys.stderr, flush=True)


def report(recorded: Recorded, out: Path) -> list[str]:
    """Return what a recording has left, what it left out, and what to do next, as lines."""
    from hgpo_envs.files.secrets import redact
    from hgpo_envs.wording import counted, listed
    from hgpo_train.cli.common import next_commands

    recording = recorded.recording
    counts = recording.counts
    rollouts = counts["ended"] + counts["aborted"]
    branches = counted(counts["branches"], "branch", "branches")
    calls = counted(counts["committed steps"], "call")
    lines = [f"Recorded {counted(rollouts, 'rollout')} ({calls}, {branches}) in {out}."]
    if counts["aborted"]:
        lines.append(f"Aborted: {counted(counts['aborted'], 'rollout')}; the column error has the reasons.")
    if counts["unrewarded"]:
        lines.append(f"Without a reward, which is 0: {counted(counts['unrewarded'], 'rollout')}.")
    if recording.failed:
        parts = [f"{reason}: {number:,}" for reason, number in recording.failed.most_common()]
        lines.append(f"Calls without an answer, which are no steps: {listed(parts)}.")
    if recording.passed:
        parts = [f"{name}: {number:,}" for name, number in recording.passed.most_common(5)]
        lines.append(f"Forwarded and not recorded: {listed(parts)}.")
    if recorded.left_out:
        names = ", ".join(recorded.left_out[:5])
        lines.append(f"Interrupted. Left out: {counted(len(recorded.left_out), 'open rollout')} ({names:.200}).")
    lines += [*recorded.notes, *(f"Not written: {text}" for text in recording.refused)]
    if rollouts:
        following: list[tuple[object, ...]] = [("stats", out), ("advantages", out), ("view", out)]
        if counts["unrewarded"]:
            following.insert(0, ("record", "reward", out, "--from", "module:function", "--out", f"{out}-rewarded"))
        lines.append(next_commands(*following))
    if recorded.alone:
        lines.append(
            f"One rollout: {counted(recorded.alone, 'task')}. Group advantages compare rollouts of one task; add some "
            "with --repeat, or with the header X-HGPO-Rollout."
        )
    return [redact(line) for line in lines]


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
    rewarded, others = reward_run(run, code, out)
    following = next_commands(("advantages", out or run))
    print(f"Rewarded {counted(rewarded, 'rollout')}, left {others:,} as they were. {following}")
