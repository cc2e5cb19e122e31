"""Orders of tasks: each task once per pass, seeds, and verl-agent's order compared with textworld's generator."""

import copy
import json
import pickle
import subprocess
from itertools import islice

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from unusual import Endless

from hgpo_envs.task_sampling import (
    TASK_SAMPLINGS,
    TaskSampler,
    permuted,
    shuffled,
    task_stream,
    verl_agent,
)

IDS = [f"train/task-{i}/trial_{i:03d}" for i in range(37)]
id_lists = st.lists(
    st.text(min_size=1, max_size=8), min_size=1, max_size=40, unique=True
)


@given(
    ids=id_lists,
    seed=st.integers(0, 2**32 - 1),
    name=st.sampled_from(["sweep", "shuffled", "verl-agent"]),
)
def test_every_pass_has_every_task_once(ids, seed, name):
    drawn = list(islice(task_stream(name, ids, seed), 3 * len(ids)))
    for i in range(3):
        one_pass = drawn[i * len(ids) : (i + 1) * len(ids)]
        assert one_pass == ids if name == "sweep" else sorted(one_pass) == sorted(ids)


@given(ids=id_lists, seed=st.integers(), data=st.data())
def test_shuffle_depends_only_on_seed_and_ids(ids, seed, data):
    assert shuffled(data.draw(st.permutations(ids)), seed) == shuffled(ids, seed)
    fewer = ids[1:]  # the other tasks keep their relative order
    assert shuffled(fewer, seed) == [
        task for task in shuffled(ids, seed) if task != ids[0]
    ]


def test_fixed_order_for_all_versions_and_platforms():
    """An independent implementation of the documented rule: the digest's bytes as a big-endian int64."""

    def digest(task):
        return int.from_bytes(
            xxhash.xxh3_64(b"3/1/" + task.encode()).digest(), "big", signed=True
        )

    assert shuffled(IDS, 3, 1) == sorted(IDS, key=digest)


@pytest.mark.original
def test_verl_agent_order_equals_textworlds(original_python):
    """The order of textworld's batch environment, for several seeds and two and a half passes."""
    script = (
        "import sys, json\n"
        "from textworld.gym.envs.textworld_batch import TextworldBatchGymEnv\n"
        "env, out = TextworldBatchGymEnv(json.loads(sys.argv[1])), []\n"
        "for seed in (0, 1, 1234, 2**32 - 1):\n"
        "    env.seed(seed)\n"
        "    out.append([next(env._gamefiles_iterator) for _ in range(92)])\n"
        "print(json.dumps(out))\n"
    )
    done = subprocess.run(
        [original_python, "-c", script, json.dumps(IDS)],
        capture_output=True,
        text=True,
        check=True,
    )
    expected = json.loads(done.stdout.splitlines()[-1])
    for seed, order in zip((0, 1, 1234, 2**32 - 1), expected, strict=True):
        assert list(islice(verl_agent(IDS, seed), 92)) == order


def test_random_is_uniform_and_platform_independent():
    ids = [f"task {n}" for n in range(7)]
    drawn = list(islice(task_stream("random", ids, seed=3), 7000))
    assert all(900 < drawn.count(task) < 1100 for task in ids)
    assert drawn[:50] == list(islice(task_stream("random", ids, seed=3), 50))
    assert drawn[:50] != list(islice(task_stream("random", ids, seed=4), 50))
    hashed = xxhash.xxh3_64_intdigest(b"3/5")  # draw 5 of seed 3
    assert drawn[5] == ids[hashed * 7 // 2**64]


@pytest.mark.parametrize("name", TASK_SAMPLINGS)
def test_copies_of_a_sampler_continue_at_the_same_draw(name):
    ids = [f"task {n}" for n in range(7)]
    draws = TaskSampler(name, ids, seed=11)
    first = [draws.draw() for _ in range(10)]
    twins = [copy.deepcopy(draws), pickle.loads(pickle.dumps(draws))]
    following = [draws.draw() for _ in range(10)]
    assert first + following == list(islice(task_stream(name, ids, 11), 20))
    assert all([twin.draw() for _ in range(10)] == following for twin in twins)


@pytest.mark.parametrize("order", ["random", "sweep", "shuffled"])
def test_endless_splits_are_not_read_whole(order):
    drawn = list(islice(task_stream(order, Endless(), seed=1), 1000))
    assert len(set(drawn)) == 1000
    assert (drawn == [str(n) for n in range(1000)]) == (order == "sweep")


@given(st.integers(1, 300), st.integers())
def test_long_splits_are_permuted(count, seed):
    ids = [str(n) for n in range(count)]
    assert sorted(permuted(ids, seed), key=int) == ids
