"""A run's folder while it is written: its lock, its manifest, and its files.

A shard is committed in two steps: its file appears complete or not at all, then its line is appended to the manifest.
Whatever fails or interrupts in between, `settle` asks the manifest and makes the folder agree with it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from hgpo_datasets import manifest, reading, schema, shards
from hgpo_datasets.manifest import Header, Manifest, Shard
from hgpo_envs import atomic
from hgpo_envs.errors import InputError
from hgpo_envs.secrets import redact_json
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MOST_CONFIG: Final = 1 << 20


class ShardFolder:
    """A run's folder, locked, with its manifest open.

    Args:
        folder: The folder, an absolute path; created if it is missing.
        run: The run's name; the folder's name by default.
        config: The run's configuration; None accepts what is there.
        depth: The deepest hash of its rows.

    Attributes:
        header: What holds for the whole run.

    Raises:
        InputError: Another writer has the run open, or what is in the folder does not fit.
        OSError: The folder cannot be written.
    """

    def __init__(self, folder: Path, run: str | None, config: Mapping[str, Any] | None, depth: int) -> None:
        reading.check_text(folder)
        values = _json_values(config or {})
        self._folder, self._descriptor = folder, -1
        try:
            atomic.make_folder(folder)
        except (FileExistsError, NotADirectoryError) as error:
            raise InputError(f"{error.filename} is not a folder; choose another name") from error
        name = clean_text(run or folder.resolve().name)
        asked = Header(name, depth, schema.VERSION, _package_version(), values)
        self._lock = atomic.FolderLock(folder, "writing a run")
        try:
            self._descriptor = _open_manifest(folder / manifest.NAME)
            self._manifest = self._read(asked)
            assert self._manifest.header is not None
            self.header: Header = self._manifest.header
            if self.header is not asked:
                _check_same(folder, self.header, asked, run, config)
                self._check_files()
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether the run may be written."""
        return self._descriptor >= 0

    @property
    def files(self) -> list[Path]:
        """The committed files."""
        return [self._folder / shard.file for shard in self._manifest.shards]

    @property
    def next_file(self) -> str:
        """The name of the next shard."""
        return manifest.file_name(self._manifest.committed)

    @property
    def metadata(self) -> dict[str, str]:
        """What every file says about its run."""
        config = manifest.canonical(self.header.config).decode()
        return {shards.RUN_KEY: self.header.run, shards.CONFIG_KEY: config}

    def check_room(self, shard: Shard) -> None:
        """Checks that the next shard may be written.

        Raises:
            InputError: The folder is not the one that was opened, the shard's name is taken, or the manifest is full.
        """
        if not self._is_in_place():
            raise InputError(
                f"{self._folder} was moved or replaced while a run was written there; move it back and commit again"
            )
        if os.path.lexists(self._folder / shard.file):
            raise InputError(
                f"{self._folder / shard.file} was put there by another program; move it elsewhere and commit again"
            )
        line, _ = manifest.encode_line(shard, self._manifest.check)
        if self._manifest.size + len(line) > manifest.MOST_BYTES:
            raise InputError(f"the manifest of {self._folder} is full ({manifest.MOST_BYTES:,} bytes); begin a new run")

    def write(self, shard: Shard, data: bytes) -> None:
        """Writes and lists a shard; returns when the disk has both. After anything it raised, call `settle`.

        Raises:
            OSError: The disk refused.
        """
        atomic.write_file(self._folder / shard.file, data)
        line, _ = manifest.encode_line(shard, self._manifest.check)
        atomic.append(self._descriptor, line)
        self._manifest = manifest.extend(self._manifest, shard)
        self._remove_replaced()

    def settle(self, shard: Shard) -> bool:
        """Makes the folder agree with the manifest after `write`, whether it succeeded or not; may be repeated.

        Returns:
            Whether the shard is committed.

        Raises:
            OSError: The disk refuses; the folder may hold a file that is not listed.
            InputError: The manifest is no longer what this writer wrote.
        """
        if self._manifest.shards[-1:] == (shard,):
            return True
        listed = manifest.decode(_content(self._descriptor))
        if listed.shards[-1:] == (shard,) and listed.committed == self._manifest.committed + 1:
            os.fsync(self._descriptor)  # it may have been interrupted before
            self._manifest = listed
            self._remove_replaced()
            return True
        os.ftruncate(self._descriptor, self._manifest.size)
        if self._is_in_place():
            _remove_own(self._folder / shard.file, shard)
        return False

    def close(self) -> None:
        """Closes the manifest and releases the lock. Closing twice is harmless."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
        self._lock.release()

    def _read(self, asked: Header) -> Manifest:
        """Reads the manifest, or begins one."""
        data = _content(self._descriptor)
        listed = manifest.decode(data)
        if _is_beginning(data) and not list(self._folder.glob(shards.PATTERN)):
            listed = self._begin(asked)
        elif listed.problem:
            raise InputError(f"{self._folder}: {listed.problem}; `hgpo verify {self._folder}` says more")
        else:
            os.ftruncate(self._descriptor, listed.size)  # an incomplete last line was never committed
        atomic.remove_abandoned(self._folder)
        return listed

    def _begin(self, header: Header) -> Manifest:
        os.ftruncate(self._descriptor, 0)
        line, _ = manifest.encode_line(header, "")
        atomic.append(self._descriptor, line)
        atomic.sync_folder(self._folder)
        return manifest.extend(Manifest(None, (), 0, ""), header)

    def _check_files(self) -> None:
        """Checks that the listed files are there, and lists a file that was complete but not yet listed."""
        for shard in self._manifest.shards:
            path = self._folder / shard.file
            try:
                size = reading.status(path).st_size
            except InputError as error:
                raise InputError(f"{error}; `hgpo verify {self._folder}` says more") from error
            if size != shard.bytes:
                raise InputError(f"{path} is damaged; `hgpo verify {self._folder}` says more")
        listed = {shard.file for shard in self._manifest.shards}
        known = listed.union(self._manifest.replaced)
        for path in sorted(path for path in self._folder.glob(shards.PATTERN) if path.name not in known):
            found = shards.adopt(path, self.header) if path.name == self.next_file else None
            if found is None or found.replaces not in {None, *listed}:
                raise InputError(
                    f"{path} is not of this run; move it elsewhere (scan_steps reads several runs at once)"
                )
            line, _ = manifest.encode_line(found, self._manifest.check)
            atomic.append(self._descriptor, line)
            self._manifest = manifest.extend(self._manifest, found)
        self._remove_replaced()

    def _remove_replaced(self) -> None:
        """Removes files that others replace. One that cannot be removed does no harm; the next writer tries again."""
        for name in self._manifest.replaced:
            with suppress(OSError):
                (self._folder / name).unlink()

    def _is_in_place(self) -> bool:
        try:
            there = (self._folder / manifest.NAME).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(there, os.fstat(self._descriptor))


def _open_manifest(path: Path) -> int:
    if path.exists() or path.is_symlink():
        reading.status(path)
    binary = getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | binary, 0o644)


def _remove_own(path: Path, shard: Shard) -> None:
    """Removes a shard that was not committed; another program's file under its name stays."""
    if not os.path.lexists(path) or reading.status(path).st_size != shard.bytes:
        return
    if hashlib.sha256(reading.read(path, shard.bytes)).hexdigest() == shard.sha256:
        path.unlink()


