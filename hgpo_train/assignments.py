"""Parsing of `name=value` texts for `--set`, `--env-option`, `--policy-option` and the weights of a mixture.

A value is parsed as JSON, then as TOML: `3`, `0.5`, `true`, `null`, `[1, 2]`, `{ top_k = 20 }`. Any other value is
text. If the option is annotated as text, the value is always text: `name=7` is the name "7".
"""

from __future__ import annotations

import json
import tomllib
from contextlib import suppress
from datetime import date, time
from typing import TYPE_CHECKING, Any

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def split(text: str, option: str, form: str = "name=value") -> tuple[str, str]:
    """Split ``name=value`` into the name and the text of the value, which may contain further equals signs.

    The option that received the text and the expected form are for the error message.
    """
    name, equals, value = text.partition("=")
    if not (equals and name.strip()):
        raise InputError(f"{option}: expected {form}, received {text!r}")
    return name.strip(), value.strip()


def read_value(text: str, annotation: object = Any) -> Any:  # noqa: ANN401 (whatever the user writes)
    """Parse the text of a value for an option with the given annotation.

    >>> read_value("7"), read_value("7", str), read_value('"7"', str | None), read_value("shuffled")
    (7, '7', '7', 'shuffled')
    """
    value: Any = text
    for parse in (_toml, json.loads):  # JSON decides where both can read it
        with suppress(ValueError, RecursionError):
            value = parse(text)
    value = {"True": True, "False": False}.get(text, value)
    if annotation is str or annotation == str | None:
        return value if isinstance(value, str) or (value is None and annotation is not str) else text
    if annotation is float and isinstance(value, str):  # `.5` is neither JSON nor TOML
        with suppress(ValueError):
            return float(value)
    return value


def _toml(text: str) -> object:
    values = tomllib.loads(f"value = {text}")
    if len(values) > 1 or isinstance(values["value"], date | time):
        raise ValueError(text)
    return values["value"]


def read_assignments(option: str, texts: Iterable[str], annotations: Mapping[str, object]) -> dict[str, Any]:
    """Parse ``name=value`` texts into a dictionary.

    Args:
        option: The option that received the texts, for the error message.
        texts: ``name=value`` texts.
        annotations: Annotations by name; a name without one accepts any value.

    >>> read_assignments("--env-option", ["goals=human", "price_seed=3", "show_attributes=true"], {})
    {'goals': 'human', 'price_seed': 3, 'show_attributes': True}
    """
    named = [split(text, option) for text in texts]
    return {name: read_value(value, annotations.get(name, Any)) for name, value in named}
