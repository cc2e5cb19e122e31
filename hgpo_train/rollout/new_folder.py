"""A command that fails before it has stored anything leaves no folder."""

from __future__ import annotations

import contextlib
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from hgpo_datasets import manifest
from hgpo_envs.atomic import FolderLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_AT_THE_START: Final = {".lock", manifest.NAME}
"""The files of a run that contains nothing."""


@contextmanager
def removed_if_unused(folder: Path) -> Iterator[None]:
    """Remove a run's folder if the block raises before anything is stored, and with it the parents that are new.

    A folder that existed before the block is unchanged.

    Args:
        folder: The folder, which the block creates and unlocks.
    """
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        yield
    except BaseException:
        if new and folder.is_dir():
            with contextlib.suppress(OSError, ValueError):  # another process uses the folder, or it cannot be removed
                _remove_if_unused(folder, new[1:])
        raise


def _remove_if_unused(folder: Path, parents: list[Path]) -> None:
    with FolderLock(folder, "removing an empty run"):
        if not {path.name for path in folder.rglob("*") if not path.is_dir()} <= _AT_THE_START:
            return
    shutil.rmtree(folder)
    for parent in parents:
        parent.rmdir()
