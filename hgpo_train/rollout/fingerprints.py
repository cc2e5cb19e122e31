"""Fingerprints of a run's inputs: data, prompt template, model, demonstrations.

The configuration contains paths, whose content may change. A run stores these fingerprints when it begins, and cannot
be resumed with other content under the same path.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError
from hgpo_train.models.checkpoint_files import MANIFEST, checksums, resolve_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import polars as pl

    from hgpo_train.rollout.env_handle import EnvHandle

_DATA: Final = ("data", "grammar")
_TASKS: Final = 100_000


def fingerprint_texts(texts: Iterable[str | None]) -> str:
    """Return the SHA-256 of a sequence of texts. It depends on their boundaries; None differs from an empty text."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(repr(text).encode())
    return digest.hexdigest()


def fingerprint_rows(rows: pl.DataFrame) -> str:
    """Return the SHA-256 of a table's column names and values."""
    return fingerprint_texts([*rows.columns, *map(str, rows.iter_rows())])


def fingerprint_path(path: Path) -> str:
    """Return the SHA-256 of a file's content, or of the names and contents of all files below a folder.

    Raises:
        InputError: A file or folder cannot be read.
    """
    try:
        if not path.is_dir():
            return _fingerprint_file(path)
        files = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
        return fingerprint_texts(text for name in files for text in (name, _fingerprint_file(path / name)))
    except OSError as error:
        raise InputError(f"cannot read {error.filename or path}: {error.strerror}") from error


def fingerprint_model(path: str) -> str | None:
    """Return a fingerprint of a model: the SHA-256 of its files, or the commit of a Hugging Face name; None if unknown.

    For a run's folder it is the fingerprint of the newest checkpoint. A copy of a checkpoint has the same fingerprint.

    Raises:
        InputError: A file cannot be read, or the checkpoint is damaged.
    """
    folder = Path(resolve_model(path))
    if not folder.is_dir():
        return _commit(path)
    if os.path.lexists(folder / MANIFEST):
        files = {name: sha256 for name, sha256 in checksums(folder).items() if "/" not in name}
    else:
        files = {file.name: fingerprint_path(file) for file in folder.iterdir() if file.is_file()}
    # A model card and hidden files are not part of the model.
    kept = {name: value for name, value in files.items() if not name.endswith(".md") and name[0] != "."}
    return fingerprint_texts(text for name in sorted(kept) for text in (name, kept[name]))


def fingerprint_tasks(handle: EnvHandle, options: Mapping[str, Any]) -> str:
    """Return a fingerprint of an environment's tasks.

    It covers the task ids, the versions in the first task, and the content of files and folders that options name.
    """
    ids = list(itertools.islice(iter(handle.tasks), _TASKS))
    versions = handle.shared.source.task(ids[0]).versions
    texts: list[str | None] = [handle.shared.source.name, str(len(handle.tasks)), *ids]
    texts += [f"{name} {value}" for name, value in sorted(versions.items())]
    for name, value in sorted(options.items()):
        if isinstance(value, str):
            path = Path(value).expanduser()
            # A folder in any other option may be a cache or a log, whose content changes during the run.
            named = (name in _DATA and path.exists()) or (os.sep in value and path.is_file())
            texts += [name, fingerprint_path(path)] if named else []
    return fingerprint_texts(texts)


def environment_identity(handle: EnvHandle, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run stores of its environment: id and options, tasks, prompt template, and what is compared."""
    return {
        "env": {"id": handle.env_id, **options},
        "tasks": fingerprint_tasks(handle, options),
        "prompt_template": handle.settings.template.fingerprint,
        **({} if handle.state_key is None else {"state_key": handle.state_key}),
    }


def _fingerprint_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _commit(name: str) -> str | None:
    """Return the commit of a Hugging Face name that Transformers would load; None if it cannot be found."""
    from transformers.utils.hub import cached_file

    try:
        cached = cached_file(name, "config.json", _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError):
        return None  # loading the model raises the error
    parts = Path(cached).parts if cached else ()
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else None
