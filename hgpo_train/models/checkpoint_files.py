"""The files of checkpoints: listing, verification and safe removal. Does not import torch.

    checkpoints/000010/                 after ten iterations
        model.safetensors …             save_pretrained of the model (or its adapters), with tokenizer and settings
        trainer/optimiser.safetensors   AdamW's moments and steps by parameter; in a subfolder, because vLLM loads
                                        every *.safetensors beside the model
        trainer/state.json              progress of the run
        trainer/manifest.json           size and SHA-256 of every other file, written last

A checkpoint is used only after its files have been compared with its manifest. Checkpoints of version 0.1 have no
manifest: only their structure is verified, so a flipped bit is not detected.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from hgpo_datasets import VerifyReport
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import write_file
from hgpo_envs.files.safe_paths import path_inside
from hgpo_envs.files.untrusted_files import open_regular, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

STATE: Final = "trainer/state.json"
OPTIMISER: Final = "trainer/optimiser.safetensors"
MANIFEST: Final = "trainer/manifest.json"

_FORMAT: Final = "hgpo checkpoint 1"
_NAME: Final = re.compile(r"\d{6,}")
# Suffixes of files that Transformers or vLLM may load: an unlisted file with one of them is a problem, not a note.
_LOADED: Final = frozenset({".safetensors", ".bin", ".pt", ".pth", ".json", ".jinja", ".py", ".model"})
# The files that version 0.1 wrote, which has no manifest to list them.
_OLD_NAMES: Final = re.compile(
    r"(.*\.safetensors|.*\.json|chat_template\.jinja|additional_chat_templates/.*\.jinja|merges\.txt|vocab\.txt"
    r"|.*\.model|README\.md)"
)
_JSON_BYTES: Final = 256 << 20
# Some file systems store times in steps of 2 s: a file that changed more recently may change again with the same time.
_RACY_NS: Final = 2_000_000_000


class CheckpointWarning(UserWarning):
    """A checkpoint cannot be used, or cannot be verified."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The progress of a training run.

    Attributes:
        iteration: Number of completed iterations.
        tasks_drawn: Number of tasks that they took from the task order.
        environment_steps: Number of steps collected for training.
        versions: Versions of the packages that computed it.
        run: Fingerprint of the run's origin (`hgpo_train.training.run_folder`); empty if unknown.
    """

    iteration: int = 0
    tasks_drawn: int = 0
    environment_steps: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    run: str = ""


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first, including damaged ones."""
    if not folder.is_dir():
        return []
    found = (path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    return sorted((path for path in found if path.is_dir() and _has(path, "trainer")), key=lambda path: int(path.name))


def newest_valid_checkpoint(folder: Path, *, run: str = "", weights_only: bool = False) -> Path | None:
    """Return the newest valid checkpoint. Emit one warning that lists newer, damaged ones.

    Args:
        folder: The folder that contains the checkpoints.
        run: Accept only checkpoints of this run (`TrainingState.run`) or of an unknown run; empty accepts all.
        weights_only: Do not verify the optimiser's state.

    Returns:
        The checkpoint, or None if the folder contains no checkpoint.

    Raises:
        InputError: The folder contains checkpoints, but none can be used.
    """
    damaged: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        fault = _problem(path, run, weights_only=weights_only)
        if fault is None:
            if damaged:
                line = f"{'; '.join(damaged)}: checkpoint {path} is used instead"
                warnings.warn(line, CheckpointWarning, stacklevel=2)
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
    if _has(folder, MANIFEST) and (fault := _problem(folder, "", weights_only=True, named=False)) is not None:
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
        found = dict(_entries(folder))
        if any(not stat.S_ISREG(mode) for mode in found.values()):
            return False
        if not _has(folder, MANIFEST):
            read_state(folder)
            return all(_OLD_NAMES.fullmatch(name) for name in found)
        return found.keys() <= {*_read_manifest(folder), MANIFEST, OPTIMISER}
    except (OSError, InputError):
        return False


def write_manifest(folder: Path) -> None:
    """Write a checkpoint's manifest: size and SHA-256 of every file. Call it after all other files are written."""
    files = {}
    for name, _ in _entries(folder):
        with (folder / name).open("rb") as file:
            files[name] = {"bytes": os.fstat(file.fileno()).st_size, "sha256": _sha256(file)}
    (folder / MANIFEST).write_bytes(_manifest_bytes({"format": _FORMAT, "files": dict(sorted(files.items()))}))


def remove_optimiser(folder: Path) -> None:
    """Remove the optimiser's state from a checkpoint, which remains usable as a model.

    The manifest is replaced first. If the process is killed before the file is removed, the file is ignored from then
    on, and removed by the next call.

    Raises:
        OSError: The folder cannot be written.
    """
    if not _has(folder, MANIFEST):  # version 0.1
        return
    values = _read_json(folder, MANIFEST)
    if values["files"].pop(OPTIMISER, None) is not None:
        write_file(folder / MANIFEST, _manifest_bytes(values), scratch_in=folder.parent)
    (folder / OPTIMISER).unlink(missing_ok=True)


def checksums(folder: Path) -> dict[str, str] | None:
    """Return the SHA-256 of every file that a checkpoint's manifest lists, or None without a manifest."""
    if not _has(folder, MANIFEST):
        return None
    return {name: sha256 for name, (_, sha256) in _read_manifest(folder).items()}


def write_state(folder: Path, state: TrainingState) -> None:
    """Write a checkpoint's `state.json`."""
    values = {**asdict(state), "manifest": MANIFEST}  # read_state reports a manifest that is missing
    (folder / STATE).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def read_state(folder: Path) -> TrainingState:
    """Read a checkpoint's `state.json`.

    Raises:
        InputError: The file has another form than training writes, or the manifest that it names is missing.
        OSError: The file cannot be read.
    """
    values = _read_json(folder, STATE)
    listed = values.pop("manifest", None)
    if listed is not None and not _has(folder, MANIFEST):
        raise InputError(f"{MANIFEST} is missing")
    try:
        state = TrainingState(**values)
    except TypeError:
        raise InputError(f"{STATE} has unexpected keys") from None
    counts: tuple[Any, ...] = (state.iteration, state.tasks_drawn, state.environment_steps)
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts):
        raise InputError(f"{STATE}: expected counts of at least 0, received {counts}")
    names: Any = state.versions
    texts: list[Any] = [state.run, *names.values()] if isinstance(names, dict) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"{STATE}: expected versions as text")
    return state


