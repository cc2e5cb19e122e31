"""TextArena's games: experts win, episodes are independent, the commands work."""

import polars as pl
import pytest
from command import invoke

from hgpo_datasets import scan_steps
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
    for task_id in source.ids("test")[:2]:
        engine, player = source.engine(), make_player("expert", "TextArena")
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
    source, settings = SharedSource(TextArenaSource(game)), settings_for("TextArena", max_steps=254)
    findings = check_environment(source, settings, source.source.ids("train"), episodes=8)
    faults = {each.check: each.message for each in findings if each.verdict != "pass"}
    assert set(faults) <= {"odd commands"}  # two invalid actions lose the game


def test_the_same_position_is_the_same_state():
    engine = TextArenaSource().engine()
    start = engine.start("FrozenLake-v0-3")
    there = engine.act("[right]")
    back = engine.act("[left]")
    assert back.text != start.text  # which says what moved
    assert back.key == start.key != there.key


@pytest.mark.slow
def test_slots_do_not_change_what_is_played(tmp_path):
    env = ("--env", "HGPO/TextArena-v0", "--env-option", "game=GuessTheNumber-v0")
    tables = []
    for slots in (1, 16):
        out = tmp_path / str(slots)
        invoke("rollout", *env, "--tasks", 4, "--group-size", 4, "--slots", slots, "--out", out)
        tables.append(scan_steps(out).select("trajectory", "step", "state", "action", "reward").collect())
        invoke("stats", out)
    keys = ["trajectory", "step"]
    assert tables[0].sort(keys).equals(tables[1].sort(keys))
    invoke("advantages", tmp_path / "1", "-e", "hgpo", "--out", tmp_path / "advantages.parquet")
    assert pl.read_parquet(tmp_path / "advantages.parquet")["advantage"].is_finite().all()


def test_errors():
    with pytest.raises(InputError, match="unknown game 'Chess-v0'"):
        TextArenaSource("Chess-v0")
    with pytest.raises(UnknownTask, match="expected a task such as FrozenLake-v0-0, received 'FrozenLake-v0-x'"):
        TextArenaSource().task("FrozenLake-v0-x")
