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
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar

import msgspec

from hgpo_datasets import manifest
from hgpo_datasets.sources import STEPS
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import LOCK, FolderLock, make_folder, remove_abandoned, write_file
from hgpo_envs.files.secrets import redact, redact_json
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_train.settings import build, to_dict, to_toml
from hgpo_train.training.config import Config, SftConfig, load_config

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

C = TypeVar("C", Config, SftConfig)

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


class _Origins(msgspec.Struct):
    """The content of `origin.json`."""

    format: Literal["hgpo run 1"]
    run: str
    fingerprints: dict[str, str | None]
    texts: dict[str, str]


class RunFolder(Generic[C]):
    """A run's folder, locked for this process from before anything is written until `release` or the process's end.

    Args:
        folder: The folder; created if it is missing.
        config: The run's configuration.
        free: Settings (`section` or `section.field`) that may change when a run is resumed.
        resume: Whether to resume a run that the folder already contains.

    Attributes:
        id: Hash of the configuration and fingerprints that the run was started with, 16 hexadecimal digits; empty
            until `pin` is called.
        lock: The lock of the folder.

    Raises:
        InputError: Another process trains in the folder, the folder contains a run and `resume` is False, or it
            contains a run of another configuration. The folder is then unchanged.
    """

    def __init__(self, folder: Path, config: C, free: Collection[str], *, resume: bool) -> None:
        self.folder, self.id = folder, ""
        self.config: C = config
        self._fixed = fixed_values(config, free)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; name a folder with --out")
        self._new = [path for path in (folder.absolute(), *folder.absolute().parents) if not path.exists()]
        make_folder(folder.absolute())
        self.lock = FolderLock(folder, "training")
        try:
            self._begun = any(os.path.lexists(folder / name) for name in _CONTENT)
            if self._begun:
                self._check_config(free, resume=resume)
            remove_abandoned(folder)
        except BaseException:
            self.release()
            raise

    def pin(self, origins: Mapping[str, Origin]) -> None:
        """Store the configuration and the run's inputs; for a resumed run, first compare the inputs with those stored.

        Args:
            origins: The run's inputs by name, for example "model".

        Raises:
            InputError: The run was started with other inputs, or its `origin.json` is damaged.
        """
        path = self.folder / ORIGIN
        if self._begun:
            stored = read_origin(path)
            for name, origin in origins.items():
                was, now = stored["fingerprints"].get(name), origin.fingerprint
                if was is not None and now is not None and was != now:
                    text = f" (its text is in {path})" if origin.text is not None else ""
                    raise InputError(
                        f"{self.folder} was started with another {name}: {redact(origin.setting)} has the fingerprint "
                        f"{now[:16]}, not {was[:16]}; restore the original{text}, or choose another --out"
                    )
            self.id = stored["run"]
        else:
            prints = {name: origin.fingerprint for name, origin in origins.items()}
            inputs = json.dumps({"config": self._fixed, "fingerprints": prints}, sort_keys=True, default=str)
            self.id = hashlib.sha256(inputs.encode()).hexdigest()[:16]
            texts = {name: redact(origin.text) for name, origin in origins.items() if origin.text is not None}
            write_file(path, msgspec.json.encode(_Origins("hgpo run 1", self.id, prints, texts)))
        shown = build(type(self.config), redact_json(to_dict(self.config)))
        write_file(self.folder / CONFIG, to_toml(shown).encode())

    def release(self) -> None:
        """Unlock the folder, and remove it if this process created it and stored nothing. Can be called again."""
        if self._new and {path.name for path in self.folder.iterdir()} <= {LOCK}:
            with suppress(OSError):  # another process may have written into it
                (self.folder / LOCK).unlink()
                for folder in self._new:
                    folder.rmdir()
        self._new = []
        self.lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _check_config(self, free: Collection[str], *, resume: bool) -> None:
        path = self.folder / CONFIG
        if not path.is_file():
            raise InputError(f"{self.folder} contains files of a run but no {CONFIG}; choose another --out")
        if not resume:
            raise InputError(f"{self.folder} already contains a run; resume it with --resume, or choose another --out")
        was = fixed_values(load_config(path, cls=type(self.config)), free)
        for name, value in self._fixed.items():
            if was.get(name) != value:
                raise InputError(
                    f"{self.folder} was started with {name} = {was.get(name)!r}, not {value!r}; resume it with the "
                    "original value, or choose another --out"
                )


def read_origin(path: Path) -> dict[str, Any]:
    """Read an `origin.json`.

    Raises:
        InputError: The file is damaged.
    """
    try:
        return msgspec.structs.asdict(msgspec.json.decode(read_bytes(path, 16 << 20), type=_Origins))
    except (ValueError, RecursionError):
        raise InputError(f"{path} is damaged; restore it from a backup, or start again in another folder") from None


def fixed_values(config: Config | SftConfig, free: Collection[str]) -> dict[str, Any]:
    """Return all settings except the free ones, by `section.field`.

    Secrets are replaced, so that a changed password does not make a run differ from the stored one.
    """
    values: dict[str, Any] = {}
    for section, held in to_dict(config).items():
        named = {f"{section}.{field}": value for field, value in held.items()} if isinstance(held, dict) else {}
        named = named or {section: held}
        values |= {name: value for name, value in named.items() if section not in free and name not in free}
    return dict(redact_json(values))
