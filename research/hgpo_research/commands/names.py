"""Names of estimators in tables of a terminal."""

from __future__ import annotations

import re
from typing import Final

_WIDTH: Final = 24
"""The width that `hgpo_train.cli.display.print_table` leaves to texts beside many numbers."""


def folded(name: str) -> str:
    r"""Return a name in lines of at most 24 characters where possible; lines end after a colon or at a space.

    >>> folded("hgpo"), folded("hgpo:history_length=0:mode=mean_norm")
    ('hgpo', 'hgpo:history_length=0:\nmode=mean_norm')
    """
    lines = [""]
    for part in re.findall("[^: ]*[: ]?", name):
        if lines[-1] and len(lines[-1] + part.rstrip()) > _WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)
