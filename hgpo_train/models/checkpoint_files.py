"""The files of checkpoints: listing, verification and safe removal. Does not import torch.

    checkpoints/000010/                 after ten iterations
        model.safetensors …             save_pretrained of the model (or its adapters), with tokenizer and settings
        trainer/optimiser.safetensors   AdamW's moments and steps by parameter; in a subfolder, because vLLM loads
                                        every *.safetensors beside the model
        trainer/state.json              progress of the run
        trainer/manifest.json           SHA-256 of every other file, written last

A checkpoint appears whole or not at all, is used only after its files have been compared with its manifest, and can be
loaded by Transformers and vLLM directly. Without the optimiser's state no run can be resumed from it.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from hgpo_datasets import VerifyReport
from hgpo_envs.errors import InputError
from hgpo_envs.files.untrusted_files import path_inside, read_bytes, sha256

STATE: Final = "trainer/state.json"
OPTIMISER: Final = "trainer/optimiser.safetensors"
MANIFEST: Final = "trainer/manifest.json"

BUNDLED: Final = {
    name: Path(__file__).parent / "bundled" / name
    for name in ("tiny-alfworld", "tiny-webshop")
}
"""The models of this package by name: of a million parameters, after imitation of a weak player
(`tools/bundle_model.py`)."""

_NAME: Final = re.compile(r"\d{6,}")
# Suffixes of files that Transformers or vLLM may load: an unlisted file with one of them is a problem, not a note.
_LOADED: Final = frozenset(
    {".safetensors", ".bin", ".pt", ".pth", ".json", ".jinja", ".py", ".model"}
)

_KNOWN: Final[dict[tuple[object, ...], str]] = {}
"""SHA-256 of files, by their path and what changes if they are written."""

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
        best: The iteration with the highest success on held-out tasks; 0 before the first evaluation of one.
        best_success: That success.
        stalled: Number of evaluations since then.
        versions: Versions of the packages that computed it.
    """

    iteration: int = 0
    tasks_drawn: int = 0
    environment_steps: int = 0
    best: int = 0
    best_success: float = -1.0
    stalled: int = 0
    versions: dict[str, str] = field(default_factory=dict)


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["hgpo checkpoint 1"]
    files: dict[str, str]
    """SHA-256 by the file's name relative to the checkpoint, with `/`."""


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first, including damaged ones."""
    if not folder.is_dir():
        return []
    numbered = [
        path
        for path in folder.iterdir()
        if _NAME.fullmatch(path.name) and os.path.lexists(path / "trainer")
    ]
    return sorted(numbered, key=lambda path: int(path.name))


def newest_valid_checkpoint(folder: Path, *, to_resume: bool = False) -> Path | None:
    """Return the newest valid checkpoint. Emit one warning that lists newer, damaged ones.

    Args:
        folder: The folder that contains the checkpoints.
        to_resume: Whether a run is resumed from it, which needs the optimiser's state. The resumed run will write the
            names of newer checkpoints again, so these are renamed.

    Returns:
        The checkpoint, or None if the folder contains no checkpoint.

    Raises:
        InputError: The folder contains checkpoints, but none can be used. Nothing is renamed.
    """
    valid: Path | None = None
    damaged: dict[Path, str] = {}
    for path in reversed(list_checkpoints(folder)):
        fault = _fault(path, weights_only=not to_resume)
        if fault is None:
            valid = path
            break
        damaged[path] = f"checkpoint {path.name} cannot be used ({fault})"
    if not damaged:
        return valid

    faults = "; ".join(damaged.values())
    if valid is None:
        raise InputError(
            f"{folder} has no checkpoint that can be used: {faults}; restore one from a backup, or start again in "
            "another folder"
        )
    message = f"{faults}: checkpoint {valid} is used instead"
    warnings.warn(message, CheckpointWarning, stacklevel=2)
    if to_resume:
        for newer in damaged:
            rename_damaged(newer)
    return valid


def resolve_model(path: str) -> str:
    """Return the folder of a bundled model or the newest valid checkpoint of a run; return any other path unchanged.

    Raises:
        InputError: The run has checkpoints, but none can be used; or the path is a damaged checkpoint.
    """
    folder = Path(path)
    if path in BUNDLED and not folder.exists():
        return str(BUNDLED[path])
    newest = newest_valid_checkpoint(folder / "checkpoints")
    if newest is not None:
        return str(newest)
    if os.path.lexists(folder / MANIFEST):
        fault = _fault(folder, weights_only=True)
        if fault is not None:
            raise InputError(f"checkpoint {path} is damaged ({fault}); use another one")
    return path


def stored_model(path: str) -> str:
    """Return what a run stores as its model: `resolve_model`, but the name of a bundled one, not a machine's path."""
    return path if path in BUNDLED else resolve_model(path)


