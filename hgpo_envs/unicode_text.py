"""Which texts can be stored and sent."""

from __future__ import annotations


def clean_text(text: str) -> str:
    """A text that UTF-8 can hold: each lone surrogate becomes U+FFFD, the replacement character.

    JSON and models' tokenizers may yield lone surrogates; files, servers and Parquet refuse them. Two surrogates that
    make a pair become the character that they stand for.

    >>> clean_text("a" + chr(0xD800) + "b"), clean_text(chr(0xD83D) + chr(0xDE00)) == "😀"
    ('a�b', True)
    """
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
