"""Pages: visible texts and clickable names in both observation modes."""

import re

from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.webshop.engine import pages
from hgpo_envs.webshop.engine.pages import Node


def test_blank_texts():
    """A space gives an empty part, blank text with a newline is hidden, and other blank text is visible."""
    nodes = [Node("a "), Node(" "), Node("\t"), Node(" \n"), Node(""), Node("\u00a0"), Node("b")]
    assert pages.text_observation(nodes) == "a [SEP]  [SEP]  [SEP]  [SEP] b"
    assert pages.text_rich_observation(nodes, "", ()) == "a \n \n \n\u00a0\nb\n"


PIECES = st.sampled_from(["a", "[", "]", "\n", "search", "click", " ", "]]", "[[", "B0", "é", "\r", "\x85"])


@given(st.lists(PIECES, max_size=12).map("".join))
def test_actions_are_parsed_as_in_the_original(command):
    match = re.compile(r"(.+)\[(.+)\]").match(command)
    assert pages.parse_action(command) == ((match[1], match[2].lower()) if match else (command, ""))


PARTS = st.text(alphabet=" \t\n\x0b\xa0aB'[SEP]", max_size=6) | st.sampled_from([" [SEP] ", "Buy Now"])
NODES = st.lists(st.builds(pages.Node, PARTS, st.sampled_from(["text", "button", "product", "option"])), max_size=6)


@given(NODES, PARTS)
def test_views_of_any_page(nodes, task):
    text = pages.text_observation(nodes)
    assert text == " [SEP] ".join(part.strip() for node in nodes if (part := pages.visible_text(node.text)))
    parts = text.split(" [SEP] ")
    after = parts[parts.index(task) + 1 :] if task in parts else None
    assert pages.state_text(text, task) == (text if after is None else " [SEP] ".join(f"'{part}'" for part in after))
    found = pages.clickables(pages.Page("item", (), tuple(nodes)))
    for name, node in found.items():
        group = ["button", "product", "option"].index(node.kind)
        assert node in nodes
        assert all(
            ["button", "product", "option"].index(other.kind) <= group for other in nodes if named(other) == name
        )
    assert set(found) == {named(node) for node in nodes} - {None}


def named(node):
    """Return a node's name in actions, or None for plain text."""
    if node.kind == "text":
        return None
    if node.kind == "option":  # by its input's value, not by its element's text
        return node.text
    blank = "\n" if "\n" in node.text else " "
    return node.text.lower() if node.text.strip(" \t\n\f\r") or not node.text else blank
