"""Parsing of responses into programs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_appworld.responses import FALLBACK_CHARACTERS, parse_code

THINK = "<think>Who?</think>"


@pytest.mark.parametrize(
    ("text", "program", "flaw"),
    [
        (f"{THINK}<code>print(Apis.X)</code>", "print(Apis.X)", ""),
        (f"{THINK}<code>\n  if a:\n    b()\n</code>", "  if a:\n    b()", ""),
        (f"{THINK}<code>\n```python\nx = 1\n```\n</code>", "x = 1", ""),
        (f"{THINK}<code>s = '</code>'</code>", "s = '", ""),
        ("</code><think></think><code>x</code>", "x", ""),
        (f"{THINK}<code>print('漢字')</code>", "print('漢字')", ""),
        ("<code>x</code>", "x", "no <think> tags"),
        (f"{THINK}```python\nx = 1\ny = 2\n```", "x = 1\ny = 2", "no <code> tags"),
        (f"{THINK}```python\nx\n``` and ```py\ny\n```", "y", "no <code> tags"),
        (f"{THINK}```\nx\n```", "x", "no <code> tags"),
        (f"{THINK}```python\nx = 1", "x = 1", "no <code> tags"),
        (f"{THINK}<code>x = 1", "<think>Who?</think><code>x = 1", "no <code> tags"),
        ("", "", "no <code> tags"),
    ],
)
def test_programs_and_flaws(text: str, program: str, flaw: str) -> None:
    found = parse_code(text)
    assert found.flaw == flaw
    assert found.valid == (not flaw)
    assert found.action == program


def test_without_tags_and_blocks_the_last_characters_are_the_program() -> None:
    text = "a" * 300 + "Z" * FALLBACK_CHARACTERS
    assert parse_code(text).action == "Z" * FALLBACK_CHARACTERS


@given(st.text(), st.text(), st.text())
def test_every_text_has_a_program_and_a_validity(
    before: str, program: str, after: str
) -> None:
    found = parse_code(before + program + after)
    assert found.valid == (found.flaw == "")
    assert found.action in before + program + after


@given(st.text().filter(lambda text: "```" not in text and "</code>" not in text))
def test_what_is_in_tags_is_the_program(program: str) -> None:
    found = parse_code(f"{THINK}<code>\n{program}\n</code>")
    assert found.valid
    assert found.action == program.strip("\n").rstrip()
