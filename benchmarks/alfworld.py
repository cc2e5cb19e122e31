"""Compare the native ALFWorld engine with the original in one run: start, step, memory, opening of data.

    hgpo data build alfworld FOLDER --out PACK
    python -m benchmarks alfworld [--pack PACK] [--folder FOLDER] [--games 4] [--steps 15]

Without PACK, the bundled games are played. FOLDER has the same games as official files. The original (extra `alfworld`,
Python 3.11 or 3.12), unpatched, plays the same walks of the same games; if it is not installed, only the native engine
is measured. Times are CPU times of this process; memory is measured in a new process.
"""

from __future__ import annotations

import gc
import random
import sys
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.runner import Row, in_new_process, memory_mb, seconds
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from hgpo_envs.alfworld.engine.game import Game
    from hgpo_envs.engine import Engine

LIVE = 1000
"""Number of environments for the measurement of memory."""
REPEATS = 200


def cpu(work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call in this process."""
    gc.collect()
    return seconds(work)


def walk(game: Game, steps: int, seed: int) -> list[str]:
    """Draw a sequence of admissible commands."""
    engine = ALFWorldEngine()
    rng = random.Random(seed)
    state = engine.play(game)
    commands: list[str] = []
    while len(commands) < steps and not state.terminated:
        commands.append(rng.choice(state.actions))
        state = engine.act(commands[-1])
    return commands


def act_all(engine: Engine, commands: Sequence[str]) -> None:
    """Play the commands in a started game."""
    for command in commands:
        engine.act(command)


def again(
    engine: ALFWorldEngine, game: Game, commands: Sequence[str], repeats: int
) -> float:
    """Return the CPU seconds of a walk that is played many times."""

    def play() -> None:
        for _ in range(repeats):
            engine.play(game)
            act_all(engine, commands)

    return cpu(play) / repeats


def beside_original(
    source: ALFWorldSource, ids: Sequence[str], steps: int
) -> Iterator[Row]:
    """Measure start and step of both engines with the same walks of the same games."""
    from hgpo_envs.alfworld.reference.original import OriginalEngine

    original = OriginalEngine()
    native = ALFWorldEngine()
    starts: list[tuple[float, float]] = []
    paces: list[tuple[float, float]] = []
    for number, task in enumerate(ids):
        game = source.game(task)
        commands = walk(game, steps, number)
        their_start = cpu(partial(original.play, source.read(task)))
        their_steps = cpu(partial(act_all, original, commands))
        # A native start takes microseconds: it is repeated, and subtracted from whole walks.
        start = again(native, game, (), 10 * REPEATS)
        whole = again(native, game, commands, REPEATS)
        starts.append((start, their_start))
        paces.append(((whole - start) / len(commands), their_steps / len(commands)))
    for what, times, shown in (
        ("start of a compiled game", starts, ""),
        ("step of the bare engine with admissible commands", paces, "readme"),
    ):
        ours, theirs = map(fmean, zip(*times, strict=True))
        rival = ("original", theirs)
        yield Row(f"ALFWorld: {what}", ours, "s", rival=rival, shown=shown)


def throughput(source: ALFWorldSource, ids: Sequence[str]) -> Iterator[Row]:
    """Measure steps per second on one core with admissible commands, for new games and for cached games."""
    games = [source.game(task) for task in ids]
    walks = [walk(game, 50, number) for number, game in enumerate(games)]
    steps = sum(map(len, walks))
    engine = ALFWorldEngine()
    for game in games:
        game.cache.clear()  # drop the data that engines of a game share

    def play() -> None:
        for game, commands in zip(games, walks, strict=True):
            engine.play(game)
            act_all(engine, commands)

    first = steps / cpu(play)
    later = steps / min(cpu(play) for _ in range(3))
    yield Row("ALFWorld: steps a second, one core, of games played before", later, "/s")
    yield Row("ALFWorld: the same of games played for the first time", first, "/s")


def opening(pack: Path | None, folder: Path | None) -> Iterator[Row]:
    """Measure opening of the data, until the task ids are available, and compilation of a game."""
    source = ALFWorldSource(pack, keep=1)
    ids = source.ids("all")
    some = random.Random(0).sample(ids, min(200, len(ids)))
    compiled = cpu(lambda: [source.game(task) for task in some]) / len(some)
    yield Row("ALFWorld: read and compile a game", compiled, "s")
    opened = cpu(lambda: [ALFWorldSource(pack).ids("all") for _ in range(20)]) / 20
    loose = None
    if folder:
        files = cpu(lambda: ALFWorldSource(folder).ids("all"))
        loose = ("the folder of their files", files)
    yield Row(f"ALFWorld: open a pack of {len(ids):,} games", opened, "s", rival=loose)


def resident(pack: Path | None, who: str) -> float:
    """Return the resident MB of this process with 1,000 native engines, or one of the original, after some steps."""
    source = ALFWorldSource(pack)
    ids = source.ids("train")
    rng = random.Random(0)
    live: list[Engine] = []  # which stay in memory
    steps = 20
    if who == "native":
        live = [source.engine() for _ in range(LIVE)]
    if who == "original":
        from hgpo_envs.alfworld.reference.original import OriginalEngine

        live = [OriginalEngine(source)]
        steps = 1
    for number, engine in enumerate(live):
        state = engine.start(ids[number % len(ids)])
        for _ in range(steps):
            state = engine.act(rng.choice(state.actions))
    return memory_mb("VmRSS")


def run(
    pack: Path | None = None,
    folder: Path | None = None,
    games: int = 4,
    steps: int = 15,
) -> Iterator[Row]:
    """Measure all parts; the original plays `games` walks of `steps` commands."""
    source = ALFWorldSource(pack)
    every = source.ids("all")
    ids = random.Random(0).sample(every, min(200, len(every)))
    original = None
    try:
        yield from beside_original(source, ids[:games], steps)
        original = (
            "original, one game",
            in_new_process(resident, pack, "original"),
        )
    except InputError as error:
        print(f"without the original: {error}", file=sys.stderr)
    yield from throughput(source, ids)
    yield from opening(pack, folder)
    imports = f"{in_new_process(resident, pack, 'imports'):.0f} MB are imports"
    memory = in_new_process(resident, pack, "native")
    yield Row(
        f"ALFWorld: memory of {LIVE:,} environments",
        memory,
        "MB",
        rival=original,
        note=imports,
        shown="page",
    )
