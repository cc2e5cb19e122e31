"""Docstrings of fields: the string literals below the fields of a dataclass, which Python itself does not keep.

It imports nothing of the packages, so that help, too, can read them.
"""

from __future__ import annotations

import ast
import textwrap
from itertools import pairwise
from typing import NamedTuple


class FieldSource(NamedTuple):
    """What the source of a field says.

    Attributes:
        doc: Its docstring as one line.
        default: Its default as it is written; empty if there is none.
    """

    doc: str
    default: str


def fields_in_source(source: str) -> dict[str, FieldSource]:
    """Return the fields with a docstring of the dataclass in a source text; of the last one if there are several."""
    classes = [
        node
        for node in ast.parse(textwrap.dedent(source)).body
        if isinstance(node, ast.ClassDef)
    ]
    found = {}
    for field, text in pairwise(classes[-1].body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            default = "" if field.value is None else ast.unparse(field.value)
            found[ast.unparse(field.target)] = FieldSource(
                " ".join(str(text.value.value).split()), default
            )
    return found
