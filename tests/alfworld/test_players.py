"""The expert solves every game; the explorer uses observations only."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from hgpo_envs.alfworld.data.game_folder import SPLITS
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.alfworld.engine.game import compile_game
from hgpo_envs.alfworld.generation.draft import draft_game
from hgpo_envs.alfworld.generation.problem import game_data
from hgpo_envs.alfworld.players.expert import ExpertPlayer, find_plan
from hgpo_envs.alfworld.players.explorer import ExplorerPlayer, parse_instruction
from hgpo_envs.engine import State, Task
from hgpo_envs.environment_spec import make_player

LIMIT = 50
drafts = st.builds(
    draft_game, st.sampled_from(SPLITS), st.integers(0, 10**6), st.integers(0, 10**9)
)


def observed(state):
    """Return what a policy observes of a state."""
    return State(state.text, list(state.actions))


def play(name, source, task_id, disturbance=0.0, seed=0):
    """Plays a task; some steps are random admissible ones. Returns the actions, and whether they won."""
    engine = source.engine()
    player = make_player(name, "ALFWorld")
    chance = random.Random(seed)
    state = engine.start(task_id)
    if name == "expert":
        player.reset(source.task(task_id), state, engine)
    else:
        player.reset(
            Task("", "", source.task(task_id).instruction, ""), observed(state), None
        )
    actions = []
    while not state.terminated and len(actions) < LIMIT:
        action = player.act(state if name == "expert" else observed(state))
        assert action in state.actions
        if chance.random() < disturbance:
            action = chance.choice(state.actions)
        actions.append(action)
        state = engine.act(action)
    return actions, state.won


@pytest.mark.parametrize("name", ["expert", "explorer"])
def test_bundled_games_are_solved_deterministically(bundled, name):
    steps = shortest = 0
    for task_id in bundled.ids("all"):
        actions, won = play(name, bundled, task_id)
        assert won, task_id
        assert play(name, bundled, task_id) == (actions, True)
        steps += len(actions)
        shortest += len(bundled.read(task_id)["walkthrough"])
    # which searches before it finds
    assert (steps > 1.2 * shortest) == (name == "explorer")


@given(game=drafts)
def test_expert_solves_any_generated_game(game):
    compiled = compile_game(game_data(game))
    engine = ALFWorldEngine()
    player = ExpertPlayer()
    state = engine.play(compiled)
    player.reset(Task("", "", "", ""), state, engine)
    for _ in range(LIMIT):
        state = engine.act(player.act(state))
        if state.won:
            return
    raise AssertionError(game.id)


@given(data=st.data(), seed=st.integers(0, 2**32), wander=st.integers(0, 60))
def test_expert_continues_from_any_state(bundled, data, seed, wander):
    """After a random walk it still wins, and every command of its plan brings it one nearer."""
    task_id = data.draw(st.sampled_from(bundled.ids("all")))
    engine = bundled.engine()
    player = ExpertPlayer()
    chance = random.Random(seed)
    state = engine.start(task_id)
    player.reset(bundled.task(task_id), state, engine)
    for _ in range(wander):
        if not state.won:
            state = engine.act(chance.choice(state.actions))
    while not state.won:
        left = find_plan(engine.game, engine.game_state)
        # a dead end of the benchmark's: what is held can be put nowhere
        if left is None:
            kind = engine.game.object_types[engine.game_state.held]
            assert not any(kind in kinds for kinds in engine.game.accepts)
            return
        assert len(left) <= 20
        state = engine.act(player.act(state))
        assert (
            state.won or len(find_plan(engine.game, engine.game_state)) == len(left) - 1
        )


def test_explorer_recovers_from_random_steps(bundled):
    ids = bundled.ids("all")
    won = sum(
        play("explorer", bundled, task_id, 0.2, seed)[1]
        for seed, task_id in enumerate(ids)
    )
    assert won >= 0.9 * len(ids)


@given(text=st.text(), actions=st.lists(st.text(), max_size=5))
def test_explorer_accepts_any_text(text, actions):
    player = ExplorerPlayer()
    state = State(text, ["look", *actions])
    player.reset(Task("", "", "put a mug in shelf.", ""), state)
    assert player.act(state) in state.actions


def test_sentences_agree_with_the_goals(golden_games):
    source = ALFWorldSource(golden_games)
    for task_id in source.ids("all"):
        goal = source.game(task_id).goal
        wish = parse_instruction(source.task(task_id).instruction)
        place = goal.receptacle_type or goal.lamp_type
        assert (goal.object_type, place, goal.count) == (
            wish.thing,
            wish.place,
            wish.count,
        )
    with refused("twelve task sentences"):
        parse_instruction("put the lotion on the skin.")
    with refused("needs the native engine"):
        ExpertPlayer().reset(source.task(task_id), State("", []), None)


@pytest.mark.parametrize("name", ["expert", "explorer"])
@pytest.mark.slow
def test_every_official_game_is_solved_within_the_limit(official, name):
    source = ALFWorldSource(official, keep=1)
    failed = [
        task_id for task_id in source.ids("all") if not play(name, source, task_id)[1]
    ]
    assert len(source.ids("all")) == 3827
    assert failed == []
