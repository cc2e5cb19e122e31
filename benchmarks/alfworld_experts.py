"""Measure the two built-in players on ALFWorld: success within the step limit and steps to success, by task type.

    python -m benchmarks alfworld_experts --data DATA … --generated 1200

DATA is a folder of official games or a pack. The bundled games are always played.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from benchmarks.runner import Row
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.alfworld.engine.game import compile_game
from hgpo_envs.alfworld.generation.store import GeneratedStore
from hgpo_envs.engine import Task
from hgpo_envs.environment_spec import make_player

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hgpo_envs.alfworld.data.game_folder import GameStore

LIMIT = 50
SEED = 1
"""Seed of the generated games."""


def play(name: str, store: GameStore) -> Iterator[tuple[str, bool, int]]:
    """Return task type, success and number of steps of each game."""
    engine = ALFWorldEngine()
    player = make_player(name, "ALFWorld")
    for task_id in track(store.ids, name, console=Console(stderr=True)):
        game = compile_game(store.read(task_id), task_id)
        state = engine.play(game)
        player.reset(
            Task(task_id, "", game.task, ""),
            state,
            engine if name == "expert" else None,
        )
        steps = 0
        while not state.terminated and steps < LIMIT:
            state = engine.act(player.act(state))
            steps += 1
        yield game.goal.task_type, state.won, steps


def summary(name: str, store: GameStore, data: str) -> Iterator[Row]:
    """Return, in total and by task type: the share of games won, and mean and maximum number of steps of these."""
    played: dict[str, list[tuple[bool, int]]] = defaultdict(list)
    for task_type, won, steps in play(name, store):
        played["all"].append((won, steps))
        played[task_type].append((won, steps))
    for task_type, found in played.items():
        lengths = [steps for won, steps in found if won] or [0]
        note = f"{fmean(lengths):.2f} steps, at most {max(lengths)}"
        share = sum(won for won, _ in found) / len(found)
        shown = "page" if (name, task_type) == ("expert", "all") else ""
        what = f"ALFWorld: {len(found):,} {data} games won by the {name} within {LIMIT} steps"
        yield Row(what, share, "%", note=note, case=task_type, shown=shown)


def run(data: tuple[Path, ...] = (), generated: int = 0) -> Iterator[Row]:
    """Play all games with both players."""
    stores: dict[str, GameStore] = {"bundled": ALFWorldSource().store}
    stores |= {path.name: ALFWorldSource(path).store for path in data}
    if generated:
        stores["generated"] = GeneratedStore(generated, SEED)
    for name, store in stores.items():
        for player in ("expert", "explorer"):
            yield from summary(player, store, name)
