"""Checks before a model is downloaded or loaded: is it there, can it be reached, does it fit on the disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hgpo_envs.errors import InputError
from hgpo_train.models.checkpoint_files import resolve_model

if TYPE_CHECKING:
    from huggingface_hub.file_download import DryRunFileInfo

_LOADED: Final = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
"""The files of a repository that Transformers and vLLM load."""

_TIMEOUT_S: Final = 10.0


def check_model_source(path: str) -> None:
    """Check that a model can be loaded or downloaded. Nothing is downloaded.

    Args:
        path: A model's folder, the folder of a training run, or a Hugging Face name.

    Raises:
        InputError: There is no such folder; the name is unknown to the hub, requires a permission, or the hub cannot be
            reached; or the download does not fit on the disk.
    """
    if Path(resolve_model(path)).is_dir():
        return
    if not _is_hub_name(path):
        raise InputError(
            f"no folder {path!r}: expected a model's folder, the folder of a training run, or a Hugging Face name such "
            "as Qwen/Qwen2.5-1.5B-Instruct"
        )
    from huggingface_hub import constants

    missing = sum(one.file_size or 0 for one in _files_to_download(path))
    check_disk(Path(constants.HF_HUB_CACHE), missing, f"the download of {path}")


def check_disk(folder: Path, needed: int, purpose: str) -> None:
    """Check that the disk of a folder, which need not exist, has room.

    Args:
        folder: The folder.
        needed: The number of bytes that will be written.
        purpose: What will be written, for the error message.

    Raises:
        InputError: Fewer bytes are free.
    """
    existing = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise InputError(
            f"{purpose} needs {_megabytes(needed)} in {folder}, where {_megabytes(free)} are free; free some space or "
            "use another disk"
        )


def _files_to_download(name: str) -> list[DryRunFileInfo]:
    """Return the files of a hub's model that are not in the cache; nothing if the hub cannot be asked but it is there.

    Raises:
        InputError: The name is unknown, requires a permission, or is neither in the cache nor can the hub be reached.
    """
    import huggingface_hub
    from huggingface_hub import errors

    try:
        files = huggingface_hub.snapshot_download(
            name, dry_run=True, allow_patterns=list(_LOADED), etag_timeout=_TIMEOUT_S
        )
    except Exception as error:  # of the hub, or of the HTTP library below it
        cause = error.__cause__ if isinstance(error, errors.DryRunError) else error
        if isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json"), str):
            return []
        raise InputError(_why_not(name, cause)) from error
    return [one for one in files if one.will_download]


def _why_not(name: str, cause: BaseException | None) -> str:
    """Describe why a model cannot be downloaded."""
    from huggingface_hub import errors

    if isinstance(cause, errors.GatedRepoError):
        return f"the model {name!r} requires a permission: request it at {_address(name)}, and set HF_TOKEN"
    if isinstance(cause, errors.RepositoryNotFoundError):
        return f"the hub has no public model {name!r}; check the name, or set HF_TOKEN if it is private"
    offline = isinstance(cause, errors.OfflineModeIsEnabled)
    why = "HF_HUB_OFFLINE is set" if offline else f"{_address('')} cannot be reached"
    return (
        f"the model {name!r} is neither a folder nor in the cache, and cannot be downloaded: {why}; name a folder with "
        "the model's files"
    )


def _is_hub_name(path: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(path)
    except HFValidationError:
        return False
    return True


def _address(name: str) -> str:
    from huggingface_hub import constants

    return f"{os.environ.get('HF_ENDPOINT', constants.ENDPOINT).rstrip('/')}/{name}".rstrip("/")


def _megabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
