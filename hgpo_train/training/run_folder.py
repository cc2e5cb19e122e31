"""A training run's folder: one writer at a time, and resumed only with what it was begun with.

RUN/config.toml    the configuration, after all overrides
RUN/origin.json    fingerprints of what the configuration only names (`hgpo_train.rollout.fingerprints`), and the text
of the prompt template
RUN/.lock          held by the process that trains; it ends with the process
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from hgpo_envs.atomic import FolderLock, make_folder, remove_abandoned, write_file
from hgpo_envs.errors import InputError
from hgpo_envs.secrets import redact, redact_json
from hgpo_envs.untrusted_files import read_bytes
from hgpo_train.settings import build, to_dict, to_toml
from hgpo_train.training.config import Config, SftConfig, load_config

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path
    from types import TracebackType

C = TypeVar("C", Config, SftConfig)

CONFIG: Final = "config.toml"
ORIGIN: Final = "origin.json"
_CONTENT: Final = ("steps", "evaluation", "checkpoints", "metrics.jsonl", "tensorboard")
_FORMAT: Final = "hgpo run 1"
_ORIGIN_BYTES: Final = 16 << 20


class RunFolderWarning(UserWarning):
    """Something about a run's folder that training goes on in spite of."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Something that a run is begun with, and that its configuration only names.

    Attributes:
        setting: Where the configuration names it, for example ``model.path = 'tiny'``.
        fingerprint: Identifies its content; None if nothing does.
        text: It, if it is short enough to be stored.
    """

    setting: str
    fingerprint: str | None
    text: str | None = None


class RunFolder(Generic[C]):
    """Exclusive use of a run's folder, from before anything is written until `release` or the process's end.

    Args:
        folder: Made if it is missing.
        config: The configuration.
        free: Settings (`section` or `section.field`) that may differ from those the run was begun with.
        purpose: What is done there, for the error message of others.
        resume: Whether a run that is there is to be resumed.

    Attributes:
        begun: Whether the folder held a run already.
        id: What the run was begun with, in 16 hexadecimal digits; empty until `pin`.

    Raises:
        InputError: Another process trains there; the folder holds a run and is not to be resumed; or it holds a run of
            another configuration. Nothing is changed then.
    """

    def __init__(self, folder: Path, config: C, free: Collection[str], *, purpose: str, resume: bool) -> None:
        self.folder, self.id = folder, ""
        self.config: C = config
        self._fixed = fixed_values(config, free)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; name a folder with --out")
        make_folder(folder.absolute())
        self._lock = FolderLock(folder, purpose)
        try:
            # A wrong path ends a run before it has left anything but its configuration: it may be begun again.
            self.begun = any(os.path.lexists(folder / name) for name in _CONTENT)
            if self.begun:
                self._check_config(free, resume=resume)
            remove_abandoned(folder)
        except BaseException:
            self.release()
            raise

    def pin(self, origins: Mapping[str, Origin]) -> None:
        """Stores the configuration and what the run is begun with, by its name; if it was begun before, compares first.

        Raises:
            InputError: The run was begun with something else.
        """
        path = self.folder / ORIGIN
        if self.begun and os.path.lexists(path):
            self.id = self.compare(origins)
        else:
            if self.begun:
                line = f"{self.folder} stores no fingerprints of its data (version 0.1): it may have changed since"
                warnings.warn(line, RunFolderWarning, stacklevel=2)
            self._store(origins)
        shown = build(type(self.config), redact_json(to_dict(self.config)))
        write_file(self.folder / CONFIG, to_toml(shown).encode())

    def compare(self, origins: Mapping[str, Origin]) -> str:
        """Compares what the run was begun with, and returns the run's id.

        Raises:
            InputError: The run was begun with something else, or does not say with what.
        """
        was = read_origin(self.folder / ORIGIN)
        for name, origin in origins.items():
            self._check_origin(name, origin, was["fingerprints"].get(name))
        return str(was["run"])

    def release(self) -> None:
        """Lets others use the folder. Releasing twice is harmless."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _check_config(self, free: Collection[str], *, resume: bool) -> None:
        path = self.folder / CONFIG
        if not path.is_file():
            raise InputError(f"{self.folder} holds something of a run but no {CONFIG}; give another --out")
        if not resume:
            raise InputError(f"{self.folder} holds a run already; add --resume to resume it, or give another --out")
        was = fixed_values(load_config(path, cls=type(self.config)), free)
        for name, value in self._fixed.items():
            if was.get(name) != value:
                raise InputError(
                    f"{self.folder} was begun with {name} = {was.get(name)!r}, not {value!r}; resume it with the same, "
                    "or give another --out"
                )

    def _store(self, origins: Mapping[str, Origin]) -> None:
        fingerprints = {name: origin.fingerprint for name, origin in origins.items()}
        known = json.dumps({"config": self._fixed, "fingerprints": fingerprints}, sort_keys=True, default=str)
        self.id = hashlib.sha256(known.encode()).hexdigest()[:16]
        texts = {name: redact(origin.text) for name, origin in origins.items() if origin.text is not None}
        values = {"format": _FORMAT, "run": self.id, "fingerprints": fingerprints, "texts": texts}
        write_file(self.folder / ORIGIN, (json.dumps(values, indent=1) + "\n").encode())

    def _check_origin(self, name: str, origin: Origin, was: str | None) -> None:
        now = origin.fingerprint
        if was is None or now is None or was == now:
            return
        stored = f" (its text is in {self.folder / ORIGIN})" if origin.text is not None else ""
        raise InputError(
            f"{self.folder} was begun with another {name}: {redact(origin.setting)} has the fingerprint {now[:16]}, "
            f"not {was[:16]}; put back what was there{stored}, or give another --out"
        )


def read_origin(path: Path) -> dict[str, Any]:
    """The values of an `origin.json`.

    Raises:
        InputError: It is damaged.
    """
    try:
        values: dict[str, Any] = json.loads(read_bytes(path, _ORIGIN_BYTES))
        sound = values["format"] == _FORMAT and isinstance(values["run"], str)
        if sound and all(one is None or isinstance(one, str) for one in values["fingerprints"].values()):
            return values
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise InputError(f"{path} is damaged; if data, model and prompt template are what they were, remove it and resume")


def fixed_values(config: Config | SftConfig, free: Collection[str]) -> dict[str, Any]:
    """Every setting by `section.field` but those that are free, secrets replaced: another password is no other run."""
    values: dict[str, Any] = {}
    for section, held in to_dict(config).items():
        named = {f"{section}.{field}": value for field, value in held.items()} if isinstance(held, dict) else {}
        named = named or {section: held}
        values |= {name: value for name, value in named.items() if section not in free and name not in free}
    return dict(redact_json(values))
