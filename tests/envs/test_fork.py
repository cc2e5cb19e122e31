"""Forks and keys: a fork equals a replay to the byte and is independent, and equal keys mean equal futures."""

import copy
import json
import pickle
import random

import foreign  # noqa: F401 - registers Foreign/Guess-v0
import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nightly import sample_or_all
from refusals import refused

import hgpo_envs  # noqa: F401 - registers the ids
from hgpo_envs.engine import State
from hgpo_envs.episode import Episode, settings_for
from hgpo_envs.gymnasium_source import GymnasiumSource
from hgpo_envs.sources import SharedSource

IDS = ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"]
VARIANTS = [
    *((env_id, {}) for env_id in IDS),
    (IDS[0], {"action_format": "number", "history_length": 0}),
    (IDS[1], {"observation_mode": "text_rich", "history_length": 5}),
    (
        IDS[1],
        {"action_format": "response", "after_done": "freeze", "show_attributes": True},
    ),
]
INADMISSIBLE = ["no such thing", "", "click[nothing]", "search[]", "go to nowhere 1"]
QUERIES = ["red shoe", "<r>", "<a> x", "<c> garden", "<q> socks", "socks + red"]


def made(env_id, options):
    return gymnasium.make(env_id, split="all", max_steps=20, **options).unwrapped


def choice(episode, chance):
    """Return a text that the episode accepts: mostly admissible actions, magic queries among them."""
    actions = list(episode.state.actions)
    if not actions or chance.random() < 0.1:
        text = chance.choice(INADMISSIBLE)
    else:
        text = chance.choice(actions).replace("<your query>", chance.choice(QUERIES))
    if episode.settings.action_format == "number" and text in actions:
        return str(1 + actions.index(text))
    return (
        f"<think>x</think><action>{text}</action>"
        if episode.settings.action_format == "response"
        else text
    )


def shown(episode):
    """Return everything that an episode shows."""
    ends = episode.terminated, episode.truncated, episode.steps_taken
    return repr(
        (
            episode.prompt(),
            episode.info(),
            episode.state,
            episode.action,
            episode.action_valid,
            ends,
        )
    )


def replayed(episode, texts):
    twin = Episode(episode.shared, episode.settings)
    twin.start(episode.task.id)
    for text in texts:
        twin.act(text)
    return twin


def branch(env, chance, length):
    """Fork at a random point of a random walk, and compare original and fork with replays."""
    env.reset(options={"task": chance.choice(env.tasks)})
    episode = env.episode
    texts = []
    for _ in range(chance.randrange(length)):
        if not episode.done:
            texts.append(choice(episode, chance))
            episode.act(texts[-1])
    fork = episode.fork()
    # the original moves second, on another path
    for mine, other in ((fork, episode), (episode, fork)):
        there = replayed(episode, texts) if mine is fork else replayed(fork, texts)
        before = (shown(other), other.key())
        assert (shown(mine), mine.key()) == (shown(there), there.key())
        for _ in range(chance.randrange(1, length)):
            if not mine.done:
                text = choice(mine, chance)
                mine.act(text)
                there.act(text)
                assert (shown(mine), mine.key()) == (shown(there), there.key())
        assert (shown(other), other.key()) == before


@pytest.mark.parametrize(("env_id", "options"), VARIANTS)
def test_a_fork_equals_a_replay_to_the_byte(env_id, options):
    env = made(env_id, options)
    for seed in range(sample_or_all(25, 2_000)):
        branch(env, random.Random(seed), 12)


def reactions(engine, actions):
    """Return the engine's states after each of these actions, each tried in a fork."""
    tried = [
        action.replace("<your query>", query)
        for action in actions
        for query in QUERIES[: 6 if "<" in action else 1]
    ]
    return [engine.fork().act(command) for command in [*tried, *INADMISSIBLE]]


def near(episode, chance):
    """Return an action that changes something nearby, more often than one that leads elsewhere."""
    far = (
        "go to",
        "help",
        "inventory",
        *(f"click[{name}" for name in ("b0", "next", "back", "desc", "feat", "rev")),
    )
    changing = [
        action for action in episode.state.actions if not action.startswith(far)
    ]
    chosen = chance.choice(
        changing
        if changing and chance.random() < 0.6
        else list(episode.state.actions) or [""]
    )
    return chosen.replace("<your query>", chance.choice(QUERIES))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "options"),
    [variant for variant in VARIANTS if "action_format" not in variant[1]],
)
def test_equal_keys_mean_equal_futures(env_id, options):
    """Random walks that return to states on different ways; all reactions there must be equal, and so on from there."""
    env = made(env_id, options)
    merged = 0
    for seed in range(4):
        chance = random.Random(seed)
        met = {}
        env.reset(options={"task": chance.choice(env.tasks)})
        for _ in range(40):
            episode = env.episode.fork()
            for _ in range(10):
                if episode.done:
                    break
                episode.act(near(episode, chance))
                actions = tuple(episode.state.actions)
                engine = episode.engine
                first = met.setdefault(
                    engine.key(), (tuple(episode._journal), actions, engine.fork())
                )
                if first[0] == tuple(episode._journal):
                    continue
                merged += 1
                assert actions == first[1]
                mine = reactions(engine, actions)
                its = reactions(first[2], actions)
                assert [repr(state) for state in mine] == [repr(state) for state in its]
                after = engine.fork()
                there = first[2].fork()
                for _ in range(3):
                    command = chance.choice([*actions, *QUERIES]).replace(
                        "<your query>", chance.choice(QUERIES)
                    )
                    assert after.act(command) == there.act(command)
                    assert after.key() == there.key()
    assert merged > 50


