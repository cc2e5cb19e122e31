"""The shop's rules: any text is an action, the same commands give the same states; pages, goals and their splits."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from hgpo_envs.environment_spec import make_player
from hgpo_envs.errors import UnknownTask
from hgpo_envs.webshop.data.source import WebShopSource
from hgpo_envs.webshop.engine import pages
from hgpo_envs.webshop.engine.goals import split_ranges
from hgpo_envs.webshop.engine.pages import Node

REPEATED = [
    "click[< prev]",
    "click[next >]",
    "click[buy now]",
    "click[back to search]",
    "click[description]",
]
COMMANDS = st.one_of(
    st.sampled_from(
        [
            *REPEATED,
            "search[pants]",
            "search[search_results item_page]",
            "search[<c> fashion]",
        ]
    ),
    st.sampled_from(
        [
            "search[<r>]",
            "search[<c>]",
            "search[<a> x]",
            "search[<q> pants]",
            'search["large" pants]',
        ]
    ),
    st.builds("search[{}]".format, st.text(max_size=12)),
    st.builds("click[{}]".format, st.text(max_size=6)),
    st.text(max_size=20),
    st.characters(categories=["Cs"]).map("search[{}]".format),  # lone surrogates
)


def walk(engine, task, commands):
    """Return the states of an episode. An integer selects one of the admissible actions."""
    states = [engine.start(task)]
    for command in commands:
        offered = states[-1].actions
        if isinstance(command, int):
            command = offered[command % len(offered)] if offered else ""
        states.append(engine.act(command))
    return states


@pytest.fixture(
    scope="module",
    params=[("text", False), ("text_rich", True)],
    ids=["text", "text_rich"],
)
def source(awkward, request):
    mode, tab = request.param
    return WebShopSource(awkward, observation_mode=mode, show_attributes=tab)


@pytest.mark.slow
@given(data=st.data())
def test_any_text_is_an_action(source, data):
    task = data.draw(st.integers(0, len(source.ids("all")) - 1))
    commands = data.draw(st.lists(st.one_of(st.integers(0, 60), COMMANDS), max_size=14))
    states = walk(source.engine(), task, commands)
    for state in states:
        assert 0.0 <= state.reward <= 1.0
        assert 0.0 <= state.score <= 1.0
        assert state.terminated == (
            state.info["page_type"] == "done" and "r_type" in state.info
        )
        assert state.won == (state.score == 1.0)
        listed = state.info["available_actions"]
        bar = ["search[<your query>]"] if listed["has_search_bar"] else []
        assert list(state.actions) == bar + [
            f"click[{name}]" for name in listed["clickables"]
        ]
    assert walk(source.engine(), task, commands) == states


def to_item(engine, title="red wide leg pants"):
    engine.start(0)
    state = engine.act(f"search[{title}]")
    return engine.act(
        next(action for action in state.actions if action.startswith("click[b000"))
    )


def test_options_are_reset_on_the_way_back_to_the_results(awkward):
    engine = WebShopSource(awkward, observation_mode="text_rich").engine()
    to_item(engine)
    assert "You have clicked red.\n" in engine.act("click[red]").text
    engine.act("click[description]")
    assert "You have clicked red.\n" in engine.act("click[< prev]").text
    results = engine.act("click[< prev]")
    assert "[clicked button] B0" in results.text
    asin = results.text.split("[clicked button] ")[1].split(" ")[0]
    assert "You have clicked" not in engine.act(f"click[{asin}]").text
    engine.act("click[back to search]")
    assert "[clicked button]" not in engine.act("search[red wide leg pants]").text


def test_magic_queries(awkward, awkward_few):
    engine = WebShopSource(awkward).engine()
    with pytest.raises(RuntimeError, match="call start first"):
        engine.act("search[x]")
    engine.start(0)
    random_page = engine.act("search[<r>]")
    assert "Page 1 (Total results: 50)" in random_page.text
    assert engine.act("search[<r>]").text != random_page.text
    few = WebShopSource(awkward_few).engine()
    few.start(0)
    state = few.act("search[<r>]")
    assert (
        state.info["error"]
        == "ValueError: Sample larger than population or is negative"
    )
    assert state.info["page_type"] == "index"

    plain = WebShopSource(awkward, magic_queries=False).engine()
    plain.start(0)
    assert "(Total results: 0)" in plain.act("search[<c> fashion]").text
    assert plain.act("search[<a> pants]").text == plain.act("search[pants]").text


def test_after_done(awkward):
    commands = ["search[pants]", 2, "click[buy now]", "search[pants]", "click[buy now]"]
    states = walk(WebShopSource(awkward).engine(), 0, commands)
    assert [state.terminated for state in states] == [
        False,
        False,
        False,
        True,
        False,
        False,
    ]
    assert states[4].info["page_type"] == "results"
    frozen = walk(WebShopSource(awkward, after_done="freeze").engine(), 0, commands)
    assert [state.terminated for state in frozen] == [
        False,
        False,
        False,
        True,
        True,
        True,
    ]
    assert frozen[4].text == frozen[5].text == states[3].text
    assert (frozen[4].reward, frozen[4].valid) == (0.0, False)


def test_reward_scale():
    source = WebShopSource(goals="human", reward_scale="success")
    player = make_player("explorer", "WebShop")
    engine = source.engine()
    rewards = set()
    for task in source.ids("test")[:25]:
        state = engine.start(task)
        player.reset(source.task(task), state)
        while not state.terminated:
            state = engine.act(player.act(state))
        rewards.add((state.won, state.reward))
    assert rewards == {(True, 10.0), (False, 0.0)}


def test_a_lowercase_asin_is_not_found(awkward):
    """The original searches for the upper-case asin and fails."""
    engine = WebShopSource(awkward).engine()
    engine.start(0)
    for _ in range(5):
        state = engine.act("search[<c> fashion]")
    lower = None
    while lower is None and "b0" in " ".join(state.actions):
        lower = next(
            (action for action in state.actions if action.startswith("click[b0low")),
            None,
        )
        state = state if lower else engine.act("click[next >]")
    before = state.text
    state = engine.act(lower)
    assert state.info["error"].startswith("KeyError: 'B0LOW")
    assert (state.text, state.valid) == (before, False)


@given(st.integers(0, 20_000))
def test_splits_are_disjoint_and_complete(goals):
    parts = split_ranges(goals)
    assert list(parts) == ["test", "eval", "train"]
    assert list(itertools.chain(*parts.values())) == list(range(goals))
    if goals >= 10:
        assert all(parts.values())
    assert split_ranges(6910) == {
        "test": range(500),
        "eval": range(500, 1500),
        "train": range(1500, 6910),
    }


def test_task_ids(awkward):
    source = WebShopSource(awkward)
    ids = source.ids("all")
    assert list(ids) == [str(number) for number in range(len(ids))]
    assert sorted(
        map(int, [i for split in ("train", "eval", "test") for i in source.ids(split)])
    ) == list(range(len(ids)))
    assert ids[3] == "3"
    assert list(ids[3:5]) == ["3", "4"]
    for split in ("train", "eval", "test"):
        assert {source.task(task_id).split for task_id in source.ids(split)} == {split}
    assert source.task(3) == source.task("3")
    with refused("unknown split 'valid'"):
        source.ids("valid")
    for task_id in (
        "-1",
        "01",
        "1.0",
        "x",
        "",
        " 1",
        "9999999",
        -1,
        True,
        None,
        "１",
        "1\n",
    ):
        with pytest.raises(UnknownTask, match="a WebShop task is a goal's index"):
            source.task(task_id)


def test_blank_texts():
    """A space gives an empty part, blank text with a newline is hidden, and other blank text is visible."""
    nodes = [
        Node("a "),
        Node(" "),
        Node("\t"),
        Node(" \n"),
        Node(""),
        Node("\u00a0"),
        Node("b"),
    ]
    assert pages.text_observation(nodes) == "a [SEP]  [SEP]  [SEP]  [SEP] b"
    assert pages.text_rich_observation(nodes, "", ()) == "a \n \n \n\u00a0\nb\n"


def test_an_options_value_hides_a_button_of_the_same_name():
    option = Node("buy now", "option", "size")
    product = Node("B01", "product")
    found = pages.clickables(
        pages.Page(
            "item", (), (Node("Buy Now", "button"), Node("Search"), product, option)
        )
    )
    assert found == {"buy now": option, "b01": product}
    assert list(found) == ["buy now", "b01"]


PIECES = st.sampled_from(
    ["a", "[", "]", "\n", "search", "click", " ", "]]", "[[", "B0", "é", "\r", "\x85"]
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_actions_are_parsed_as_in_the_original(command):
    match = re.compile(r"(.+)\[(.+)\]").match(command)
    assert pages.parse_action(command) == (
        (match[1], match[2].lower()) if match else (command, "")
    )
