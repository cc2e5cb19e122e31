"""Compare the native ALFWorld engine with the original in one run: start, step, memory, opening of data.

    hgpo data build alfworld FOLDER --out PACK
    python benchmarks/alfworld.py [PACK] [--folder FOLDER] [--games 4] [--steps 15]

Without PACK, the bundled games are played. The original (extra `alfworld`, Python 3.11 or 3.12), unpatched, plays the
same walks of the same games; if it is not installed, only the native engine is measured. Times are CPU times of this
process; memory is measured in a new process. Results: benchmarks/results/alfworld.json.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from record import add_keep, store
from rich.console import Console
from rich.table import Table

from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_envs.alfworld.engine.game import Game
    from hgpo_envs.engine import Engine

HERE = Path(__file__).parent
sys.path = [
    folder for folder in sys.path if Path(folder or ".").resolve() != HERE
]  # this file would shadow the package `alfworld`
LIVE = 1000
"""Number of environments for the measurement of memory."""


def cpu(work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call in this process."""
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


def walk(game: Game, steps: int, seed: int) -> list[str]:
    """Draw a sequence of admissible commands."""
    engine, rng = ALFWorldEngine(), random.Random(seed)
    state, commands = engine.play(game), []
    while len(commands) < steps and not state.terminated:
        commands.append(rng.choice(state.actions))
        state = engine.act(commands[-1])
    return commands


def act_all(engine: Engine, commands: Sequence[str]) -> None:
    """Play the commands in a started game."""
    for command in commands:
        engine.act(command)


def against(source: ALFWorldSource, ids: Sequence[str], steps: int) -> dict[str, Any]:
    """Measure start and step of both engines with the same walks of the same games."""
    from hgpo_envs.alfworld.reference.original import OriginalEngine

    original, native, rows, repeats = OriginalEngine(), ALFWorldEngine(), [], 200
    for number, task in enumerate(ids):
        file, game = source.read(task), source.game(task)
        commands = walk(game, steps, number)
        row = {"task": task, "steps": len(commands)}
        row["original_start_s"] = cpu(lambda file=file: original.play(file))
        row["original_step_s"] = cpu(lambda commands=commands: act_all(original, commands)) / len(commands)
        start = cpu(lambda game=game: again(native, game, (), 10 * repeats)) / (10 * repeats)
        both = cpu(lambda game=game, commands=commands: again(native, game, commands, repeats)) / repeats
        rows.append(row | {"native_start_s": start, "native_step_s": (both - start) / len(commands)})
    means = {key: statistics.fmean(row[key] for row in rows) for key in rows[0] if key.endswith("_s")}
    return {
        "games": rows,
        **means,
        "start_ratio": means["original_start_s"] / means["native_start_s"],
        "step_ratio": means["original_step_s"] / means["native_step_s"],
        "versions": {name: version(name) for name in ("alfworld", "textworld")},
    }


def again(engine: ALFWorldEngine, game: Game, commands: Sequence[str], repeats: int) -> None:
    """Play the same walk many times."""
    for _ in range(repeats):
        engine.play(game)
        act_all(engine, commands)


def throughput(source: ALFWorldSource, ids: Sequence[str]) -> dict[str, float]:
    """Measure steps per second on one core with admissible commands, for new games and for cached games."""
    games = [source.game(task) for task in ids]
    walks = [walk(game, 50, number) for number, game in enumerate(games)]
    for game in games:
        game.cache.clear()  # drop the data that engines of a game share
    steps = sum(map(len, walks))
    engine = ALFWorldEngine()

    def play() -> None:
        for game, commands in zip(games, walks, strict=True):
            engine.play(game)
            act_all(engine, commands)

    first, later = cpu(play), min(cpu(play) for _ in range(3))
    return {"games": len(games), "steps": steps, "first_steps_per_s": steps / first, "steps_per_s": steps / later}


def opening(pack: Path | None, folder: Path | None) -> dict[str, float]:
    """Measure opening of the data, until the task ids are available, and compilation of a game."""
    source = ALFWorldSource(pack, keep=1)
    ids = source.ids("all")
    some = random.Random(0).sample(ids, min(200, len(ids)))
    figures = {
        "games": len(ids),
        "open_pack_s": cpu(lambda: [ALFWorldSource(pack).ids("all") for _ in range(20)]) / 20,
        "read_and_compile_s": cpu(lambda: [source.game(task) for task in some]) / len(some),
    }
    if folder:
        figures["open_folder_s"] = cpu(lambda: ALFWorldSource(folder).ids("all"))
    return figures