def verify_checkpoint(folder: Path, *, weights_only: bool = False) -> VerifyReport:
    """Compare a checkpoint's files with its manifest. Without one (version 0.1), verify only their structure.

    Args:
        folder: The checkpoint.
        weights_only: Do not verify the optimiser's state.
    """
    report = VerifyReport(str(folder))
    try:
        if _has(folder, MANIFEST):
            _compare(folder, report, weights_only=weights_only)
        else:
            _verify_structure(folder, report, weights_only=weights_only)
        if report.ok:
            read_state(folder)
    except (OSError, InputError) as error:
        name = MANIFEST if _has(folder, MANIFEST) else STATE
        report.add("unreadable", folder / name, str(error))
    return report


_verified: dict[tuple[Path, bool], tuple[object, ...]] = {}
"""Verified checkpoints (folder, weights_only), with the names, sizes and times of their files."""


def _problem(folder: Path, run: str, *, weights_only: bool, named: bool = True) -> str | None:
    """Return why a checkpoint cannot be used, or None. A verified one is verified again only if it may have changed."""
    key = (folder.resolve(), weights_only)
    before = _stamps(folder)
    if before is None or _verified.get(key) != before:
        report = verify_checkpoint(folder, weights_only=weights_only)
        if report.problems:
            first = report.problems[0]
            name = os.path.relpath(first.file, folder)
            return first.message if name in first.message else f"{name}: {first.message}"
        if before is not None:
            _verified[key] = before
    try:
        state = read_state(folder)
    except (OSError, InputError) as error:
        return str(error)
    if named and state.iteration != int(folder.name):
        return f"it was written after iteration {state.iteration}"
    if run and state.run and state.run != run:
        return "it is of another run"
    if not weights_only and OPTIMISER not in (checksums(folder) or {OPTIMISER: ""}):
        return "it contains no state of the optimiser"
    return None


def _stamps(folder: Path) -> tuple[object, ...] | None:
    """Return names, sizes and times of all files; None if a file changed so recently that times are not reliable."""
    stamps: list[object] = []
    newest = 0
    try:
        for name, _ in sorted(_entries(folder)):
            seen = (folder / name).stat()
            newest = max(newest, seen.st_mtime_ns, seen.st_ctime_ns)
            stamps += [name, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino]
    except OSError:
        return None
    return tuple(stamps) if newest < time.time_ns() - _RACY_NS else None


