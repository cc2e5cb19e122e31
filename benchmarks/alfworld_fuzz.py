"""Differential fuzzing: compare the native ALFWorld engine with the original on the same seeded walks.

    python -m benchmarks alfworld_fuzz [--data DATA] --games 200 --steps 60 --seed 1

DATA is a folder of official games or a pack; the bundled games by default. Walks favour rare rules and include commands
that are not admissible. Requires the extra `alfworld` (Python 3.11 or 3.12). The result counts how often each rule
fired, and has the first differences. `--record FILE` stores the original's answers (.jsonl.gz): all of them, or with
`--walks N` those of the N walks that together reach the most cases (the recordings in tests/alfworld are made this
way).
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import track

from benchmarks.runner import Part, Row
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine.game import KNIVES, STATIONS, compile_game
from hgpo_envs.alfworld.engine.grammar import convert
from hgpo_envs.alfworld.engine.state import NOTHING, Ability, Trait
from hgpo_envs.alfworld.reference.original import OriginalEngine
from tools.alfworld_coverage import CountingEngine
from tools.memoise_textworld import memoise_textworld

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hgpo_envs.alfworld.engine import ALFWorldEngine
    from hgpo_envs.alfworld.engine.game import Game
    from hgpo_envs.engine import State

    Walk = tuple[set[str], list[str]]  # the cases that it reaches, and its recording

WEIGHTS = {"slice": 9, "use": 6, "clean": 7, "heat": 7, "cool": 7, "examine": 3, "move": 2, "put": 2, "take": 5,
           "open": 4, "look": 2, "go": 6, "close": 1, "inventory": 1, "help": 0.3}  # fmt: skip
"""Weight of each verb, independent of the number of its commands."""


def walk(
    engine: ALFWorldEngine, state: State, steps: int, rng: random.Random
) -> Iterator[tuple[str, State]]:
    """Yield a seeded walk of the native engine: mostly admissible commands that favour rare rules."""
    before = state.actions
    for _ in range(steps):
        command = (
            _invalid(state, before, rng)
            if rng.random() < 0.12
            else _likely(engine, state, rng)
        )
        before = state.actions
        state = engine.act(command)
        yield command, state
        if state.terminated:
            return


def _likely(engine: ALFWorldEngine, state: State, rng: random.Random) -> str:
    urgent = [command for command in _urgent(engine) if command in state.actions]
    if urgent and rng.random() < 0.5:
        return rng.choice(urgent)
    by_verb: dict[str, list[str]] = {}
    for command in state.actions:
        by_verb.setdefault(command.split(" ", 1)[0], []).append(command)
    verbs = sorted(by_verb)
    verb = rng.choices(verbs, [WEIGHTS[v] for v in verbs])[0]
    choice = rng.choice(by_verb[verb])
    wanted = _wanted(engine, verb)
    if wanted and rng.random() < 0.6:
        choice = rng.choice(
            sorted({c for c in by_verb[verb] if c in wanted}) or [choice]
        )
    return choice + rng.choice(["", "", "", "", " ", "\n"])


def _urgent(engine: ALFWorldEngine) -> Iterator[str]:
    """Return commands that reach a rare case in one step, for example examining a sliced object."""
    game = engine.game
    game_state = engine.game_state
    held = game_state.held
    here = game.receptacles_at[game_state.location]
    if any(
        r in here and game_state.location in game_state.spots[o]
        for o, r in game_state.emptied
    ):
        yield "look"
    if held != NOTHING:
        beside = [r for r in here if (held, r) not in game_state.emptied]
        if len(beside) < len(here):
            yield from (_put(game, held, r) for r in beside)
        if game_state.traits[held]:
            yield f"examine {game.object_names[held]}"
    for r in here:
        for o in game_state.contents[r]:
            if game_state.traits[o] & Trait.SLICED:
                yield _take(game, o, r)
                if held != NOTHING:
                    yield _put(game, held, r)


def _take(game: Game, o: int, r: int) -> str:
    return f"take {game.object_names[o]} from {game.receptacle_names[r]}"


def _put(game: Game, o: int, r: int) -> str:
    return game.grammar.put.format(
        object=game.object_names[o], receptacle=game.receptacle_names[r]
    )


def _wanted(engine: ALFWorldEngine, verb: str) -> set[str]:
    """Return commands that lead towards rare rules: stations, knives, lamps, objects to slice, containers, burners."""
    game = engine.game
    game_state = engine.game_state
    held = game_state.held
    here = game.receptacles_at[game_state.location]
    if verb == "take":
        return {
            _take(game, o, r)
            for r in here
            for o in game_state.contents[r]
            if _rare(engine, o) or game.object_types[o] == game.goal.object_type
        }
    if verb in ("move", "put"):
        return {
            _put(game, held, r) for r in here if (held, r) not in game_state.emptied
        }
    if verb != "go":
        return set()
    return {
        f"go to {game.receptacle_names[r]}"
        for r in range(len(game.places))
        if _leads(engine, r)
    }


def _leads(engine: ALFWorldEngine, r: int) -> bool:
    """Return whether a rare case or the goal can be reached at a receptacle."""
    game = engine.game
    game_state = engine.game_state
    goal = game.goal
    held = game_state.held
    inside = game_state.contents[r]
    kind = game.receptacle_types[r]
    if held == NOTHING:
        return any(
            _rare(engine, o) or (game.object_types[o] == goal.object_type != kind)
            for o in inside
        )
    held_type = game.object_types[held]
    if held_type in KNIVES:
        return any(
            game.abilities[o] & Ability.SLICEABLE and game.places[r] in s
            for o, s in enumerate(game_state.spots)
        )
    has_trait = game_state.traits[held] & goal.trait == goal.trait
    if held_type == goal.object_type and has_trait:
        return kind == goal.receptacle_type or any(
            game.abilities[o] & Ability.TOGGLEABLE for o in inside
        )
    return bool(STATIONS.get(kind, 0) & game.abilities[held])


def _rare(engine: ALFWorldEngine, o: int) -> bool:
    game = engine.game
    return (
        bool(game.abilities[o] & Ability.TOGGLEABLE)
        or game.object_types[o] in KNIVES
        or o in game.nested
        or sum(o in contents for contents in engine.game_state.contents) > 1
    )


def _invalid(state: State, before: list[str], rng: random.Random) -> str:
    """Return a command that is probably not admissible."""
    some = rng.choice(list(state.actions))
    gone = [command for command in before if command not in state.actions]
    return rng.choice(
        [
            "",
            "xyzzy",
            some.upper(),
            some.replace(" ", "  ", 1),
            f"{some} now",
            some.rsplit(" ", 1)[0],
            "put mug 1 in/on shelf 1",
            "move mug 1 to shelf 1",
            "examine egg 1",
            "go to nowhere 1",
            "take 1 from 1",
            "\x00\ud800",
            rng.choice(gone) if gone else "close fridge 1",
        ]
    )


def compare(
    file: Mapping[str, Any],
    native: ALFWorldEngine,
    original: OriginalEngine,
    steps: int,
    rng: random.Random,
) -> Iterator[tuple[str | None, State, State]]:
    """Play one walk in both engines; yield each command with the answers of the original and of the native engine."""
    state = native.play(compile_game(file))
    yield None, original.play(file), state
    for command, answer in walk(native, state, steps, rng):
        yield command, original.act(command), answer


def answer_of(state: State) -> list[Any]:
    """Return what is compared of a state."""
    return [state.text, list(state.actions), state.won, state.valid]


def most_telling(walks: list[Walk], keep: int) -> list[Walk]:
    """Return the walks that together reach the most cases, chosen greedily."""
    chosen: list[Walk] = []
    reached: set[str] = set()
    left = sorted(walks, key=lambda walk: len(walk[1]))
    while left and len(chosen) < keep:
        best = max(left, key=lambda walk: len(walk[0] - reached))
        left.remove(best)
        reached |= best[0]
        chosen.append(best)
    return chosen


def fuzz(
    data: Path | None, games: int, steps: int, seed: int, put: float
) -> tuple[dict[str, Any], list[Walk]]:
    """Play the walks; return the report, and the cases and recording of each walk."""
    memoise_textworld()
    source = ALFWorldSource(data)
    label = data.name if data else "bundled"
    rng = random.Random(f"{seed} {label}")
    fired: Counter[str] = Counter()
    differences: list[dict[str, Any]] = []
    walks: list[Walk] = []
    original = OriginalEngine()
    ids = source.ids("all")
    for task in track(
        rng.sample(ids, min(games, len(ids))),
        label,
        console=Console(stderr=True),
    ):
        native = CountingEngine()
        file = convert(source.read(task), "put" if rng.random() < put else "move")
        recording = []
        played = compare(file, native, original, steps, rng)
        for step, (command, shown, state) in enumerate(played):
            row = {
                "task": task,
                "grammar": native.game.grammar.name,
                "step": step,
                "action": command,
                "observation": shown.text,
                "admissible_commands": list(shown.actions),
                "won": shown.won,
            }
            recording.append(json.dumps(row) + "\n")
            if answer_of(shown) != answer_of(state):
                differences.append(row | {"native": answer_of(state)[:3]})
        fired += native.fired
        walks.append((set(native.fired), recording))
    report = {
        "lines": sum(len(recording) for _, recording in walks),
        "games": len(walks),
        "differences": len(differences),
        "first": differences[:20],
        "fired": dict(sorted(fired.items())),
    }
    return report, walks


def run(
    data: Path | None = None,
    games: int = 200,
    steps: int = 60,
    seed: int = 1,
    put: float = 0.2,
    record: Path | None = None,
    walks: int | None = None,
) -> Iterator[Part]:
    """Compare the engines; `put` is the fraction of games played in the older put wording."""
    report, played = fuzz(data, games, steps, seed, put)
    if record:
        kept = most_telling(played, walks) if walks else played
        content = "".join(line for _, recording in kept for line in recording)
        record.write_bytes(gzip.compress(content.encode(), 9, mtime=0))
    label = "official" if data else "bundled"
    what = f"ALFWorld: random walks compared with the original, {report['games']} {label} games"
    note = f"{report['differences']} differences"
    yield Part(
        [Row(what, report["lines"], "lines", note=note, shown="readme")],
        report,
        f"_{label}",
    )
