"""Gets the official ALFWorld release: downloaded or from files that are there, unpacked, looked over, its source noted.

The addresses are those that `alfworld-download` of alfworld 0.4 names. No checksum of them is published; the note that
is left beside the games (`hgpo-source.json`) records each download.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.alfworld.data.source import SPLITS, ALFWorldSource
from hgpo_envs.atomic import making_folder, new_folder
from hgpo_envs.errors import InputError
from hgpo_envs.fetch import complete_download, open_partial
from hgpo_envs.unpack import CannotWrite, unpack
from hgpo_envs.untrusted_files import open_regular, writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from hgpo_envs.fetch import Progress

RELEASES: Final = "https://github.com/alfworld/alfworld/releases/download"
GAMES: Final = f"{RELEASES}/0.4.0/json_2.1.2_tw-pddl.zip"
"""The games: all that the native engine needs."""
TRAJECTORIES: Final = f"{RELEASES}/0.2.2/json_2.1.1_json.zip"
"""`traj_data.json` of every game (1.4 GB), which the original program wants beside it."""
NOTE: Final = "hgpo-source.json"


@dataclass(frozen=True, slots=True)
class Asset:
    """One archive of a release.

    Attributes:
        url: Where it is, or was copied from.
        sha256: What it must be; None where that is not known.
    """

    url: str
    sha256: str | None = None


def assets(urls: Sequence[str] | None = None, sha256: str | None = None, *, trajectories: bool = False) -> list[Asset]:
    """What to download: the official release, or archives at other addresses.

    Args:
        urls: Instead of the official addresses.
        sha256: Of the one archive that there is.
        trajectories: With `TRAJECTORIES`.
    """
    chosen = list(urls or [GAMES, *([TRAJECTORIES] if trajectories else [])])
    if sha256 is not None and len(chosen) > 1:
        raise InputError(f"a checksum is for one archive; got one checksum and {len(chosen)} archives")
    return [Asset(url, sha256) for url in chosen]


def fetch_release(
    out: Path,
    assets: Sequence[Asset],
    *,
    downloading: Callable[[str], Progress] | None = None,
    unpacking: Callable[[int], None] | None = None,
    **settings: Any,
) -> dict[str, int]:
    """Downloads archives and unpacks them.

    Args:
        out: A new or empty folder. The archives wait beside it (`hgpo_envs.partial_download`) until the games are
            complete; the next call resumes what was interrupted.
        assets: What to download.
        downloading: Makes the progress callback of an archive, by its name.
        unpacking: Called with the number of files unpacked so far.
        **settings: For `hgpo_envs.fetch.complete_download`.

    Returns:
        The number of games in each split.
    """
    with writing(out), making_folder(out.absolute().parent), ExitStack() as stack:
        parts, sources = [], []
        with new_games(out) as made:
            for asset in assets:
                part = stack.enter_context(open_partial(out.absolute().parent, asset.url))
                parts.append(part)
                name = asset.url.rsplit("/", 1)[-1]
                progress = downloading(name) if downloading else None
                got = complete_download(part, asset.url, sha256=asset.sha256, progress=progress, **settings)
                sources.append({**asdict(got), "path": name})
            try:
                counts = _install(made, [part.path for part in parts], sources, unpacking)
            except CannotWrite:
                raise
            except InputError:
                for part in parts:  # they are of no use: the next try shall download them again
                    part.remove()
                raise
        for part in parts:
            part.remove()
    return counts


def install_files(
    out: Path, archives: Sequence[Path], unpacking: Callable[[int], None] | None = None
) -> dict[str, int]:
    """Unpacks archives that the user has; they stay.

    Returns:
        The number of games in each split.
    """
    with new_games(out) as made:
        sources = []
        for archive in archives:
            with open_regular(archive, "zip or tar file of ALFWorld games") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                sources.append({"path": archive.name, "size": file.tell(), "sha256": digest})
        return _install(made, archives, sources, unpacking)


@contextmanager
def new_games(out: Path) -> Iterator[Path]:
    """`hgpo_envs.atomic.new_folder`, with the disk's errors in one line."""
    with writing(out), new_folder(out) as made:
        yield made


def _install(
    made: Path,
    archives: Sequence[Path],
    sources: Sequence[dict[str, Any]],
    unpacking: Callable[[int], None] | None = None,
) -> dict[str, int]:
    """Unpacks archives into an empty folder, if there are games in them, and notes where they came from."""
    unpack(list(archives), made, progress=unpacking)
    games = ALFWorldSource(made)
    counts = {split: len(games.ids(split)) for split in SPLITS}
    (made / NOTE).write_text(json.dumps({"games": counts, "sources": list(sources)}, indent=2) + "\n", "utf-8")
    return counts
