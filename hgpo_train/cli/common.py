"""What several commands share: a check of `--out`, and how a command is interrupted and reports its run."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hgpo_train.advantages.registry import Estimator
    from hgpo_train.rollout.collection import CollectedRun


def check_output_path(out: Path, option: str = "--out") -> None:
    """Check that a path can be written, so that hours of work do not end at one that cannot: nothing is left there.

    Raises:
        InputError: A parent is a file or not writable, the path is not a valid one, or is in the `steps/` of a run,
            which other programs read as a whole.
    """
    from hgpo_datasets.sources import run_with_steps
    from hgpo_envs.errors import InputError

    if any(run_with_steps(folder) for folder in (out.absolute(), *out.absolute().parents)):
        raise InputError(f"{option} {out}: expected a path outside of a run's steps/; choose another path")
    for path in (out.absolute(), *out.absolute().parents):
        try:
            path.lstat()
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:  # a parent is a file; a name is too long, or has a null character
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{option} {str(out)[:100]!r}: {reason}; choose another path") from None
        if path == out.absolute() and path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError(f"{option} {out}: found a pipe or a device, not a file; choose another path")
        if path.is_dir() and not os.access(path, os.W_OK | os.X_OK):
            raise InputError(f"{option} {out}: {path} is read-only or without permission to write; choose another path")
        if path.is_dir() and path != out.absolute():
            try:
                os.rmdir(tempfile.mkdtemp(prefix=".hgpo-", dir=path))  # noqa: PTH106 - the file systems of the kernel
            except OSError as error:
                raise InputError(f"{option} {out}: {path}: {error.strerror}; choose another path") from None
        return


@contextmanager
def resumable(advice: str | Callable[[], str]) -> Iterator[None]:
    """Exit after Ctrl-C with 130 and advice, or that which a function returns then: what is kept, and how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"Interrupted. {advice if isinstance(advice, str) else advice()}", file=sys.stderr)
        sys.exit(130)


def play_and_report(
    out: Path,
    play: Callable[[], CollectedRun],
    report: Callable[[CollectedRun], None],
) -> None:
    """Play a run or resume it, and report it, also if too many rollouts failed.

    Args:
        out: The run's folder.
        play: Plays the run.
        report: Prints its results.

    Raises:
        RolloutError: Too many rollouts failed.
    """
    from hgpo_train.rollout.collection import CollectedRun
    from hgpo_train.rollout.failures import RolloutError

    try:
        with resumable(partial(_what_is_kept, out)):
            run = play()
    except RolloutError as error:
        if isinstance(error.run, CollectedRun):
            report(error.run)
        raise
    report(run)
    if run.failures.failed:
        print(f"{run.failures.describe()}. Run the same command again to retry them.", file=sys.stderr)


def _what_is_kept(out: Path) -> str:
    """Return how many groups of an interrupted run are committed, and how to continue."""
    from hgpo_datasets import manifest
    from hgpo_envs.errors import InputError
    from hgpo_envs.wording import counted

    try:
        groups = sum(shard.groups for shard in manifest.read(out).shards.values())
    except InputError:  # the folder was removed, because nothing was in it
        groups = 0
    if not groups:
        return "No group had finished, and nothing was kept; run the same command again to start anew."
    return f"{counted(groups, 'finished group')} committed; run the same command again to resume."


def note_memory(shown: int | None, estimators: Iterable[Estimator]) -> None:
    """Print a note if estimators compare another number of past states than the policy's prompts show (docs/memory.md).

    Args:
        shown: The number of past steps in a prompt; None if it is not known, or if prompts are conversations.
        estimators: The estimators; those that compare no past states are left out.
    """
    if shown is None:
        return
    compared = {int(getattr(each.parameters, "history_length", shown)) for each in estimators}
    for depth in sorted(compared - {shown}):
        print(f"Note: prompts show {shown} past steps, advantages compare {depth} past states (docs/memory.md).")


def prompt_length(run: str) -> int | None:
    """Return the number of past steps in a saved run's prompts; None if it is not stored, or for conversations."""
    from hgpo_datasets import manifest
    from hgpo_datasets.sources import parts_of

    runs = [] if "://" in run else [part.path for part in parts_of([run]) if part.kind == "run"]
    header = manifest.read(Path(runs[0])).header if runs else None
    env = {} if header is None else header.config.get("env", {})
    length = env.get("history_length")
    return length if isinstance(length, int) and env.get("prompt_style") != "chat" else None


def program() -> str:
    """Return how this program is called: ``hgpo`` where the shell finds it, such as ``.venv/bin/hgpo`` otherwise."""
    path = Path(sys.argv[0])
    known = shutil.which("hgpo")
    is_other = path.name == "hgpo" and path.exists() and not (known and path.samefile(known))
    return shlex.quote(str(path)) if is_other else "hgpo"


def next_commands(*commands: Sequence[object]) -> str:
    """Return what a command prints at its end: the next commands, given without the program, that can be copied."""
    return f"Next: {', or '.join(f'{program()} {shlex.join(map(str, command))}' for command in commands)}"
