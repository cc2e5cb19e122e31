"""Served environments are equal to local ones, and sessions never mix."""

import asyncio
import copy
import pickle
import random
from functools import partial

import gymnasium
import httpx
import numpy as np
import orjson
import pytest
from environment_server import running
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import hgpo_envs  # noqa: F401 - registers the environments
from hgpo_envs.errors import InputError
from hgpo_openenv.environments import open_environments
from hgpo_openenv.remote import RemoteEnv, RemoteError

pytest.importorskip("websockets")
IDS = {"ALFWorld": "HGPO/ALFWorld-v0", "WebShop": "HGPO/WebShop-v0"}


@pytest.fixture(scope="module")
def server():
    with running(
        *open_environments(list(IDS.values()), {"split": "train"}).values()
    ) as run:
        yield run


def choose(draw, info):
    actions = info["admissible_actions"]
    action = (
        draw.choice(actions)
        if actions and draw.random() < 0.9
        else draw.choice(["look", "", "no such thing ☂"])
    )
    return (
        "search[" + " ".join(info["task"].split()[-3:]) + "]"
        if action.startswith("search[<")
        else action
    )


def plain(value):
    """Return a value with types and bytes that can be compared."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return (
        (value.dtype.str, value.shape, value.tobytes())
        if isinstance(value, np.ndarray)
        else (type(value), value)
    )


@pytest.mark.parametrize("name", IDS)
def test_a_remote_environment_is_the_local_one(server, name) -> None:
    local = gymnasium.make(IDS[name]).unwrapped
    remote = RemoteEnv(server.url(name))
    draw = random.Random(1)
    ids = [local.tasks[draw.randrange(len(local.tasks))] for _ in range(3)]
    try:
        for options in (
            {"seed": 7},
            {},
            {},
            *({"options": {"task": task}} for task in ids),
        ):
            seen = remote.reset(**options)
            expected = local.reset(**options)
            assert plain(seen) == plain(expected)
            assert remote.observation_space.contains(seen[0])
            done = False
            while not done:
                action = choose(draw, expected[-1])
                seen = remote.step(action)
                expected = local.step(action)
                assert plain(seen) == plain(expected)
                done = expected[2] or expected[3]
            with pytest.raises(gymnasium.error.ResetNeeded, match="has ended"):
                remote.step("look")
    finally:
        remote.close()


def test_a_remote_environment_passes_gymnasiums_checker(
    server, recwarn, monkeypatch
) -> None:
    # which is not used for this machine
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with RemoteEnv(server.url("WebShop")) as env:
        check_env(env, skip_render_check=True)
    assert not [one for one in recwarn if "gym" in str(one.category).lower()]


def test_errors_of_a_remote_environment(server) -> None:
    with RemoteEnv(server.url("ALFWorld")) as env:
        with pytest.raises(gymnasium.error.ResetNeeded, match="no episode was started"):
            env.step("look")
        with pytest.raises(
            InputError,
            match="task: expected one of the 144 ids of split 'train', such as",
        ):
            env.reset(options={"task": "no such task"})
        with pytest.raises(InputError, match="reset option"):
            env.reset(options={"tsk": 1})
        observation, _ = env.reset(seed=0)
        assert "\ufffd" in env.step("a lone surrogate: \ud800")[0]["prompt"]
        assert observation["prompt"]


@pytest.mark.parametrize("action", [3, None, b"look", ["look"]])
def test_an_action_that_is_no_text_is_refused_as_in_this_process(
    server, action
) -> None:
    local = gymnasium.make(IDS["ALFWorld"]).unwrapped
    local.reset(seed=1)
    with RemoteEnv(server.url("ALFWorld")) as remote:
        remote.reset(seed=1)
        with pytest.raises(InputError) as expected:
            local.step(action)
        with pytest.raises(InputError) as refused:
            remote.step(action)
        assert str(refused.value) == str(expected.value)
        assert plain(remote.step(np.str_("look"))) == plain(local.step(np.str_("look")))


def test_a_closed_environment_says_so(server) -> None:
    env = RemoteEnv(server.url("ALFWorld"))
    env.reset(seed=1)
    env.close()
    env.close()
    for use in (env.reset, partial(env.step, "look")):
        with pytest.raises(
            RemoteError, match="the environment was closed; open another RemoteEnv"
        ):
            use()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_session_cannot_be_copied(server, copied) -> None:
    with RemoteEnv(server.url("ALFWorld")) as env:
        with pytest.raises(TypeError, match="open another one instead of a copy"):
            copied(env)
        assert env.reset(seed=1)


@pytest.mark.parametrize(
    ("options", "replies"),
    [
        (
            {"action_format": "response"},
            ["<think>x</think><action>look</action>", "no tags", ""],
        ),
        ({"action_format": "number", "history_length": 4}, ["1", "2", "zero"]),
        (
            {"history_length": 0, "history_depth": 2, "max_steps": 2},
            ["look", "inventory"],
        ),
        (
            {"prompt_style": "chat", "system_prompt": "You are a player."},
            ["look", "inventory"],
        ),
    ],
)
def test_settings_are_those_of_the_server(options, replies) -> None:
    local = gymnasium.make(IDS["ALFWorld"], **options)
    with (
        running(
            *open_environments(
                [IDS["ALFWorld"]], {"split": "train", **options}
            ).values()
        ) as run,
        RemoteEnv(run.url()) as remote,  # one environment needs no name
    ):
        assert plain(remote.reset(seed=3)) == plain(local.reset(seed=3))
        for reply in replies:
            assert plain(remote.step(reply)) == plain(local.step(reply))
        about = httpx.get(f"{run.url()}/metadata", trust_env=False).json()
        for name, default in (("prompt_style", "memory"), ("system_prompt", "")):
            assert about[name] == remote.remote[name] == options.get(name, default)


async def interleave(url, games, order):
    """Play games in sessions of one server, one message at a time in a given order; return what each has seen."""
    from websockets.asyncio.client import connect

    connections = await asyncio.gather(*[connect(url, compression=None) for _ in games])
    seen = [[] for _ in games]
    cursor = [0] * len(games)
    waiting = [False] * len(games)
    for turn in order:
        number = turn % len(games)
        if waiting[number]:  # answers are read late, when other sessions have been busy
            seen[number].append(orjson.loads(await connections[number].recv()))
        elif cursor[number] < len(games[number]):
            await connections[number].send(
                orjson.dumps(games[number][cursor[number]]), text=True
            )
            cursor[number] += 1
        else:
            continue
        waiting[number] = not waiting[number]
    for number, connection in enumerate(connections):
        if waiting[number]:
            seen[number].append(orjson.loads(await connection.recv()))
    await asyncio.gather(*[connection.close() for connection in connections])
    return seen


def replay(env, game):
    """Play a game in an environment of this process: the answers that a session should give."""
    answers = []
    for message in game:
        if message["type"] == "reset":
            observation, info = env.reset(options={"task": message["data"]["task"]})
            reward = None
            terminated = False
            truncated = False
        else:
            observation, reward, terminated, truncated, info = env.step(
                message["data"]["action"]
            )
        shown = {**observation, "history_hash": observation["history_hash"].tolist()}
        shown |= {"terminated": terminated, "truncated": truncated, "info": info}
        answers.append(
            {"observation": shown, "reward": reward, "done": terminated or truncated}
        )
    return answers


@pytest.mark.slow
@settings(max_examples=5)
@given(seed=st.integers(0, 1 << 30))
def test_hundreds_of_interleaved_sessions_never_mix(server, seed) -> None:
    draw = random.Random(seed)
    name = random.Random(seed).choice(list(IDS))
    env = gymnasium.make(IDS[name]).unwrapped
    games = []
    for _ in range(100):
        # many sessions play the same task differently
        task = env.tasks[draw.randrange(12)]
        _, info = env.reset(options={"task": task})
        game = [{"type": "reset", "data": {"task": task}}]
        done = False
        while not done and len(game) < 6:
            game.append({"type": "step", "data": {"action": choose(draw, info)}})
            *_, terminated, truncated, info = env.step(game[-1]["data"]["action"])
            done = terminated or truncated
        games.append(game)
    order = [number for number in range(100) for _ in range(12)]
    draw.shuffle(order)
    seen = asyncio.run(interleave(f"{server.url(name, 'ws')}/ws", games, order))
    for game, answers in zip(games, seen, strict=True):
        assert [answer["type"] for answer in answers] == ["observation"] * len(answers)
        assert [answer["data"] for answer in answers] == replay(
            env, game[: len(answers)]
        )


def test_sessions_draw_their_own_tasks(server) -> None:
    with (
        RemoteEnv(server.url("ALFWorld")) as one,
        RemoteEnv(server.url("ALFWorld")) as other,
    ):
        first = [one.reset(seed=5)[1]["task_id"]]
        other.reset(seed=9)
        first += [one.reset()[1]["task_id"] for _ in range(4)]
        second = [
            other.reset(seed=5)[1]["task_id"],
            *(other.reset()[1]["task_id"] for _ in range(4)),
        ]
    assert first == second
