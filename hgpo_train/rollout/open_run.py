"""A run that is open for a collection: its writer, its progress line, its record of sessions, and Ctrl-C."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hgpo_datasets import StepWriter
from hgpo_train.policies.registry import execution_options
from hgpo_train.rollout.collector import Tally
from hgpo_train.rollout.new_folder import removed_if_unused
from hgpo_train.rollout.older_runs import comparable
from hgpo_train.rollout.progress_line import live_progress
from hgpo_train.rollout.run import stop_on_interrupt
from hgpo_train.rollout.sessions import new_session, read_sessions, record_session

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from rich.console import Console

    from hgpo_train.policies.base import Policy
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.run import ExecutionOptions, StopRequest


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
    warn: Callable[[str], None],
    at_end: Callable[[], object] = lambda: None,
    without: Collection[str] = (),
) -> Iterator[OpenRun]:
    """Open a run, show the progress of its collection and record the session in `RUN/sessions.json`.

    If the collection cannot start, a folder that this function created is removed.

    Args:
        out: The run's folder.
        config: The configuration of `hgpo_train.rollout.run.run_config`.
        acting: The policy.
        handle: The environment.
        console: The console of the progress line; nothing is shown if it is not a terminal.
        execution: How the collection is executed.
        expected: Maps the number of groups in the run to the number of rollouts that will be played.
        policy_options: The user's options of the policy.
        warn: Called with each warning about the run in the folder.
        at_end: Called at the end, also after an error, if the run contains rows.
        without: Columns that are not stored.

    Raises:
        InputError: The folder contains a run with other settings, or cannot be read.
    """
    tally = Tally()
    config = comparable(out, config, handle, warn)
    earlier = read_sessions(out)
    with (
        removed_if_unused(out),
        StepWriter(out, config=config, without=without) as writer,
        stop_on_interrupt() as should_stop,
    ):
        names = execution_options(config["policy"]["name"])
        session = new_session(
            getattr(acting, "endpoint", None),
            {name: value for name, value in policy_options.items() if name in names},
            slots=execution.slots,
            workers=execution.workers,
            groups_before=len(writer.committed),
        )
        if earlier and earlier[-1].endpoint != session.endpoint:
            warn(f"{out} was played with {earlier[-1].endpoint} and is now resumed with {session.endpoint}")
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
