"""Policies whose action probabilities are known: scripted ones, mixtures, and `softmax`."""

import math
from collections import Counter

import numpy as np
import pytest
from doors import DoorsSource
from hypothesis import given
from hypothesis import strategies as st

import hgpo_train as hgpo
from hgpo_envs import environment_spec
from hgpo_envs.engine import State, Task
from hgpo_envs.environment_spec import EnvironmentSpec
from hgpo_envs.episode import Episode
from hgpo_envs.errors import InputError
from hgpo_envs.memory import Pair
from hgpo_research.features.alfworld import CommandFeatures
from hgpo_research.features.webshop import ShopFeatures
from hgpo_research.features.words import WordFeatures
from hgpo_research.policies.distributions import (
    Distribution,
    OwnPolicy,
    known_policy,
)
from hgpo_research.policies.softmax import SoftmaxOptions, SoftmaxPolicy
from hgpo_train.policies.base import BatchPolicy, Request
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.policies.registry import own_policy as policy_of
from hgpo_train.rollout.env_handle import open_env

ENVIRONMENTS = {
    "ALFWorld": "HGPO/ALFWorld-v0",
    "WebShop": "HGPO/WebShop-v0",
}
SPECS = (
    "random",
    "outdated",
    "expert",
    "softmax",
    "mixture:explorer=2,outdated=1,softmax=1",
)
FORMATS = ("command", "response", "number")


def request(
    seed=0,
    *,
    step=0,
    slot=0,
    text="here",
    actions=("a", "b", "c"),
    instruction="find a red shoe",
    history=(),
):
    task = Task("t", "train", instruction, "kind")
    return Request(
        seed,
        "",
        seed,
        slot,
        step,
        task,
        State(text, actions),
        None,
        lambda _: "",
        lambda: history,
    )


def of_episode(episode, seed=0, slot=0):
    return Request(
        *(
            seed,
            "",
            seed,
            slot,
            episode.steps_taken,
            episode.task,
            episode.state,
            episode.engine,
        ),
        *(episode.prompt, episode.history),
    )


def episodes(benchmark, count, **settings):
    handle = open_env(ENVIRONMENTS[benchmark], split="all", **settings)
    for task in list(handle.tasks)[:count]:
        episode = Episode(handle.shared, handle.settings)
        episode.start(task)
        yield episode


def policy(spec, benchmark="Doors", action_format="command", **options):
    return make_policy(spec, PolicyContext(benchmark, action_format, options))


def known(spec, benchmark="Doors", action_format="command", **options):
    return known_policy(spec, PolicyContext(benchmark, action_format, options))


def right(distribution):
    assert (
        len(set(distribution.responses))
        == len(distribution.responses)
        == len(distribution.probabilities)
    )
    assert distribution.probabilities.dtype == np.float64
    assert distribution.probabilities.min() >= 0
    assert distribution.probabilities.sum() == pytest.approx(1.0, abs=1e-9)


def chi_squared(counts, expected):
    """Return the statistic and its bound: a right policy exceeds it for one choice of seeds in 100,000.

    Cells of fewer than 5 expected draws are one cell. The bound is Wilson and Hilferty's approximation of the quantile.
    """
    rare = expected < 5
    merged = [(counts[~rare], expected[~rare])]
    if rare.any():
        merged.append(
            (
                counts[rare].sum(keepdims=True),
                expected[rare].sum(keepdims=True),
            )
        )
    observed, wanted = (np.concatenate(parts) for parts in zip(*merged, strict=True))
    degrees = len(wanted) - 1
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    return statistic, degrees * (
        1 - 2 / (9 * degrees) + 4.265 * math.sqrt(2 / (9 * degrees))
    ) ** 3


def test_distributions_draw_by_their_probabilities():
    coin = Distribution(
        ("never", "heads", "tails", "nor this"),
        np.array([0.0, 0.25, 0.75, 0.0]),
    )
    assert [coin.draw(u) for u in (0.0, 0.2499, 0.2501, 1 - 2**-53)] == [
        "heads",
        "heads",
        "tails",
        "tails",
    ]


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(
        lambda weights: sum(weights) > 0
    ),
    st.floats(0, 1, exclude_max=True),
)
def test_nothing_of_probability_0_is_drawn(weights, uniform):
    probabilities = np.array(weights) / sum(weights)
    drawn = Distribution(tuple(map(str, range(len(weights)))), probabilities).draw(
        uniform
    )
    assert probabilities[int(drawn)] > 0