def rename_damaged(path: Path) -> Path:
    """Rename a path to `NAME.damaged`, `NAME.damaged-2` …, the first that is free, and return the new path."""
    target = path.with_name(f"{path.name}.damaged")
    number = 1
    while os.path.lexists(target):
        number += 1
        target = path.with_name(f"{path.name}.damaged-{number}")
    return path.rename(target)


def is_removable(folder: Path) -> bool:
    """Return whether a folder is a checkpoint that contains only files that training wrote."""
    if folder.is_symlink() or not folder.is_dir() or not _NAME.fullmatch(folder.name):
        return False
    try:
        return {*file_names(folder)} <= {*checksums(folder), MANIFEST}
    except (OSError, InputError):
        return False


def write_manifest(folder: Path) -> None:
    """Write a checkpoint's manifest. Call it after all other files are written."""
    files = {name: sha256(folder / name) for name in file_names(folder)}
    files.pop(MANIFEST, None)
    (folder / MANIFEST).write_bytes(
        msgspec.json.encode(_Manifest("hgpo checkpoint 1", files))
    )


def checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file that a checkpoint's manifest lists.

    Raises:
        InputError: The manifest is missing or damaged, or lists what is not a file's name.
    """
    files = read_json(folder / MANIFEST, _Manifest).files
    for name in files:
        if path_inside(folder, name) != folder / name:
            raise InputError(
                f"{MANIFEST} lists {name!r}, which is not a valid file name"
            )
    return files


def read_json(path: Path, form: type[T]) -> T:
    """Read `state.json` or the manifest of a checkpoint; raise `InputError` if it is damaged."""
    try:
        return msgspec.json.decode(read_bytes(path, 1 << 20), type=form)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path.parent.name}/{path.name} is damaged: {error}"
        ) from None


def verify_checkpoint(folder: Path, *, weights_only: bool = False) -> VerifyReport:
    """Compare a checkpoint's files with its manifest.

    Args:
        folder: The checkpoint.
        weights_only: Do not verify the optimiser's state.
    """
    report = VerifyReport(str(folder))
    try:
        expected = checksums(folder)
    except InputError as error:
        report.add("unreadable", folder / MANIFEST, str(error))
        return report
    for name, digest in expected.items():
        if name == OPTIMISER and (weights_only or not os.path.lexists(folder / name)):
            continue
        try:
            if known_sha256(folder / name) != digest:
                report.add("bytes", folder / name, "its bytes have changed (SHA-256)")
            report.files += 1
            report.bytes += (folder / name).stat().st_size
        except (InputError, OSError) as error:
            report.add("unreadable", folder / name, str(error))
    for name in {*file_names(folder)} - {*expected, MANIFEST}:
        is_harmless = (folder / name).is_file() and Path(name).suffix not in _LOADED
        tell = report.note if is_harmless else report.add
        tell("foreign", folder / name, "training did not write it")
    return report


def _fault(folder: Path, *, weights_only: bool) -> str | None:
    """Return why a checkpoint cannot be used, or resumed from, or None."""
    problems = verify_checkpoint(folder, weights_only=weights_only).problems
    if problems:
        name = os.path.relpath(problems[0].file, folder)
        message = problems[0].message
        return message if name in message else f"{name}: {message}"
    try:
        iteration = read_json(folder / STATE, TrainingState).iteration
    except InputError as error:
        return str(error)
    if _NAME.fullmatch(folder.name) and iteration != int(folder.name):
        return f"it was written after iteration {iteration}"
    if not weights_only and not (folder / OPTIMISER).exists():
        return "it contains no state of the optimiser"
    return None


def known_sha256(path: Path) -> str:
    """Return a file's SHA-256. Gigabytes are read again only if they may have changed."""
    path = path.resolve()
    stat = path.stat()
    content = (path, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    if content not in _KNOWN:
        _KNOWN[content] = sha256(path, "file of the checkpoint")
    return _KNOWN[content]


def file_names(folder: Path) -> list[str]:
    """Return the names of all files below a folder, links included, relative to it and with `/`."""
    paths = folder.rglob("*")
    return sorted(
        path.relative_to(folder).as_posix()
        for path in paths
        if path.is_symlink() or not path.is_dir()
    )
