"""Third-party Gymnasium environments: played unchanged like the package's own; errors name invalid values."""

import math

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from refusals import refused, refused_saying

from hgpo_datasets import StepWriter, scan_steps
from hgpo_datasets.reader import step_files
from hgpo_envs.engine import State
from hgpo_envs.errors import UnknownTask
from hgpo_envs.gymnasium_source import SEEDS, GymnasiumEngine, GymnasiumSource
from hgpo_train.evaluation.report import episode_table, evaluation_reports
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.policies.validation import checked
from hgpo_train.rollout.collection import collect
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.failures import RolloutError
from hgpo_train.rollout.plan import ExecutionOptions, RolloutSpec
from hgpo_train.rollout.run import collect_groups
from hgpo_train.view.index import read_index


class Odd(gymnasium.Env):
    """An environment that returns given values."""

    observation_space = action_space = spaces.Text(100)

    def __init__(self, reset=("hello", {}), step=("hello", 0.0, False, False, {})):
        self.given = {"reset": reset, "step": step}

    def reset(self, *, seed=None, options=None):
        return self.given["reset"]

    def step(self, action):
        return self.given["step"]


@pytest.mark.parametrize(
    ("step", "threshold", "expected"),
    [
        (("x", 1.0, True, False, {}), None, (1.0, None, True, False, True)),
        # partial credit
        (
            ("x", np.float32(0.5), np.bool_(True), 0, {}),
            None,
            (0.5, None, True, False, False),
        ),
        (
            ({"text": "x", "y": 3}, 0.5, True, False, {}),
            0.5,
            (0.5, None, True, False, True),
        ),
        # a reward on the way
        (("x", np.int64(1), False, False, {}), None, (1.0, None, False, False, False)),
        # truncated
        (
            ("x", 1.0, False, True, {"action_valid": 0}),
            None,
            (1.0, False, False, True, False),
        ),
        (("x", 1.0, True, True, {}), None, (1.0, None, True, False, True)),
        (
            ("x", 0.0, True, False, {"is_success": True}),
            None,
            (0.0, None, True, False, True),
        ),
        (
            ("x", 1.0, True, False, {"success": np.False_}),
            None,
            (1.0, None, True, False, False),
        ),
        # its own word
        (("x", 1.0, False, True, {"won": True}), None, (1.0, None, False, True, True)),
        (
            ("x", 0.0, True, False, {"final_info": {"is_solved": True}}),
            None,
            (0.0, None, True, False, True),
        ),
        # as a pole that is balanced to the end
        (("x", 0.5, False, True, {}), 0.5, (0.5, None, False, True, True)),
        (("x", -1.0, True, False, {}), -0.5, (-1.0, None, True, False, False)),
        (("x", 1.0, True, False, {"won": None}), None, (1.0, None, True, False, None)),
    ],
)
def test_gymnasium_environments_are_played(step, threshold, expected):
    env = Odd(step=step)
    env.spec = EnvSpec("Odd-v0", reward_threshold=threshold)
    engine = GymnasiumEngine(env)
    engine.start("0")
    state = checked(State, engine.act("x"))  # as the collector validates it
    assert (
        state.reward,
        state.valid,
        state.terminated,
        state.truncated,
        state.won,
    ) == expected
    assert (state.text, type(state.reward), type(state.terminated)) == (
        "x",
        float,
        bool,
    )


def played(rewards, threshold=None, **info):
    """Return the last state of the second of two episodes with these rewards: each begins anew."""
    env = Odd()
    env.spec = EnvSpec("Odd-v0", reward_threshold=threshold)
    engine = GymnasiumEngine(env)
    for _ in range(2):
        engine.start("0")
        for number, reward in enumerate(rewards, 1):
            env.given["step"] = "x", reward, number == len(rewards), False, info
            state = engine.act("x")
    return checked(State, state)


@pytest.mark.parametrize(
    ("given", "score"), [(0.25, 0.25), (1, 1), (40, 0.5), (-2.0, 0.5), (None, 0.5)]
)
@pytest.mark.filterwarnings("ignore:.*without a reward of 1")
def test_points_are_no_score(given, score):
    assert played([0.5], score=given).score == score


