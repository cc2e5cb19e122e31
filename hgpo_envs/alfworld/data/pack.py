"""Packs: many game files in one zip file, which opens in a few milliseconds and reads games on access.

Each game is a member ``<task id>.json``. Domains and grammars, of which thousands of games have only a few, are stored
once, in the last member, ``texts.json``. Any zip program can read a pack; its members' checksums (CRC-32) are checked
when a game is read.
"""

from __future__ import annotations

import io
import os
import zipfile
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec

from hgpo_envs.alfworld.engine.game import LONGEST_FILE, checked, compile_game
from hgpo_envs.alfworld.engine.grammar import join_task, split_task
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.atomic import making_folder, new_path
from hgpo_envs.files.unpack import BROKEN, open_zip
from hgpo_envs.files.untrusted_files import open_regular, read_bytes, writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    PackedGame = tuple[str, Mapping[str, Any], Mapping[str, Any] | None]
    """Task id, JSON object of the game file, JSON object of its `traj_data.json` or None."""


_T = TypeVar("_T")

COMMENT: Final = b"HGPO pack of ALFWorld games, format 2"
"""The archive's comment, which ends the file."""
LARGEST: Final = 1 << 28
"""The maximum size of a pack in bytes. All official games take 20 MB."""
_TEXTS: Final = "texts.json"
_KEPT_OF_TRAJECTORY: Final = ("task_id", "task_type", "pddl_params", "scene")
"""The stored fields of `traj_data.json`: those that the original's text environment and expert read, and the scene."""


class _Entry(msgspec.Struct):
    """A game as it is stored: its file without domain, grammar and task, which are numbers of `_Texts` and a text."""

    game: dict[str, Any]
    task: str
    domain: Annotated[int, msgspec.Meta(ge=0)]
    grammar: Annotated[int, msgspec.Meta(ge=0)]
    trajectory: dict[str, Any] | None


class _Texts(msgspec.Struct):
    domains: list[str]
    grammars: list[str]


class PackStore:
    """A pack open for reading.

    Only the list of games and the common texts are decompressed at first.

    Args:
        path: The file.

    Attributes:
        ids: All task ids, sorted.

    Raises:
        InputError: If the file is not a pack, is truncated or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        data = read_bytes(path, LARGEST, "pack of ALFWorld games")
        if not data.endswith(COMMENT):
            raise InputError(
                f"{path} is not a complete pack of ALFWorld games; expected a file from `hgpo data build alfworld`"
            )
        try:
            # In memory, because processes that were forked would share the position in an open file.
            self._archive = open_zip(io.BytesIO(data))
        except (InputError, *BROKEN) as error:
            raise self._damaged(error) from None
        members = self._archive.infolist()
        self._members = {
            member.filename.removesuffix(".json"): member for member in members
        }
        if len(self._members) < len(members) or _TEXTS not in self._archive.namelist():
            raise self._damaged(f"a game occurs twice, or {_TEXTS} is missing")
        texts = _TEXTS.removesuffix(".json")
        self._texts = self._decoded(texts, _Texts)
        del self._members[texts]
        self.ids: Sequence[str] = sorted(self._members)

    def _decoded(self, name: str, kind: type[_T]) -> _T:
        """Return the content of a member. Raises KeyError for an unknown one."""
        member = self._members[name]
        try:
            if member.file_size <= LONGEST_FILE:
                with self._archive.open(member) as file:
                    # without a number, more than the declared bytes could be unpacked
                    return msgspec.json.decode(file.read(member.file_size), type=kind)
        except (msgspec.DecodeError, RecursionError, *BROKEN) as error:
            raise self._damaged(f"{name}: {error}") from None
        raise self._damaged(
            f"{name}: expected at most {LONGEST_FILE:,} bytes, received {member.file_size:,}"
        )

    def _damaged(self, reason: object) -> InputError:
        return InputError(
            f"{self.path} is damaged: {one_line(reason, 300)}; copy or build it again"
        )

    def __reduce__(self) -> tuple[type[PackStore], tuple[Path]]:
        return PackStore, (self.path,)

    def read(self, task_id: str) -> dict[str, Any]:
        """Return the JSON object of a game file. Raises KeyError for an unknown id."""
        entry = self._decoded(task_id, _Entry)
        domains = self._texts.domains
        grammars = self._texts.grammars
        if entry.domain >= len(domains) or entry.grammar >= len(grammars):
            raise self._damaged(f"{task_id}: its domain or grammar is not in the pack")
        try:
            grammar = join_task(grammars[entry.grammar], entry.task)
            return checked(
                entry.game | {"pddl_domain": domains[entry.domain], "grammar": grammar}
            )
        except InputError as error:
            raise self._damaged(f"{task_id}: {error}") from None

    def trajectory(self, task_id: str) -> dict[str, Any] | None:
        """Return the stored fields of the game's `traj_data.json`, or None if it had none."""
        return self._decoded(task_id, _Entry).trajectory


def write_pack(path: Path, games: Iterable[PackedGame]) -> int:
    """Write a pack atomically. Missing parents are created.

    Args:
        path: The file to write. An existing file is replaced only if it is a pack.
        games: The games, sorted by task id.

    Returns:
        The number of games.

    Raises:
        InputError: If the engine does not support a game, the ids are not sorted and distinct, there is no game, `path`
            exists and is not a pack, or the disk is full.
    """
    check_replaceable(path)
    parent = path.absolute().parent
    with (
        writing(path),
        making_folder(parent),
        new_path(path) as content,
        content.open("wb") as file,
    ):
        return _write(file, games)


def check_replaceable(path: Path) -> None:
    """Raise InputError if a path exists and is not a pack."""
    if not os.path.lexists(path):
        return
    with open_regular(path, "pack to replace") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(COMMENT)))
        if file.read() != COMMENT:
            raise InputError(
                f"{path} already exists and is not a pack; choose another name, or remove it first"
            )


def _write(file: IO[bytes], games: Iterable[PackedGame]) -> int:
    domains: dict[str, int] = {}
    grammars: dict[str, int] = {}
    last = ""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:

        def add(name: str, value: _Entry | _Texts) -> None:
            # of 1980, so that equal games give equal files
            member = zipfile.ZipInfo(name)
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, msgspec.json.encode(value))

        for task_id, data, trajectory in games:
            if task_id <= last:
                raise InputError(
                    f"{task_id} is out of order or a duplicate: expected games sorted by task id"
                )
            last = task_id
            compile_game(data, task_id)
            grammar, task = split_task(data["grammar"])
            entry = _Entry(
                game={**data, "pddl_domain": "", "grammar": ""},
                task=task,
                domain=domains.setdefault(data["pddl_domain"], len(domains)),
                grammar=grammars.setdefault(grammar, len(grammars)),
                trajectory=_kept(trajectory),
            )
            add(f"{task_id}.json", entry)
        if not last:
            raise InputError("no game to pack")
        add(_TEXTS, _Texts(list(domains), list(grammars)))
        archive.comment = COMMENT
        return len(archive.namelist()) - 1


def _kept(trajectory: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if trajectory is None:
        return None
    kept = {key: trajectory[key] for key in _KEPT_OF_TRAJECTORY if key in trajectory}
    scene = kept.get("scene")
    if isinstance(scene, dict):
        kept["scene"] = {
            key: scene[key] for key in ("floor_plan", "scene_num") if key in scene
        }
    return kept
