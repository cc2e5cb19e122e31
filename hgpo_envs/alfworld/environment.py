"""ALFWorld, described for Gymnasium, the command line and training."""

from __future__ import annotations

import os
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hgpo_envs.alfworld.engine.grammar import WORDINGS
from hgpo_envs.environment_spec import BACKENDS, EnvironmentSpec
from hgpo_envs.errors import check_known
from hgpo_envs.responses import parse

if TYPE_CHECKING:
    from hgpo_envs.engine import TaskSource


def open_source(
    *, data: str | None = None, grammar: str | None = None, backend: str = "native"
) -> TaskSource:
    """Open a set of ALFWorld games.

    Args:
        data: An official folder, a pack, or None for the bundled games.
        grammar: ``move`` or ``put`` converts every game to that wording; None plays each as its file has it.
        backend: ``native`` for this package's engine, ``original`` for the packages alfworld and textworld (extra
            ``alfworld``).

    Raises:
        InputError: If the backend is unknown, or the data cannot be used.
    """
    check_known("backend", backend, BACKENDS)
    if backend == "original":
        from hgpo_envs.alfworld.reference.original import OriginalSource

        return OriginalSource(data=data, grammar=grammar)
    from hgpo_envs.alfworld.data.source import ALFWorldSource

    return ALFWorldSource(data=data, grammar=grammar)


def data_places() -> list[Path]:
    """Return where official games usually are.

    These are the original's folder (``$ALFWORLD_DATA``, ``~/.cache/alfworld`` by default), and the names that
    ``hgpo data fetch alfworld`` and ``hgpo data build alfworld`` propose, in the working directory.
    """
    original = os.environ.get("ALFWORLD_DATA") or Path.home() / ".cache" / "alfworld"
    return [Path(original), Path("alfworld"), Path("alfworld.pack")]


ALFWORLD: Final = EnvironmentSpec(
    id="HGPO/ALFWorld-v0",
    source=open_source,
    max_steps=50,
    parse_response=partial(parse, lowercase=True),
    template=(files("hgpo_envs.alfworld") / "prompt.j2").read_text(encoding="utf-8"),
    players={
        "expert": "hgpo_envs.alfworld.players.expert:ExpertPlayer",
        "explorer": "hgpo_envs.alfworld.players.explorer:ExplorerPlayer",
    },
    evaluation_split="valid_seen",
    splits=("train", "valid_seen", "valid_unseen"),
    data_places=data_places,
    data_command="hgpo data fetch alfworld",
    wordings=WORDINGS,
)
