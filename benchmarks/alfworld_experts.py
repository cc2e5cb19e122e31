"""How the two scripted players fare on ALFWorld: success within the step limit and steps to success, by task type.

    python benchmarks/alfworld_experts.py [DATA …] --generated 1200 --out benchmarks/results/alfworld_experts.json

DATA is a folder of official games or a pack. The bundled games are always played, and as many generated ones as asked.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track
from rich.table import Table

from hgpo_envs import players
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.alfworld.engine.game import TASK_TYPES, compile_game
from hgpo_envs.alfworld.generation.store import GeneratedStore
from hgpo_envs.engine import Task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_envs.alfworld.data.game_folder import GameStore

LIMIT = 50


def play(name: str, store: GameStore) -> Iterator[tuple[str, bool, int]]:
    """Task type, success and number of steps of each game."""
    engine, player = ALFWorldEngine(), players.make_player(name, "ALFWorld")
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
    """Per task type and for all: games, games won, mean and greatest number of steps of those."""
    rows: dict[str, list[tuple[bool, int]]] = defaultdict(list)
    for task_type, won, steps in play(name, store):
        rows[task_type].append((won, steps))
        rows["all"].append((won, steps))
    table = {}
    for task_type in (*TASK_TYPES, "all"):
        lengths = [steps for won, steps in rows[task_type] if won]
        mean = round(sum(lengths) / len(lengths), 2) if lengths else float("nan")
        table[task_type] = {
            "games": len(rows[task_type]),
            "won": len(lengths),
            "mean": mean,
            "most": max(lengths, default=0),
        }
    return table


def show(data: str, name: str, rows: dict[str, dict[str, float]]) -> None:
    """One table."""
    table = Table(title=f"{name} on {data}: won within {LIMIT} steps")
    for column in ("task type", "games", "won", "% won", "mean steps", "most"):
        table.add_column(column, justify="left" if column == "task type" else "right")
    for task_type, row in rows.items():
        share = f"{100 * row['won'] / row['games']:.2f}"
        table.add_row(task_type, f"{row['games']:,}", f"{row['won']:,}", share, f"{row['mean']:.2f}", str(row["most"]))
    Console().print(table)


def main() -> None:
    """Plays everything with both, prints the tables, keeps the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", type=Path)
    parser.add_argument("--generated", type=int, default=0, help="play this many newly generated games as well")
    parser.add_argument("--seed", type=int, default=1, help="of the generated games")
    parser.add_argument("--out", type=Path, help="write the report here (.json)")
    arguments = parser.parse_args()
    began = time.process_time()
    stores: dict[str, GameStore] = {"bundled": ALFWorldSource().store}
    stores |= {path.name: ALFWorldSource(path).store for path in arguments.data}
    if arguments.generated:
        stores[f"{arguments.generated} generated, seed {arguments.seed}"] = GeneratedStore(
            arguments.generated, arguments.seed
        )
    results: dict[str, dict[str, dict[str, dict[str, float]]]] = defaultdict(dict)
    for data, store in stores.items():
        for name in ("expert", "explorer"):
            results[data][name] = summary(name, store)
            show(data, name, results[data][name])
    if arguments.out:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        report = {
            "limit": LIMIT,
            "results": results,
            "cpu_s": round(time.process_time() - began, 1),
            "python": platform.python_version(),
            "machine": platform.platform(),
            "hgpo": _version(),
            "commit": commit,
        }
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


def _version() -> str:
    try:
        return version("hgpo")
    except ImportError:
        return "a checkout"


if __name__ == "__main__":
    main()