@pytest.mark.parametrize("benchmark", ENVIRONMENTS)
@pytest.mark.parametrize("spec", SPECS)
def test_distributions_are_those_of_the_replies(benchmark, spec):
    """Replies along some episodes have positive probability."""
    stated = known(spec, benchmark)
    played = policy(spec, benchmark)
    for number, episode in enumerate(episodes(benchmark, 2)):
        while not episode.done and episode.steps_taken < 8:
            now = of_episode(episode, seed=1000 * number + episode.steps_taken)
            (distribution,) = stated.distributions([now])
            right(distribution)
            stated.observe(now)
            reply = played.respond([now])[0].response
            assert distribution.probabilities[distribution.responses.index(reply)] > 0
            episode.act(reply)


def has_frequencies(made, asked, distribution):
    replies = Counter(reply.response for reply in made.respond(asked))
    counts = np.array([replies.pop(response, 0) for response in distribution.responses])
    assert not replies  # every reply is among the responses
    statistic, bound = chi_squared(counts, len(asked) * distribution.probabilities)
    assert statistic < bound


@pytest.mark.parametrize("spec", ["outdated", "mixture:random=1,softmax=2"])
def test_replies_have_the_stated_frequencies(spec):
    made = policy(spec)
    stated = known(spec)
    past = request(0, actions=("a", "search[<your query>]", "wait", "go"))
    made.respond([past])  # outdated draws from these
    stated.observe(past)
    actions = ("a", "search[<your query>]")
    asked = [
        request(seed, step=1, actions=actions, instruction="a red shoe")
        for seed in range(3000)
    ]
    has_frequencies(made, asked, *stated.distributions(asked[:1]))


@pytest.mark.parametrize("benchmark", ENVIRONMENTS)
def test_softmax_replies_have_the_stated_frequencies(benchmark):
    made = policy("softmax", benchmark, temperature=3.0)
    (episode,) = episodes(benchmark, 1)
    episode.act(made.respond([of_episode(episode)])[0].response)
    asked = [of_episode(episode, seed) for seed in range(6000)]
    has_frequencies(made, asked, *made.distributions(asked[:1]))


@pytest.mark.parametrize("benchmark", ENVIRONMENTS)
@pytest.mark.parametrize("spec", ["expert", SPECS[-1]])
def test_a_fork_continues_on_its_own(benchmark, spec):
    """A forked slot has the distributions of the original one from there on, and neither affects the other."""
    stated = known(spec, benchmark)
    made = policy(spec, benchmark)
    for episode, twin in zip(
        episodes(benchmark, 3), episodes(benchmark, 3), strict=True
    ):
        for _ in range(4):
            now = of_episode(episode, episode.steps_taken)
            stated.observe(now)
            reply = made.respond([now])[0].response
            episode.act(reply)
            twin.act(reply)
        if episode.done:
            continue
        stated.fork(0, 7, twin.engine)
        expected = []
        while not twin.done and twin.steps_taken < 12:
            now = of_episode(twin, twin.steps_taken, slot=7)
            expected.append(stated.distributions([now])[0])
            stated.observe(now)
            twin.act(expected[-1].responses[0])
        for wanted in expected:
            now = of_episode(episode, episode.steps_taken)
            (found,) = stated.distributions([now])
            assert (found.responses, found.probabilities.tolist()) == (
                wanted.responses,
                wanted.probabilities.tolist(),
            )
            stated.observe(now)
            episode.act(wanted.responses[0])


def test_policies_without_known_probabilities_are_refused():
    class Other(BatchPolicy):
        name = "other"

        def respond(self, requests):
            return ["a" for _ in requests]

    for given_policy in (policy_of(lambda asked: "a"), Other()):
        with pytest.raises(
            InputError,
            match=r"action probabilities are known: random, .*softmax, transformers",
        ):
            OwnPolicy(given_policy)


def test_mixtures_have_the_properties_of_their_parts():
    mixed = known("mixture:random=1,softmax=1")
    assert (mixed.memoryless, mixed.history_read, mixed.prompt_read) == (
        True,
        None,
        False,
    )
    assert not known("mixture:random=1,outdated=1").memoryless


