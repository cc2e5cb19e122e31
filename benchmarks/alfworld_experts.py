"""Measure the two built-in players on ALFWorld: success within the step limit and steps to success, by task type.

    python benchmarks/alfworld_experts.py [DATA …] --generated 1200 --keep

DATA is a folder of official games or a pack. The bundled games are always played.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from record import make_parser, print_table, store
from rich.console import Console
from rich.progress import track

from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.alfworld.engine.game import compile_game
from hgpo_envs.alfworld.engine.goals import TASK_TYPES
from hgpo_envs.alfworld.generation.store import GeneratedStore
from hgpo_envs.engine import Task
from hgpo_envs.environment_spec import make_player

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_envs.alfworld.data.game_folder import GameStore

LIMIT = 50
SEED = 1
"""Seed of the generated games."""


def play(name: str, store: GameStore) -> Iterator[tuple[str, bool, int]]:
    """Return task type, success and number of steps of each game."""
    engine, player = ALFWorldEngine(), make_player(name, "ALFWorld")
    for task_id in track(store.ids(), name, console=Console(stderr=True)):
        game = compile_game(store.read(task_id), task_id)
        state = engine.play(game)
        player.reset(Task(task_id, "", game.task, ""), state, engine if name == "expert" else None)
        steps = 0
        while not state.terminated and steps < LIMIT:
            state = engine.act(player.act(state))
            steps += 1
        yield game.goal.task_type, state.won, steps


def summary(name: str, store: GameStore) -> dict[str, dict[str, float]]:
    """Return, by task type and in total: games, games won, and mean and maximum number of steps of the won games."""
    rows: dict[str, list[tuple[bool, int]]] = defaultdict(list)
    for task_type, won, steps in play(name, store):
        rows[task_type].append((won, steps))
        rows["all"].append((won, steps))
    table = {}
    for task_type in (*TASK_TYPES, "all"):
        lengths = [steps for won, steps in rows[task_type] if won]
        mean = round(fmean(lengths), 2) if lengths else float("nan")
        found = {"games": len(rows[task_type]), "won": len(lengths), "mean": mean, "most": max(lengths, default=0)}
        table[task_type] = found
    return table


def main() -> None:
    """Play all games with both players, print the tables and store the numbers."""
    parser = make_parser(__doc__)
    parser.add_argument("data", nargs="*", type=Path)
    parser.add_argument("--generated", type=int, default=0, help="number of additional generated games")
    given = parser.parse_args()
    began = time.process_time()
    stores: dict[str, GameStore] = {"bundled": ALFWorldSource().store}
    stores |= {path.name: ALFWorldSource(path).store for path in given.data}
    if given.generated:
        stores[f"{given.generated} generated, seed {SEED}"] = GeneratedStore(given.generated, SEED)
    results: dict[str, dict[str, dict[str, dict[str, float]]]] = defaultdict(dict)
    columns = {"task type": "{type}", "games": "{games:,}", "won": "{won:,}", "% won": "{share:.2%}"}
    columns |= {"mean steps": "{mean:.2f}", "most": "{most}"}
    for data, games in stores.items():
        for name in ("expert", "explorer"):
            found = results[data][name] = summary(name, games)
            rows = [{"type": kind, **row, "share": row["won"] / row["games"]} for kind, row in found.items()]
            print_table(rows, columns, f"{name} on {data}: won within {LIMIT} steps")
    report = {"limit": LIMIT, "results": results, "cpu_s": round(time.process_time() - began, 1)}
    print(store("alfworld_experts", report, keep=given.keep))


if __name__ == "__main__":
    main()
