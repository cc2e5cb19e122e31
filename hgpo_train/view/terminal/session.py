"""What the screens share: the runs, the estimators that are compared, and how errors are shown."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from textual.app import App

from hgpo_envs.errors import InputError
from hgpo_train.advantages.variants import read_variants
from hgpo_train.view.terminal.texts import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hgpo_train.advantages.variants import Variant
    from hgpo_train.view.sources import Source

DEFAULT: Final = ("hgpo", "gigpo")


def read_two(texts: Sequence[str]) -> list[Variant]:
    """Read the one or two estimators to compare, separated by commas or spaces: ``["hgpo, hgpo:history_length=4"]``.

    Raises:
        InputError: There are none or more than two, or an estimator or a parameter is unknown or invalid.

    >>> [variant.name for variant in read_two(["hgpo:alpha=2 grpo:reward_scale=1"])]
    ['hgpo:alpha=2', 'grpo:reward_scale=1']
    """
    names = [name for text in texts for name in text.replace(",", " ").split()]
    if not 1 <= len(names) <= 2:
        raise InputError(f"expected two estimators, such as hgpo gigpo; received {len(names)}")
    try:
        return read_variants(names)
    except InputError as error:
        raise InputError(str(error).removeprefix("--estimators: ")) from None


class Session(App[None]):
    """The application as its screens see it: the runs, and the estimators that are compared now."""

    def __init__(self, sources: Sequence[Source], estimators: Sequence[str] = ()) -> None:
        super().__init__()
        self.sources = sources
        self.compared = read_two(estimators or DEFAULT)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Show an error of reading instead of ending the program."""
        try:
            yield
        except (InputError, OSError) as error:
            self.notify(visible(str(error)).plain, severity="error", markup=False, timeout=10)
