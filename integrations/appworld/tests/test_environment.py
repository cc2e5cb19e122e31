"""AppWorld in Gymnasium, in rollouts and in evaluations: everything that other benchmarks can do."""

import copy
import json
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import polars as pl
import pytest
from gymnasium.utils.env_checker import check_env
from nightly import sample_or_all

import hgpo_envs  # noqa: F401 - registers the ids
from hgpo_appworld.engine.source import AppWorldSource
from hgpo_datasets import scan_steps, verify
from hgpo_envs.errors import InputError
from hgpo_envs.prompts import bundled_templates
from hgpo_train.advantages import compute
from hgpo_train.rollout import collect

ENV_ID = "HGPO/AppWorld-v0"


@pytest.fixture
def place(appworld_python: str, appworld_root: Path) -> dict[str, str]:
    return {"data": str(appworld_root), "python": appworld_python}


def play(env: Any, programs: list[str]) -> list[Any]:
    return [env.step(program)[0]["state"] for program in programs]


# ------------------------------------------------------------------------------------------------------------ no worlds


def test_numbered_actions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data" / "tasks").mkdir(parents=True)
    (tmp_path / "data" / "datasets").mkdir()
    with pytest.raises(
        InputError,
        match="received 'number': it has no list of admissible actions to number",
    ):
        gymnasium.make(
            ENV_ID, data=str(tmp_path), python="python3", action_format="number"
        )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            {},
            "data: expected AppWorld's root; get the official tasks with hgpo data fetch appworld",
        ),
        (
            {"data": "nowhere"},
            "expected AppWorld's root, a folder with data/datasets and data/tasks; received 'nowhere'",
        ),
        (
            {"data": "DATA", "python": "no-such-python"},
            "received 'no-such-python', which cannot be run",
        ),
        ({"data": "DATA", "observation": "all"}, "unknown observation 'all'"),
        ({"data": "DATA", "reward_scale": "sum"}, "unknown reward_scale 'sum'"),
        ({"data": "DATA", "isolation": "docker"}, "unknown isolation 'docker'"),
        ({"data": "DATA", "max_difficulty": 4}, "unknown max_difficulty 4"),
        (
            {"data": "DATA", "max_output": 0},
            "max_output: expected an integer of at least 1, received 0",
        ),
        (
            {"data": "DATA", "memory_mb": True},
            "memory_mb: expected an integer of at least 1, received True",
        ),
        ({"data": 3}, "data: expected a path, received 3"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: dict[str, Any],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("APPWORLD_ROOT", raising=False)
    (tmp_path / "data" / "tasks").mkdir(parents=True)
    (tmp_path / "data" / "datasets").mkdir()
    given = {
        name: str(tmp_path) if value == "DATA" else value
        for name, value in arguments.items()
    }
    with pytest.raises(InputError) as error:
        gymnasium.make(ENV_ID, **{"python": "python3", **given})
    assert line in str(error.value)


# --------------------------------------------------------------------------------------------------------- the real one


@pytest.mark.original
@pytest.mark.slow
class TestGymnasium:
    def test_check_env_has_no_complaints(self, place: dict[str, str]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(gymnasium.make(ENV_ID, **place).unwrapped, skip_render_check=True)

    def test_vector_environments_play_like_single_ones(
        self, place: dict[str, str]
    ) -> None:
        many = gymnasium.make_vec(ENV_ID, num_envs=2, max_steps=3, **place)
        one = gymnasium.make(ENV_ID, max_steps=3, **place)
        observations, infos = many.reset(seed=5)
        observation, info = one.reset(seed=5)
        assert observations["prompt"][0] == observation["prompt"]
        assert infos["task_id"][0] == info["task_id"]
        for number in range(3):
            observations, rewards, _, truncated, _ = many.step([f"print({number})"] * 2)
            observation, reward, _, cut, _ = one.step(f"print({number})")
            assert observations["state"] == (f"{number}\n",) * 2
            assert observation["state"] == f"{number}\n"
            assert rewards[0] == reward
        assert truncated.all()
        assert cut

    def test_forks_and_pickles_replay(self, place: dict[str, str]) -> None:
        env = gymnasium.make(ENV_ID, **place).unwrapped
        env.reset(seed=1)
        play(env, ["x = [1]"])
        copies = [env.fork(), pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
        assert play(env, ["x.append(2)", "print(x)"])[1] == "[1, 2]\n"
        for other in copies:
            assert play(other, ["print(x)"]) == ["[1]\n"]

    def test_a_replay_that_differs_is_an_error(self, place: dict[str, str]) -> None:
        env = gymnasium.make(ENV_ID, **place).unwrapped
        env.reset(seed=1)
        play(env, ["import uuid\nprint(uuid.uuid4())"])
        with pytest.raises(
            InputError,
            match=r"replaying task .* ended in another state after 1 commands",
        ):
            env.fork()

    def test_sources_and_tasks_can_be_pickled(
        self, opened: Callable[..., AppWorldSource]
    ) -> None:
        source = opened(max_difficulty=2)
        task = source.ids("train")[0]
        again = pickle.loads(pickle.dumps(source))
        assert again.ids("train") == source.ids("train")
        assert again.task(task) == source.task(task)
        engine = again.engine()
        engine.start(task)
        assert engine.act("print(1)").text == "1\n"


@pytest.mark.original
@pytest.mark.slow
class TestRollouts:
    def test_every_task_is_won_by_its_solution(
        self, place: dict[str, str], tmp_path: Path
    ) -> None:
        """The whole way: collector, step table, advantages."""
        tasks = sample_or_all(
            16, len(gymnasium.make(ENV_ID, split="all", **place).unwrapped.tasks)
        )
        run = collect(
            ENV_ID,
            "expert",
            tmp_path / "run",
            tasks=tasks,
            group_size=1,
            split="all",
            slots=2,
            **place,
        )
        steps = run.steps.collect()
        assert run.summary["failed"] == 0
        assert run.summary["success"] == 1
        assert run.summary["mean_return"] == 1
        assert run.summary["valid"] == 1
        assert verify(run).ok
        last = steps.filter(pl.col("terminated"))
        assert last["score"].to_list() == [1.0] * tasks
        assert set(steps["task_type"]) == {
            "difficulty 1",
            "difficulty 2",
            "difficulty 3",
        }
        advantages = compute(scan_steps(run), "hgpo").collect()["advantage"]
        assert advantages.is_finite().all()

    def test_a_program_that_ends_its_world_loses_its_trajectory(
        self, place: dict[str, str], tmp_path: Path
    ) -> None:
        def policy(request: Any) -> str:
            return (
                "import os\nos.abort()"
                if request.seed % 3 == 0 and request.step == 1
                else "print(1)"
            )

        run = collect(
            ENV_ID,
            policy,
            tmp_path / "run",
            tasks=2,
            group_size=4,
            max_steps=3,
            **place,
        )
        lost = run.steps.filter(pl.col("error").is_not_null()).collect()
        assert 0 < len(lost) < 8
        assert lost.select("aborted", "terminated", "won").unique().row(0) == (
            False,
            True,
            False,
        )
        assert all(
            "Lost" in line and "died of SIGABRT" in line for line in lost["error"]
        )
        lengths = (
            run.steps.group_by("task_id", "group", "trajectory")
            .agg(pl.len(), pl.col("error").count())
            .collect()
        )
        assert set(lengths.select("len", "error").iter_rows()) == {(2, 1), (3, 0)}

    def test_prompts_show_programs_with_their_results(
        self, place: dict[str, str]
    ) -> None:
        env = gymnasium.make(
            ENV_ID, action_format="response", history_length=2, **place
        )
        observation, info = env.reset(seed=1)
        assert info["task"] in observation["prompt"]
        assert "Program" not in observation["prompt"].partition("Step 1")[2]
        for number in range(3):
            observation, *_ = env.step(
                f"<think>.</think><code>print({number} + 10)</code>"
            )
        prompt = observation["prompt"]
        assert "Program 1:" not in prompt
        assert (
            prompt.index("print(1 + 10)")
            < prompt.index("Output 2:\n11\n")
            < prompt.index("print(2 + 10)")
        )
        assert prompt.index("print(2 + 10)") < prompt.index("Output 3:\n12\n")

    def test_the_programs_of_the_example_run(self, place: dict[str, str]) -> None:
        template = next(
            path
            for name, path in bundled_templates().items()
            if name == "appworld-example"
        )
        env = gymnasium.make(ENV_ID, prompt_template=str(template), **place)
        observation, _ = env.reset(seed=1)
        example = (
            observation["prompt"].partition("An example")[2].partition("Step 1")[0]
        )
        programs = re.findall(r"Program \d+:\n(.*?)\nOutput", example, re.DOTALL)
        assert len(programs) == 4
        for program in programs:
            *_, terminated, _, info = env.step(program)
            assert not info["execution_failed"]
        assert terminated

    def test_evaluations_report_tasks_and_scenarios_by_difficulty(
        self,
        place: dict[str, str],
        tmp_path: Path,
        hgpo: Callable[..., tuple[int, str, str]],
    ) -> None:
        where = ["--data", place["data"], "--env-option", f"python={place['python']}"]
        code, out, errors = hgpo(
            "eval",
            "--env",
            ENV_ID,
            *where,
            "--policy",
            "expert",
            "--out",
            tmp_path / "run",
            "--json",
            "--slots",
            2,
        )
        assert code == 0, errors
        everything, *kinds = json.loads(out)["reports"]
        assert (
            everything["scenarios"] * 3
            == everything["tasks"]
            == sum(kind["tasks"] for kind in kinds)
        )
        assert (
            everything["scenario_success"]
            == everything["measures"]["success"]["mean"]
            == 1
        )
        assert {kind["name"] for kind in kinds} <= {
            "difficulty 1",
            "difficulty 2",
            "difficulty 3",
        }
