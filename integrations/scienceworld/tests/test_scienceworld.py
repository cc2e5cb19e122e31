"""ScienceWorld's tasks: solutions win, states are reproducible, the commands work."""

import shutil

import pytest
from plugin_commands import assert_advantages_are_numbers, rolled_out

from hgpo_envs.env_checker import check_environment
from hgpo_envs.environment_spec import make_player
from hgpo_envs.episode import settings_for
from hgpo_envs.errors import InputError, UnknownTask
from hgpo_envs.sources import SharedSource

pytest.importorskip("scienceworld")
if shutil.which("java") is None:
    pytest.skip("needs Java", allow_module_level=True)
from hgpo_scienceworld.simulator import new_simulator
from hgpo_scienceworld.source import SPLITS, VARIATIONS, ScienceWorldSource

SOURCE = ScienceWorldSource()
SHORT = "experiments=lifespan-shortest-lived,find-plant"


@pytest.mark.slow
def test_tasks_and_splits_are_the_simulators():
    simulator = new_simulator()
    assert set(simulator.getTaskNames()) == set(VARIATIONS)
    for task, variations in VARIATIONS.items():
        assert simulator.getTaskMaxVariations(task) == variations
    for task in (
        "identify-life-stages-2",
        "lifespan-shortest-lived",
        "inclined-plane-friction-named-surfaces",
    ):
        simulator.load(task, 0, "easy", False)
        theirs = (
            simulator.getVariationsTrain(),
            simulator.getVariationsDev(),
            simulator.getVariationsTest(),
        )
        source = ScienceWorldSource(task)
        for split, variations in zip(SPLITS, theirs, strict=True):
            assert source.ids(split) == [
                f"{task}-{variation}" for variation in variations
            ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "task_id", ["find-plant-3", "power-component-0", "grow-plant-0", "chemistry-mix-20"]
)
def test_solutions_win_and_states_are_reproducible(task_id):
    engine = SOURCE.engine()
    again = SOURCE.engine()
    task = SOURCE.task(task_id)
    player = make_player("expert", "ScienceWorld")
    state = engine.start(task_id)
    assert task.instruction.startswith("Your task is to ")
    player.reset(task, state, engine)
    start = state
    assert again.start(task_id) == start
    assert (start.reward, start.terminated) == (0.0, False)
    total = start.score
    while not state.terminated:
        command = player.act(state)
        state = engine.act(command)
        # a branch that starts here continues the solution
        player.reset(task, state, engine)
        # episodes at the same time, as ScienceWorld alone does not play them
        assert again.act(command) == state
        total += state.reward
    assert state.won
    assert total == pytest.approx(1.0)
    assert engine.act("look around") == state
    assert engine.start(task_id) == start


@pytest.mark.slow
def test_episodes_of_different_tasks_do_not_change_each_other():
    engine = SOURCE.engine()
    other = SOURCE.engine()
    alone = [
        engine.start("find-plant-0"),
        engine.act("go to kitchen"),
        engine.act("open cupboard"),
    ]
    together = [engine.start("find-plant-0")]
    # needs electrical actions, which are otherwise simplified away
    other.start("power-component-0")
    together.append(engine.act("go to kitchen"))
    other.act("look around")
    assert [*together, engine.act("open cupboard")] == alone
    assert not any(action.startswith("connect") for action in alone[-1].actions)


@pytest.mark.slow
def test_replies():
    engine = SOURCE.engine()
    start = engine.start("boil-0")
    assert "reset task" not in start.actions
    looked = engine.act("look around")
    assert (looked.text, looked.key, looked.valid) == (start.text, start.key, True)
    for command in ("reset task", "xyzzy", ""):
        refused = engine.act(command)
        assert refused.text.startswith("No known action matches that input")
        assert (refused.valid, refused.key, refused.actions) == (
            False,
            start.key,
            start.actions,
        )
    asked = engine.act("open door")
    assert asked.actions[:2] == ["0", "1"]
    assert asked.key != start.key
    assert engine.act("0").text.startswith("The door is already open.")
    failed = engine.act("focus on air")  # the wrong substance
    assert (failed.terminated, failed.won, failed.score, failed.actions) == (
        True,
        False,
        0.0,
        (),
    )


@pytest.mark.slow
def test_checks_and_commands(tmp_path):
    source = SharedSource(ScienceWorldSource("lifespan-shortest-lived"))
    settings = settings_for("ScienceWorld", max_steps=4)
    findings = check_environment(
        source, settings, source.source.ids("train"), episodes=4
    )
    assert [finding for finding in findings if finding.verdict == "fail"] == []
    env = ("--env", "HGPO/ScienceWorld-v0", "--env-option", SHORT)
    two = (*env, "--tasks", 2, "--group-size", 2)
    rolled_out(tmp_path / "random", *two, "--max-steps", 12)
    assert_advantages_are_numbers(tmp_path / "random")
    expert = rolled_out(tmp_path / "expert", *two, "--policy", "expert")
    assert expert["episode_won"].all()


def test_errors():
    with pytest.raises(InputError, match="unknown experiment 'bake'"):
        ScienceWorldSource("bake")
    with pytest.raises(InputError, match="unknown split 'valid'"):
        SOURCE.ids("valid")
    for name in ("boil-30", "boil-x", "bake-0", ""):
        with pytest.raises(UnknownTask, match="expected a task such as boil-0"):
            SOURCE.task(name)