def test_the_history_of_a_request_is_what_the_prompt_shows():
    (episode,) = episodes("ALFWorld", 1, history_length=3)
    texts = []
    for step in range(6):
        history = of_episode(episode).history
        assert [(pair.observation, pair.action) for pair in history] == texts[-3:]
        assert [pair.number for pair in history] == list(
            range(max(0, step - 3) + 1, step + 1)
        )
        texts.append((episode.state.text, episode.state.actions[step]))
        episode.act(episode.state.actions[step])


# Softmax

FEATURES = (WordFeatures, CommandFeatures, ShopFeatures)
COMMANDS = (
    "look",
    "go to shelf 1",
    "take mug 1 from shelf 2",
    "move mug 1 to shelf 1",
    "examine mug 1",
)
CLICKS = (
    "search[<your query>]",
    "click[buy now]",
    "click[next >]",
    "click[b01]",
    "click[red]",
)
OBSERVATIONS = (
    "On the shelf 2, you see a mug 1.",
    "You clean the mug 1 using the sinkbasin 1.",
    "'b01' [SEP] 'red shoe' [SEP] '$3.00'",
)
SOME = st.sampled_from(
    (*COMMANDS, *CLICKS, *OBSERVATIONS, "put a clean mug in shelf.", "")
)
TEXTS = SOME | st.text(max_size=12)
HISTORIES = st.lists(st.builds(Pair, st.just(1), TEXTS, TEXTS), max_size=4)


@given(
    st.sampled_from(FEATURES),
    TEXTS,
    TEXTS,
    st.lists(TEXTS, max_size=6),
    HISTORIES,
    st.sampled_from(FORMATS),
)
def test_softmax_answers_anything(
    features, instruction, text, actions, history, action_format
):
    made = SoftmaxPolicy(features(), action_format, SoftmaxOptions())
    now = request(
        instruction=instruction,
        text=text,
        actions=tuple(actions),
        history=tuple(history),
    )
    (distribution,) = made.distributions([now])
    right(distribution)
    assert distribution.probabilities.min() > 0
    assert made.respond([now])[0].response in distribution.responses


@given(
    st.sampled_from(FEATURES),
    TEXTS,
    TEXTS,
    st.lists(TEXTS, max_size=6, unique=True),
    HISTORIES,
    st.integers(0, 3),
)
def test_softmax_reads_its_memory_and_no_more(
    features, instruction, text, actions, history, memory
):
    made, again = (
        SoftmaxPolicy(features(), "command", SoftmaxOptions(memory=memory))
        for _ in range(2)
    )

    def found(policy, pairs):
        now = request(
            instruction=instruction,
            text=text,
            actions=tuple(actions),
            history=tuple(pairs),
        )
        (distribution,) = policy.distributions([now])
        return distribution.responses, distribution.probabilities.tolist()

    whole = found(made, history)
    assert found(made, history[max(0, len(history) - memory) :]) == whole
    assert found(made, [Pair(9, *pair[1:]) for pair in history]) == whole
    assert found(again, history) == whole


@given(
    st.sampled_from(FEATURES),
    TEXTS,
    TEXTS,
    st.lists(TEXTS, max_size=6, unique=True),
    HISTORIES,
)
def test_changes_are_of_choices_and_an_empty_history_changes_nothing(
    features, instruction, text, actions, history
):
    made = features()
    state = made.read(instruction, text, tuple(actions))
    choices = state.choices
    changes = state.changes(history)
    assert changes.keys() <= choices.keys()
    assert {
        name for values in (*choices.values(), *changes.values()) for name in values
    } <= made.weights.keys()
    assert all(
        choices[choice] == values for choice, values in state.changes(()).items()
    )


@pytest.mark.parametrize("benchmark", ENVIRONMENTS)
def test_softmax_means_the_same_in_all_formats(benchmark):
    """The responses of each format are read as the same commands, and the inadmissible one is invalid in each."""
    read = []
    for action_format in FORMATS:
        made = policy("softmax", benchmark, action_format)
        found = []
        for episode in episodes(benchmark, 2, action_format=action_format):
            (distribution,) = made.distributions([of_episode(episode)])
            found.append(
                [episode.read(response)[0] for response in distribution.responses]
            )
            found.append(distribution.probabilities.tolist())
            episode.act(distribution.responses[-1])
            assert not episode.action_valid
            assert not episode.state.valid
        read.append(found)
    assert read[0] == read[1] == read[2]


