"""Gets the official ALFWorld release: downloaded or from files that are there, unpacked, looked over, its source noted.

The addresses are those that `alfworld-download` of alfworld 0.4 names. No checksum of them is published; the note that
is left beside the games (`hgpo-source.json`) records what came.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.alfworld.source import SPLITS, ALFWorldSource
from hgpo_envs.errors import InputError
from hgpo_envs.fetch import Downloaded, download
from hgpo_envs.unpack import CannotWrite, require_free, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
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
        out: A new or empty folder. The archives wait beside it, in `<out>.downloads`, until all is well.
        assets: What to download.
        downloading: Makes, for the name of an archive, what is told how far its download is.
        unpacking: Is told the number of files unpacked so far.
        **settings: For `hgpo_envs.fetch.download`.

    Returns:
        The number of games in each split.
    """
    require_free(out)
    waiting = out.with_name(f"{out.name}.downloads")
    got = []
    for asset in assets:
        target = waiting / asset.url.rsplit("/", 1)[-1]
        one = _kept(target, asset)
        if one is None:
            progress = downloading(target.name) if downloading else None
            one = download(asset.url, target, sha256=asset.sha256, progress=progress, **settings)
            _note(target).write_text(json.dumps({**asdict(one), "path": target.name}))
        got.append(one)
    sources = [{**asdict(one), "path": one.path.name} for one in got]
    try:
        counts = install(out, [one.path for one in got], sources, unpacking=unpacking)
    except CannotWrite:
        raise
    except InputError:
        shutil.rmtree(waiting)  # what came is no good: the next try shall get it anew
        raise
    shutil.rmtree(waiting)
    return counts


def _note(archive: Path) -> Path:
    return archive.with_name(f"{archive.name}.json")


def _kept(archive: Path, asset: Asset) -> Downloaded | None:
    """An archive that an earlier, interrupted call has downloaded whole."""
    try:
        note = json.loads(_note(archive).read_text())
        one = Downloaded(**{**note, "path": archive})
        whole = archive.stat().st_size == one.size
    except (OSError, ValueError, TypeError):
        return None
    return one if whole and one.url == asset.url and asset.sha256 in (None, one.sha256) else None


def install_files(
    out: Path, archives: Sequence[Path], unpacking: Callable[[int], None] | None = None
) -> dict[str, int]:
    """Unpacks archives that are there already; they stay.

    Returns:
        The number of games in each split.
    """
    require_free(out)
    sources = []
    for archive in archives:
        if not archive.is_file():
            raise InputError(f"no archive at {archive}; name a zip or tar file of ALFWorld games")
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        sources.append({"path": archive.name, "size": archive.stat().st_size, "sha256": digest})
    return install(out, archives, sources, unpacking=unpacking)


def install(
    out: Path,
    archives: Sequence[Path],
    sources: Sequence[dict[str, Any]],
    unpacking: Callable[[int], None] | None = None,
) -> dict[str, int]:
    """Unpacks archives into `out`, if there are games in them, and notes where they came from."""
    staging = out.with_name(f"{out.name}.new")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        unpack(list(archives), staging, progress=unpacking)
        games = ALFWorldSource(staging)
        counts = {split: len(games.ids(split)) for split in SPLITS}
        (staging / NOTE).write_text(json.dumps({"games": counts, "sources": list(sources)}, indent=2) + "\n")
        if out.exists():
            out.rmdir()
        staging.rename(out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return counts
