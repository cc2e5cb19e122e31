"""A run that is open for a collection: its writer, its progress line, its record of sessions, and Ctrl-C."""

from __future__ import annotations

import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from hgpo_datasets import StepWriter, manifest
from hgpo_envs.files.atomic import LOCK, FolderLock
from hgpo_train.policies.registry import execution_options
from hgpo_train.rollout.collector import Tally
from hgpo_train.rollout.progress_line import live_progress
from hgpo_train.rollout.run import collect_groups, stop_on_interrupt
from hgpo_train.rollout.sessions import Session, installed_versions, read_sessions, record_session

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from rich.console import Console

    from hgpo_train.policies.base import Policy
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec, StopRequest

_AT_THE_START: Final = {LOCK, manifest.NAME}
"""The files of a run that contains nothing."""


@dataclass(slots=True)
class OpenRun:
    """A run that is open for a collection.

    Attributes:
        handle: The environment.
        policy: The policy.
        execution: How the collection is executed.
        writer: The writer of the run.
        should_stop: Whether Ctrl-C was pressed.
        tally: The counts of this session.
        progress: To be called with the tally regularly.
    """

    handle: EnvHandle
    policy: Policy
    execution: ExecutionOptions
    writer: StepWriter
    should_stop: StopRequest
    tally: Tally
    progress: Callable[[Tally], None]

    def collect(self, spec: RolloutSpec, *, retry_failed: bool) -> None:
        """Collect groups into the run; see `hgpo_train.rollout.run.collect_groups`."""
        collect_groups(
            self.handle,
            self.policy,
            self.writer,
            spec,
            self.execution,
            retry_failed=retry_failed,
            progress=self.progress,
            should_stop=self.should_stop,
            tally=self.tally,
        )


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
    earlier = read_sessions(out)
    with (
        _removed_if_unused(out),
        StepWriter(out, config=config, without=without) as writer,
        stop_on_interrupt() as should_stop,
    ):
        names = execution_options(config["policy"]["name"])
        session = Session(
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            endpoint=getattr(acting, "endpoint", None),
            policy_options={name: value for name, value in policy_options.items() if name in names},
            slots=execution.slots,
            workers=execution.workers,
            groups_before=len(writer.committed),
            versions=installed_versions(),
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

            yield OpenRun(handle, acting, execution, writer, should_stop, tally, progress)
            if should_stop.requested:
                session.ended = "interrupted"


@contextmanager
def _removed_if_unused(folder: Path) -> Iterator[None]:
    """Remove a run's folder if the block raises before anything is stored, and with it the parents that are new.

    A folder that existed before the block is unchanged.
    """
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        yield
    except BaseException:
        if new and folder.is_dir():
            with suppress(OSError, ValueError):  # another process uses the folder, or it cannot be removed
                _remove_if_unused(folder, new[1:])
        raise


def _remove_if_unused(folder: Path, parents: list[Path]) -> None:
    with FolderLock(folder, "removing an empty run"):
        if not {path.name for path in folder.rglob("*") if not path.is_dir()} <= _AT_THE_START:
            return
    shutil.rmtree(folder)
    for parent in parents:
        parent.rmdir()


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
