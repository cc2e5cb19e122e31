"""Checks before a model is downloaded: is it there, can it be reached, does it fit on the disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from hgpo_envs.errors import InputError
from hgpo_train.models.checkpoint_files import resolve_model

_LOADED: Final = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
"""The files of a repository that Transformers and vLLM load."""


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
    import huggingface_hub
    from huggingface_hub import constants, errors

    try:
        files = huggingface_hub.snapshot_download(path, dry_run=True, allow_patterns=_LOADED, etag_timeout=10.0)
    except errors.HFValidationError:
        raise InputError(
            f"no folder {path!r}: expected a model's folder, the folder of a training run, or a Hugging Face name such "
            "as Qwen/Qwen2.5-1.5B-Instruct"
        ) from None
    except Exception as error:  # of the hub, or of the HTTP library below it
        if isinstance(huggingface_hub.try_to_load_from_cache(path, "config.json"), str):
            return
        cause = error.__cause__ if isinstance(error, errors.DryRunError) else error
        if isinstance(cause, errors.GatedRepoError):
            message = f"the model {path!r} requires a permission: request it on its page of the hub, and set HF_TOKEN"
        elif isinstance(cause, errors.RepositoryNotFoundError):
            message = f"the hub has no public model {path!r}; check the name, or set HF_TOKEN if it is private"
        else:
            offline = isinstance(cause, errors.OfflineModeIsEnabled)
            reason = "HF_HUB_OFFLINE is set" if offline else f"{constants.ENDPOINT} cannot be reached"
            message = (
                f"the model {path!r} is neither a folder nor in the cache, and cannot be downloaded: {reason}; name a "
                "folder with the model's files"
            )
        raise InputError(message) from error
    cache = Path(constants.HF_HUB_CACHE)
    needed = sum(file.file_size or 0 for file in files if file.will_download)
    free = shutil.disk_usage(next(path for path in (cache, *cache.absolute().parents) if path.exists())).free
    if needed > free:
        raise InputError(
            f"the download of {path} needs {needed / 1e9:,.1f} GB in {cache}, where {free / 1e9:,.1f} GB are free; "
            "free some space or use another disk"
        )
