"""Documents as JSON, whatever a run's files contain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from hgpo_envs.files.secrets import redact_json

_DEEPEST: Final = 100
_LARGEST: Final = 2**53
"""The largest integer that a page's script knows exactly."""


def encode(document: object) -> bytes:
    """Return the JSON of a document; values that JSON cannot hold are changed as `plain` changes them."""
    try:
        return orjson.dumps(document)
    except TypeError:
        # an integer of more than 64 bits, half of a surrogate pair, or hundreds of levels
        return orjson.dumps(plain(document))


def encode_redacted(document: object) -> bytes:
    """Return the JSON of a document without secrets.

    Texts are redacted before they are encoded: a secret that is found in finished JSON may contain a quotation mark.
    """
    return orjson.dumps(redact_json(plain(document)))


def plain(value: object, depth: int = 0) -> Any:  # noqa: ANN401 (JSON)
    """Return JSON values in which integers are exact, texts are Unicode, and no level is deeper than 100.

    Args:
        value: Nested values.
        depth: The level of the value.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and abs(value) > _LARGEST:
        return float(value) if value.bit_length() < 1000 else "a huge integer"
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {
            plain(str(name)): plain(item, depth + 1) for name, item in value.items()
        }
    return [plain(item, depth + 1) for item in value]
