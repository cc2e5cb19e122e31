"""Another package's Gymnasium environment plays like the package's own."""

import gymnasium
import pytest

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec, collect_groups

GUESS = "foreign:Foreign/Guess-v0"


def play(folder, execution: ExecutionOptions, **options):
    handle = open_env(GUESS, split="train", action_format="response", history_length=1, **options)
    policy = make_policy("random", PolicyContext(handle.shared.source.name))
    with StepWriter(folder, run="run") as writer:
        collect_groups(handle, policy, writer, RolloutSpec(tasks=20, group_size=4, seed=1), execution)
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
            assert (row["reward"], row["terminated"], row["won"]) == (reward, terminated, bool(reward))
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
        (GUESS, {"history_length": -1}, "history_length: expected an integer of at least 0, received -1"),
    ],
)
def test_bad_worlds(env_id, options, line):
    with pytest.raises(InputError) as caught:
        open_env(env_id, **options)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
