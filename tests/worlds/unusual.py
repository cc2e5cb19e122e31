"""What is rare and right: a split of more ids than memory holds, answers in a box, and archives of recordings."""

import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

from hgpo_envs.responses import Response


class Endless(Sequence):
    """2^62 ids, of which none is stored; iterating over all of them never ends."""

    def __len__(self):
        return 1 << 62

    def __getitem__(self, place):
        places = range(1 << 62)[place]
        return list(map(str, places)) if isinstance(place, slice) else str(places)


def boxed(text: str) -> Response:
    """Parse an answer in LaTeX's box."""
    found = re.search(r"\\boxed\{(.*?)\}", text)
    return Response(found[1], True, "") if found else Response("", False, "no box")


def in_box(action: str) -> str:
    """Write an answer for `boxed`."""
    return rf"\boxed{{{action}}}"


def unpacked(archive: Path, folder: Path) -> Path:
    """Unpack an archive of recordings into a folder, and return the folder."""
    with tarfile.open(archive) as packed:
        # Python 3.11.4 and later have it
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(folder)
    return folder
