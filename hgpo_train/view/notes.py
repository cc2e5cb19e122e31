"""Notes and scores that people give to rollouts: `RUN/notes.jsonl`, beside the tables, which stay as they are.

One JSON object a line, with the keys of a step table: ``run``, ``trajectory``, ``score``, ``note`` and ``time`` (UTC).
The file is replaced as a whole, so that it is never half-written.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import write_file
from hgpo_envs.files.untrusted_files import read_bytes, writing

if TYPE_CHECKING:
    from pathlib import Path

    from hgpo_train.view.index import Index

NAME: Final = "notes.jsonl"
_BYTES: Final = 64 << 20
_lock = threading.Lock()
"""Requests are answered in several threads, and each save reads the file and replaces it."""


class Note(msgspec.Struct, forbid_unknown_fields=True):
    """What a person says about a rollout: a text, a score of any scale, or both."""

    trajectory: str
    note: Annotated[str, msgspec.Meta(max_length=10_000)] = ""
    score: float | None = None
    run: str = ""
    time: str = ""


def read_notes(path: Path) -> list[Note]:
    """Return the notes in a file; none without it.

    Raises:
        InputError: A line is damaged. Then none is saved either: the file would lose it.
    """
    if not path.exists():
        return []
    notes = []
    for number, line in enumerate(
        read_bytes(path, _BYTES, "file of notes").splitlines(), 1
    ):
        try:
            notes.append(msgspec.json.decode(line, type=Note))
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise InputError(
                f"{path}: line {number} is no note ({error}); correct or remove it"
            ) from None
    return notes


def notes_document(path: Path | None) -> list[dict[str, Any]]:
    """Return the notes in a file as JSON values; none without one."""
    return (
        [] if path is None else [msgspec.to_builtins(note) for note in read_notes(path)]
    )


def save_note(path: Path, index: Index, request: bytes) -> dict[str, Any]:
    """Save a note, in the place of the rollout's earlier one; without a text and a score, only remove that.

    Args:
        path: The file.
        index: The run's index.
        request: JSON with `trajectory`, `note` and `score`.

    Raises:
        InputError: The request is no note, the run has no such rollout, or the file cannot be read or written.
    """
    try:
        note = msgspec.json.decode(request, type=Note)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InputError(f"note: {error}") from None
    of_rollout = index.episodes.filter(trajectory=note.trajectory)
    if of_rollout.is_empty():
        raise InputError(f"no trajectory {note.trajectory!r:.200} in this run")
    note.run = of_rollout["run"][0]
    note.time = datetime.now(UTC).isoformat(timespec="seconds")
    with _lock, writing(path):
        notes = [
            other for other in read_notes(path) if other.trajectory != note.trajectory
        ]
        if note.note or note.score is not None:
            notes.append(note)
        lines = [msgspec.json.encode(each) + b"\n" for each in notes]
        write_file(path, b"".join(lines))
    return msgspec.to_builtins(note)  # type: ignore[no-any-return]
