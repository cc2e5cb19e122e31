"""The shop's rules: any text is an action, the same commands give the same states, oddities can be switched off."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_envs.environment_spec import make_player
from hgpo_envs.webshop.bundled import bundled_folder
from hgpo_envs.webshop.data.source import WebShopSource

REPEATED = ["click[< prev]", "click[next >]", "click[buy now]", "click[back to search]", "click[description]"]
COMMANDS = st.one_of(
    st.sampled_from([*REPEATED, "search[pants]", "search[search_results item_page]", "search[<c> fashion]"]),
    st.sampled_from(["search[<r>]", "search[<c>]", "search[<a> x]", "search[<q> pants]", 'search["large" pants]']),
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


@pytest.fixture(scope="module", params=[("text", False), ("text_rich", True)], ids=["text", "text_rich"])
def source(awkward, request):
    mode, tab = request.param
    return WebShopSource(awkward, observation_mode=mode, show_attributes=tab)


@given(data=st.data())
def test_any_text_is_an_action(source, data):
    task = data.draw(st.integers(0, len(source.ids("all")) - 1))
    commands = data.draw(st.lists(st.one_of(st.integers(0, 60), COMMANDS), max_size=14))
    states = walk(source.engine(), task, commands)
    for state in states:
        assert 0.0 <= state.reward <= 1.0
        assert 0.0 <= state.score <= 1.0
        assert state.terminated == (state.info["page_type"] == "done" and "r_type" in state.info)
        assert state.won == (state.score == 1.0)
        listed = state.info["available_actions"]
        bar = ["search[<your query>]"] if listed["has_search_bar"] else []
        assert list(state.actions) == bar + [f"click[{name}]" for name in listed["clickables"]]
    assert walk(source.engine(), task, commands) == states


@given(commands=st.lists(st.integers(0, 60), max_size=14))
def test_engines_share_no_mutable_state(source, commands):
    alone = walk(source.engine(), 3, commands)
    first, second = source.engine(), source.engine()
    states = [first.start(3)]
    second.start(4)
    for number, command in enumerate(commands):
        offered = states[-1].actions
        states.append(first.act(offered[command % len(offered)] if offered else ""))
        second.act(["search[pants]", "click[next >]", "click[back to search]"][number % 3])
    assert states == alone


def test_an_action_before_start_raises_runtime_error(source):
    with pytest.raises(RuntimeError, match="call start first"):
        source.engine().act("search[x]")


def to_item(engine, title="red wide leg pants"):
    engine.start(0)
    state = engine.act(f"search[{title}]")
    return engine.act(next(action for action in state.actions if action.startswith("click[b000")))


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


def test_state_text_omits_the_instruction(source):
    engine = source.engine()
    for state in [to_item(engine), engine.act("click[features]"), engine.act("click[back to search]")]:
        assert source.task("0").instruction not in state.text
        assert source.task("0").instruction in state.info["page"]
    bought = walk(engine, 0, ["search[pants]", 2, "click[buy now]"])[-1]
    assert bought.terminated
    assert bought.text == bought.info["page"]


def test_magic_queries(awkward):
    engine = WebShopSource(awkward).engine()
    engine.start(0)
    assert "Page 1 (Total results: 36)" in engine.act("search[<c> fashion]").text
    assert "Page 1 (Total results: 48)" in engine.act("search[<q>  pants]").text
    random_page = engine.act("search[<r>]")
    assert "Page 1 (Total results: 50)" in random_page.text
    assert engine.act("search[<r>]").text != random_page.text
    failed = engine.act("search[<a> x]")
    assert (failed.valid, failed.info["error"]) == (False, "TypeError: 'NoneType' object is not subscriptable")
    assert "error" not in engine.act("noop").info

    plain = WebShopSource(awkward, magic_queries=False).engine()
    plain.start(0)
    assert "(Total results: 0)" in plain.act("search[<c> fashion]").text
    assert plain.act("search[<a> pants]").text == plain.act("search[pants]").text
    other = WebShopSource(awkward, random_query_seed=1).engine()
    other.start(0)
    assert other.act("search[<r>]").text != random_page.text


def test_random_products_of_a_small_shop_raise_in_the_original(awkward_few):
    engine = WebShopSource(awkward_few).engine()
    engine.start(0)
    state = engine.act("search[<r>]")
    assert state.info["error"] == "ValueError: Sample larger than population or is negative"
    assert state.info["page_type"] == "index"


def test_after_done(awkward):
    commands = ["search[pants]", 2, "click[buy now]", "search[pants]", "click[buy now]"]
    states = walk(WebShopSource(awkward).engine(), 0, commands)
    assert [state.terminated for state in states] == [False, False, False, True, False, False]
    assert states[4].info["page_type"] == "results"
    frozen = walk(WebShopSource(awkward, after_done="freeze").engine(), 0, commands)
    assert [state.terminated for state in frozen] == [False, False, False, True, True, True]
    assert frozen[4].text == frozen[5].text == states[3].text
    assert (frozen[4].reward, frozen[4].valid) == (0.0, False)


def test_reward_scale():
    scores, rewards = [], []
    for scale, found in (("score", scores), ("success", rewards)):
        source = WebShopSource(goals="human", reward_scale=scale)
        engine, explorer = source.engine(), make_player("explorer", "WebShop")
        for task in source.ids("test")[:25]:
            state = engine.start(task)
            explorer.reset(source.task(task), state)
            while not state.terminated:
                assert state.reward == state.score == 0.0
                state = engine.act(explorer.act(state))
            found.append(state.reward)
            assert (state.won, state.score) == (scores[int(task)] == 1.0, scores[int(task)])
    assert rewards == [10.0 if score == 1.0 else 0.0 for score in scores]
    assert 0.0 < sum(rewards) < 250.0
    assert len(set(scores)) > 2


def test_a_lowercase_asin_is_not_found(awkward):
    """The original searches for the upper-case asin and fails."""
    engine = WebShopSource(awkward).engine()
    engine.start(0)
    for _ in range(5):
        state = engine.act("search[<c> fashion]")
    lower = None
    while lower is None and "b0" in " ".join(state.actions):
        lower = next((action for action in state.actions if action.startswith("click[b0low")), None)
        state = state if lower else engine.act("click[next >]")
    before = state.text
    state = engine.act(lower)
    assert state.info["error"].startswith("KeyError: 'B0LOW")
    assert (state.text, state.valid) == (before, False)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 30), max_size=10))
def test_bundled_shop_plays(task, commands):
    source = WebShopSource(bundled_folder())
    states = walk(source.engine(), task % len(source.ids("all")), ["search[{}]".format("shoes for men"), *commands])
    assert "Total results: 50" in states[1].text
    assert all("error" not in state.info for state in states)
