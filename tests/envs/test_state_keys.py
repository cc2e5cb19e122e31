"""Keys of states: which texts count as one state."""

from __future__ import annotations

import pytest

from hgpo_envs.errors import InputError
from hgpo_envs.state_keys import state_key


def test_named_keys() -> None:
    mask = state_key("mask-numbers")
    assert mask("-= Kitchen =- 0/13 moves") == mask("-= Kitchen =- 5/0013 moves")
    assert mask("one drawer") != mask("two drawers")
    assert state_key("sort-lines")("b\na\n") == state_key("sort-lines")("\na\nb")
    assert state_key("textwrap:dedent")("  a") == "a"


@pytest.mark.parametrize(
    ("name", "reason"), [("mask-number", "mask-numbers"), ("textwrap:nothing", "nothing"), ("string:digits", "str")]
)
def test_unknown_keys(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        state_key(name)
