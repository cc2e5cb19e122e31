"""The reward's parts by examples computed by hand, and bounds for any purchase."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.webshop.engine.goals import Goal
from hgpo_envs.webshop.engine.reward import (
    first_colour,
    matched_options,
    reward,
    same,
    wanted_options,
)


def product(title="red wide leg pants", **fields):
    known = {
        "title": title,
        "nouns": tuple(title.split()),
        "description": "",
        "bullet_points": (),
        "query": "pants",
    }
    known |= {
        "attributes": ("DUMMY_ATTR",),
        "product_category": "Clothing › Men › Pants",
    }
    return SimpleNamespace(**{**known, **fields})


def goal(attributes=("wide leg",), options=(), price_upper=30.0, **fields):
    return Goal(0, product(**fields), "", attributes, options, price_upper)


def test_parts_add_up():
    found = reward(
        product(), goal(("wide leg", "pockets"), ("red", "xl")), 31.0, {"size": "xl"}
    )
    assert (found.r_att, found.r_option, found.r_price) == (0.5, 0.5, False)
    assert found.score == (1 + 1 + 0) / 5
    # it asks for none
    assert (
        not {"r_option", "w_option"} & reward(product(), goal(), 1.0, {}).parts().keys()
    )
    assert reward(product(), goal(nouns=()), 1.0, {}).title_score == 0.2


def test_type():
    for bought, r_type, title_score in (
        (product(title="a b c d e f g h i j k l"), 1.0, 1.0),
        (product(title="a b"), 1.0, 2 / 12),  # 0.5 but for the query
        (product(title="a b", query="x"), 1.0, 2 / 12),  # two shared categories
        (
            product(title="a b", query="x", product_category="Clothing › Pants x"),
            0.5,
            2 / 12,
        ),
        (product(title="a b c", query="x", product_category=""), 1.0, 3 / 12),
        (product(title="a", query="pants"), 0.1, 1 / 12),  # the query does not rescue
        (product(title="z", query="pants"), 0.0, 0.0),
    ):
        found = reward(bought, goal(title="a b c d e f g h i j k l"), 1.0, {})
        assert (found.r_type, found.title_score) == (r_type, title_score)


@pytest.mark.parametrize(
    "where", ["title", "description", "bullet_points", "attributes"]
)
def test_attributes_are_found_anywhere(where):
    text = "with Easy Care inside"
    holder = product(
        **{
            where: (text.lower() if where == "attributes" else text,)
            if where[-1] == "s"
            else text
        }
    )
    assert reward(holder, goal(("easy care",)), 1.0, {}).r_att == 1.0
    assert reward(product(), goal(("easy care",)), 1.0, {}).r_att == 0.0


def test_colours_of_synthetic_goals():
    """A colour inside another word counts, and the original normalises only one side of a synthetic option."""
    assert first_colour("wired") == "red"
    synthetic = goal(options={"connectivity": "wired"})
    assert matched_options(["wired"], wanted_options(synthetic)) == 0
    assert matched_options(["wired"], wanted_options(synthetic, "both")) == 1
    assert matched_options(["wired"], wanted_options(goal(options=("wired",)))) == 1
    assert (
        matched_options(["dark blue"], wanted_options(goal(options={"color": "blue"})))
        == 1
    )


def test_letters_beyond_latin_1_count_and_latin_1_does_not():
    """thefuzz deletes only the characters 128 to 255 before it compares."""
    assert same("crème", "crme")
    assert not same("日本", "")
    assert same("日本", "日本")
    assert not same("é", "é")  # nothing is left to compare


words = st.text(alphabet="abré日 ‹›|/'\"-_%", max_size=12)


@given(
    st.builds(
        product,
        title=words,
        description=words,
        bullet_points=st.tuples(words),
        attributes=st.tuples(words),
    ),
    st.builds(
        goal,
        attributes=st.lists(words, min_size=1, max_size=3).map(tuple),
        options=st.one_of(
            st.lists(words, max_size=3).map(tuple),
            st.dictionaries(words, words, max_size=3),
        ),
        price_upper=st.floats(1, 1000),
        title=words,
    ),
    st.floats(0, 2000),
    st.dictionaries(words, words, max_size=3),
    st.sampled_from(["original", "both"]),
)
def test_scores_are_between_zero_and_one(bought, wanted, price, chosen, colours):
    found = reward(bought, wanted, price, chosen, colours)
    assert 0.0 <= found.score <= 1.0
    assert found.r_type in (0.0, 0.1, 0.5, 1.0)
    assert found.w_att + found.w_option + found.w_price == pytest.approx(1.0)
    whole = (
        found.r_att * found.w_att
        + (found.r_option or 0.0) * found.w_option
        + found.r_price * found.w_price
    )
    assert found.score == pytest.approx(whole * found.r_type)
    assert found == reward(bought, wanted, price, chosen, colours)