@pytest.mark.parametrize(
    ("rewards", "threshold", "won"),
    [
        ([0.25] * 4, 1.0, True),  # Gymnasium's threshold is one of the return
        ([0.1] * 10, 1.0, True),  # whose sum is less by the last bit
        ([1.0, 1.0, -1.5], 1.0, False),  # reached on the way, and lost again
        ([-1.0, -1.0], -2.0, True),
        ([-1.0, -1.0, -1.0], -2.0, False),
        ([0.0, 1.0], None, True),
        ([0.0, 0.0], None, False),
    ],
)
def test_a_threshold_is_one_of_the_return(rewards, threshold, won):
    state = played(rewards, threshold)
    assert state.won is won
    assert 0 <= state.score <= 1


@pytest.mark.parametrize(
    ("rewards", "doubt"),
    [
        *[
            (each, "without a reward of 1")
            for each in ([0.82], [0.25] * 4, [-1.0, -1.0], [0.5, 0.0])
        ],
        # a reward for every step that is survived
        (
            [1.0, 1.0],
            "with a reward of 1, as others have before their end, and counts as solved",
        ),
    ],
)
def test_success_that_the_last_reward_does_not_show_is_warned_of(rewards, doubt):
    with pytest.warns(UserWarning, match=doubt):
        played(rewards)


@pytest.mark.parametrize("key", ["instruction", "task", "mission"])
def test_instructions_are_the_environments(key, monkeypatch):
    for given in (
        ("hello", {key: "Find it."}),
        ({"text": "hello", key: "Find it."}, {}),
    ):
        spec = EnvSpec(
            "Odd-v0",
            lambda given=given: Odd(given),
            disable_env_checker=True,
            order_enforce=False,
        )
        monkeypatch.setattr(gymnasium.envs.registration, "registry", {"Odd-v0": spec})
        assert GymnasiumSource("Odd-v0").task("3").instruction == "Find it."


def test_an_action_is_admissible_if_it_is_listed():
    engine = GymnasiumEngine(
        Odd(("hello", {"admissible_actions": np.array(["x", "y"])}))
    )
    assert engine.start("0").actions == ["x", "y"]
    assert all(type(action) is str for action in engine.start("0").actions)
    assert engine.act("x").valid is True
    assert engine.act("x").valid is None  # the next state lists nothing
    engine.start("0")
    assert engine.act("z").valid is False


SOLVED = {
    "Guess": lambda ends: (ends["next_state"] == "Right.").mean(),
    "Graded": lambda ends: (ends["next_state"] == "Right.").mean(),
    "GradedThreshold": lambda ends: ends["terminated"].mean(),  # half a point is enough
    "Silent": lambda ends: None,
}


@pytest.mark.parametrize("error", [AssertionError, gymnasium.error.InvalidAction])
def test_an_action_that_the_environment_refuses_is_the_policys_mistake(error):
    """Many environments assert `action_space.contains(action)`, which a model's text need not be."""

    class Strict(Odd):
        def step(self, action):
            if not action.isalpha() or action == "broken":
                raise error(action)
            return super().step(action)

    engine = GymnasiumEngine(Strict(step=("there", 1.0, True, False, {})))
    engine.start("0")
    state = engine.act("no!")
    assert (state.text, state.valid, state.reward) == ("hello", False, 0.0)
    assert not state.terminated
    with pytest.raises(error):
        engine.act("broken")
    assert engine.act("go").won


@pytest.mark.parametrize("name", SOLVED)
def test_reported_success_is_that_of_the_episodes(tmp_path, name):
    """A guessing game was reported as solved in 100% of episodes, because partial credit and truncation counted."""
    run = collect(
        f"foreign:Foreign/{name}-v0",
        "random",
        tmp_path / "run",
        tasks=12,
        group_size=1,
        limit=2,
    )
    ends = run.steps.group_by("trajectory").last().collect()
    rate = SOLVED[name](ends)
    assert name == "Silent" or rate > 0
    assert name == "GradedThreshold" or not rate or rate < 1
    assert run.summary["success"] == rate
    report = evaluation_reports(episode_table(run.steps))[0].measures["success"]
    assert report == rate is None or report.mean == rate
    assert read_index(step_files(run.path)).episodes["won"].mean() == rate


