"""OpenEnv's own client plays served environments, in the Python that HGPO_OPENENV_PYTHON names (.ci/openenv)."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from environment_server import TOKEN, running

import hgpo_envs  # noqa: F401 - registers the environments
from hgpo_openenv.environments import open_environments

IDS = {"ALFWorld": "HGPO/ALFWorld-v0", "WebShop": "HGPO/WebShop-v0"}
CLIENT = Path(__file__).parent / "openenv_client.py"


@pytest.fixture(scope="module")
def openenv() -> str:
    """Return a Python that has OpenEnv."""
    python = os.environ.get("HGPO_OPENENV_PYTHON", sys.executable)
    if subprocess.run(
        [python, "-c", "import openenv.core"], capture_output=True
    ).returncode:
        pytest.skip("needs OpenEnv, or HGPO_OPENENV_PYTHON set to a Python that has it")
    return python


def local_games(env, count):
    """Play random games: what a client sends, and what it should receive."""
    draw = random.Random(4)
    games = []
    expected = []
    for _ in range(count):
        task = env.tasks[draw.randrange(len(env.tasks))]
        observation, info = env.reset(options={"task": task})
        seen = []
        actions = []
        reward = None
        terminated = False
        truncated = False
        while True:
            shown = {
                **observation,
                "history_hash": observation["history_hash"].tolist(),
            }
            shown |= {"terminated": terminated, "truncated": truncated, "info": info}
            seen.append(
                {
                    "observation": shown,
                    "reward": reward,
                    "done": terminated or truncated,
                }
            )
            if terminated or truncated:
                break
            action = draw.choice(info["admissible_actions"])
            actions.append(
                "search[red shoes]" if action.startswith("search[<") else action
            )
            observation, reward, terminated, truncated, info = env.step(actions[-1])
        games.append({"reset": {"task": task}, "actions": actions})
        expected.append(seen)
    return games, expected


@pytest.mark.slow
@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("token_in", ["address", "header"])
def test_openenvs_client_receives_what_a_local_environment_returns(
    openenv, name, token_in
) -> None:
    env = gymnasium.make(IDS[name]).unwrapped
    games, expected = local_games(env, 3)
    with running(
        *open_environments(list(IDS.values()), {"split": "train"}).values()
    ) as run:
        arguments = (
            [run.url(name)]
            if token_in == "address"
            else [f"http://127.0.0.1:{run.port}/{name}", TOKEN]
        )
        played = subprocess.run(
            [openenv, str(CLIENT), *arguments],
            input=json.dumps(games),
            capture_output=True,
            text=True,
            env={**os.environ, "NO_PROXY": "127.0.0.1"},
        )
        if "unexpected keyword argument 'headers'" in played.stderr:
            pytest.skip("this version of OpenEnv's client sends no headers")
        assert played.returncode == 0, played.stderr[-2000:]
        run.wait_for(lambda: run.server.open_sessions == 0)
    received = json.loads(played.stdout)
    assert received["games"] == expected
    assert all(
        "ids of split 'train'" in error and "(code: VALIDATION_ERROR)" in error
        for error in received["errors"]
    )
    for game, state in zip(games, received["states"], strict=True):
        assert (state["task_id"], state["step_count"], state["done"]) == (
            game["reset"]["task"],
            len(game["actions"]),
            True,
        )


@pytest.mark.slow
def test_openenvs_validator_passes(openenv) -> None:
    code = """if True:
        import json, sys
        from openenv.cli._validation import validate_running_environment
        print(json.dumps(validate_running_environment(sys.argv[1])))
    """
    with running(
        *open_environments(list(IDS.values()), {"split": "train"}).values()
    ) as run:
        command = [openenv, "-c", code, run.url("ALFWorld")]
        checked = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, "NO_PROXY": "127.0.0.1"},
        )
    if (
        "No module named 'openenv.cli" in checked.stderr
        or "cannot import name" in checked.stderr
    ):
        pytest.skip("this version of OpenEnv validates no running server")
    assert checked.returncode == 0, checked.stderr[-2000:]
    report = json.loads(checked.stdout)
    assert report["passed"], report["criteria"]
    assert (report["mode"], report["summary"]["passed_count"]) == ("production", 6)