def test_softmax_sees_nothing_but_the_prompt():
    """Neither the engine nor the extra information of a state changes a distribution."""
    made = policy("softmax", "WebShop")
    blind = policy("softmax", "WebShop")
    for episode in episodes("WebShop", 2):
        for seed in range(4):
            now = of_episode(episode, seed)
            task = Task("other", "other", now.task.instruction, "other")
            state = State(now.state.text, now.state.actions)
            less = Request(
                0,
                "",
                seed,
                3,
                9,
                task,
                state,
                None,
                lambda _: "",
                now.read_history,
            )
            assert (
                made.distributions([now])[0].probabilities.tolist()
                == blind.distributions([less])[0].probabilities.tolist()
            )
            episode.act(made.respond([now])[0].response)
            if episode.done:
                break


def test_softmax_probabilities_by_hand():
    """Words of the instruction have the weight 3: exp(3 · 2 / 4) against exp(0), and 2 for the inadmissible action."""
    made = policy("softmax", skill=2.0, temperature=4.0, taste=0.0, invalid=2.0)
    (found,) = made.distributions([request(actions=("shoe", "x"), text="")])
    weights = np.array([math.exp(1.5), 1.0, 2.0])
    assert found.responses == ("shoe", "x", "do nothing")
    assert found.probabilities == pytest.approx(weights / weights.sum(), rel=1e-12)


def test_softmax_options():
    without = policy("softmax", invalid=0.0)
    assert without.distributions([request()])[0].responses == (
        "a",
        "b",
        "c",
    )
    assert without.distributions([request(actions=())])[0].probabilities.tolist() == [
        1.0
    ]
    greedy = policy("softmax", temperature=1e-6).distributions([request()])[0]
    assert greedy.probabilities.max() == pytest.approx(1.0)
    one, other = (policy("softmax", "ALFWorld", variant=variant) for variant in (1, 2))
    (episode,) = episodes("ALFWorld", 1)
    first, second = (
        made.distributions([of_episode(episode)])[0].probabilities
        for made in (one, other)
    )
    assert np.abs(first - second).max() > 0.01
    assert policy("softmax", memory=2).history_read == 2
    assert policy("softmax").history_read is None


@pytest.mark.parametrize(("options", "line"), [
    ({"skill": -1}, "policy option skill: expected float >= 0.0, received -1"),
    ({"temperature": 0}, "policy option temperature: expected float > 0.0, received 0"),
    ({"memory": "some"}, "policy option memory"),
    ({"skil": 1}, "did you mean 'skill'"),
])  # fmt: skip
def test_wrong_options_are_refused(options, line):
    with pytest.raises(InputError, match=line):
        policy("softmax", **options)
    with pytest.raises(InputError, match="expected nothing after its name"):
        policy("softmax:2")


def test_softmax_writes_the_same_table_with_any_number_of_environments(
    tmp_path,
):
    tables = [
        hgpo.collect(
            "HGPO/WebShop-v0", "softmax", tmp_path / str(slots), tasks=3, group_size=4, slots=slots,
            policy_options={"memory": 1},
        )
        for slots in (1, 8)
    ]  # fmt: skip
    assert (
        tables[0]
        .steps.collect()
        .drop("run")
        .equals(tables[1].steps.collect().drop("run"))
    )


@pytest.mark.parametrize("spec", ["random", "outdated", "softmax"])
def test_responses_have_the_form_of_the_specification(spec, monkeypatch):
    boxed = EnvironmentSpec(
        id="Test/Boxed-v0",
        source=DoorsSource,
        format_response=lambda action: f"\\boxed{{{action}}}",
    )
    monkeypatch.setitem(environment_spec._added, boxed.id, boxed)
    (found,) = known(spec, "Boxed", "response").distributions([request()])
    assert set(found.responses) >= {
        "\\boxed{a}",
        "\\boxed{b}",
        "\\boxed{c}",
    }
