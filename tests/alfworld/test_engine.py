"""Properties of the engine on bundled games and random commands."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine import ALFWorldEngine

SOURCE = ALFWorldSource(keep=1000)
TASKS = st.sampled_from(SOURCE.ids("all"))
SEEDS = st.integers(0, 2**32)


def wander(engine, state, seed, steps):
    rng = random.Random(seed)
    states = [state]
    for _ in range(steps):
        if states[-1].terminated:
            break
        states.append(engine.act(rng.choice(states[-1].actions)))
    return states


@given(TASKS, SEEDS)
def test_every_admissible_command_has_its_documented_effect(task, seed):
    engine = SOURCE.engine()
    for state in wander(engine, engine.start(task), seed, 30):
        assert state.valid
        assert state.text
        assert state.text != "Nothing happens."
        assert list(state.actions) == sorted(set(state.actions))
        assert {"look", "inventory", "help"} <= set(state.actions)
        assert state.won == state.terminated == (state.reward == 1.0)


@pytest.mark.slow
@given(
    TASKS,
    SEEDS,
    st.text()
    | st.sampled_from(["go to", " ", "\x00", "\ud800", "take mug 1 from mug 1"]),
)
def test_inadmissible_commands_change_nothing_and_never_raise(task, seed, command):
    engine = SOURCE.engine()
    before = wander(engine, engine.start(task), seed, 5)[-1]
    if command.strip() in before.actions or before.terminated:
        return
    game_state = engine.game_state.copy()
    after = engine.act(command)
    assert engine.game_state == game_state
    assert (after.text, after.valid, after.reward) == ("Nothing happens.", False, 0.0)
    assert after.actions == before.actions


@given(TASKS, SEEDS)
def test_spaces_around_a_command_are_ignored_but_case_is_not(task, seed):
    plain = SOURCE.engine()
    spaced = SOURCE.engine()
    command = random.Random(seed).choice(plain.start(task).actions)
    spaced.start(task)
    assert spaced.act(command.upper()).text == "Nothing happens."
    assert spaced.act(f" \t{command}\n") == plain.act(command)


def test_commands_after_the_end_change_nothing():
    task = SOURCE.ids("train")[0]
    engine = SOURCE.engine()
    state = engine.start(task)
    for command in engine.game.walkthrough or ():
        state = engine.act(command)
    assert state.terminated
    game_state = engine.game_state.copy()
    for command in ("look", "nonsense"):
        again = engine.act(command)
        assert (again.text, again.won, again.terminated) == (state.text, True, True)
        assert (again.valid, again.reward) == (False, 0)
    assert engine.game_state == game_state


def test_act_before_start_is_an_error():
    with pytest.raises(RuntimeError, match="act before start"):
        SOURCE.engine().act("look")
    with pytest.raises(RuntimeError, match="no source of games"):
        ALFWorldEngine().start("train/a/b")
