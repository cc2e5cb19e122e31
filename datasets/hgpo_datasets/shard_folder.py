"""A run's folder opened for writing: its lock, its manifest, and its files.

A shard is committed in two steps: its file is written atomically, then its line is appended to the manifest. If a
failure or an interrupt separates the two steps, `settle` reads the manifest and makes the folder consistent with it.

The folder of the shards contains nothing but complete shards, at any time. All other files are in the run's folder.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from hgpo_datasets import manifest, schema, shards
from hgpo_datasets.manifest import Header, Manifest, Shard
from hgpo_datasets.sources import STEPS, check_text, is_run
from hgpo_envs.errors import InputError
from hgpo_envs.files import atomic
from hgpo_envs.files.secrets import redact_json
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_envs.plugins import installed_version
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

_MOST_CONFIG: Final = 1 << 20


class ShardFolder:
    """A run's folder with its lock and its open manifest.

    Args:
        folder: Absolute path of the folder; created if it is missing.
        run: Name of the run; the folder's name by default.
        config: Configuration of the run; None accepts the configuration of an existing run.
        depth: Largest k of the stored history and context hashes.
        lock: A lock of the folder that the caller holds and keeps; None takes and releases one.

    Attributes:
        header: The manifest's first line.
        shards: The folder of the shards, `steps/`.

    Raises:
        InputError: Another writer has the run open, or the folder contains a different run or unknown files.
        OSError: The folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        run: str | None,
        config: Mapping[str, Any] | None,
        depth: int,
        lock: atomic.FolderLock | None = None,
    ) -> None:
        check_text(folder)
        values = _json_values(config or {})
        self._folder, self._descriptor = folder, -1
        try:
            atomic.make_folder(folder)
        except (FileExistsError, NotADirectoryError) as error:
            raise InputError(f"expected a folder, received the file {error.filename}; use another path") from error
        name = clean_text(run or folder.resolve().name)
        asked = Header(name, depth, schema.VERSION, installed_version("hgpo") or "not installed", values)
        if lock is not None and not (lock.is_held and lock.folder.samefile(folder)):
            raise InputError(f"expected a held lock of {folder}, received one of {lock.folder}")
        self._own_lock = atomic.FolderLock(folder, "writing a run") if lock is None else None
        try:
            _check_free(folder / STEPS)
            self._descriptor = _open_manifest(folder / manifest.NAME)
            self._manifest = self._read(asked)
            self.shards = folder / STEPS
            atomic.make_folder(self.shards)
            self._shards_status = self.shards.stat()
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
        """Whether the folder is open for writing."""
        return self._descriptor >= 0

    @property
    def listed(self) -> tuple[Shard, ...]:
        """The committed shards."""
        return self._manifest.shards

    def columns(self, shard: Shard, names: Sequence[str]) -> pl.DataFrame:
        """Read some columns of a committed shard. Only their pages are read, and their checksums are verified.

        Raises:
            InputError: One of these pages is damaged.
        """
        path = self.shards / shard.file
        try:
            return shards.decode(path, names)
        except ValueError as error:
            raise InputError(f"{path} is damaged ({error}); run `hgpo verify {path}` for details") from error

    @property
    def next_file(self) -> str:
        """The name of the next shard."""
        return manifest.file_name(self._manifest.committed)

    @property
    def metadata(self) -> dict[str, str]:
        """Key-value metadata that each file of the run contains."""
        config = manifest.canonical(self.header.config).decode()
        return {shards.RUN_KEY: self.header.run, shards.CONFIG_KEY: config}

    def check_room(self, shard: Shard) -> None:
        """Check that the next shard can be written.

        Raises:
            InputError: The folder was moved or replaced, the shard's file already exists, or the manifest is full.
        """
        if not self._is_in_place():
            raise InputError(
                f"{self._folder} was moved or replaced while its run was open; move it back and commit again"
            )
        if os.path.lexists(self.shards / shard.file):
            raise InputError(
                f"{self.shards / shard.file} was created by another program; move it elsewhere and commit again"
            )
        line, _ = manifest.encode_line(shard, self._manifest.check)
        if self._manifest.size + len(line) > manifest.MOST_BYTES:
            raise InputError(f"the manifest of {self._folder} is full ({manifest.MOST_BYTES:,} bytes); start a new run")

    def write(self, shard: Shard, data: bytes) -> None:
        """Write a shard and append its line to the manifest. Both are on disk when this returns.

        Call `settle` after any exception.

        Raises:
            OSError: The disk cannot be written.
        """
        atomic.write_file(self.shards / shard.file, data, scratch_in=self._folder)
        line, _ = manifest.encode_line(shard, self._manifest.check)
        atomic.append(self._descriptor, line)
        self._manifest = manifest.extend(self._manifest, shard)
        self._remove_replaced()

    def settle(self, shard: Shard) -> bool:
        """Make the folder consistent with the manifest after `write`, successful or not. May be called repeatedly.

        Returns:
            Whether the shard is committed.

        Raises:
            OSError: The disk cannot be written; the folder may contain a file that is not in the manifest.
            InputError: Another program changed the manifest.
        """
        if self._manifest.shards[-1:] == (shard,):
            return True
        listed = manifest.decode(_content(self._descriptor))
        if listed.shards[-1:] == (shard,) and listed.committed == self._manifest.committed + 1:
            os.fsync(self._descriptor)  # `write` may have been interrupted before its own fsync
            self._manifest = listed
            self._remove_replaced()
            return True
        os.ftruncate(self._descriptor, self._manifest.size)
        if self._is_in_place():
            _remove_own(self.shards / shard.file, shard)
        return False

    def close(self) -> None:
        """Close the manifest and release the lock. Further calls have no effect."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
        if self._own_lock is not None:
            self._own_lock.release()

    def _read(self, asked: Header) -> Manifest:
        """Read the manifest, or create it."""
        data = _content(self._descriptor)
        listed = manifest.decode(data)
        if _is_beginning(data) and not any((self._folder / STEPS).glob(shards.PATTERN)):
            listed = self._begin(asked)
        elif listed.problem:
            raise InputError(f"{self._folder}: {listed.problem}; run `hgpo verify {self._folder}` for details")
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
        """Check that the listed files exist, and list a complete file that an interrupted writer did not list."""
        for shard in self._manifest.shards:
            path = self.shards / shard.file
            try:
                size = shards.file_size(path)
            except InputError as error:
                raise InputError(f"{error}; run `hgpo verify {self._folder}` for details") from error
            if size != shard.bytes:
                raise InputError(f"{path} is damaged; run `hgpo verify {self._folder}` for details")
        listed = {shard.file for shard in self._manifest.shards}
        known = listed.union(self._manifest.replaced)
        for path in sorted(path for path in self.shards.glob(shards.PATTERN) if path.name not in known):
            found = shards.adopt(path, self.header) if path.name == self.next_file else None
            if found is None or found.replaces not in {None, *listed}:
                raise InputError(
                    f"{path} does not belong to this run; move it elsewhere (scan_steps can read several runs)"
                )
            line, _ = manifest.encode_line(found, self._manifest.check)
            atomic.append(self._descriptor, line)
            self._manifest = manifest.extend(self._manifest, found)
        self._remove_replaced()

    def _remove_replaced(self) -> None:
        """Remove replaced files. Errors are ignored: readers skip these files, and the next writer tries again."""
        for name in self._manifest.replaced:
            with suppress(OSError):
                (self.shards / name).unlink()

    def _is_in_place(self) -> bool:
        try:
            listed, place = (self._folder / manifest.NAME).stat(), self.shards.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        same = os.path.samestat
        return same(listed, os.fstat(self._descriptor)) and same(place, self._shards_status)


def _check_free(steps: Path) -> None:
    """Check that `steps/` can be created, or is a folder that belongs to no other run."""
    is_link = steps.is_symlink() and not is_run(steps.parent)
    if is_link or (os.path.lexists(steps) and not steps.is_dir()):
        raise InputError(f"expected a folder {steps}, received another file or a link; remove it, or use another path")
    if is_run(steps):
        raise InputError(f"{steps} contains another run; use another path than {steps.parent}")


def _open_manifest(path: Path) -> int:
    if path.exists() or path.is_symlink():
        shards.file_size(path)
    binary = getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | binary, 0o644)


def _remove_own(path: Path, shard: Shard) -> None:
    """Remove a shard that was not committed, unless the file under its name has other content."""
    if not os.path.lexists(path) or shards.file_size(path) != shard.bytes:
        return
    if hashlib.sha256(read_bytes(path, shard.bytes, shards.WHAT)).hexdigest() == shard.sha256:
        path.unlink()


def _content(descriptor: int) -> bytes:
    if (size := os.fstat(descriptor).st_size) > manifest.MOST_BYTES:
        raise InputError(f"{manifest.NAME}: expected at most {manifest.MOST_BYTES:,} bytes, received {size:,}")
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return file.read(manifest.MOST_BYTES)


def _is_beginning(data: bytes) -> bool:
    """Return whether a manifest is empty or an incomplete first line, and not a file of another program."""
    opening = b'{"check":"'
    return b"\n" not in data and data.startswith(opening[: len(data)])


def _json_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the configuration to its stored form: JSON values without secrets."""
    try:
        values: dict[str, Any] = redact_json(manifest.plain(config))
        text = manifest.canonical(values)
    except TypeError as error:
        raise InputError(f"expected a configuration of JSON values: {error}") from error
    if len(text) > _MOST_CONFIG:
        raise InputError(f"expected at most {_MOST_CONFIG:,} bytes of JSON as configuration, received {len(text):,}")
    return values


def _check_same(folder: Path, there: Header, header: Header, run: str | None, config: Mapping[str, Any] | None) -> None:
    """Raise unless the existing run can be resumed with the requested name, configuration and depth."""
    if run is not None and header.run != there.run:
        raise InputError(f"{folder} contains the run {there.run!r}, not {header.run!r}; use another folder")
    if header.depth != there.depth:
        raise InputError(f"{folder} was written with depth {there.depth}, not {header.depth}; use another folder")
    if there.schema_version != schema.VERSION:
        raise InputError(
            f"{folder} was written with schema version {there.schema_version}, not {schema.VERSION}; use another folder"
        )
    now, was = _leaves(header.config), _leaves(there.config)
    for name in sorted(now.keys() | was.keys()) if config is not None else ():
        before, after = (repr(values[name]) if name in values else "nothing" for values in (was, now))
        if before != after:
            line = f"{folder} was written with {name} = {before}, not {after}"
            raise InputError(f"{line}; use another folder or the same value")


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by their dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        inner = isinstance(value, dict) and value
        found |= _leaves(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return found