def _content(descriptor: int) -> bytes:
    if (size := os.fstat(descriptor).st_size) > manifest.MOST_BYTES:
        raise InputError(f"{manifest.NAME} has {size:,} bytes; expected at most {manifest.MOST_BYTES:,}")
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return file.read(manifest.MOST_BYTES)


def _is_beginning(data: bytes) -> bool:
    """Whether a manifest is empty, or a first line that was never complete; never another program's file."""
    opening = b'{"check":"'
    return b"\n" not in data and data.startswith(opening[: len(data)])


def _json_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as it is stored: JSON values without secrets."""
    try:
        values: dict[str, Any] = redact_json(manifest.plain(config))
        text = manifest.canonical(values)
    except TypeError as error:
        raise InputError(f"expected a configuration of JSON values: {error}") from error
    if len(text) > _MOST_CONFIG:
        raise InputError(f"the configuration takes {len(text):,} bytes as JSON; expected at most {_MOST_CONFIG:,}")
    return values


def _package_version() -> str:
    try:
        return importlib.metadata.version("hgpo")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _check_same(folder: Path, there: Header, header: Header, run: str | None, config: Mapping[str, Any] | None) -> None:
    """Raises unless a run that is there can be resumed with what was asked for."""
    if run is not None and header.run != there.run:
        raise InputError(f"{folder} holds the run {there.run!r}, not {header.run!r}; give another folder")
    if header.depth != there.depth:
        raise InputError(f"{folder} was written with depth {there.depth}, not {header.depth}; give another folder")
    if there.schema_version != schema.VERSION:
        raise InputError(
            f"{folder} was written in schema version {there.schema_version}; give another folder to write to"
        )
    before = redact_json(there.config)  # runs of version 0.1 may hold secrets
    if config is not None and header.config != before:
        names = sorted({*header.config, *before})
        name = next(name for name in names if header.config.get(name) != before.get(name))
        was, asked = before.get(name), header.config.get(name)
        raise InputError(
            f"{folder} was written with {name} = {was!r}, not {asked!r}; give another folder or the same value"
        )
