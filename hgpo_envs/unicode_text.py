"""Replacement of lone surrogates, so that text can be stored and sent as UTF-8."""

from __future__ import annotations


def clean_text(text: str) -> str:
    """Return the text with each lone surrogate replaced by U+FFFD, the replacement character.

    JSON and tokenizers may produce lone surrogates, which UTF-8 cannot encode and which files, servers and Parquet
    reject. A surrogate pair is combined into the character that it encodes.

    >>> clean_text("a" + chr(0xD800) + "b"), clean_text(chr(0xD83D) + chr(0xDE00)) == "😀"
    ('a�b', True)
    """
    return (
        text
        if text.isascii()
        else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    )
