"""Third-party Gymnasium environments: played unchanged, with errors that name invalid values."""

import math

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from hgpo_datasets.reader import step_files
from hgpo_envs.errors import InputError, UnknownTask
from hgpo_envs.gymnasium_source import SEEDS, GymnasiumEngine, GymnasiumSource
from hgpo_train.evaluation.report import episode_table, evaluation_reports
from hgpo_train.policies.validation import checked_state
from hgpo_train.rollout.collection import collect
from hgpo_train.rollout.failures import RolloutError
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


def played(reset=("hello", {}), step=("hello", 0.0, False, False, {})):
    """Return the state after a step, as the collector validates it."""
    engine = GymnasiumEngine(Odd(reset, step))
    engine.start("0")
    return checked_state(engine.act("x"))


def test_an_action_is_admissible_if_it_is_listed():
    engine = GymnasiumEngine(Odd(("hello", {"admissible_actions": np.array(["x", "y"])})))
    assert engine.start("0").valid
    assert engine.act("x").valid is True
    assert engine.act("x").valid is None  # the next state lists nothing
    engine.start("0")
    assert engine.act("z").valid is False


GOOD = [
    (("hello", 1, False, False, {}), 1.0),
    (("hello", np.float32(0.5), np.bool_(True), 0, {"success": np.True_}), 0.5),
    (({"text": "hello", "x": 3}, np.int64(2), 1, False, {"score": 1, "won": False}), 2.0),
    (("hello", True, False, True, {"admissible_actions": np.array(["a", "b"])}), 1.0),
    (("hello", np.bool_(False), False, True, {"admissible_commands": ("a",), "action_valid": 0}), 0.0),
]


@pytest.mark.parametrize(("step", "reward"), GOOD)
def test_gymnasium_environments_are_played(step, reward):
    state = played(step=step)
    assert (state.text, state.reward) == ("hello", reward)
    assert type(state.reward) is type(state.score) is float
    assert {type(flag) for flag in (state.terminated, state.won)} == {bool}
    assert state.valid in (None, False)  # nothing is listed, so that it is not known, unless the environment says so
    assert all(type(action) is str for action in state.actions)


@pytest.mark.parametrize(
    ("step", "threshold", "won"),
    [
        (("x", 1.0, True, False, {}), None, True),
        (("x", 0.5, True, False, {}), None, False),  # partial credit
        (("x", 0.5, True, False, {}), 0.5, True),
        (("x", 1.0, False, False, {}), None, False),  # a reward on the way
        (("x", 1.0, False, True, {}), None, False),  # truncated by the environment
        (("x", 1.0, True, True, {}), None, True),
        (("x", 0.0, True, False, {"is_success": True}), None, True),
        (("x", 1.0, True, False, {"success": np.False_}), None, False),
        (("x", 1.0, False, True, {"won": True}), None, False),
        (("x", 1.0, True, False, {"won": None}), None, None),
    ],
)
def test_success(step, threshold, won):
    env = Odd(step=step)
    env.spec = EnvSpec("Odd-v0", reward_threshold=threshold)
    engine = GymnasiumEngine(env)
    engine.start("0")
    state = engine.act("x")
    assert state.won is won
    assert (state.terminated, state.truncated) == (step[2], step[3] and not step[2])


@pytest.mark.parametrize(
    ("name", "solved"),
    [
        ("Guess", lambda ends: (ends["next_state"] == "Right.").mean()),
        ("Graded", lambda ends: (ends["next_state"] == "Right.").mean()),
        ("GradedThreshold", lambda ends: ends["terminated"].mean()),  # half a point is enough
        ("Silent", lambda ends: None),
    ],
)
def test_reported_success_is_that_of_the_episodes(tmp_path, name, solved):
    """A guessing game was reported as solved in 100% of episodes, because partial credit and truncation counted."""
    run = collect(f"foreign:Foreign/{name}-v0", "random", tmp_path / "run", tasks=12, group_size=1, limit=2)
    ends = run.steps.group_by("trajectory").last().collect()
    rate = solved(ends)
    assert name == "Silent" or rate > 0
    assert name == "GradedThreshold" or not rate or rate < 1
    assert run.summary["success"] == rate
    report = evaluation_reports(episode_table(run.steps))[0].measures["success"]
    assert report == rate is None or report.mean == rate
    assert read_index(step_files(run.path)).episodes["won"].mean() == rate


def test_actions_keep_their_case(tmp_path):
    """49 of 1,849 admissible actions of a word game were lowercased and became inadmissible."""

    def shout(request):
        action = request.admissible_actions[request.seed % 3]
        return f"<think>!</think><action>{action.upper() if request.seed % 2 else action}</action>"

    run = collect("foreign:Foreign/Words-v0", shout, tmp_path / "run", tasks=8, action_format="response")
    steps = run.steps.collect()
    assert steps["action_valid"].all()
    assert steps["action_admissible"].all()
    assert set(steps["action"]) == {"say sivaorP", "take Canadian latchkey", "LOOK"}
    assert run.summary["success"] > 0.5


@pytest.mark.parametrize(
    "wrong",
    [
        {1: math.nan}, {1: None}, {1: [1.0]}, {1: 10**400}, {0: None}, {0: b"hello"}, {0: {}}, {0: {"text": 3}},
        {2: "False"}, {2: 2}, {3: np.array([True, False])}, {4: None}, {4: {"won": "yes"}}, {4: {"success": 0.3}},
        {4: {"score": math.nan}}, {4: {"action_valid": "no"}}, {4: {"admissible_actions": "look"}},
        {4: {"admissible_commands": ["a", 3]}},
    ],
)  # fmt: skip
def test_a_wrong_value_aborts_the_rollout(wrong, tmp_path, monkeypatch):
    step = tuple(wrong.get(place, value) for place, value in enumerate(("hello", 0.0, False, False, {})))
    registry = {"Odd-v0": EnvSpec("Odd-v0", lambda: Odd(step=step), disable_env_checker=True, order_enforce=False)}
    monkeypatch.setattr(gymnasium.envs.registration, "registry", registry)
    with pytest.raises(RolloutError, match=r"1 of 1 rollouts failed \(100%\): 1 × EnvironmentFailed: ."):
        collect("Odd-v0", lambda request: "x", tmp_path / "run", tasks=1, group_size=1)


@pytest.mark.parametrize("task_id", ["", "-1", "01", "1.0", "²", "x", str(SEEDS), "9" * 5000, "１"])
def test_unknown_tasks(task_id):
    with pytest.raises(UnknownTask, match="expected a seed from 0"):
        GymnasiumSource("foreign:Foreign/Guess-v0").task(task_id)


@pytest.mark.parametrize("options", ["", "[]", "{", "3", '{"nothing": 1}'])
def test_invalid_arguments(options):
    with pytest.raises(InputError, match="Foreign/Guess"):
        GymnasiumSource("foreign:Foreign/Guess-v0", options)
