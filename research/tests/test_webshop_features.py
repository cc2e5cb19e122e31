"""Features of WebShop's actions: what the prompt shows decides what an action is worth."""

import pytest

from hgpo_envs.memory import Pair
from hgpo_research.features.webshop import ShopFeatures

FEATURES = ShopFeatures()
WISH = "i need red cotton socks, size: small, and price lower than 20.00 dollars"


def page(*parts):
    return "'" + "' [SEP] '".join(parts) + "'"


def features(observation, actions, *history):
    """Return all features of a state with a history of (observation, action)."""
    pairs = [Pair(number, *pair) for number, pair in enumerate(history, 1)]
    state = FEATURES.read(WISH, observation, actions)
    return {**state.choices, **state.changes(pairs)}


def test_queries_are_the_first_words_of_the_instruction():
    found = features("'Search'", ("search[<your query>]", "click[search]"))
    assert found.pop("click[search]") == {}
    assert list(found) == [
        "search[red]",
        "search[red cotton]",
        "search[red cotton socks size]",
        "search[red cotton socks size small]",
    ]
    assert found["search[red cotton]"] == {"query": 0.4}
    again = features(
        "'Search'",
        ("search[<your query>]",),
        ("'Search'", "search[red]"),
        ("'Search'", "search[socks]"),
    )
    assert again["search[red]"] == {"query": 0.2, "repeated": 1.0}


RESULTS = page(
    "Back to Search",
    "Next >",
    "B01",
    "red socks",
    "$9.00",
    "B02",
    "blue socks",
    "$8.00",
    "B03",
    "red hat",
    "$30.00",
)
ON_RESULTS = (
    "click[back to search]",
    "click[next >]",
    "click[b01]",
    "click[b02]",
    "click[b03]",
)


def test_results_are_worth_their_title_and_price():
    found = features(RESULTS, ON_RESULTS, (RESULTS, "click[b02]"))
    # red and socks are in two titles each: B01 has both, the others one
    assert found["click[b01]"] == {"result": 1.0}
    assert found["click[b02]"] == {"result": 0.5, "repeated": 1.0}
    assert found["click[b03]"] == {"result": 0.5, "dear": 1.0}
    assert found["click[next >]"] == {"leave": 1.0}
    dear = page("Back to Search", "Next >", "B03", "red hat", "$30.00")
    assert features(dear, ("click[next >]", "click[b03]"))["click[next >]"] == {
        "next": 1.0
    }


ITEM = page(
    "Back to Search",
    "< Prev",
    "color",
    "red",
    "blue",
    "size",
    "small",
    "large",
    "cotton socks",
    "Price: $9.00",
    "Buy Now",
)
ON_ITEM = (
    *(
        "click[back to search]",
        "click[< prev]",
        "click[description]",
        "click[buy now]",
    ),
    *("click[red]", "click[blue]", "click[small]", "click[large]"),
)


def test_options_are_chosen_once_while_the_history_shows_it():
    found = features(ITEM, ON_ITEM)
    assert found["click[red]"] == found["click[small]"] == {"named": 1.0}
    assert found["click[blue]"] == found["click[large]"] == {"other_value": 1.0}
    assert found["click[description]"] == {"tab": 1.0}
    assert found["click[buy now]"] == {
        "buy": 1.0,
        "unchosen": 2.0,
        "fit": 1.0,
        "dear": 0.0,
    }
    chosen = features(ITEM, ON_ITEM, (RESULTS, "click[b01]"), (ITEM, "click[red]"))
    assert chosen["click[red]"] == {"named": 1.0, "repeated": 1.0}
    assert chosen["click[buy now]"]["unchosen"] == 1.0
    both = features(
        ITEM,
        ON_ITEM,
        (ITEM, "click[red]"),
        (ITEM, "click[small]"),
        (ITEM, "click[red]"),
    )
    assert both["click[buy now]"]["unchosen"] == 0.0
    assert both["click[red]"]["repeated"] == 2.0


def test_rich_pages_show_the_chosen_options():
    lines = (
        "You have clicked red.",
        "color",
        "[clicked button] red [clicked button_]",
        "[button] blue [button_]",
    )
    text = "\n".join(
        [
            *lines,
            "cotton socks",
            "Price: $9.00",
            "[button] Buy Now [button_]",
        ]
    )
    found = features(text, ("click[buy now]", "click[red]", "click[blue]"))
    assert found["click[red]"] == {"named": 1.0, "repeated": 1.0}
    assert found["click[buy now]"]["unchosen"] == 0.0


def test_tabs_lead_back_to_the_product():
    found = features(
        page("Back to Search", "< Prev", "warm"),
        ("click[back to search]", "click[< prev]"),
    )
    assert found == {
        "click[back to search]": {"leave": 1.0},
        "click[< prev]": {"return": 1.0},
    }


def test_dear_products_are_shown_by_their_price():
    found = features(ITEM.replace("$9.00", "$21.50"), ON_ITEM)
    assert found["click[buy now]"]["dear"] == pytest.approx(1.0)
