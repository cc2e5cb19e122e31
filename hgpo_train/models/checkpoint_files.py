"""The files of checkpoints: listing, verification and safe removal. Does not import torch.

    checkpoints/000010/                 after ten iterations
        model.safetensors …             save_pretrained of the model (or its adapters), with tokenizer and settings
        trainer/optimiser.safetensors   AdamW's moments and steps by parameter; in a subfolder, because vLLM loads
                                        every *.safetensors beside the model
        trainer/state.json              progress of the run
        trainer/manifest.json           SHA-256 of every other file, written last

A checkpoint is used only after its files have been compared with its manifest.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from hgpo_datasets import VerifyReport
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import write_file
from hgpo_envs.files.safe_paths import path_inside
from hgpo_envs.files.untrusted_files import open_regular, read_bytes

STATE: Final = "trainer/state.json"
OPTIMISER: Final = "trainer/optimiser.safetensors"
MANIFEST: Final = "trainer/manifest.json"

_NAME: Final = re.compile(r"\d{6,}")
# Suffixes of files that Transformers or vLLM may load: an unlisted file with one of them is a problem, not a note.
_LOADED: Final = frozenset({".safetensors", ".bin", ".pt", ".pth", ".json", ".jinja", ".py", ".model"})
_JSON_BYTES: Final = 1 << 20

T = TypeVar("T")


class CheckpointWarning(UserWarning):
    """A checkpoint cannot be used, or was written by other versions."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The progress of a training run.

    Attributes:
        iteration: Number of completed iterations.
        tasks_drawn: Number of tasks that they took from the task order.
        environment_steps: Number of steps collected for training.
        versions: Versions of the packages that computed it.
        run: Fingerprint of the run's origin (`hgpo_train.training.run_folder`).
    """

    iteration: int = 0
    tasks_drawn: int = 0
    environment_steps: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    run: str = ""


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["hgpo checkpoint 1"]
    files: dict[str, str]
    """SHA-256 by the file's name relative to the checkpoint, with `/`."""


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first, including damaged ones."""
    if not folder.is_dir():
        return []
    numbered = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and os.path.lexists(path / "trainer")]
    return sorted(numbered, key=lambda path: int(path.name))


def newest_valid_checkpoint(folder: Path, *, run: str = "", weights_only: bool = False) -> Path | None:
    """Return the newest valid checkpoint. Emit one warning that lists newer, damaged ones.

    Args:
        folder: The folder that contains the checkpoints.
        run: Accept only checkpoints of this run (`TrainingState.run`); empty accepts all.
        weights_only: Do not verify the optimiser's state.

    Returns:
        The checkpoint, or None if the folder contains no checkpoint.

    Raises:
        InputError: The folder contains checkpoints, but none can be used.
    """
    damaged: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        fault = _fault(path, weights_only=weights_only) or _unfit(path, run, weights_only=weights_only)
        if fault is None:
            if damaged:
                message = f"{'; '.join(damaged)}: checkpoint {path} is used instead"
                warnings.warn(message, CheckpointWarning, stacklevel=2)
            return path
        damaged.append(f"checkpoint {path.name} cannot be used ({fault})")
    if damaged:
        raise InputError(
            f"{folder} has no checkpoint that can be used: {'; '.join(damaged)}; restore one from a backup, "
            "or start again in another folder"
        )
    return None


def checkpoint_to_resume(folder: Path, run: str = "") -> Path | None:
    """Return `newest_valid_checkpoint`, and rename newer ones: the resumed run will write their names again.

    Raises:
        InputError: The folder contains checkpoints, but none can be used. Nothing is renamed.
    """
    newest = newest_valid_checkpoint(folder, run=run)
    if newest is not None:
        for path in list_checkpoints(folder):
            if int(path.name) > int(newest.name):
                rename_damaged(path)
    return newest


def resolve_model(path: str) -> str:
    """Return the newest valid checkpoint of a run's folder; return any other path unchanged.

    Raises:
        InputError: The run has checkpoints, but none can be used; or the path is a damaged checkpoint.
    """
    folder = Path(path)
    newest = newest_valid_checkpoint(folder / "checkpoints", weights_only=True)
    if newest is not None:
        return str(newest)
    if os.path.lexists(folder / MANIFEST) and (fault := _fault(folder, weights_only=True)) is not None:
        raise InputError(f"checkpoint {path} is damaged ({fault}); use another one")
    return path


def rename_damaged(path: Path) -> Path:
    """Rename a path to `NAME.damaged`, `NAME.damaged-2` …, the first that is free, and return the new path."""
    number = 1
    while True:
        target = path.with_name(f"{path.name}.damaged" + (f"-{number}" if number > 1 else ""))
        if not os.path.lexists(target):
            return path.rename(target)
        number += 1


def is_removable(folder: Path) -> bool:
    """Return whether a folder is a checkpoint that contains only files that training wrote."""
    if folder.is_symlink() or not folder.is_dir() or not _NAME.fullmatch(folder.name):
        return False
    try:
        return {*_files(folder)} <= {*checksums(folder), MANIFEST, OPTIMISER}
    except (OSError, InputError):
        return False


def write_manifest(folder: Path) -> None:
    """Write a checkpoint's manifest. Call it after all other files are written."""
    files = {name: _sha256(folder / name) for name in _files(folder)}
    (folder / MANIFEST).write_bytes(msgspec.json.encode(_Manifest("hgpo checkpoint 1", files)))


