"""Parsing of a model's response into a program, by G2PO's rules, with fenced code blocks besides."""

from __future__ import annotations

import re
from typing import Final

from hgpo_envs.responses import Response

FALLBACK_CHARACTERS: Final = 100
"""Number of last characters that are the program if there is none in tags or a block."""

_OPEN = "<code>"
_CLOSE = "</code>"
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)


def parse_code(text: str) -> Response:
    r"""Parse the program in a response.

    The program is the text between the first ``<code>`` and the next ``</code>``; without them, the last block between
    lines of three backquotes (in `````python``, or in no language); without one, the last 100 characters. A block
    within the tags is taken out of its backquotes. Letter case, indentation and all characters stay as they are.

    A response is valid with ``<code>``, ``</code>``, ``<think>`` and ``</think>``. Programs of invalid responses are
    executed.

    >>> parse_code("<think>Who am I?</think><code>print(apis.supervisor.show_profile())</code>")
    Response(action='print(apis.supervisor.show_profile())', valid=True, flaw='')
    >>> parse_code("Let me look.\n```python\nprint(1)\n```")
    Response(action='print(1)', valid=False, flaw='no <code> tags')
    """
    start = text.find(_OPEN)
    end = text.find(_CLOSE, start + len(_OPEN)) if start >= 0 else -1
    if end < 0:
        return Response(
            _in_blocks(text) or text[-FALLBACK_CHARACTERS:], False, "no <code> tags"
        )
    inside = text[start + len(_OPEN) : end]
    program = _in_blocks(inside) or inside.strip("\n").rstrip()
    if "<think>" not in text or "</think>" not in text:
        return Response(program, False, "no <think> tags")
    return Response(program, True, "")


def _in_blocks(text: str) -> str:
    """Return the last fenced block; empty if there is none."""
    blocks: list[str] = _FENCED.findall(text)
    return blocks[-1].rstrip() if blocks else ""