def engine_after(*commands):
    engine = made(IDS[1], {}).shared.source.engine()
    engine.start("0")
    for command in commands:
        engine.act(command)
    return engine


def test_shop_states_that_look_equal_have_different_keys():
    wanted = made(IDS[1], {}).shared.source.task("0").instruction.partition(",")[0]
    product = next(
        action
        for action in engine_after().act(f"search[{wanted}]").actions
        if action.startswith("click[b0")
    )
    look = [f"search[{wanted}]", product]
    for first, second in (
        # one address, two pages
        (["search[<c> garden]", "search[<a>]"], ["search[<c>+garden]", "search[<a>]"]),
        # the next random products differ
        (["search[<r>]"], ["search[<r>]", "search[<r>]"]),
        # one page, but `next >` leads elsewhere
        (["search[red shoe]"], ["search[red shoe]", "search[<a>]"]),
        # after a purchase, every later state has its score
        (look, [*look, "click[buy now]", *look]),
    ):
        assert engine_after(*first).key() != engine_after(*second).key()


@pytest.mark.parametrize("env_id", IDS)
def test_environments_fork_with_their_hashes_and_their_draws(env_id):
    env = made(env_id, {})
    chance = random.Random(5)
    env.reset(seed=5)
    for _ in range(6):
        env.step(choice(env.episode, chance))
    twins = [
        env.fork(),
        copy.copy(env),
        copy.deepcopy(env),
        pickle.loads(pickle.dumps(env)),
    ]
    text = choice(env.episode, chance)
    assert len({repr(twin.step(text)) for twin in twins}) == 1
    assert env.episode.steps_taken == 6
    assert len({each.reset()[1]["task_id"] for each in [env, *twins]}) == 1
    assert (
        made(env_id, {}).fork().reset(seed=2)[0]["prompt"]
        == env.reset(seed=2)[0]["prompt"]
    )


@pytest.mark.parametrize("env_id", IDS)
def test_vector_environments_fork(env_id):
    envs = gymnasium.make_vec(env_id, num_envs=4, group_size=2).unwrapped
    observation, _ = envs.reset(seed=1)
    envs.step(["look"] * 4)
    fork = copy.copy(envs)
    copied = copy.deepcopy(envs)
    before = pickle.dumps(envs)
    actions = ["search[red shoe]", "inventory", "no such thing", "look"]
    assert (
        repr(fork.step(actions))
        == repr(copied.step(actions))
        == repr(pickle.loads(before).step(actions))
    )
    assert repr(fork.reset()) == repr(copied.reset())
    assert pickle.dumps(envs) == before
    assert envs.reset(seed=1)[0]["prompt"] == observation["prompt"]


@given(st.lists(st.sampled_from(["0", "1", "2", "x"]), max_size=6), st.integers(0, 5))
def test_environments_of_others_are_forked_by_replay(texts, task):
    shared = SharedSource(GymnasiumSource("Foreign/Guess-v0", json.dumps({"limit": 9})))
    episode = Episode(shared, settings_for(shared.source.name))
    assert not episode.fork().started
    episode.start(str(task))
    played = [text for text in texts if not episode.done and episode.act(text) is None]
    fork = episode.fork()
    there = replayed(episode, played)
    for text in (None, "x", "1", "2"):
        if text is not None and not fork.done:
            fork.act(text)
            there.act(text)
        assert shown(fork) == shown(there)
        assert fork.key() == there.key()
    assert episode.key()[-1] == tuple(played)
    episode.state = State("a state of an environment that is not deterministic", [])
    with refused("expected a deterministic environment"):
        episode.fork()


@pytest.mark.parametrize(("env_id", "options"), VARIANTS)
def test_tasks_states_and_sources_survive_pickle(env_id, options):
    """Worker processes exchange them."""
    shared = made(env_id, options).shared
    chance = random.Random(7)
    again = pickle.loads(pickle.dumps(shared)).source
    for task_id in chance.sample(list(shared.source.ids("all")), 3):
        task = shared.source.task(task_id)
        for same in (
            pickle.loads(pickle.dumps(task)),
            copy.deepcopy(task),
            again.task(task_id),
        ):
            assert (same, dict(same.versions)) == (task, dict(task.versions))
        engine = shared.source.engine()
        other = again.engine()
        state = engine.start(task_id)
        twin = other.start(task_id)
        for action in ("look", "search[red shoes]", "\ud800", "", *state.actions[:2]):
            for same in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state), twin):
                assert same == state
            state = engine.act(action)
            twin = other.act(action)
