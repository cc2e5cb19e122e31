"""Graphics cards by name, with the memory that a program can use of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from hgpo_envs.errors import InputError

GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Card:
    """A graphics card.

    Attributes:
        name: Its name.
        memory: Its memory in bytes, as `torch.cuda.get_device_properties` reports it.
    """

    name: str
    memory: int


_GIB: Final = {"4090-24": 23.5, "A100-40": 39.4, "L40S-48": 44.4, "A100-80": 79.1, "H100-80": 79.1, "H200-141": 139.8}
"""Total memory in GiB as torch reports it ("total capacity" of its out-of-memory errors), in ascending order. It is
less than the number in the name, because the driver keeps a part."""

CARDS: Final = tuple(Card(name, int(size * GIB)) for name, size in _GIB.items())


def named_card(text: str) -> Card:
    """Return the card of a name in `CARDS`, or one with a number of GB, of which 1.5% are the driver's.

    Raises:
        InputError: It is neither.

    >>> named_card("H200-141").memory // GIB, round(named_card("64").memory / GIB, 1)
    (139, 63.0)
    """
    for card in CARDS:
        if card.name.lower() == text.lower():
            return card
    number = text.lower().removesuffix("gb").strip()
    try:
        size = float(number)
    except ValueError:
        size = 0.0
    if not 1 <= size <= 10_000:
        known = ", ".join(card.name for card in CARDS)
        raise InputError(f"--card: expected {known} or a number of GB, received {text!r}")
    return Card(f"{size:g} GB", int(size * 0.985 * GIB))


def this_card(device: torch.device) -> Card | None:
    """Return the card of a CUDA device; None for any other device."""
    if device.type != "cuda":
        return None
    found = torch.cuda.get_device_properties(device)
    return Card(str(found.name), int(found.total_memory))
