"""Fingerprints of what a run's configuration only names: data, prompt template, model, demonstrations.

A path says where something is, not what it is. A run stores these fingerprints when it begins, so that it is never
resumed with something else under the same path.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError
from hgpo_train.models.checkpoint_files import checksums, resolve_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import polars as pl

    from hgpo_train.rollout.env_handle import EnvHandle

_DATA: Final = ("data", "grammar")
_TASKS: Final = 100_000
_NOT_THE_MODEL: Final = (".md", "made_from")


def fingerprint_texts(texts: Iterable[str | None]) -> str:
    """The SHA-256 of texts one after another: where one ends matters, and an absent one is not an empty one."""
    digest = hashlib.sha256()
    for text in texts:
        data = b"" if text is None else text.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % (-1 if text is None else len(data)) + data)
    return digest.hexdigest()


def fingerprint_rows(rows: pl.DataFrame) -> str:
    """The SHA-256 of a table's columns, rows and values."""
    values = (None if value is None else str(value) for row in rows.iter_rows() for value in row)
    return fingerprint_texts(itertools.chain(rows.columns, values))


def fingerprint_path(path: Path) -> str:
    """The SHA-256 of a file's content, or of the names and contents of all files below a folder.

    Raises:
        InputError: Something there cannot be read.
    """
    try:
        if not path.is_dir():
            return _fingerprint_file(path)
        files = sorted(one.relative_to(path).as_posix() for one in path.rglob("*") if one.is_file())
        return fingerprint_texts(text for name in files for text in (name, _fingerprint_file(path / name)))
    except OSError as error:
        raise InputError(f"cannot read {error.filename or path}: {error.strerror}") from error


def fingerprint_model(path: str) -> str | None:
    """What identifies a model: a folder's files, or a Hugging Face name's commit; None if neither is known.

    A run's folder stands for its newest checkpoint. A checkpoint, and a copy of it elsewhere, are the same model.
    """
    folder = Path(resolve_model(path))
    if not folder.is_dir():
        return _commit(path)
    known = checksums(folder)
    if known is not None:
        files = {name: sha256 for name, sha256 in known.items() if "/" not in name}
    else:
        try:
            names = [one.name for one in folder.iterdir() if one.is_file()]
            files = {name: _fingerprint_file(folder / name) for name in names}
        except OSError as error:
            raise InputError(f"cannot read {error.filename or folder}: {error.strerror}") from error
    kept = {name: value for name, value in files.items() if not name.endswith(_NOT_THE_MODEL) and name[0] != "."}
    return fingerprint_texts(text for name in sorted(kept) for text in (name, kept[name]))


def fingerprint_tasks(handle: EnvHandle, options: Mapping[str, Any]) -> str:
    """A world's tasks: their ids, the versions that the first one records, and the content of data in the options."""
    ids = list(itertools.islice(iter(handle.tasks), _TASKS))
    versions = handle.shared.source.task(ids[0]).versions
    texts: list[str | None] = [handle.shared.source.name, str(len(handle.tasks)), *ids]
    texts += [f"{name} {value}" for name, value in sorted(versions.items())]
    for name, value in sorted(options.items()):
        if isinstance(value, str):
            path = Path(value).expanduser()
            # Folders under other names may be caches or logs, whose content changes while tasks are played.
            named = (name in _DATA and path.exists()) or (os.sep in value and path.is_file())
            texts += [name, fingerprint_path(path)] if named else []
    return fingerprint_texts(texts)


def _fingerprint_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _commit(name: str) -> str | None:
    """The commit that a Hugging Face name stands for, as Transformers would load it."""
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(name, "config.json", _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError):
        return None  # loading it says why
    parts = Path(found).parts if found else ()
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else None
