"""Installation of the official ALFWorld release, from the network or from local archives.

The addresses are those of `alfworld-download` in alfworld 0.4. No checksums are published for them. A note beside the
games (`hgpo-source.json`) records each archive with its checksum.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from hgpo_envs.alfworld.data.game_folder import SPLITS
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import new_folder
from hgpo_envs.files.download import NoConnection, download
from hgpo_envs.files.secrets import redact
from hgpo_envs.files.unpack import unpack
from hgpo_envs.files.untrusted_files import sha256 as file_sha256
from hgpo_envs.files.untrusted_files import writing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hgpo_envs.files.download import Progress

RELEASES: Final = "https://github.com/alfworld/alfworld/releases/download"
GAMES: Final = f"{RELEASES}/0.4.0/json_2.1.2_tw-pddl.zip"
"""The games, sufficient for the native engine."""
TRAJECTORIES: Final = f"{RELEASES}/0.2.2/json_2.1.1_json.zip"
"""`traj_data.json` of every game (1.4 GB), which the original program also needs."""
NOTE: Final = "hgpo-source.json"


def fetch_release(
    out: Path,
    urls: Sequence[str] | None = None,
    sha256: str | None = None,
    *,
    local: Sequence[Path] = (),
    trajectories: bool = False,
    downloading: Callable[[str], Progress] | None = None,
    unpacking: Callable[[int], object] | None = None,
) -> dict[str, int]:
    """Download the archives of the official release, or others, and unpack them.

    Args:
        out: A new or empty folder.
        urls: The addresses to use instead of the official ones.
        sha256: The expected SHA-256 of the archive, if there is only one.
        local: Archives that are here, which are kept. Nothing is downloaded then.
        trajectories: Whether to include `TRAJECTORIES` in the official release.
        downloading: Returns the progress callback for an archive's name.
        unpacking: Called with the number of files unpacked so far.

    Returns:
        The number of games in each split.

    Raises:
        InputError: If a download fails, an archive is damaged or contains no games, a checksum is not one or is given
            for several archives, or the folder cannot be written.
    """
    urls = list(urls or [GAMES, *([TRAJECTORIES] if trajectories else [])])
    if sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise InputError(
            f"--sha256: expected 64 hexadecimal digits, received {sha256!r:.80}"
        )
    if sha256 is not None and len(urls) > 1:
        raise InputError(
            f"expected one archive with one checksum, received {len(urls)} archives; omit the checksum"
        )
    with writing(out), new_folder(out) as folder:
        if local:
            urls = []
        archives = {path.name: path for path in local}
        for number, url in enumerate(urls):
            archives[url] = folder / f".archive-{number}"
            progress = downloading(url.rsplit("/", 1)[-1]) if downloading else None
            try:
                download(url, archives[url], progress)
            except NoConnection as error:
                raise NoConnection(f"{error}. {_offline(urls)}") from None
        counts = _install(folder, archives, sha256, unpacking)
        for url in urls:
            archives[url].unlink()
        return counts


def _offline(urls: Sequence[str]) -> str:
    archives = " ".join(f"--from {url.rsplit('/', 1)[-1]}" for url in urls)
    return (
        f"Without a network, download {' and '.join(map(redact, urls))} elsewhere and run "
        f"`hgpo data fetch alfworld {archives}`; the bundled games need no download"
    )


def _install(
    folder: Path,
    archives: Mapping[str, Path],
    sha256: str | None,
    unpacking: Callable[[int], object] | None,
) -> dict[str, int]:
    """Unpack archives into an empty folder, check that it contains games, and write the note about their sources."""
    sources = []
    for address, path in archives.items():
        digest = file_sha256(path, "zip file of ALFWorld games")
        sources.append(
            {"source": redact(address), "size": path.stat().st_size, "sha256": digest}
        )
        if sha256 is not None and digest != sha256.lower():
            raise InputError(
                f"{redact(address)}: expected SHA-256 {sha256.lower()}, received {digest}"
            )
        try:
            unpack(path, folder, unpacking)
        except InputError as error:
            # which names the path of a download that will not exist any more
            raise InputError(str(error).replace(str(path), redact(address))) from None
    games = ALFWorldSource(folder)
    counts = {split: len(games.ids(split)) for split in SPLITS}
    (folder / NOTE).write_text(
        json.dumps({"games": counts, "sources": sources}, indent=2) + "\n", "utf-8"
    )
    return counts
