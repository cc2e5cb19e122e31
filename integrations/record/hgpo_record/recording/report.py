"""What `hgpo record` says at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hgpo_envs.files.secrets import redact
from hgpo_envs.wording import counted, listed
from hgpo_train.cli.common import next_commands

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

    from hgpo_record.recording.rollouts import Recording


def report(recording: Recording, out: Path) -> list[str]:
    """Return what a recording has left, what it left out, and what to do next, as lines."""
    counts = recording.counts
    rollouts = counts["ended"] + counts["aborted"]
    branches = counted(counts["branches"], "branch", "branches")
    lines = [
        f"Recorded {counted(rollouts, 'rollout')} ({counted(counts['steps'], 'call')}, {branches}) in {out}."
    ]
    # 1. What is in the run, and is not what it seems.
    if counts["aborted"]:
        lines.append(
            f"Aborted: {counted(counts['aborted'], 'rollout')}; the column error has the reasons."
        )
    if counts["unrewarded"]:
        lines.append(
            f"Without a reward, which is 0: {counted(counts['unrewarded'], 'rollout')}."
        )
    # 2. What is not in it.
    if recording.failed:
        lines.append(
            f"Calls without an answer, which are no steps: {_numbers(recording.failed)}."
        )
    if recording.passed:
        lines.append(f"Forwarded and not recorded: {_numbers(recording.passed)}.")
    if left_out := [rollout.trajectory for rollout in recording.open]:
        names = ", ".join(left_out[:5])
        lines.append(
            f"Interrupted. Left out: {counted(len(left_out), 'open rollout')} ({names:.200})."
        )
    lines += recording.notes
    # 3. What to do next.
    if rollouts:
        following: list[tuple[object, ...]] = [
            ("stats", out),
            ("advantages", out),
            ("view", out),
        ]
        if counts["unrewarded"]:
            rewarding = (
                "record",
                "reward",
                out,
                "--from",
                "module:function",
                "--out",
                f"{out}-rewarded",
            )
            following.insert(0, rewarding)
        lines.append(next_commands(*following))
    elif recording.failed:
        lines.append(
            "No rollouts: the server answered no call with a reply. Check that it runs, and its address (--upstream)."
        )
    else:
        lines.append(
            "No rollouts: the program must send its calls to the address in OPENAI_BASE_URL."
        )
    if recording.alone:
        lines.append(
            f"With one rollout: {counted(recording.alone, 'task')}. Group advantages compare rollouts of one task: add "
            "some with --repeat, or name them with the header X-HGPO-Rollout."
        )
    return [redact(line) for line in lines]


def _numbers(counts: Counter[str]) -> str:
    return listed([f"{name}: {number:,}" for name, number in counts.most_common(5)])