def remove_optimiser(folder: Path) -> None:
    """Remove the optimiser's state from a checkpoint, which remains usable as a model.

    The manifest is replaced first. If the process is killed before the file is removed, the file is ignored from then
    on, and removed by the next call.

    Raises:
        OSError: The folder cannot be written.
    """
    manifest = _Manifest("hgpo checkpoint 1", checksums(folder))
    if manifest.files.pop(OPTIMISER, None) is not None:
        write_file(folder / MANIFEST, msgspec.json.encode(manifest), scratch_in=folder.parent)
    (folder / OPTIMISER).unlink(missing_ok=True)


def checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file that a checkpoint's manifest lists.

    Raises:
        InputError: The manifest has changed since it was written, or lists what is not a file's name.
        OSError: There is no manifest, or it cannot be read.
    """
    manifest = _read(folder / MANIFEST, _Manifest)
    if read_bytes(folder / MANIFEST, _JSON_BYTES) != msgspec.json.encode(manifest):
        raise InputError(f"{MANIFEST} has changed since it was written")
    for name in manifest.files:
        if path_inside(folder, name) != folder / name:
            raise InputError(f"{MANIFEST} lists {name!r}, which is not a valid file name")
    return manifest.files


def write_state(folder: Path, state: TrainingState) -> None:
    """Write a checkpoint's `state.json`."""
    (folder / STATE).write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=1))


def read_state(folder: Path) -> TrainingState:
    """Read a checkpoint's `state.json`.

    Raises:
        InputError: The file has another form than training writes.
        OSError: The file cannot be read.
    """
    return _read(folder / STATE, TrainingState)


def verify_checkpoint(folder: Path, *, weights_only: bool = False) -> VerifyReport:
    """Compare a checkpoint's files with its manifest.

    Args:
        folder: The checkpoint.
        weights_only: Do not verify the optimiser's state.
    """
    report = VerifyReport(str(folder))
    try:
        expected = checksums(folder)
    except (OSError, InputError) as error:
        report.add("unreadable", folder / MANIFEST, str(error))
        return report
    for name, sha256 in expected.items():
        if weights_only and name == OPTIMISER:
            continue
        try:
            if _sha256(folder / name) != sha256:
                report.add("bytes", folder / name, "its bytes have changed (SHA-256)")
            report.files += 1
            report.bytes += (folder / name).stat().st_size
        except (InputError, OSError) as error:
            report.add("unreadable", folder / name, str(error))
    for name in {*_files(folder)} - {*expected, MANIFEST, OPTIMISER}:  # `remove_optimiser` may have been interrupted
        harmless = (folder / name).is_file() and Path(name).suffix not in _LOADED
        (report.note if harmless else report.add)("foreign", folder / name, "training did not write it")
    return report


def _fault(folder: Path, *, weights_only: bool) -> str | None:
    """Return the first problem of a checkpoint's files. They are read again only if they may have changed."""
    try:
        seen = [(name, (folder / name).lstat()) for name in _files(folder)]
    except OSError as error:
        return str(error)
    stamps = tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in seen)
    return _first_problem(folder.resolve(), weights_only, stamps)


@functools.lru_cache(maxsize=64)
def _first_problem(folder: Path, weights_only: bool, _stamps: object) -> str | None:
    problems = verify_checkpoint(folder, weights_only=weights_only).problems
    if not problems:
        return None
    name, message = os.path.relpath(problems[0].file, folder), problems[0].message
    return message if name in message else f"{name}: {message}"


def _unfit(folder: Path, run: str, *, weights_only: bool) -> str | None:
    """Return why an intact checkpoint is not one to continue from, or None."""
    try:
        state = read_state(folder)
    except (OSError, InputError) as error:
        return str(error)
    if state.iteration != int(folder.name):
        return f"it was written after iteration {state.iteration}"
    if run and state.run != run:
        return "it is of another run"
    if not weights_only and OPTIMISER not in checksums(folder):
        return "it contains no state of the optimiser"
    return None


def _read(path: Path, form: type[T]) -> T:
    try:
        return msgspec.json.decode(read_bytes(path, _JSON_BYTES), type=form)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path.parent.name}/{path.name} is damaged: {error}") from None


def _sha256(path: Path) -> str:
    with open_regular(path, "file of the checkpoint") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> list[str]:
    """Return the names of all files below a folder, links included, relative to it and with `/`."""
    paths = folder.rglob("*")
    return sorted(path.relative_to(folder).as_posix() for path in paths if path.is_symlink() or not path.is_dir())
