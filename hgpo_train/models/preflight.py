"""Checks before a model is loaded: is it there, can it be reached, does it fit on the disk, does it name code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_train.models.checkpoint_files import resolve_model

_LOADED: Final = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
"""The files of a repository that Transformers and vLLM load."""

ADAPTER_SETTINGS: Final = "adapter_config.json"


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
        files = huggingface_hub.snapshot_download(
            path, dry_run=True, allow_patterns=_LOADED, etag_timeout=10.0
        )
    except errors.HFValidationError:
        raise InputError(
            f"no folder {path!r}: expected a model's folder, the folder of a training run, or a Hugging Face name such "
            "as Qwen/Qwen2.5-1.5B-Instruct"
        ) from None
    except Exception as error:  # of the hub, or of the HTTP library below it
        if isinstance(huggingface_hub.try_to_load_from_cache(path, "config.json"), str):
            return
        cause = error.__cause__ if isinstance(error, errors.DryRunError) else error
        reasons = {
            errors.GatedRepoError: "it requires a permission, which its page of the hub gives, and HF_TOKEN",
            errors.RepositoryNotFoundError: "the hub has no public model of this name; a private one needs HF_TOKEN",
            errors.OfflineModeIsEnabled: "HF_HUB_OFFLINE is set; name a folder with its files",
        }
        unreachable = (
            f"{constants.ENDPOINT} cannot be reached; name a folder with its files"
        )
        reason = next(
            (
                text
                for exception, text in reasons.items()
                if isinstance(cause, exception)
            ),
            unreachable,
        )
        raise InputError(
            f"no folder {path!r}; and as a Hugging Face name it is not in the cache and cannot be downloaded: {reason}"
        ) from error
    cache = Path(constants.HF_HUB_CACHE)
    needed = sum(file.file_size or 0 for file in files if file.will_download)
    disk = next(path for path in (cache, *cache.absolute().parents) if path.exists())
    free = shutil.disk_usage(disk).free
    if needed > free:
        raise InputError(
            f"the download of {path} needs {needed / 1e9:,.1f} GB in {cache}, where {free / 1e9:,.1f} GB are free; "
            "free some space or use another disk"
        )


def check_loads_no_code(path: str) -> str | None:
    """Check that the configuration of a model, or of the model of an adapter, names no code that would be loaded.

    With the package `kernels`, Transformers takes an attention implementation with a slash for a repository of the hub,
    and runs its code. An adapter's configuration names the model that is loaded instead, so a folder with both files
    is refused: what would be loaded is not what the folder shows.

    Args:
        path: A model's folder or a Hugging Face name.

    Returns:
        The model that an adapter belongs to; None for a model.

    Raises:
        InputError: It names such code, or contains both a model and an adapter.
    """
    settings = read_settings(path, "config.json")
    adapter = read_settings(path, ADAPTER_SETTINGS)
    base = None
    if adapter is not None:
        if settings is not None:
            raise InputError(
                f"{path} contains a model and {ADAPTER_SETTINGS}; remove the file of what you do not load"
            )
        name = adapter.get("base_model_name_or_path")
        if not isinstance(name, str):
            raise InputError(
                f"{path}: expected the model's name as base_model_name_or_path in {ADAPTER_SETTINGS}"
            )
        base = resolve_model(name)
        settings = read_settings(base, "config.json")

    # Sections of a configuration have attention of their own.
    parts: list[Any] = [settings]
    for part in parts:
        if isinstance(part, dict):
            for name, value in part.items():
                if "attn_implementation" in name and "/" in str(value):
                    raise InputError(
                        f"the config.json of {path} names attention code on the hub, {value!r}; remove the entry, and "
                        "set model.attention"
                    )
            parts += part.values()
        elif isinstance(part, list):
            parts += part
    return base


def read_settings(path: str, name: str) -> dict[str, Any] | None:
    """Return a JSON file of a model's folder or repository; None if there is none.

    It is decoded as Transformers decodes it: what another decoder refuses, such as NaN, could hide an entry.
    """
    from transformers.utils.hub import cached_file

    try:
        file = cached_file(path, name)
    except Exception:  # noqa: BLE001 - it is not there: Transformers reports that
        return None
    if file is None:
        return None
    content = read_bytes(Path(file), 16 << 20)
    try:
        settings = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: {name} is damaged: {one_line(error, 200)}; download it again"
        ) from None
    if not isinstance(settings, dict):
        raise InputError(
            f"{path}: expected an object in {name}, received {type(settings).__name__}; download it again"
        )
    return settings
