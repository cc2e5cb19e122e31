"""Response parsing: verl-agent's rules for any text, in linear time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.responses import admissible, numbered, parse

PIECES = st.sampled_from(
    [
        "<action>",
        "</action>",
        "<think>",
        "</think>",
        "<ACTION>",
        "</Action>",
        "<Think>",
        "look",
        " ",
        "\n",
        "\0",
    ]
)
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=[])),  # lone surrogates included
    st.lists(
        st.one_of(PIECES, st.text(max_size=3), st.sampled_from("开é")), max_size=12
    ).map("".join),
)


def test_rules():
    for text, action, valid in (
        ("<think>a</think><action>go to desk 1</action>", "go to desk 1", True),
        (
            "<think>a</think> so <action>\n Go To Desk 1\t</action> done",
            "go to desk 1",
            True,
        ),
        # action tags are found in the lowered response
        ("<think>a</think><ACTION>Look</Action>", "look", True),
        # think tags in the response as written
        ("<THINK>a</THINK><action>look</action>", "look", False),
        ("<think><action>look</action>", "look", False),
        # both are there: order is not looked at
        ("</think><action>look</action><think>", "look", True),
        ("<think>a</think><action>look</action><action>help</action>", "look", True),
        ("<think>a</think><action><action>look</action>", "<action>look", True),
        # the first closing tag precedes the first opening one
        ("<think>a</think></action><action>look", "", True),
        ("<think>a</think><action></action>", "", True),
        ("<think>打开</think><action>look</action>", "look", False),
        # kana and hangul are outside U+4E00-9FFF
        ("<think>é ひ 한</think><action>look</action>", "look", True),
        ("<think>a</think><action>click[打]</action>", "click[打]", False),
        ("<action>look", "<action>look", False),
        ("", "", False),
    ):
        response = parse(text, lowercase=True)
        assert response[:2] == (action, valid)
        assert (response.flaw == "") == valid
    kept = parse("<think>a</think><action> Take Canadian latchkey </action>")
    # case, unless the benchmark is lowercase
    assert kept[:2] == ("Take Canadian latchkey", True)


def test_an_action_means_the_admissible_one_that_differs_by_case():
    actions = ["take Canadian latchkey", "Take canadian latchkey", "look", "Straße"]
    for wanted in actions:
        assert admissible(wanted, actions) == wanted
    assert admissible("TAKE CANADIAN LATCHKEY", actions) == actions[0]
    assert admissible("STRASSE", actions) == "Straße"
    assert admissible("LOOK twice", actions) == "LOOK twice"


@given(TEXTS, st.integers(0, 40))
def test_any_text_agrees_with_an_independent_implementation(text, characters):
    found = parse(text, characters, lowercase=True)
    lowered = text.lower()
    both = "<action>" in lowered and "</action>" in lowered
    if both:
        head, _, _ = lowered.partition("</action>")
        expected = head.partition("<action>")[2].strip()
    else:
        expected = lowered[max(0, len(lowered) - characters) :]
    thinks = "<think>" in text and "</think>" in text
    valid = both and thinks and not re.search(r"[\u4e00-\u9fff]", text)
    assert (found.action, found.valid, found.flaw == "") == (
        expected,
        bool(valid),
        bool(valid),
    )


def test_eight_megabytes_of_anything():
    """A parser that is not linear would not finish."""
    for unit, action, flaw in (
        ("<action>", "<action>" * 9, "no <action> tags"),
        ("</action><action>", "", "no <think> tags"),
        ("İ", "i̇" * 15, "no <action> tags"),  # its lower case has two characters
        ("<think></think><action>look</action>", "look", ""),
        ("<action>go 打</action><think></think>", "go 打", "CJK characters"),
    ):
        found = parse(unit * ((8 << 20) // len(unit)), lowercase=True)
        assert (found.action, found.valid, found.flaw) == (action[-30:], not flaw, flaw)


@given(
    st.lists(st.text(max_size=5), max_size=20),
    st.integers(-3, 25),
    st.sampled_from(["", " ", "\n", "\t "]),
)
def test_numbers_count_from_one_and_anything_else_is_a_command(actions, number, around):
    text = f"{around}{number}{around}"
    expected = dict(enumerate(actions, start=1)).get(number, text)
    assert numbered(text, actions) == expected


@pytest.mark.parametrize(
    "text", ["", "1.", "one", "1 2", "-1", "+1", "1e0", "²", "١", "1" * 5000, "look"]
)
def test_texts_that_are_not_numbers(text):
    assert numbered(text, ["go"]) == text
