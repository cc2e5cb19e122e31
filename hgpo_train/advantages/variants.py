"""Estimators with parameters, as on the command line: ``hgpo``, ``hgpo:history_length=4``, ``module:function``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hgpo_envs.errors import InputError, unknown
from hgpo_train.advantages.registry import Estimator, get, names
from hgpo_train.assignments import read_assignments
from hgpo_train.settings import types_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True)
class Variant:
    """An estimator with parameters and a name.

    Attributes:
        name: Its name in tables and pictures, as it was written.
        estimator: The estimator with its parameters and a column of its own.
        assigned: The parameters that were written with the estimator, by name.
    """

    name: str
    estimator: Estimator
    assigned: dict[str, Any]


def read_variants(
    texts: Iterable[str], given: Mapping[str, Any] | None = None, settings: Sequence[str] = ()
) -> list[Variant]:
    """Read estimators with parameters: ``hgpo``, ``hgpo:history_length=4:alpha=2``, ``module:function:name=value``.

    Args:
        texts: Estimators, each followed by its own parameters, separated by colons. A text may contain several of
            them, separated by commas; ``all`` is every registered estimator.
        given: Parameters by name, for every estimator that has them.
        settings: Further parameters, ``name=value``, for every estimator that has them.

    Raises:
        InputError: An estimator or a parameter is unknown, a value is not valid, or an estimator is given twice.

    >>> [variant.estimator.parameters.history_length for variant in read_variants(["hgpo,hgpo:history_length=4"])]
    [2, 4]
    """
    named = [text.strip() for several in texts for text in several.split(",") if text.strip()]
    written = [name for text in named for name in (names() if text == "all" else [text])]
    if not written:
        raise InputError("--estimators: expected at least one estimator, received none; write hgpo,gigpo")
    for text in written:
        if written.count(text) > 1:
            raise InputError(f"--estimators: expected different estimators, received {text!r} twice")
    parts = [_parts(text) for text in written]
    estimators = [get(name) for name, _ in parts]
    types = [types_of(type(estimator.parameters)) for estimator in estimators]
    every = {name: annotation for known in types for name, annotation in known.items()}
    shared = dict(given or {}) | read_assignments("--set", settings, every)
    for name in shared:
        if name not in every:
            raise InputError(unknown("parameter", name, sorted(every), limit=99))
    variants = []
    for number, (text, (_, own), estimator, known) in enumerate(zip(written, parts, estimators, types, strict=True)):
        assigned = read_assignments("--estimators", own, known)
        values = {name: value for name, value in shared.items() if name in known} | assigned
        column = f"(estimate {number + 1})"
        variants.append(Variant(text, estimator.with_parameters(column=column, **values), assigned))
    return variants


def _parts(text: str) -> tuple[str, list[str]]:
    """Split ``module:function:name=value`` into the name and the assignments, which are the last parts."""
    parts = text.split(":")
    names = next((place for place, part in enumerate(parts) if "=" in part), len(parts))
    return ":".join(parts[:names]), parts[names:]
