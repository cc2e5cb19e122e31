"""Generated games: solvable, reproducible, in disjoint splits, and in the official form."""

import json
import re
import subprocess
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.alfworld.data.game_folder import SPLITS
from hgpo_envs.alfworld.data.pack import PackStore, write_pack
from hgpo_envs.alfworld.data.rooms import OFFICIAL_UNSEEN, UNSEEN, load_rooms, room_kind
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.alfworld.engine.game import compile_game
from hgpo_envs.alfworld.engine.goals import TASK_TYPES
from hgpo_envs.alfworld.generation.draft import draft_game, possible_tasks
from hgpo_envs.alfworld.generation.problem import game_data
from hgpo_envs.alfworld.generation.store import GeneratedStore, walkthrough
from tools.alfworld_survey import survey

drafts = st.builds(
    draft_game,
    st.sampled_from(SPLITS),
    st.integers(0, 10**6),
    st.integers(-(2**80), 2**80),
)


@pytest.mark.slow
@given(game=drafts)
def test_any_seed_gives_a_game_that_its_walkthrough_wins(game):
    commands = walkthrough(game)
    assert 0 < len(commands) <= 50
    data = game_data(game, commands)
    compiled = compile_game(data)
    engine = ALFWorldEngine()
    state = engine.play(compiled)
    assert not state.terminated
    for i, command in enumerate(commands):
        assert command in state.actions
        state = engine.act(command)
        assert state.won == (i == len(commands) - 1)
    assert compiled.goal.task_type == game.task.task_type
    assert compiled.task == game.sentence
    assert data["solvable"] is True


@pytest.mark.slow
@given(game=drafts)
def test_the_fixed_part_of_a_room_is_in_every_game(game):
    room = load_rooms().rooms[game.task.scene]
    assert {thing.kind for thing in game.things} == set(room.objects)
    assert game.start not in {receptacle.location for receptacle in room.receptacles}
    holds = load_rooms().holds
    where = load_rooms().where[room_kind(room.scene)]
    for thing in game.things:
        kinds = {room.receptacles[i].kind for i in thing.lies_on}
        assert not kinds or any(
            thing.kind in holds.get(kind, ()) or kind in where[thing.kind]
            for kind in kinds
        )


def test_splits_have_disjoint_tasks_and_unseen_rooms():
    tasks = {
        split: {task for kind in TASK_TYPES for task in possible_tasks(split, kind)}
        for split in SPLITS
    }
    assert all(tasks.values())
    assert not tasks["train"] & tasks["valid_seen"]
    assert {task.scene for task in tasks["valid_unseen"]} <= UNSEEN
    assert not {task.scene for task in tasks["train"] | tasks["valid_seen"]} & UNSEEN
    assert OFFICIAL_UNSEEN < UNSEEN
    for task_type in TASK_TYPES:
        assert all(possible_tasks(split, task_type) for split in SPLITS)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not():
    games = [
        [json.dumps(game_data(draft_game("train", i, seed))) for i in range(12)]
        for seed in (1, 1, 2)
    ]
    assert games[0] == games[1]
    assert not set(games[0]) & set(games[2])


def test_bundled_set(bundled):
    for split in SPLITS:
        assert {
            bundled.task(task_id).task_type for task_id in bundled.ids(split)
        } == set(TASK_TYPES)
    assert bundled.store.path.stat().st_size < 1_000_000


@pytest.mark.slow
def test_bundled_pack_is_rebuilt_byte_for_byte(bundled, tmp_path):
    """By `hgpo data synth alfworld --games 216 --seed 0`."""
    store = GeneratedStore(216, 0)
    rebuilt = tmp_path / "games.pack"
    write_pack(rebuilt, ((i, store.read(i), store.trajectory(i)) for i in store.ids))
    if "ng" in zlib.ZLIB_RUNTIME_VERSION:  # packs the same games into other bytes
        ours = PackStore(rebuilt)
        theirs = bundled.store
        assert ours.ids == theirs.ids
        assert all(
            ours.read(i) == theirs.read(i)
            and ours.trajectory(i) == theirs.trajectory(i)
            for i in ours.ids
        )
    else:
        assert rebuilt.read_bytes() == bundled.store.path.read_bytes()


def shape(data):
    """Return a game's goal without the names of its types."""
    goal = data["pddl_problem"].split("(:goal", 1)[1].lower()
    parts = (
        re.sub(r"\b[a-z]+type\b(?=\))", "T", goal)
        .replace(")", " ) ")
        .replace("(", " ( ")
        .split()
    )
    return " ".join(parts).rstrip(" )")


def test_goals_equal_those_of_the_originals_goal_library(golden_games):
    golden = ALFWorldSource(golden_games)
    expected = {
        golden.task(i).task_type: shape(golden.read(i)) for i in golden.ids("all")
    }
    games = [
        game_data(draft_game("train", number, 3)) for number in range(len(TASK_TYPES))
    ]
    assert {
        task_type: shape(data)
        for task_type, data in zip(TASK_TYPES, games, strict=True)
    } == expected


def test_domain_and_grammar_equal_the_originals(golden_games):
    golden = ALFWorldSource(golden_games)
    theirs = golden.read(golden.ids("all")[0])
    ours = game_data(draft_game("train", 0, 0))
    assert ours["pddl_domain"] == theirs["pddl_domain"]
    task = re.compile(r"Your task is to: [^\"]*")
    assert task.sub("", ours["grammar"]) == task.sub("", theirs["grammar"])


def test_rooms_agree_with_games_made_from_the_layouts_alone(golden_games):
    golden = ALFWorldSource(golden_games)
    for task_id in golden.ids("all"):
        room = load_rooms().rooms[int(task_id.split("/")[1].rsplit("-", 1)[1])]
        openable = {
            receptacle.name.lower(): receptacle.openable
            for receptacle in room.receptacles
        }
        game = golden.game(task_id)
        for name, opens in zip(game.receptacle_ids, game.openable, strict=True):
            plain = name
            for code, sign in (
                ("_bar_", "|"),
                ("_plus_", "+"),
                ("_minus_", "-"),
                ("_dot_", "."),
            ):
                plain = plain.replace(code, sign)
            assert openable[plain] == opens


@pytest.mark.slow
def test_rooms_and_frequencies_are_reproduced_by_the_survey(official, original_python):
    """The survey of the layouts and official games reproduces the bundled rooms byte for byte."""
    import gzip
    from importlib.resources import files
    from pathlib import Path

    command = "import alfworld.gen, os; print(os.path.dirname(alfworld.gen.__file__))"
    found = subprocess.run(
        [original_python, "-c", command], capture_output=True, text=True, check=True
    )
    layouts = Path(found.stdout.splitlines()[-1]) / "layouts"
    packed = (
        files("hgpo_envs.alfworld").joinpath("bundled", "rooms.json.gz").read_bytes()
    )
    assert survey(layouts, official / "json_2.1.1") == gzip.decompress(packed).decode()
