"""An extension of Griffe, which reads the docstrings for the documentation site: examples become blocks of code.

Docstrings end with examples without a heading, as doctest reads them. Markdown would read their `>>>` as quotations.
"""

from __future__ import annotations

import re
from typing import Any, Final

from griffe import Extension, Object

_EXAMPLE: Final = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)


class Examples(Extension):
    """Fence the examples of every docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change a docstring as soon as its object is known."""
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(
                lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value
            )
