"""`name=value` texts: one reader for `--set`, `--env-option`, `--policy-option` and the weights of a mixture.

A value is read as JSON or as TOML: `3`, `0.5`, `true`, `null`, `[1, 2]`, `{ top_k = 20 }`. Anything else is text. A
value for something that is annotated as text is text whatever it looks like: `name=7` is the name "7".
"""

from __future__ import annotations

import contextlib
import json
import tomllib
from datetime import date, time
from typing import TYPE_CHECKING, Any

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def split(text: str, option: str, form: str = "name=value") -> tuple[str, str]:
    """The name and the text of the value.

    Args:
        text: ``name=value``; the value may hold further equals signs.
        option: Who was given it, for the error line.
        form: What it should look like, for the error line.

    Raises:
        InputError: There is no equals sign, or no name before it.
    """
    name, equals, value = text.partition("=")
    if not (equals and name.strip()):
        raise InputError(f"{option}: expected {form}, got {text!r}")
    return name.strip(), value.strip()


def read_value(text: str, annotation: object = Any) -> Any:  # noqa: ANN401 (whatever the user writes)
    """The value of a text, for something with this annotation.

    >>> read_value("7"), read_value("7", str), read_value('"7"', str | None), read_value("shuffled")
    (7, '7', '7', 'shuffled')
    """
    value = _literal(text)
    if annotation is str or annotation == str | None:
        return value if isinstance(value, str) or (value is None and annotation is not str) else text
    if annotation is float and isinstance(value, str):  # `.5` is neither JSON nor TOML
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def read_assignments(option: str, texts: Iterable[str], annotations: Mapping[str, object]) -> dict[str, Any]:
    """Values by name.

    Args:
        option: Who was given the texts, for the error line.
        texts: Each ``name=value``.
        annotations: What is known of the targets; others may be anything.

    Raises:
        InputError: A text has another form.

    >>> read_assignments("--env-option", ["goals=human", "price_seed=3", "show_attributes=true"], {})
    {'goals': 'human', 'price_seed': 3, 'show_attributes': True}
    """
    named = [split(text, option) for text in texts]
    return {name: read_value(value, annotations.get(name, Any)) for name, value in named}


def _literal(text: str) -> Any:  # noqa: ANN401 (see above)
    """A text as JSON, as TOML, or as it is."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        values = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = values["value"]
    return text if len(values) > 1 or isinstance(value, date | time) else value
