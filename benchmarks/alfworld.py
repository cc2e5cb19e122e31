"""Compare the native ALFWorld engine with the original in one run: start, step, memory, opening of data.

    hgpo data build alfworld FOLDER --out PACK
    python benchmarks/alfworld.py [PACK] [--folder FOLDER] [--games 4] [--steps 15]

Without PACK, the bundled games are played. The original (extra `alfworld`, Python 3.11 or 3.12), unpatched, plays the
same walks of the same games; if it is not installed, only the native engine is measured. Times are CPU times of this
process; memory is measured in a new process. Results: benchmarks/results/alfworld.json.
"""

from __future__ import annotations

import gc
import random
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from record import in_new_process, make_parser, memory_mb, print_table, seconds, store

from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_envs.alfworld.engine.game import Game
    from hgpo_envs.engine import Engine

# In the folder of this file, which is last now, it would shadow the package `alfworld`.
sys.path.sort(key=lambda folder: Path(folder or ".").resolve() == Path(__file__).parent)
LIVE = 1000
"""Number of environments for the measurement of memory."""


def cpu(work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call in this process."""
    gc.collect()
    return seconds(work)


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
    means = {key: fmean(row[key] for row in rows) for key in rows[0] if key.endswith("_s")}
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
    steps, engine = sum(map(len, walks)), ALFWorldEngine()

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


def resident(pack: Path | None, who: str) -> float:
    """Return the resident MB of this process with 1,000 native engines, or one of the original, after some steps."""
    source = ALFWorldSource(pack)
    ids, rng = source.ids("train"), random.Random(0)
    live: list[Engine] = []  # which stay in memory
    if who == "native":
        live = [source.engine() for _ in range(LIVE)]
        states = [engine.start(ids[number % len(ids)]) for number, engine in enumerate(live)]
        for _ in range(20):
            states = [e.act(rng.choice(s.actions)) for e, s in zip(live, states, strict=True)]
    if who == "original":
        from hgpo_envs.alfworld.reference.original import OriginalEngine

        live = [OriginalEngine(source)]
        live[0].act(live[0].start(ids[0]).actions[0])
    return memory_mb("VmRSS")


def report(figures: dict[str, Any]) -> None:
    """Print the results."""
    both, data, pace, held = (figures.get(k, {}) for k in ("against", "opening", "throughput", "memory"))
    rows = []
    if both:
        first = both["native_start_s"] + data["read_and_compile_s"]
        for what, native, original in (
            ("start (compiled game)", both["native_start_s"], both["original_start_s"]),
            ("step with admissible commands", both["native_step_s"], both["original_step_s"]),
            ("start of a game not yet read", first, both["original_start_s"]),
        ):
            cells = {"native": f"{native * 1e6:,.1f} µs", "original": f"{original * 1e3:,.0f} ms"}
            rows.append({"": what, **cells, "ratio": f"{original / native:,.0f}"})
    alone = {
        "steps/s, one core, game met again": f"{pace['steps_per_s']:,.0f}",
        "steps/s, one core, game met first": f"{pace['first_steps_per_s']:,.0f}",
        "read and compile a game": f"{data['read_and_compile_s'] * 1e3:.2f} ms",
        f"open a pack of {data['games']:,} games": f"{data['open_pack_s'] * 1e3:.2f} ms",
    }
    if "open_folder_s" in data:
        alone["open the folder of them"] = f"{data['open_folder_s'] * 1e3:,.0f} ms"
    rows += [{"": what, "native": value} for what, value in alone.items()]
    for what, name in ((f"memory, {LIVE:,} live engines; one original", "native_mb"), ("its imports", "imports_mb")):
        rows.append({"": what, "native": f"{held[name]:.0f} MB"})
    if both:
        rows[-2]["original"] = f"{held['original_mb']:.0f} MB"
    print_table(rows, title="ALFWorld: native and original")


def main() -> None:
    """Measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument("pack", nargs="?", type=Path)
    parser.add_argument("--folder", type=Path, help="the same games as official files")
    parser.add_argument("--games", type=int, default=4, help="number of games played by the original")
    parser.add_argument("--steps", type=int, default=15, help="steps per game")
    given = parser.parse_args()
    source = ALFWorldSource(given.pack)
    ids = random.Random(0).sample(source.ids("all"), min(200, len(source.ids("all"))))
    memory = {f"{who}_mb": in_new_process(resident, given.pack, who) for who in ("imports", "native")}
    figures: dict[str, Any] = {
        "throughput": throughput(source, ids),
        "opening": opening(given.pack, given.folder),
        "memory": memory,
    }
    try:
        figures["against"] = against(source, ids[: given.games], given.steps)
        memory["original_mb"] = in_new_process(resident, given.pack, "original")
    except InputError as error:
        print(f"without the original: {error}", file=sys.stderr)
    report(figures)
    print(store("alfworld", figures, keep=given.keep))


if __name__ == "__main__":
    main()
