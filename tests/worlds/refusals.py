"""What a test of invalid input expects: one line that says what is wrong."""

import re

import pytest

from hgpo_envs.errors import InputError


def refused(line: str) -> pytest.RaisesExc[InputError]:
    """Expect an `InputError` in which a regular expression is found, and which is a single line."""
    return pytest.raises(
        InputError, match=line, check=lambda error: "\n" not in str(error)
    )


def refused_saying(text: str) -> pytest.RaisesExc[InputError]:
    """Expect an `InputError` that contains a text, and is a single line."""
    return refused(re.escape(text))