STEP = {
    "observation": "hello",
    "reward": 0.0,
    "terminated": False,
    "truncated": False,
    "info": {},
}
"""What a step returns."""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("observation", None),
        ("observation", b"hello"),
        ("observation", {}),
        ("observation", {"text": 3}),
        ("reward", math.nan),
        ("reward", None),
        ("reward", [1.0]),
        pytest.param("reward", 10**400, id="reward-huge"),
        ("terminated", "False"),
        ("terminated", 2),
        ("truncated", np.array([True, False])),
        ("info", None),
        ("info", {"won": "yes"}),
        ("info", {"success": 0.3}),
        ("info", {"score": math.nan}),
        ("info", {"action_valid": "no"}),
        ("info", {"admissible_actions": "look"}),
        ("info", {"admissible_commands": ["a", 3]}),
    ],
)
def test_a_wrong_value_aborts_the_rollout(name, value, tmp_path, monkeypatch):
    step = tuple((STEP | {name: value}).values())
    spec = EnvSpec(
        "Odd-v0",
        lambda: Odd(step=step),
        disable_env_checker=True,
        order_enforce=False,
    )
    monkeypatch.setattr(gymnasium.envs.registration, "registry", {"Odd-v0": spec})
    with pytest.raises(
        RolloutError, match=r"1 of 1 rollouts failed \(100%\): 1 × EnvironmentFailed: ."
    ):
        collect("Odd-v0", lambda request: "x", tmp_path / "run", tasks=1, group_size=1)


def test_invalid_arguments():
    with refused("Foreign/Guess"):
        GymnasiumSource("foreign:Foreign/Guess-v0", '{"nothing": 1}')
    for task_id in ("", "-1", "01", "x", str(SEEDS), "9" * 5000, "１"):
        with pytest.raises(UnknownTask, match="expected a seed from 0"):
            GymnasiumSource("foreign:Foreign/Guess-v0").task(task_id)


GUESS = "foreign:Foreign/Guess-v0"


def play(folder, execution, **options):
    handle = open_env(
        GUESS, split="train", action_format="response", history_length=1, **options
    )
    policy = make_policy("random", PolicyContext(handle.shared.source.name))
    with StepWriter(folder, run="run") as writer:
        collect_groups(
            handle,
            policy,
            writer,
            RolloutSpec(tasks=20, group_size=4, seed=1),
            execution,
        )
    return scan_steps(folder).collect()


@pytest.mark.parametrize("keyed", [False, True])
def test_a_foreign_environment(tmp_path, keyed):
    steps = play(tmp_path / "run", ExecutionOptions(slots=16), keyed=keyed, limit=3)
    assert steps["trajectory"].n_unique() == 80
    for (_, task), rows in steps.group_by("trajectory", "task_id"):
        env = gymnasium.make(GUESS, limit=3)
        shown, _ = env.reset(seed=int(task))
        for row in rows.sort("step").iter_rows(named=True):
            assert (row["state"], row["admissible_actions"]) == (shown, ["0", "1", "2"])
            shown, reward, terminated, truncated, _ = env.step(row["action"])
            assert (row["reward"], row["terminated"], row["won"]) == (
                reward,
                terminated,
                bool(reward),
            )
            assert row["truncated"] == (truncated and not terminated)
    assert steps.filter("won").height > 20
    assert "Task:" not in steps["prompt"][0]


@pytest.mark.parametrize(
    ("env_id", "options", "line"),
    [
        ("CartPole-v1", {}, "CartPole-v1: expected observations of text, received Box"),
        (GUESS, {"limt": 3}, "unexpected keyword argument 'limt'"),
        (GUESS, {"split": "test"}, "unknown split 'test'. Known: train, all"),
        ("Nobody/Knows-v0", {}, "unknown environment 'Nobody/Knows-v0'"),
        ("HGPO/ALFWorld-v0", {"sampling": "sweep"}, "unknown argument 'sampling'"),
        (
            GUESS,
            {"history_length": -1},
            "history_length: expected an integer of at least 0, received -1",
        ),
    ],
)
def test_bad_worlds(env_id, options, line):
    with refused_saying(line):
        open_env(env_id, **options)
