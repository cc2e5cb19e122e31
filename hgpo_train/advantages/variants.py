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
    texts: Iterable[str],
    parameters: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
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
    # 1. The texts of single estimators.
    written: list[str] = []
    for text in ",".join(texts).split(","):
        if text.strip() == "all":
            written += names()
        elif text.strip():
            written.append(text.strip())
    if not written or len(set(written)) < len(written):
        raise InputError(
            f"estimators: expected different estimators, such as hgpo,gigpo, received {written}"
        )

    # 2. The estimators. The name of one as `module:function` contains a colon, so that parameters begin at the first
    # part with an equals sign.
    estimators: list[Estimator] = []
    assignments: list[list[str]] = []
    every: dict[str, Any] = {}
    for text in written:
        parts = text.split(":")
        named = list(takewhile(lambda part: "=" not in part, parts))
        estimator = get(":".join(named))
        estimators.append(estimator)
        assignments.append(parts[len(named) :])
        every |= types_of(type(estimator.parameters))

    # 3. The parameters that are for all estimators that have them, and must be known to one.
    shared = {**(parameters or {}), **read_assignments("--set", settings, every)}
    for name in shared:
        if name not in every:
            raise InputError(unknown("parameter", name, sorted(every), limit=99))

    # 4. Each estimator with its parameters, and a column of its own.
    variants = []
    for number, (text, estimator, own) in enumerate(
        zip(written, estimators, assignments, strict=True), 1
    ):
        known = types_of(type(estimator.parameters))
        assigned = read_assignments("estimators", own, known)
        values = {
            name: value for name, value in shared.items() if name in known
        } | assigned
        changed = estimator.with_parameters(column=f"(estimate {number})", **values)
        variants.append(Variant(text, changed, assigned))
    return variants
