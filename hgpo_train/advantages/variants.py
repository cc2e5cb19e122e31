"""Estimators with parameters, as on the command line: ``hgpo``, ``hgpo:history_length=4``, ``module:function``."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from hgpo_envs.errors import InputError, unknown
from hgpo_train.advantages.registry import Estimator, get, names
from hgpo_train.settings import read_assignments, types_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Variant(NamedTuple):
    """An estimator as it was written: its name with parameters, and the parameters that were written with it."""

    name: str
    estimator: Estimator
    assigned: dict[str, Any]


def read_variants(
    texts: Iterable[str], parameters: Mapping[str, Any] | None = None, settings: Sequence[str] = ()
) -> list[Variant]:
    """Read estimators with parameters: ``hgpo``, ``hgpo:history_length=4:alpha=2``, ``module:function:name=value``.

    Args:
        texts: Estimators, each followed by its own parameters, separated by colons. A text may contain several of
            them, separated by commas; ``all`` is every registered estimator.
        parameters: Parameters by name, for every estimator that has them.
        settings: Further parameters, ``name=value``, for every estimator that has them.

    Raises:
        InputError: An estimator or a parameter is unknown, a value is not valid, or an estimator is named twice.

    >>> [variant.estimator.parameters.history_length for variant in read_variants(["hgpo,hgpo:history_length=4"])]
    [2, 4]
    """
    listed = [text.strip() for several in texts for text in several.split(",") if text.strip()]
    written = [name for text in listed for name in (names() if text == "all" else [text])]
    if not written or len(set(written)) < len(written):
        raise InputError(f"estimators: expected different estimators, such as hgpo,gigpo, received {written}")
    split = [text.split(":") for text in written]
    named = [list(takewhile(lambda part: "=" not in part, parts)) for parts in split]
    estimators = [get(":".join(parts)) for parts in named]
    types = [types_of(type(estimator.parameters)) for estimator in estimators]
    every = {name: annotation for known in types for name, annotation in known.items()}
    shared = {**(parameters or {}), **read_assignments("--set", settings, every)}
    for name in shared:
        if name not in every:
            raise InputError(unknown("parameter", name, sorted(every), limit=99))
    variants = []
    for number, (text, parts, estimator, known) in enumerate(zip(written, split, estimators, types, strict=True)):
        assigned = read_assignments("estimators", parts[len(named[number]) :], known)
        values = {name: value for name, value in shared.items() if name in known} | assigned
        column = f"(estimate {number + 1})"
        variants.append(Variant(text, estimator.with_parameters(column=column, **values), assigned))
    return variants
