"""TextArena's games: experts win, episodes are independent, the commands work."""

import pytest
from command import invoke
from plugin_commands import (
    assert_advantages_are_numbers,
    rolled_out,
    success_of_the_expert,
)

from hgpo_envs.env_checker import check_environment
from hgpo_envs.environment_spec import make_player
from hgpo_envs.episode import settings_for
from hgpo_envs.errors import InputError, UnknownTask
from hgpo_envs.sources import SharedSource

pytest.importorskip("textarena")
from hgpo_textarena.engine import TextArenaSource
from hgpo_textarena.games import GAMES

QUICK = sorted(set(GAMES) - {"TowerOfHanoi-v0-hardcore", "TowerOfHanoi-v0-extreme"})


@pytest.mark.slow
@pytest.mark.parametrize("game", QUICK)
def test_the_expert_wins(game):
    source = TextArenaSource(game)
    for task_id in source.ids("all")[-2:]:
        engine = source.engine()
        player = make_player("expert", "TextArena")
        state = engine.start(task_id)
        player.reset(source.task(task_id), state, engine)
        while not state.terminated:
            action = player.act(state)
            assert action in state.actions
            state = engine.act(action)
        assert state.won
        assert state.reward == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("game", QUICK)
def test_checks_of_environments_pass(game):
    source = SharedSource(TextArenaSource(game))
    settings = settings_for("TextArena", max_steps=254)
    findings = check_environment(
        source, settings, source.source.ids("train"), episodes=8
    )
    faults = {each.check: each.message for each in findings if each.verdict != "pass"}
    faults.pop("odd commands", None)  # two invalid actions lose the game
    assert faults == {}


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_tasks_are_different_games(game):
    source = TextArenaSource(game)
    train = source.ids("train")
    test = source.ids("test")
    assert source.ids("all") == [*train, *test]
    begun = set()
    for task_id in source.ids("all"):
        engine = source.engine()
        engine.start(task_id)
        begun.add(str(engine.game.state.game_state))
    assert len(begun) == len(train) + len(test)
    # the games' ranges of numbers
    numbers = {"GuessTheNumber-v0": 20, "GuessTheNumber-v0-hardcore": 50}
    assert len(begun) == (1 if "Hanoi" in game else numbers.get(game, len(begun)))
    assert [source.task(task_id).split for task_id in (*train[:2], *test[:2])] == [
        "train"
    ] * len(train[:2]) + ["test"] * len(test[:2])


def test_the_same_position_is_the_same_state():
    engine = TextArenaSource().engine()
    start = engine.start("FrozenLake-v0-3")
    there = engine.act("[right]")
    back = engine.act("[left]")
    assert back.text != start.text  # which says what moved
    assert back.key == start.key != there.key


@pytest.mark.slow
def test_from_rollouts_to_a_page(tmp_path):
    env = ("--env", "HGPO/TextArena-v0", "--env-option", "game=GuessTheNumber-v0")
    four = (*env, "--tasks", 4, "--group-size", 4)
    one_slot = rolled_out(tmp_path / "random", *four, "--slots", 1)
    sixteen = rolled_out(tmp_path / "again", *four, "--slots", 16)
    played = ["trajectory", "step", "state", "action", "reward"]
    # the number of slots does not change what is played
    assert one_slot.select(played).equals(sixteen.select(played))
    expert = rolled_out(tmp_path / "expert", *four, "--policy", "expert")
    assert expert["episode_won"].all()
    assert_advantages_are_numbers(tmp_path / "random")
    shown = invoke("view", tmp_path / "random", "-o", tmp_path / "page.html")
    assert "page.html: 4 tasks" in shown
    # a tenth of 20 numbers
    assert success_of_the_expert(tmp_path / "eval", *env) == (2, 1.0)


def test_errors():
    with pytest.raises(InputError, match="unknown game 'Chess-v0'"):
        TextArenaSource("Chess-v0")
    with pytest.raises(
        UnknownTask,
        match="expected a task such as FrozenLake-v0-0, received 'FrozenLake-v0-x'",
    ):
        TextArenaSource().task("FrozenLake-v0-x")