def _compare(folder: Path, report: VerifyReport, *, weights_only: bool) -> None:
    listed = _read_manifest(folder)
    for name, (size, sha256) in sorted(listed.items()):
        if weights_only and name == OPTIMISER:
            continue
        try:
            with open_regular(folder / name, "file of the checkpoint") as file:
                seen = os.fstat(file.fileno()).st_size
                if seen != size:
                    report.add("size", folder / name, f"{seen:,} bytes, {size:,} expected")
                elif _sha256(file) != sha256:
                    report.add("bytes", folder / name, "its bytes have changed (SHA-256)")
                report.files += 1
                report.bytes += seen
        except (InputError, OSError) as error:
            report.add("unreadable", folder / name, str(error))
    for name, mode in _entries(folder):
        if name in listed or name in (MANIFEST, OPTIMISER):  # `remove_optimiser` may have been interrupted
            continue
        record = report.add if not stat.S_ISREG(mode) or Path(name).suffix in _LOADED else report.note
        record("foreign", folder / name, "training did not write it")


def _verify_structure(folder: Path, report: VerifyReport, *, weights_only: bool) -> None:
    from safetensors import SafetensorError, safe_open

    read_state(folder)
    found = dict(_entries(folder))
    settings = "adapter_config.json" if "adapter_config.json" in found else "config.json"
    tensors = [name for name in found if name.endswith(".safetensors") and "/" not in name]
    needed = [settings, *([] if weights_only else [OPTIMISER])]
    for name in (*needed, *([] if tensors else ["model.safetensors"])):
        if name not in found:
            report.add("missing", folder / name, "the file is missing")
    for name, mode in found.items():
        if not stat.S_ISREG(mode):
            report.add("foreign", folder / name, "training did not write it")
            continue
        if weights_only and name == OPTIMISER:
            continue
        report.files += 1
        report.bytes += (folder / name).stat().st_size
        try:
            if name.endswith(".safetensors"):
                with safe_open(folder / name, "np"):
                    pass
            elif name.endswith(".json"):
                _read_json(folder, name)
        except (SafetensorError, InputError) as error:
            report.add("bytes", folder / name, str(error))
    report.note("version", folder, "version 0.1 wrote it without checksums: flipped bits are not detected")


def _read_manifest(folder: Path) -> dict[str, tuple[int, str]]:
    """Return size and SHA-256 of each file that a manifest lists."""
    values = _read_json(folder, MANIFEST)
    if read_bytes(folder / MANIFEST, _JSON_BYTES) != _manifest_bytes(values):
        raise InputError(f"{MANIFEST} has changed since it was written")
    files = values.get("files")
    if values.get("format") != _FORMAT or values.keys() != {"format", "files"} or not isinstance(files, dict):
        raise InputError(f"{MANIFEST} is not of the form {_FORMAT!r}")
    listed = {}
    for name, one in files.items():
        if not isinstance(one, dict) or one.keys() != {"bytes", "sha256"}:
            raise InputError(f"{MANIFEST} lists {name!r} without size or SHA-256")
        size, sha256 = one["bytes"], one["sha256"]
        if not isinstance(size, int) or isinstance(size, bool) or not isinstance(sha256, str):
            raise InputError(f"{MANIFEST} lists {name!r} without size or SHA-256")
        if path_inside(folder, name) != folder / name:
            raise InputError(f"{MANIFEST} lists {name!r}, which is not a valid file name")
        listed[name] = (size, sha256)
    if STATE not in listed:
        raise InputError(f"{MANIFEST} does not list {STATE}")
    return listed


def _manifest_bytes(values: dict[str, Any]) -> bytes:
    return json.dumps(values, indent=1).encode() + b"\n"


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    """Read a file that contains a JSON object."""
    data = read_bytes(folder / name, _JSON_BYTES)
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        raise InputError(f"{name} is not JSON") from None
    if not isinstance(values, dict):
        raise InputError(f"{name}: expected a JSON object")
    return values


def _sha256(file: IO[bytes]) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # typeshed wants a wider protocol


def _entries(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the relative name (with `/`) and the mode of everything below a folder except folders.

    Links to files count as files.
    """
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as inside:
            for entry in inside:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                    continue
                try:
                    mode = entry.stat().st_mode
                except OSError:  # a broken link
                    mode = entry.stat(follow_symlinks=False).st_mode
                yield Path(entry.path).relative_to(folder).as_posix(), mode


def _has(folder: Path, name: str) -> bool:
    return os.path.lexists(folder / name)
