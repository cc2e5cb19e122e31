"""A training run's folder. One process writes to it at a time, and a run is resumed only with its original inputs.

RUN/config.toml    the configuration, after all overrides
RUN/origin.json    fingerprints of the inputs that the configuration refers to by name (data, prompt template, model;
                   see `hgpo_train.rollout.fingerprints`), and the text of the prompt template
RUN/.lock          locked by the training process; the operating system releases it when the process ends

The folder is also the run of its step table: RUN/manifest.jsonl and RUN/steps/ (see `hgpo_datasets.sources`).
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import msgspec

from hgpo_datasets import manifest
from hgpo_datasets.sources import STEPS
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import FolderLock, make_folder, remove_abandoned, write_file
from hgpo_envs.files.secrets import redact, redact_json
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_train.settings import build, to_dict, to_toml
from hgpo_train.training.config import C, Config, SftConfig, load_config

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

CONFIG: Final = "config.toml"
ORIGIN: Final = "origin.json"
_CONTENT: Final = (manifest.NAME, STEPS, "evaluation", "checkpoints", "metrics.jsonl", "tensorboard")
"""Names in a folder that mark it as a run. A configuration alone is not one: after an early failure, such as a wrong
path, everything may be changed."""
FREE: Final = frozenset(
    {
        "tracking",
        "update.micro_batch_tokens",
        "update.logit_chunk",
        "update.gap_warning",
        "model.device",
        "model.gradient_checkpointing",
    }
)
"""Settings that may change when a run is resumed; they affect the weights only by rounding."""


@dataclass(frozen=True, slots=True)
class Origin:
    """An input of a run that its configuration refers to by name, such as a data folder or a model.

    Attributes:
        setting: The setting that refers to it, for example ``model.path = 'tiny'``.
        fingerprint: Identifies its content; None if the content cannot be identified.
        text: The content, if it is short enough to be stored.
    """

    setting: str
    fingerprint: str | None
    text: str | None = None


class StoredOrigin(msgspec.Struct):
    """The content of `origin.json`."""

    format: Literal["hgpo run 1"]
    run: str
    fingerprints: dict[str, str | None]
    texts: dict[str, str]


class RunFolder:
    """A run's folder, locked for this process until `release` or the process's end.

    Args:
        folder: The folder; created if it is missing.
        config: The run's configuration.
        origins: The run's inputs by name, for example "model".
        free: Settings (`section` or `section.field`) that may change when a run is resumed.
        resume: Whether to resume a run that the folder already contains.

    Attributes:
        id: Hash of the configuration and fingerprints that the run was started with, 16 hexadecimal digits.
        lock: The lock of the folder.

    Raises:
        InputError: Another process trains in the folder, the folder contains a run and `resume` is False, or it
            contains a run with another configuration or other inputs. Its files are then unchanged.
    """

    def __init__(
        self,
        folder: Path,
        config: C,
        origins: Mapping[str, Origin],
        free: Collection[str],
        *,
        resume: bool,
    ) -> None:
        make_folder(folder.absolute())
        self.lock = FolderLock(folder, "training")
        try:
            if contains_run(folder, resume=resume):
                self.id = _check_same(folder, config, origins, free)
            else:
                fingerprints = {name: origin.fingerprint for name, origin in origins.items()}
                inputs = {"config": fixed_values(config, free), "fingerprints": fingerprints}
                self.id = hashlib.sha256(json.dumps(inputs, sort_keys=True, default=str).encode()).hexdigest()[:16]
                texts = {name: redact(origin.text) for name, origin in origins.items() if origin.text is not None}
                stored = StoredOrigin("hgpo run 1", self.id, fingerprints, texts)
                write_file(folder / ORIGIN, msgspec.json.encode(stored))
            write_file(folder / CONFIG, to_toml(build(type(config), redact_json(to_dict(config)))).encode())
            remove_abandoned(folder)
            remove_abandoned(folder / "checkpoints")
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Unlock the folder. Can be called again."""
        self.lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def contains_run(folder: Path, *, resume: bool) -> bool:
    """Return whether a folder contains a run.

    Raises:
        InputError: It contains one that is not to be resumed or has no configuration, or it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder with --out")
    if not any(os.path.lexists(folder / name) for name in _CONTENT):
        return False
    if not (folder / CONFIG).is_file():
        raise InputError(f"{folder} contains files of a run but no {CONFIG}; choose another --out")
    if not resume:
        raise InputError(f"{folder} already contains a run; resume it with --resume, or choose another --out")
    return True


def _check_same(folder: Path, config: C, origins: Mapping[str, Origin], free: Collection[str]) -> str:
    """Return the id of the run in a folder, or raise if it was started with other settings or inputs."""
    stored_settings = fixed_values(load_config(folder / CONFIG, cls=type(config)), free)
    for name, value in fixed_values(config, free).items():
        if stored_settings.get(name) != value:
            raise InputError(
                f"{folder} was started with {name} = {stored_settings.get(name)!r}, not {value!r}; resume it with the "
                "original value, or choose another --out"
            )
    stored = read_origin(folder / ORIGIN)
    for name, origin in origins.items():
        original, present = stored.fingerprints.get(name), origin.fingerprint
        if original is not None and present is not None and original != present:
            text = f" (its text is in {folder / ORIGIN})" if origin.text is not None else ""
            raise InputError(
                f"{folder} was started with another {name}: {redact(origin.setting)} has the fingerprint "
                f"{present[:16]}, not {original[:16]}; restore the original{text}, or choose another --out"
            )
    return stored.run


def read_origin(path: Path) -> StoredOrigin:
    """Read an `origin.json`.

    Raises:
        InputError: The file is damaged.
    """
    try:
        return msgspec.json.decode(read_bytes(path, 16 << 20), type=StoredOrigin)
    except (ValueError, RecursionError):
        raise InputError(f"{path} is damaged; restore it from a backup, or start again in another folder") from None


def fixed_values(config: Config | SftConfig, free: Collection[str]) -> dict[str, Any]:
    """Return all settings except the free ones, by `section.field`.

    Secrets are replaced, so that a changed password does not make a run differ from the stored one.
    """
    values: dict[str, Any] = {}
    for section, value in to_dict(config).items():
        fields = {f"{section}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {}
        values |= {
            name: item
            for name, item in (fields or {section: value}).items()
            if section not in free and name not in free
        }
    return dict(redact_json(values))
