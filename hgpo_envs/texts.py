"""Which texts can be stored and sent."""

from __future__ import annotations

import re
from typing import Final

_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def storable(text: str) -> str:
    r"""A text that UTF-8 can hold: each lone surrogate becomes U+FFFD, the replacement character.

    JSON and models' tokenizers may yield lone surrogates; files, servers and Parquet refuse them.

    >>> storable("café 😀"), storable("half \ud83d of it")
    ('café 😀', 'half � of it')
    """
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)
