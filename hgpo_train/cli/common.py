"""What several commands share: the check of `--out`, interruption, and reports with the commands to run next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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
    from hgpo_envs.files.atomic import check_writable

    if any(
        run_with_steps(folder) for folder in (out.absolute(), *out.absolute().parents)
    ):
        raise InputError(
            f"{option} {out}: expected a path outside of a run's steps/; choose another path"
        )
    # Only the nearest path that exists matters: the others are created below it.
    for path in (out.absolute(), *out.absolute().parents):
        try:
            path.lstat()
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            # a parent is a file; a name is too long, or has a null character
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"{option} {str(out)[:100]!r}: {reason}; choose another path"
            ) from None
        if (
            path == out.absolute()
            and path.exists()
            and not (path.is_file() or path.is_dir())
        ):
            raise InputError(
                f"{option} {out}: found a pipe or a device, not a file; choose another path"
            )
        if path.is_dir() and not os.access(path, os.W_OK | os.X_OK):
            raise InputError(
                f"{option} {out}: {path} is read-only or without permission to write; choose another path"
            )
        if path.is_dir() and path != out.absolute():
            try:
                check_writable(path)
            except OSError as error:
                raise InputError(
                    f"{option} {out}: {path}: {error.strerror}; choose another path"
                ) from None
        return


def check_output_file(out: Path, example: str, *, overwrite: bool) -> None:
    """Check the path of a file that a command writes at its end.

    Args:
        out: The path.
        example: A name for the file, for the message about a folder.
        overwrite: Whether an existing file may be replaced.

    Raises:
        InputError: It is a folder, or exists and may not be replaced.
    """
    from hgpo_envs.errors import InputError

    if out.is_dir():
        raise InputError(
            f"--out {out}: expected a file, received a folder; name a file in it, such as {out / example}"
        )
    if out.exists() and not overwrite:
        raise InputError(
            f"{out} exists already; replace it with --overwrite, or use another --out"
        )


@contextmanager
def resumable(advice: str | Callable[[], str]) -> Iterator[None]:
    """Exit after Ctrl-C with 130 and advice: what is kept, and how to resume.

    Args:
        advice: The advice, or a function that returns it. A message of the interruption itself replaces it.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        text = str(interrupt) or (advice if isinstance(advice, str) else advice())
        print(f"Interrupted. {text}", file=sys.stderr)
        sys.exit(130)


def play_and_report(
    play: Callable[[], CollectedRun], report: Callable[[CollectedRun], None]
) -> None:
    """Play a run or resume it, and report it, also if too many rollouts failed.

    Raises:
        RolloutError: Too many rollouts failed.
    """
    from hgpo_train.rollout.collection import CollectedRun
    from hgpo_train.rollout.failures import RolloutError, failures_of

    try:
        with resumable(
            "Finished groups are kept; run the same command again to resume."
        ):
            run = play()
    except RolloutError as error:
        if isinstance(error.run, CollectedRun):
            report(error.run)
        raise
    report(run)
    failures = failures_of(run.rollouts)
    if failures.failed:
        print(
            f"{failures.describe()}. Run the same command again to retry them.",
            file=sys.stderr,
        )


def note_memory(shown: int | None, estimators: Iterable[Estimator]) -> None:
    """Print a note if estimators compare another number of past states than the policy's prompts show (docs/memory.md).

    Args:
        shown: The number of past steps in a prompt; None if it is not known, or if prompts are conversations.
        estimators: The estimators; those that compare no past states are left out.
    """
    if shown is None:
        return
    compared = {
        int(getattr(each.parameters, "history_length", shown)) for each in estimators
    }
    for depth in sorted(compared - {shown}):
        print(
            f"Note: prompts show {shown} past steps, advantages compare {depth} past states (docs/memory.md)."
        )


def note_branches(run: str, estimators: Iterable[Estimator]) -> None:
    """Print a note if a run's branches were chosen by outcomes, and an estimator does not know (docs/branches.md)."""
    branches = stored_config(run).get("branches")
    if not isinstance(branches, dict) or branches.get("outcomes") is not True:
        return
    biased = [each.name for each in estimators if each.biased_by_outcomes]
    if biased:
        print(
            f"Note: branches of this run were chosen by outcomes ({branches.get('at')}), which biases "
            f"{', '.join(biased)}; use tree_loo:fresh=true or carl:fresh=true (docs/branches.md)."
        )


def note_runs(source: str, use: str = "read as one table") -> None:
    """Print a note if a source contains several runs, with what they are used for."""
    runs = _runs_of(source)
    if len(runs) > 1:
        print(f"Note: {len(runs)} runs are {use}: {', '.join(runs)}.")


def _runs_of(source: str) -> list[str]:
    """Return the folders of the runs that a source on this machine means."""
    from hgpo_datasets.sources import parts_of

    if "://" in source:
        return []
    return [part.path for part in parts_of([source]) if part.kind == "run"]


def stored_config(run: str) -> Mapping[str, Any]:
    """Return the configuration that is stored with a saved run, or with the first of several; empty without one."""
    from hgpo_datasets import manifest

    runs = _runs_of(run)
    header = manifest.read(Path(runs[0])).header if runs else None
    return {} if header is None else header.config


def prompt_length(run: str) -> int | None:
    """Return the number of past steps in a saved run's prompts; None if it is not stored, or for conversations."""
    env = stored_config(run).get("env", {})
    length = env.get("history_length")
    return (
        length
        if isinstance(length, int) and env.get("prompt_style") != "chat"
        else None
    )


def print_problems(problems: Sequence[str], summary: str) -> None:
    """Print what a check has found, a line each, and exit with 1; do nothing if there is none.

    Args:
        problems: The lines.
        summary: What is printed after them, together with their number.
    """
    for problem in problems[:20]:
        print(problem)
    if problems:
        print(f"{summary} ({len(problems)} in all)", file=sys.stderr)
        sys.exit(1)


def program() -> str:
    """Return how this program is called: ``hgpo`` where the shell finds it, such as ``.venv/bin/hgpo`` otherwise."""
    path = Path(sys.argv[0])
    known = shutil.which("hgpo")
    is_other = (
        path.name == "hgpo" and path.exists() and not (known and path.samefile(known))
    )
    return shlex.quote(str(path)) if is_other else "hgpo"


def given_options(options: Mapping[str, object]) -> list[object]:
    """Return options as words of a command, without those that are None."""
    given = [(name, value) for name, value in options.items() if value is not None]
    return list(chain.from_iterable(given))


def next_commands(*commands: Sequence[object]) -> str:
    """Return what a command prints at its end: the next commands, given without the program, that can be copied."""
    return f"Next: {', or '.join(f'{program()} {shlex.join(map(str, command))}' for command in commands)}"
