"""A run's folder opened for writing: its lock, its manifest, and its shards.

A shard is committed in two steps: its file is written atomically, then its line is appended to the manifest. If a
failure or an interrupt separates the two steps, `settle` makes the folder consistent with the manifest on disk.

The folder of the shards contains nothing but complete shards, at any time. All other files are in the run's folder.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import polars as pl

from hgpo_datasets import manifest, shards
from hgpo_datasets.sources import STEPS, check_text
from hgpo_envs.errors import InputError
from hgpo_envs.files import atomic

if TYPE_CHECKING:
    from pathlib import Path

    from hgpo_datasets.manifest import Header, Manifest, Shard


class ShardFolder:
    """A run's folder with its lock and its open manifest.

    Arguments and errors are those of `StepWriter`; an existing run keeps its own header.

    Attributes:
        manifest: The manifest, as it is on disk.
        header: The manifest's description of the run.
        steps: The folder of the shards.
        is_open: Whether the folder is open for writing.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        check_text(folder)
        self._folder = folder
        self.steps = folder / STEPS
        self._descriptor = -1
        self._lock = None
        self.is_open = False
        path = folder / manifest.NAME
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            # 1. Lock the folder, and open the manifest, or create it.
            try:
                atomic.make_folder(folder)
                self._lock = atomic.FolderLock(folder, "writing a run")
                atomic.remove_abandoned(folder)
                atomic.refuse_link(self.steps)
                if not os.path.lexists(path):
                    atomic.write_file(path, manifest.encode_line(header, "")[0])
                self._descriptor = atomic.open_inside(path, os.O_APPEND)
                self._read()
                atomic.make_folder(self.steps)
            except (FileExistsError, NotADirectoryError) as error:
                raise InputError(
                    f"expected a folder, received the file {error.filename}; use another path"
                ) from error
            # 2. Check the files that it lists.
            for name, shard in self.manifest.shards.items():
                file = self.steps / name
                if not file.is_file() or file.stat().st_size != shard.bytes:
                    raise InputError(
                        f"{file} is missing or damaged; run `hgpo verify {folder}` for details"
                    )
            # 3. Remove a file that it does not list, because its writer was killed before.
            file = self.steps / self.manifest.next_file
            if os.path.lexists(file):
                shards.file_size(file)
                own = shards.metadata_of(self.header).items()
                try:
                    is_own = own <= pl.read_parquet_metadata(file).items()
                except shards.POLARS_ERRORS:
                    is_own = False
                if not is_own:
                    raise InputError(
                        f"{file} is damaged or belongs to another run; move it elsewhere"
                    )
                file.unlink()
            self._remove_replaced()
            self.is_open = True
            on_failure.pop_all()

    def check_free(self) -> None:
        """Raise InputError if the folder was moved or replaced, or another program created the next file."""
        try:
            in_place = os.path.samestat(
                (self._folder / manifest.NAME).stat(), os.fstat(self._descriptor)
            )
        except (FileNotFoundError, NotADirectoryError):
            in_place = False
        if not in_place:
            raise InputError(
                f"{self._folder} was moved or replaced while its run was open; move it back, commit again"
            )
        if os.path.lexists(path := self.steps / self.manifest.next_file):
            raise InputError(
                f"{path} was created by another program; move it elsewhere and commit again"
            )

    def write(self, shard: Shard, data: bytes) -> None:
        """Write a shard and append its line to the manifest. Both are on disk when this returns.

        Call `check_free` before, and `settle` after any exception.
        """
        atomic.write_file(
            self.steps / shard.file,
            data,
            scratch_in=self._folder,
        )
        line, _ = manifest.encode_line(shard, self.manifest.check)
        atomic.append(self._descriptor, line)
        self.manifest.add(shard)
        self._remove_replaced()

    def settle(self, shard: Shard) -> bool:
        """Make the folder consistent with the manifest after `write` failed or was interrupted.

        Returns whether the shard is committed. If this fails too, call it again.
        """
        listed = self._read()
        if shard.file in listed.shards:
            # `write` may have been interrupted before its own fsync
            os.fsync(self._descriptor)
            self._remove_replaced()
            return True
        (self.steps / shard.file).unlink(missing_ok=True)
        return False

    def close(self) -> None:
        """Close the manifest and release the lock. Further calls have no effect."""
        self.is_open = False
        if self._descriptor >= 0:
            descriptor = self._descriptor
            self._descriptor = -1
            os.close(descriptor)
        if self._lock is not None:
            self._lock.release()

    def _read(self) -> Manifest:
        """Read the manifest. Remove an incomplete last line, which was never committed."""
        if (size := os.fstat(self._descriptor).st_size) > manifest.MOST_BYTES:
            raise InputError(
                f"{manifest.NAME}: expected at most {manifest.MOST_BYTES:,} bytes, received {size:,}"
            )
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        # needs no new descriptor after a failure
        with os.fdopen(self._descriptor, "rb", closefd=False) as file:
            listed = manifest.decode(file.read())
        if listed.problem or listed.header is None:
            raise InputError(
                f"{self._folder}: {listed.problem}; run `hgpo verify {self._folder}` for details"
            )
        os.ftruncate(self._descriptor, listed.size)
        self.manifest = listed
        self.header = listed.header
        return listed

    def _remove_replaced(self) -> None:
        """Remove replaced files. Errors are ignored: readers skip these files, and the next writer tries again."""
        for name in self.manifest.replaced:
            with suppress(OSError):
                (self.steps / name).unlink()