def memory(pack: Path | None) -> dict[str, float]:
    """Measure resident MB of a process with 1,000 engines, and of one in which the original plays one game."""
    figures = {}
    for who in ("imports", "native", "original"):
        command = [sys.executable, __file__, *([str(pack)] if pack else []), "--resident", who]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            figures[f"{who}_mb"] = float(done.stdout.splitlines()[-1])
    return figures


def resident(pack: Path | None, who: str) -> float:
    """Return the resident MB of this process after a game."""
    source = ALFWorldSource(pack)
    ids = source.ids("train")
    live: list[Engine] = []
    if who == "native":
        live = [source.engine() for _ in range(LIVE)]
        states = [engine.start(ids[number % len(ids)]) for number, engine in enumerate(live)]
        rng = random.Random(0)
        for _ in range(20):
            states = [e.act(rng.choice(s.actions)) for e, s in zip(live, states, strict=True)]
    if who == "original":
        from hgpo_envs.alfworld.reference.original import OriginalEngine

        live = [OriginalEngine(source)]
        live[0].act(live[0].start(ids[0]).actions[0])
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def report(figures: dict[str, Any]) -> Table:
    """Print the results."""
    table = Table(title="ALFWorld: native and original")
    for column in ("", "native", "original", "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    both, data, pace, held = (figures.get(k, {}) for k in ("against", "opening", "throughput", "memory"))
    if both:
        for what, key in (("start (compiled game)", "start"), ("step with admissible commands", "step")):
            native, original = both[f"native_{key}_s"], both[f"original_{key}_s"]
            table.add_row(what, f"{native * 1e6:.1f} µs", f"{original * 1e3:,.0f} ms", f"{original / native:,.0f}")
    if both:
        first = both["native_start_s"] + data["read_and_compile_s"]
        ratio = f"{both['original_start_s'] / first:,.0f}"
        table.add_row(
            "start of a game not yet read", f"{first * 1e3:.2f} ms", f"{both['original_start_s'] * 1e3:,.0f} ms", ratio
        )
    table.add_row("steps/s, one core, game met again", f"{pace['steps_per_s']:,.0f}")
    table.add_row("steps/s, one core, game met first", f"{pace['first_steps_per_s']:,.0f}")
    table.add_row("read and compile a game", f"{data['read_and_compile_s'] * 1e3:.2f} ms")
    table.add_row(f"open a pack of {data['games']:,} games", f"{data['open_pack_s'] * 1e3:.2f} ms")
    if "open_folder_s" in data:
        table.add_row("open the folder of them", f"{data['open_folder_s'] * 1e3:,.0f} ms")
    original = f"{held['original_mb']:.0f} MB, one" if "original_mb" in held else ""
    table.add_row(f"memory, {LIVE:,} live engines", f"{held['native_mb']:.0f} MB", original)
    table.add_row("memory of the imports alone", f"{held['imports_mb']:.0f} MB")
    return table


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", nargs="?", type=Path)
    parser.add_argument("--folder", type=Path, help="the same games as official files")
    parser.add_argument("--games", type=int, default=4, help="number of games played by the original")
    parser.add_argument("--steps", type=int, default=15, help="steps per game")
    parser.add_argument("--resident", help=argparse.SUPPRESS)
    add_keep(parser)
    arguments = parser.parse_args()
    if arguments.resident:
        sys.stdout.write(f"{resident(arguments.pack, arguments.resident)}\n")
        return
    source = ALFWorldSource(arguments.pack)
    ids = random.Random(0).sample(source.ids("all"), min(200, len(source.ids("all"))))
    figures: dict[str, Any] = {
        "throughput": throughput(source, ids),
        "opening": opening(arguments.pack, arguments.folder),
        "memory": memory(arguments.pack),
    }
    try:
        figures["against"] = against(source, ids[: arguments.games], arguments.steps)
    except InputError as error:
        Console(stderr=True).print(f"without the original: {error}", markup=False)
    console = Console()
    console.print(report(figures))
    console.print(store("alfworld", figures, keep=arguments.keep))


if __name__ == "__main__":
    main()
