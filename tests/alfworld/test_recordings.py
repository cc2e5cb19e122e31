"""Comparison with recordings of alfworld 0.4.2 and textworld 1.7.0: observation, admissible commands, won."""

import gzip
import json
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.alfworld.engine.game import compile_game
from hgpo_envs.alfworld.engine.goals import TASK_TYPES

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "alfworld"


def lines(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def tarred_games(path):
    """Yield the task id and game file of every game in an archive of json_2.1.1."""
    with tarfile.open(path, "r|xz") as archive:
        for member in archive:
            if member.name.endswith("game.tw-pddl"):
                file = archive.extractfile(member)
                assert file is not None
                yield "/".join(member.name.split("/")[-4:-1]), json.loads(file.read())


def replay(rows, games):
    engine = ALFWorldEngine()
    count = 0
    differing = []
    for row in rows:
        task = row.get("task") or row["game"].removesuffix("/game.tw-pddl")
        game = games[f"{row.get('grammar', '')}{task}"]
        state = (
            engine.play(game) if row["action"] is None else engine.act(row["action"])
        )
        count += 1
        expected = row["observation"], row["admissible_commands"], row["won"]
        if (state.text, list(state.actions), state.won) != expected:
            differing.append(
                (task, row["step"], row["action"], state.text, expected[0])
            )
    return count, differing


def test_every_golden_line():
    games = {
        task: compile_game(file)
        for task, file in tarred_games(GOLDEN / "generated-games.tar.xz")
    }
    count, differing = replay(
        lines(GOLDEN / "generated-games.transcripts.jsonl.gz"), games
    )
    assert len(games) == 30
    assert count == 2928
    assert differing == []


@pytest.mark.parametrize("name", ["bundled", "official"])
def test_recorded_walks(name):
    """Walks by `python -m benchmarks alfworld_fuzz`, in both wordings; `official` are games of the official release.

    Other bundled games need other recordings: `python -m benchmarks alfworld_fuzz --games 216 --seed 12 --put 0.25
    --walks 10 --record tests/alfworld/bundled.jsonl.gz`.
    """
    data = None if name == "bundled" else HERE / "official.pack"
    rows = list(lines(HERE / f"{name}.jsonl.gz"))
    sources = {
        grammar: ALFWorldSource(data, grammar=grammar) for grammar in ("move", "put")
    }
    games = {
        f"{r['grammar']}{r['task']}": sources[r["grammar"]].game(r["task"])
        for r in rows
        if r["action"] is None
    }
    count, differing = replay(iter(rows), games)
    assert count > 300
    assert differing == []


def test_stored_walkthroughs_win():
    source = ALFWorldSource()
    games = [source.game(task) for task in source.ids("all")]
    games += [
        compile_game(file)
        for _, file in tarred_games(GOLDEN / "generated-games.tar.xz")
    ]
    for game in games:
        engine = ALFWorldEngine()
        state = engine.play(game)
        assert game.walkthrough
        for command in game.walkthrough:
            assert not state.won
            state = engine.act(command)
            assert state.valid
        assert state.won
        assert state.reward == state.score == 1.0


@pytest.mark.slow
def test_all_official_games_load(shared):
    """Their counts, types as their folders name them, and a start from which every receptacle can be reached."""
    engine = ALFWorldEngine()
    counts = Counter[str]()
    types = Counter[str]()
    for task, file in tarred_games(shared / "data/alfworld/official-games.tar.xz"):
        game = compile_game(file, task)
        split, folder, _ = task.split("/")
        assert folder.split("-")[0] == game.goal.task_type
        counts[split] += 1
        types[game.goal.task_type] += split == "train"
        state = engine.play(game)
        assert not state.won
        assert sum(command.startswith("go to ") for command in state.actions) == len(
            game.receptacle_ids
        )
        assert state.text.endswith(f"Your task is to: {game.task}")
        if game.walkthrough:
            for command in game.walkthrough:
                state = engine.act(command)
            assert state.won
    assert counts == {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
    assert [types[kind] for kind in TASK_TYPES] == [790, 308, 650, 459, 533, 813]
