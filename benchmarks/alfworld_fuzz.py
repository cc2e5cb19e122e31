"""Differential fuzzing: compare the native ALFWorld engine with the original on the same seeded walks.

    python benchmarks/alfworld_fuzz.py [DATA …] --games 200 --steps 60 --seed 1

DATA is a folder of official games or a pack; the bundled games by default. Walks favour rare rules and include commands
that are not admissible. Requires the extra `alfworld` (Python 3.11 or 3.12). Prints the count of each rule, and every
difference. `--record` stores the original's answers: all of them, or with `--walks N` those of the N walks that
together reach the most cases (the recordings in tests/alfworld are made this way). `--keep --name NAME` replaces the
kept report of DATA.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from record import RESULTS, make_parser, print_table, store
from rich.console import Console
from rich.progress import track

from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine.game import KNIVES, STATIONS, compile_game
from hgpo_envs.alfworld.engine.grammar import convert
from hgpo_envs.alfworld.engine.state import NOTHING, Ability, Trait
from hgpo_envs.alfworld.reference.original import OriginalEngine

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from typing import Any

    from hgpo_envs.alfworld.engine import ALFWorldEngine
    from hgpo_envs.engine import State

# In the folder of this file, which is last now, alfworld.py would shadow the package `alfworld`.
sys.path.sort(key=lambda folder: Path(folder or ".").resolve() == Path(__file__).parent)
sys.path.append(str(Path(__file__).parents[1]))

from tools.alfworld_coverage import CountingEngine
from tools.memoise_textworld import memoise_textworld

WEIGHTS = {"slice": 9, "use": 6, "clean": 7, "heat": 7, "cool": 7, "examine": 3, "move": 2, "put": 2, "take": 5,
           "open": 4, "look": 2, "go": 6, "close": 1, "inventory": 1, "help": 0.3}  # fmt: skip
"""Weight of each verb, independent of the number of its commands."""


def walk(engine: ALFWorldEngine, state: State, steps: int, rng: random.Random) -> Iterator[tuple[str, State]]:
    """Yield a seeded walk of the native engine: mostly admissible commands that favour rare rules."""
    before = state.actions
    for _ in range(steps):
        command = _invalid(state, before, rng) if rng.random() < 0.12 else _likely(engine, state, rng)
        before, state = state.actions, engine.act(command)
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
        choice = rng.choice(sorted({c for c in by_verb[verb] if c in wanted}) or [choice])
    return choice + rng.choice(["", "", "", "", " ", "\n"])


def _urgent(engine: ALFWorldEngine) -> Iterator[str]:
    """Return commands that reach a rare case in one step, for example examining a sliced object."""
    game, game_state, held = engine.game, engine.game_state, engine.game_state.held
    here = game.receptacles_at[game_state.location]
    if any(r in here and game_state.location in game_state.spots[o] for o, r in game_state.emptied):
        yield "look"
    if held != NOTHING and any((held, r) in game_state.emptied for r in here):
        for r in here:
            if (held, r) not in game_state.emptied:
                yield game.grammar.put.format(object=game.object_names[held], receptacle=game.receptacle_names[r])
    if held != NOTHING and game_state.traits[held]:
        yield f"examine {game.object_names[held]}"
    for r in here:
        for o in game_state.contents[r]:
            if game_state.traits[o] & Trait.SLICED:
                yield f"take {game.object_names[o]} from {game.receptacle_names[r]}"
                if held != NOTHING:
                    put = {"object": game.object_names[held], "receptacle": game.receptacle_names[r]}
                    yield game.grammar.put.format(**put)


def _wanted(engine: ALFWorldEngine, verb: str) -> set[str]:
    """Return commands that lead towards rare rules: stations, knives, lamps, objects to slice, containers, burners."""
    game, game_state = engine.game, engine.game_state
    held = game_state.held
    if verb == "take":
        return {
            f"take {game.object_names[o]} from {game.receptacle_names[r]}"
            for r in game.receptacles_at[game_state.location]
            for o in game_state.contents[r]
            if _rare(engine, o) or game.object_types[o] == game.goal.object_type
        }
    if verb in ("move", "put"):
        beside = [r for r in game.receptacles_at[game_state.location] if (held, r) not in game_state.emptied]
        return {
            game.grammar.put.format(object=game.object_names[held], receptacle=game.receptacle_names[r]) for r in beside
        }
    if verb != "go":
        return set()
    return {f"go to {game.receptacle_names[r]}" for r in range(len(game.places)) if _leads(engine, r)}


def _leads(engine: ALFWorldEngine, r: int) -> bool:
    """Return whether a rare case or the goal can be reached at a receptacle."""
    game, game_state, goal = engine.game, engine.game_state, engine.game.goal
    held, inside, kind = game_state.held, game_state.contents[r], game.receptacle_types[r]
    if held == NOTHING:
        return any(_rare(engine, o) or (game.object_types[o] == goal.object_type != kind) for o in inside)
    if game.object_types[held] in KNIVES:
        return any(
            game.abilities[o] & Ability.SLICEABLE and game.places[r] in s for o, s in enumerate(game_state.spots)
        )
    if game.object_types[held] == goal.object_type and game_state.traits[held] & goal.trait == goal.trait:
        return kind == goal.receptacle_type or any(game.abilities[o] & Ability.TOGGLEABLE for o in inside)
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
    file: Mapping[str, Any], native: ALFWorldEngine, original: OriginalEngine, steps: int, rng: random.Random
) -> Iterator[dict[str, Any]]:
    """Play one walk in both engines; yield each step of the original, with `agrees`."""
    state = native.play(compile_game(file))
    shown = original.play(file)
    yield _row(None, shown, state)
    for command, answer in walk(native, state, steps, rng):
        shown = original.act(command)
        yield _row(command, shown, answer)


def _row(action: str | None, shown: State, state: State) -> dict[str, Any]:
    original, native = ([one.text, list(one.actions), one.won, one.valid] for one in (shown, state))
    row = {"action": action, "observation": shown.text, "admissible_commands": list(shown.actions), "won": shown.won}
    return row | {"agrees": original == native, "native": None if original == native else native[:3]}


def most_telling(walks: list[tuple[set[str], list[str]]], keep: int) -> list[list[str]]:
    """Return the walks that together reach the most cases, chosen greedily."""
    chosen: list[list[str]] = []
    reached: set[str] = set()
    left = sorted(walks, key=lambda walk: len(walk[1]))
    while left and len(chosen) < keep:
        best = max(left, key=lambda walk: len(walk[0] - reached))
        left.remove(best)
        reached |= best[0]
        chosen.append(best[1])
    return chosen


def fuzz(given: argparse.Namespace) -> tuple[dict[str, Any], list[tuple[set[str], list[str]]]]:
    """Play the walks; return the report, and the cases and lines of each walk."""
    tally: Counter[str] = Counter()
    fired: Counter[str] = Counter()
    differences: list[dict[str, Any]] = []
    walks: list[tuple[set[str], list[str]]] = []
    original = OriginalEngine()
    began = time.process_time()
    for data in given.data or [None]:
        source, label = ALFWorldSource(data), data.name if data else "bundled"
        rng = random.Random(f"{given.seed} {label}")
        ids = source.ids("all")
        for task in track(rng.sample(ids, min(given.games, len(ids))), label, console=Console(stderr=True)):
            native = CountingEngine()
            file = convert(source.read(task), "put" if rng.random() < given.put else "move")
            rows = list(compare(file, native, original, given.steps, rng))
            differences += [{"task": task, "step": n, **row} for n, row in enumerate(rows) if not row["agrees"]]
            grammar, cases = native.game.grammar.name, native.fired
            fired += cases
            shown = [{key: value for key, value in row.items() if key not in ("agrees", "native")} for row in rows]
            lines = [
                json.dumps({"task": task, "grammar": grammar, "step": n, **row}) + "\n" for n, row in enumerate(shown)
            ]
            walks.append((set(cases), lines))
            tally.update({"lines": len(rows), "games": 1, f"games from {label}": 1, f"games worded {grammar}": 1})
    report = {"seed": given.seed, "steps": given.steps, "cpu_s": round(time.process_time() - began, 1), **tally}
    report |= {"differences": len(differences), "first_differences": differences[:20]}
    return report | {"fired": dict(sorted(fired.items()))}, walks


def main() -> None:
    """Run the comparison and report."""
    parser = make_parser(__doc__)
    parser.add_argument("data", nargs="*", type=Path, help="default: the bundled games")
    parser.add_argument("--games", type=int, default=200, help="games drawn from each DATA")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--put", type=float, default=0.2, help="fraction of games played in the older put wording")
    parser.add_argument("--record", type=Path, help="write the original's answers here (.jsonl.gz)")
    parser.add_argument("--walks", type=int, help="number of recorded walks, chosen for the most cases")
    parser.add_argument("--name", default="bundled", help="the name of DATA in the stored report")
    parser.add_argument("--out", type=Path, help="write the report to this JSON file instead")
    given = parser.parse_args()
    memoise_textworld()
    report, walks = fuzz(given)
    if given.record:
        kept = most_telling(walks, given.walks) if given.walks else [lines for _, lines in walks]
        content = "".join(line for lines in kept for line in lines).encode()
        given.record.write_bytes(gzip.compress(content, 9, mtime=0))
    print_table(
        ({"rule": rule, "times": times} for rule, times in report["fired"].items()), title="how often each fired"
    )
    for difference in report["first_differences"]:
        Console().print_json(json.dumps(difference))
    Console().print({k: v for k, v in report.items() if k not in ("fired", "first_differences")})
    if given.out:
        given.out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    else:
        path = RESULTS / "alfworld_fuzz.json"  # one report for each DATA
        others = json.loads(path.read_text("utf-8")) if path.exists() else {}
        reports = {**others.get("figures", others), given.name: report}
        print(store("alfworld_fuzz", reports, keep=given.keep))
    sys.exit(1 if report["differences"] else 0)


if __name__ == "__main__":
    main()
