"""Truth: tables are the same bytes however computed, and what cannot be computed is reported before anything starts."""

import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import foreign  # noqa: F401 - registers Foreign/Guess-v0
import pytest
from command import invoke
from ring import Asked

from hgpo_datasets import StepWriter
from hgpo_envs.errors import InputError
from hgpo_research.policies.distributions import OwnPolicy
from hgpo_research.truth import Budget, Rewards, plan_truth, read_metadata, write_truth
from hgpo_train.rollout import collect

GUESS = "foreign:Foreign/Guess-v0"


@pytest.fixture(scope="module")
def guesses(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guess") / "run"
    return collect(
        GUESS,
        "random",
        folder,
        tasks=5,
        group_size=2,
        action_format="command",
        limit=3,
    )


@pytest.mark.slow
def test_the_number_of_processes_does_not_change_the_bytes(guesses, tmp_path):
    def written(name, seed, **how):
        budget = Budget(rollouts=8, exact_nodes=0, seed=seed)
        path = tmp_path / name
        report = write_truth(
            plan_truth(guesses.path, Rewards(), budget, allow=[GUESS]),
            path,
            **how,
        )
        return report, path.read_bytes()

    seen = []
    once = written("once", 5, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (5, 5)
    assert once[0].rows == guesses.steps.collect().height
    assert written("twice", 5, processes=2) == once
    assert written("other", 6)[1] != once[1]


def test_an_interrupted_computation_leaves_nothing(guesses, tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    plan = plan_truth(
        guesses.path, Rewards(), Budget(rollouts=4, exact_nodes=0), allow=[GUESS]
    )
    with pytest.raises(KeyboardInterrupt):
        write_truth(plan, tmp_path / "truth.parquet", progress=stop)
    assert not list(tmp_path.iterdir())


def test_the_metadata_state_what_was_computed(guesses, tmp_path):
    out = tmp_path / "truth.parquet"
    rewards = Rewards(reward="success", reward_scale=10, gamma=0.9)
    write_truth(plan_truth(guesses.path, rewards, Budget(seed=3), allow=[GUESS]), out)
    found = read_metadata(out)
    assert found["rewards"] == {
        "reward": "success",
        "reward_scale": 10.0,
        "gamma": 0.9,
        "invalid_action_penalty": 0.0,
    }
    assert found["budget"]["seed"] == 3
    assert found["policy"] == {"name": "random"}
    assert found["environment"]["id"] == GUESS
    assert found["run"] == "run"
    assert "hgpo" in found["versions"]
    with pytest.raises(InputError, match="expected a truth table"):
        read_metadata(next(guesses.path.glob("steps/*.parquet")))


def test_a_policy_whose_memory_cannot_be_followed_is_refused():
    class Elsewhere(Asked):
        memoryless = False

        def distributions(self, requests):
            raise AssertionError

    OwnPolicy(Elsewhere())
    with pytest.raises(
        InputError,
        match="expected a policy without a memory of its own, or one that replies in this",
    ):
        OwnPolicy(SimpleNamespace(name="elsewhere", distributions=len, fork=len))


def test_another_environment_is_an_error(tmp_path):
    def refused(run, line, policy=None, **env_options):
        plan = plan_truth(run.path, Rewards(), Budget(), policy=policy)
        other = replace(plan, env_options={**plan.env_options, **env_options})
        with pytest.raises(InputError, match=line):
            write_truth(other, tmp_path / "other.parquet")

    run = collect("HGPO/ALFWorld-v0", "random", tmp_path / "run", tasks=1, max_steps=3)
    refused(run, "use the run's step limit", max_steps=5)
    shop = collect(
        "HGPO/WebShop-v0",
        lambda _: "search[socks]",
        tmp_path / "shop",
        tasks=1,
        max_steps=2,
    )
    line = "the environment or its data are not those of the run"
    refused(shop, line, policy="random", observation_mode="text_rich")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run",
        "shop",
    ]


@pytest.mark.parametrize(
    ("settings", "values", "line"),
    [
        (
            Budget,
            {"rollouts": 0},
            "parameter rollouts: expected int >= 1, received 0",
        ),
        (
            Budget,
            {"error": -1.0},
            "parameter error: expected float > 0.0, received -1.0",
        ),
        (
            Budget,
            {"error": float("nan")},
            "parameter error: expected float > 0.0, received nan",
        ),
        (
            Budget,
            {"steps": 0},
            "parameter steps: expected int >= 1, received 0",
        ),
        (
            Budget,
            {"seed": -1},
            "parameter seed: expected int >= 0, received -1",
        ),
        (Rewards, {"reward": "return"}, "parameter reward"),
        (Rewards, {"gamma": 1.5}, "parameter gamma"),
        (
            Rewards,
            {"reward_scale": 0},
            "parameter reward_scale: expected a number other than 0, received 0",
        ),
        (
            Rewards,
            {"reward_scale": float("inf")},
            "parameter reward_scale: expected a finite number, received inf",
        ),
    ],
)
def test_wrong_settings(settings, values, line):
    with pytest.raises(InputError, match=line):
        settings(**values)


def test_an_output_that_cannot_be_written_is_found_before_the_work(
    guesses, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "hgpo_research.truth.write_truth",
        lambda *_, **__: pytest.fail("computed"),
    )
    run = tmp_path / "run"
    shutil.copytree(guesses.path, run)
    (tmp_path / "run.truth").touch()
    with pytest.raises(InputError, match="Not a directory; choose another path"):
        invoke("truth", run, "--allow", GUESS)
    with pytest.raises(
        InputError,
        match=r"--out: expected the path of a table, such as truth.parquet, received .*csv",
    ):
        invoke("truth", run, "--out", tmp_path / "t.csv", "--allow", GUESS)


def test_the_next_command_can_be_copied(guesses, tmp_path):
    out = tmp_path / "a b.parquet"
    assert f"--truth '{out}' -e hgpo,gigpo,grpo" in invoke(
        "truth", guesses.path, "--out", out, "--allow", GUESS
    )


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(InputError, match="expected the folder of a run"):
        plan_truth(tmp_path, Rewards(), Budget())


@pytest.mark.parametrize(
    ("env", "policy", "name"),
    [
        ({"id": "evil:ENV"}, "random", "evil:ENV"),
        ({"id": "evil:Evil/World-v0"}, "random", "evil:Evil/World-v0"),
        ({"id": "HGPO/ALFWorld-v0"}, "evil:act", "evil:act"),
        (
            {"id": "HGPO/ALFWorld-v0"},
            "mixture:evil:act=0.5,random=0.5",
            "mixture:evil:act=0.5,random=0.5",
        ),
        (
            {"id": "HGPO/AppWorld-v0", "python": "./evil"},
            "random",
            "./evil",
        ),
        (
            {
                "id": "HGPO/WebShop-v0",
                "backend": "original",
                "data": "evil",
            },
            "random",
            "original",
        ),
    ],
)
def test_a_run_of_others_runs_no_code(tmp_path, monkeypatch, env, policy, name):
    """Its manifest names modules beside it and an interpreter: one line says what to add, and nothing is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    (tmp_path / "evil.py").write_text(
        "import pathlib\npathlib.Path('started').touch()\n"
    )
    (tmp_path / "evil").write_text("#!/bin/sh\ntouch started\n")
    (tmp_path / "evil").chmod(0o755)
    with StepWriter(
        tmp_path / "run", config={"env": env, "policy": {"name": policy}}
    ) as writer:
        writer.add_group(
            [
                {
                    "task_id": "t",
                    "trajectory": "a",
                    "step": 0,
                    "state": "s",
                    "action": "a",
                    "reward": 0.0,
                }
            ]
        )
    with pytest.raises(
        InputError,
        match=rf"^.*manifest.jsonl names the .*; if you trust it, add --allow {name}$",
    ):
        invoke("truth", "run")
    assert not (tmp_path / "started").exists()
    if policy == "random" and ":" in env["id"]:
        with pytest.raises(InputError):  # it is no environment
            invoke("truth", "run", "--allow", name)
        assert (tmp_path / "started").exists()
