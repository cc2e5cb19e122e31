"""The two estimators that the terminal's viewer compares."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError
from hgpo_train.advantages.variants import read_variants
from hgpo_train.view.estimates import estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_train.advantages.variants import Variant
    from hgpo_train.view.index import Index

DEFAULT: Final = ("hgpo", "gigpo")


@dataclass(frozen=True, slots=True)
class Chosen:
    """An estimator with its parameters.

    Attributes:
        text: As it was written: ``hgpo:history_length=4``.
        name: Its registered name, or ``module:function``.
        settings: Its parameters, as ``name=value``.
    """

    text: str
    name: str
    settings: tuple[str, ...]


def read_two(texts: Sequence[str]) -> tuple[Chosen, ...]:
    """Read the estimators to compare: ``["hgpo, hgpo:history_length=4"]``.

    Args:
        texts: Estimators; a text may contain several of them, separated by commas or spaces.

    Returns:
        One or two estimators.

    Raises:
        InputError: There are none or more than two, or an estimator or a parameter is unknown or invalid.

    >>> [(one.name, one.settings) for one in read_two(["hgpo:alpha=2 grpo:reward_scale=1"])]
    [('hgpo', ('alpha=2',)), ('grpo', ('reward_scale=1',))]
    """
    written = [word for text in texts for word in text.replace(",", " ").split()]
    if not 1 <= len(written) <= 2:
        raise InputError(f"expected two estimators, such as hgpo gigpo; received {len(written)}")
    try:
        variants = read_variants(written)
    except InputError as error:
        raise InputError(str(error).removeprefix("--estimators: ")) from None
    return tuple(_chosen(one) for one in variants)


def _chosen(variant: Variant) -> Chosen:
    name = ":".join(takewhile(lambda part: "=" not in part, variant.name.split(":")))
    settings = tuple(f"{parameter}={json.dumps(value)}" for parameter, value in variant.assigned.items())
    return Chosen(variant.name, name, settings)


@lru_cache(16)
def advantages(index: Index, number: int, chosen: Chosen) -> dict[str, Any]:
    """Return the advantages of a group's steps: `hgpo_train.view.estimates.estimate`.

    Raises:
        InputError: The table lacks a column or a depth that the estimator needs.
    """
    return estimate(index, number, chosen.name, chosen.settings, [chosen.name])
