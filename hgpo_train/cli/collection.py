"""The common parts of `hgpo rollout` and `hgpo eval`: checks of options, the run's folder, sessions and failures."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from rich.console import Console

    from hgpo_datasets import StepWriter
    from hgpo_train.policies.base import Policy
    from hgpo_train.rollout.collector import Tally
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.run import ExecutionOptions, StopRequest

RETRY: Final = "Run the same command again to retry them."


@dataclass(slots=True)
class OpenRun:
    """A run that is open for a collection.

    Attributes:
        writer: The writer of the run.
        should_stop: Whether Ctrl-C was pressed.
        tally: The counts of this session.
        progress: To be called with the tally regularly.
    """

    writer: StepWriter
    should_stop: StopRequest
    tally: Tally
    progress: Callable[[Tally], None]


@contextmanager
def open_run(
    out: Path,
    config: Mapping[str, Any],
    acting: Policy,
    handle: EnvHandle,
    console: Console,
    execution: ExecutionOptions,
    *,
    expected: Callable[[int], int],
    policy_options: Mapping[str, Any],
    at_end: Callable[[], object],
    without: Collection[str] = (),
) -> Iterator[OpenRun]:
    """Open a run, show the progress of its collection and record the session. The policy is closed at the end.

    If the collection cannot start, a folder that this function created is removed.

    Args:
        out: The run's folder.
        config: The configuration of `hgpo_train.rollout.run.run_config`.
        acting: The policy.
        handle: The environment.
        console: The console for progress and notes.
        execution: How the collection is executed.
        expected: Maps the number of groups in the run to the number of rollouts that will be played.
        policy_options: The user's options of the policy.
        at_end: Called at the end, also after an error, if the run contains rows; writes its summary.
        without: Columns that are not stored.
    """
    from hgpo_datasets import StepWriter
    from hgpo_train.policies.registry import execution_options
    from hgpo_train.rollout.collector import Tally
    from hgpo_train.rollout.new_folder import removed_if_unused
    from hgpo_train.rollout.older_runs import comparable
    from hgpo_train.rollout.progress_line import live_progress
    from hgpo_train.rollout.run import stop_on_interrupt
    from hgpo_train.rollout.sessions import new_session, read_sessions, record_session

    tally = Tally()
    try:
        say = partial(note, console)
        config = comparable(out, config, handle, say)
        earlier = read_sessions(out)
        with (
            removed_if_unused(out),
            StepWriter(out, config=config, without=without) as writer,
            stop_on_interrupt() as should_stop,
        ):
            policy = dict(config["policy"])
            names = execution_options(policy["name"])
            session = new_session(
                getattr(acting, "endpoint", None),
                {name: value for name, value in policy_options.items() if name in names},
                slots=execution.slots,
                workers=execution.workers,
                groups_before=len(writer.committed),
            )
            if earlier and earlier[-1].endpoint != session.endpoint:
                say(f"{out} was played with {earlier[-1].endpoint} and is now resumed with {session.endpoint}")
            with (
                _finally(lambda: at_end() if writer.committed else None),
                live_progress(console, expected=max(0, expected(len(writer.committed)))) as show,
                record_session(out, earlier, session, tally) as record,
            ):

                def progress(counts: Tally) -> None:
                    show(counts)
                    record()

                yield OpenRun(writer, should_stop, tally, progress)
                if should_stop.requested:
                    session.ended = "interrupted"
    finally:
        acting.close()


@contextmanager
def _finally(call: Callable[[], object]) -> Iterator[None]:
    """Call a function at the end of the block. Its errors are ignored if the block raised one, which says more."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            call()
        raise
    call()


def check_out(out: Path) -> None:
    """Check that a run's path is not below a file, before a model is loaded.

    Raises:
        InputError: It is, or it is a file.
    """
    from hgpo_envs.errors import InputError

    for part in (out, *out.parents):
        if part.is_file():
            raise InputError(f"--out {out}: expected a folder, received the file {part}; use another path")


def note(console: Console, line: str) -> None:
    """Print a line of plain text."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def default_slots(slots: int | None, *, workers: bool) -> int:
    """Return the number of slots, with a default for None."""
    from hgpo_train.rollout.run import default_slots as default

    return default(workers=workers) if slots is None else slots


def check_max_failed(max_failed: float) -> None:
    """Check that `--max-failed` is in [0, 1].

    Raises:
        InputError: It is not.
    """
    from hgpo_envs.errors import InputError

    if not 0 <= max_failed <= 1:
        raise InputError(f"--max-failed: expected a share from 0 to 1, received {max_failed}")


def check_failures(console: Console, out: Path, tally: Tally | None, max_failed: float, noun: str = "rollouts") -> None:
    """Print how many rollouts of the run failed, and why; raise if too many failed.

    Args:
        console: The console.
        out: The run's folder.
        tally: Counts of the rollouts that were played now, which are checked separately; None skips this check.
        max_failed: The largest allowed share, in [0, 1].
        noun: What the rollouts are called, in the plural.

    Raises:
        RolloutError: More than `max_failed` of the rollouts failed.
    """
    from hgpo_train.rollout.failures import failures_of_run, failures_of_tally, raise_if_too_many

    stored = failures_of_run(out)
    for failures in (stored, *([] if tally is None else [failures_of_tally(tally)])):
        raise_if_too_many(failures, max_failed, RETRY, noun)
    if stored.failed:
        note(console, f"{stored.describe(noun)}. {RETRY}")
