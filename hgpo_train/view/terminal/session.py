"""What the screens share: the runs, the two estimators that are compared, and how errors are shown."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from textual.app import App

from hgpo_envs.errors import InputError
from hgpo_train.view.terminal.estimators import DEFAULT, read_two
from hgpo_train.view.terminal.texts import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hgpo_train.view.sources import Source


class Session(App[None]):
    """The application as its screens see it.

    Args:
        sources: The runs.
        estimators: The two estimators that are compared first, with their parameters.

    Raises:
        InputError: An estimator is unknown or invalid.
    """

    def __init__(self, sources: Sequence[Source], estimators: Sequence[str] = ()) -> None:
        super().__init__()
        self.sources = sources
        self.chosen = read_two(estimators or DEFAULT)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Show an error of reading instead of ending the program."""
        try:
            yield
        except (InputError, OSError) as error:
            self.notify(visible(str(error)).plain, severity="error", markup=False, timeout=10)
