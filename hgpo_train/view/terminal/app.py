"""The application: its screens, its keys, and the estimators that are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from hgpo_envs.errors import InputError
from hgpo_train.advantages.parameters import REWARD_SCALE
from hgpo_train.view.terminal.session import Session, read_two
from hgpo_train.view.terminal.step import StepScreen
from hgpo_train.view.terminal.texts import visible
from hgpo_train.view.terminal.tree import TreeScreen

if TYPE_CHECKING:
    from textual.app import ComposeResult

HELP: Final = f"""\
Everywhere
  ↑ ↓ PgUp PgDn   move, scroll          ?   this help
  d               dark or light         q   quit
Tree
  Enter → ←       open, close           /   find a task
  r               read what was committed since
Step
  n  p            next, previous step   e   choose two estimators
  Tab             texts, hierarchy of groups, what differs
  Enter           go to the chosen member of the hierarchy
  Esc             back                  t   to the tree

Level k of the hierarchy contains the steps in the same state that came
there through the same k states before, and all deeper levels; a member is
listed in the deepest level that it shares. A and B are advantages; R is the
discounted return, with rewards times {REWARD_SCALE:g} unless reward_scale is given.
[-red-] is only in this step's history, [+green+] only in the member's."""


class HelpScreen(ModalScreen[None]):
    """The list of keys; any key closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,enter,q", "dismiss")]

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(HELP, markup=False)


class EstimatorScreen(ModalScreen[bool]):
    """The input of two estimators; returns whether they were changed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(False)")]
    app: Session

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        with Vertical():
            yield Static("Estimators A and B, such as hgpo:history_length=4 gigpo", markup=False)
            yield Input(" ".join(variant.name for variant in self.app.compared))
            yield Static(id="problem", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Check what was written."""
        try:
            self.app.compared = read_two([event.value])
        except InputError as error:
            self.query_one("#problem", Static).update(visible(str(error)))
        else:
            self.dismiss(result=True)


class TerminalViewer(Session):
    """Tasks, groups, steps and advantages of runs in a terminal."""

    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 (as Textual declares it)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("d", "colours", show=False),
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
    #members { height: 3fr; border: none; padding: 0 1; scrollbar-size-vertical: 1; background: $background; }
    #members > .option-list--option-highlighted { background: $primary 30%; color: $text; text-style: bold; }
    #members { text-wrap: nowrap; text-overflow: ellipsis; }
    #members > .option-list--option-disabled { color: $text; background: $surface; }
    #differs { height: 2fr; padding: 0 1; border-top: solid $panel; scrollbar-size-vertical: 1; }
    #differs:focus, #members:focus { border-top: solid $accent; }
    #texts:focus { border-left: solid $accent; padding: 0 0; }
    .-narrow #groups { display: none; }
    .-narrow.-groups #groups { display: block; border-left: none; }
    .-narrow.-groups #texts { display: none; }
    ModalScreen { align: center middle; }
    ModalScreen > * { width: 76; max-width: 100%; height: auto; max-height: 100%; padding: 0 1; background: $panel; }
    #problem { color: $text-error; }
    """

    def on_mount(self) -> None:
        """Show the tree."""
        self.push_screen(TreeScreen(self.sources))

    def action_help(self) -> None:
        """List the keys."""
        self.push_screen(HelpScreen())

    def action_colours(self) -> None:
        """Change between dark and light colours."""
        self.theme = "textual-light" if self.theme == "textual-dark" else "textual-dark"

    def action_tree(self) -> None:
        """Go to the tree."""
        while isinstance(self.screen, StepScreen):
            self.pop_screen()

    def action_choose(self) -> None:
        """Ask for two estimators."""

        def changed(yes: bool | None) -> None:
            for screen in self.screen_stack:
                if yes and isinstance(screen, StepScreen):
                    screen.show_groups()

        self.push_screen(EstimatorScreen(), changed)
