"""The application: its screens, its keys, and the estimators that are compared."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import App
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import HelpPanel, Input, Static

from hgpo_envs.errors import InputError
from hgpo_train.advantages.variants import read_variants
from hgpo_train.view.terminal.step import StepScreen
from hgpo_train.view.terminal.texts import visible
from hgpo_train.view.terminal.tree import TreeScreen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from textual.app import ComposeResult

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
    return read_variants(names)


class Question(ModalScreen[None]):
    """An input of one line. Its text is handed to a function, whose errors are shown; Esc leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Leave")]

    def __init__(self, title: str, text: str, take: Callable[[str], object]) -> None:
        super().__init__()
        self._title, self._text, self._take = title, text, take

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        with Vertical():
            yield Static(self._title, markup=False)
            yield Input(self._text)
            yield Static(id="problem", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Hand over what was written."""
        try:
            self._take(event.value.strip())
        except InputError as error:
            self.query_one("#problem", Static).update(visible(str(error)))
        else:
            self.dismiss()


class TerminalViewer(App[None]):
    """Tasks, groups, steps and advantages of runs in a terminal; the estimators that are compared now."""

    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 (as Textual declares it)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
    ]
    CSS = """
    #head, #columns { padding: 0 1; }
    #head { background: $panel; }
    #columns { text-align: right; color: $text-muted; padding: 0 1; }
    RunTree { background: $background; padding: 0 0 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    RunTree > .tree--guides { color: $panel; }
    StepScreen Horizontal { height: 1fr; }
    #texts { width: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }
    #groups { width: 1fr; border-left: solid $panel; }
    #advantages { padding: 0 1; height: auto; max-height: 5; }
    #members { height: 1fr; border: none; padding: 0 1; scrollbar-size-vertical: 1; background: $background; }
    #members > .option-list--option-highlighted { background: $primary 30%; color: $text; text-style: bold; }
    #members { text-wrap: nowrap; text-overflow: ellipsis; }
    #members > .option-list--option-disabled { color: $text; background: $surface; }
    #members:focus { border-top: solid $accent; }
    #texts:focus { border-left: solid $accent; padding: 0 0; }
    .-narrow #groups { display: none; }
    .-narrow.-groups #groups { display: block; border-left: none; }
    .-narrow.-groups #texts { display: none; }
    ModalScreen { align: center middle; }
    ModalScreen > * { width: 76; max-width: 100%; height: auto; max-height: 100%; padding: 0 1; background: $panel; }
    #problem { color: $text-error; }
    HelpPanel { width: 50%; max-width: 80; }
    """

    def __init__(self, sources: Sequence[Source], estimators: Sequence[str] = ()) -> None:
        super().__init__()
        self.sources = sources
        name, parameters = sources[0].trained() or (DEFAULT[0], {})
        names = list(dict.fromkeys([name, *DEFAULT]))[:2]
        self.compared = read_two(estimators) if estimators else read_variants(names, parameters)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Show an error of reading instead of ending the program."""
        try:
            yield
        except (InputError, OSError) as error:
            self.notify(visible(str(error)).plain, severity="error", markup=False, timeout=10)

    def ask(self, title: str, text: str, take: Callable[[str], object]) -> None:
        """Ask for a text, and hand it to a function."""
        self.push_screen(Question(title, text, take))

    def on_mount(self) -> None:
        """Show the tree."""
        self.push_screen(TreeScreen(self.sources))

    def action_help(self) -> None:
        """Show or hide the keys and what the screen shows."""
        if self.screen.query(HelpPanel):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()

    def action_tree(self) -> None:
        """Go to the tree."""
        while isinstance(self.screen, StepScreen):
            self.pop_screen()

    def action_choose(self) -> None:
        """Ask for two estimators."""

        def compare(text: str) -> None:
            self.compared = read_two([text])
            for screen in self.screen_stack:
                if isinstance(screen, StepScreen):
                    screen.show_groups()

        names = " ".join(variant.name for variant in self.compared)
        self.ask("Estimators A and B, such as hgpo:history_length=4 gigpo", names, compare)
