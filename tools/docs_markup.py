"""Texts of the code in the Markdown of generated pages, in which nothing is markup but code."""

from __future__ import annotations

import re
from html import escape


def code(text: str) -> str:
    """Return a text as code; an empty one stays empty.

    >>> code("a|b")
    '<code>a&#124;b</code>'
    """
    return f"<code>{_entities(text)}</code>" if text else ""


def plain(text: str) -> str:
    """Return a text in which nothing is markup but code in backticks.

    >>> plain("`--set` *.pack")
    '<code>--set</code> &#42;.pack'
    """
    return re.sub(
        r"`([^`]*)`|[^`]+",
        lambda found: code(found[1]) if found[1] else _entities(found[0]),
        text,
    )


def _entities(text: str) -> str:
    """Return a text with the characters as entities that Markdown or HTML would read."""
    return re.sub(
        r"[|*_\[\]\\]", lambda found: f"&#{ord(found[0])};", escape(text, quote=False)
    )
