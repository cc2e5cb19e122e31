"""The viewer in a terminal: a tree of runs, groups, rollouts and steps, and beside it a step with its advantages.

Texts of a run are data: no markup in them is read, and no control character is sent.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import polars as pl
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.widgets import Footer, Input, Static, Tree

from hgpo_envs.errors import InputError
from hgpo_envs.wording import counted
from hgpo_train.view.documents import STATE_CHARACTERS, group_document, step_documents
from hgpo_train.view.estimates import estimate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from textual.widgets.tree import TreeNode

    from hgpo_train.advantages.registry import Estimator
    from hgpo_train.view.documents import Text as DocumentText
    from hgpo_train.view.index import Index
    from hgpo_train.view.sources import Source

GROUPS: Final = 500
"""Groups that the tree contains."""
TEXTS: Final = ("state", "action", "next state", "response", "prompt")

_HIDDEN: Final = re.compile(
    "([\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufffe\uffff\U000e0000-\U000e007f])"
)
"""Characters that cannot be seen, that control a terminal, or that turn the direction of a line."""


class Step(NamedTuple):
    """A step of the tree: a row of a group's document."""

    run: Index
    group: dict[str, Any]
    row: int


class TerminalViewer(App[None]):
    """Tasks, rollouts, steps and advantages of runs in a terminal; an unknown estimator raises InputError."""

    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 (as Textual declares it)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "find", "Find a task", key_display="/"),
        Binding("r", "fill", "Read new rows"),
        Binding("tab", "focus_next", "Other half", key_display="Tab", priority=True),
        Binding("escape", "leave", "All tasks", key_display="Esc"),
        Binding("q", "quit", "Quit"),
    ]
    CSS = """
    #body { layout: horizontal; height: 1fr; }
    Tree { width: 2fr; background: $background; scrollbar-size-vertical: 1; overflow-x: hidden; }
    #text { width: 3fr; padding: 0 1; border-left: solid $panel; scrollbar-size-vertical: 1; }
    #text:focus { border-left: solid $accent; }
    .-narrow #body { layout: vertical; }
    .-narrow Tree { width: 100%; height: 2fr; }
    .-narrow #text { width: 100%; height: 3fr; border-left: none; border-top: solid $panel; }
    Input { display: none; }
    """

    def __init__(
        self, sources: Sequence[Source], estimators: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.sources = sources
        self.searched = ""
        names = sources[0].document()["usual"][:2]
        if estimators:
            names = [name.strip() for name in ",".join(estimators).split(",")]
        found = sources[0].estimators(names)
        self.compared = {name: found[name] for name in names}

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        tree: Tree[Any] = Tree("")
        tree.show_root = False
        tree.guide_depth = 2
        with Container(id="body"):
            yield tree
            with VerticalScroll(id="text"):
                yield Static(id="step", markup=False)
        yield Input(placeholder="A part of a task's id or instruction")
        yield Footer()

    def on_mount(self) -> None:
        """Fill the tree."""
        self.action_fill()

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Show an error of reading instead of ending the program."""
        try:
            yield
        except (InputError, OSError) as error:
            reason = visible(str(error)).plain
            self.notify(reason, severity="error", markup=False, timeout=10)

    def action_fill(self) -> None:
        """Read the groups of the tasks that contain the searched text."""
        tree = self.query_one(Tree)
        tree.clear()
        for source in self.sources:
            parent = tree.root
            if len(self.sources) > 1:
                parent = parent.add(_label(line(source.name)), expand=True)
            with self._reporting():
                self._add_groups(source, parent)
        tree.focus()
        tree.move_cursor_to_line(0)

    def _add_groups(self, source: Source, parent: TreeNode[Any]) -> None:
        index = source.index()
        wanted = self.searched.lower()
        text = pl.concat_str("task_id", "task", separator="\n", ignore_nulls=True)
        lowercase = text.str.to_lowercase()
        found = index.groups.filter(lowercase.str.contains(wanted, literal=True))
        for group in found.head(GROUPS).iter_rows(named=True):
            title = line(group["task_id"] if group["task"] is None else group["task"])
            about = f" · return {number(group['mean_return'])} · iteration {group['iteration']}"
            load = partial(self._add_rollouts, index, group["number"])
            share = "–" if group["success"] is None else f"{group['success']:.0%}"
            parent.add(_label(Content(f"{share:>4} won  ") + title + about), load)
        if found.height > GROUPS:
            parent.add_leaf(Text(f"… {found.height - GROUPS:,} more: find a task"))

    def _add_rollouts(self, index: Index, number: int, parent: TreeNode[Any]) -> None:
        """Add the rollouts of a group, each branch indented below its parent."""
        group = group_document(index, number)
        tree = group["tree"]
        depths: dict[int | None, int] = {None: -1}
        for place in tree["order"]:
            depths[place] = depths[tree["parent"][place]] + 1
            indent = "  " * (depths[place] - 1) + "└ " if depths[place] else ""
            trajectory = group["trajectories"][place]
            first = Step(index, group, trajectory["row"] - group["row"])
            load = partial(self._add_steps, first, trajectory["length"])
            parent.add(_label(indent + _about_rollout(trajectory)), load)

    def _add_steps(self, first: Step, length: int, parent: TreeNode[Any]) -> None:
        steps = first.group["steps"]
        for row in range(first.row, first.row + length):
            position = steps["action"][row]
            action = Content("no action")
            if position is not None:
                action = line(first.group["actions"][position], 100)
            mark = "" if steps["valid"][row] else " (invalid)"
            label = _label(Content.assemble(f"{steps['step'][row]} ", action, mark))
            parent.add_leaf(label, first._replace(row=row))

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[Any]) -> None:
        """Add the children of a node that is opened for the first time."""
        if event.node.data is not None and not event.node.children:
            with self._reporting():
                event.node.data(event.node)

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Any]) -> None:
        """Show the step at the cursor with the estimators that are compared."""
        if not isinstance(event.node.data, Step):
            return
        step = event.node.data
        with self._reporting():
            (document,) = step_documents(step.run, step.group["row"] + step.row)
            after = step.group["steps"]["next"][step.row]
            reached = None if after is None else step.group["states"][after]
            document["next state"] = reached
            lines = []
            levels: list[Content] = []
            for name, estimator in self.compared.items():
                columns = _columns(step.run, step.group["number"], estimator)
                lines.append(_about_step(step, name, columns))
                levels = levels or _levels(columns, step.row)
            parts = [[_head(step, document)], lines, levels]
            for name in TEXTS:
                title = Content.styled(name.capitalize(), "bold underline")
                parts.append([title, block(document[name])])
            paragraphs = [Content("\n").join(part) for part in parts if part]
            self.query_one("#step", Static).update(Content("\n\n").join(paragraphs))
            self.query_one("#text").scroll_home(animate=False)

    def action_find(self) -> None:
        """Ask for a text."""
        field = self.query_one(Input)
        field.display = True
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Show the tasks that contain what was written."""
        self._search(event.value.strip())

    def action_leave(self) -> None:
        """Show all tasks again."""
        self._search("")

    def _search(self, text: str) -> None:
        field = self.query_one(Input)
        field.value = text
        field.display = False
        if text != self.searched:
            self.searched = text
            self.action_fill()
        self.query_one(Tree).focus()


@lru_cache(16)  # the next step is usually of the same group
def _columns(run: Index, number: int, estimator: Estimator | None) -> dict[str, Any]:
    """Return the columns of a group's estimate, or why it is refused."""
    try:
        columns: dict[str, Any] = estimate(run, number, estimator)["columns"]
    except InputError as error:
        columns = {"refused": str(error)}
    return columns


def _about_step(step: Step, name: str, columns: dict[str, Any]) -> Content:
    """Return an estimator's advantage and return of a step."""
    title = visible(name, "bold")
    if "refused" in columns:
        return Content.assemble(title, " ", visible(columns["refused"], "$text-error"))
    value = signed(columns["advantage"][step.row], 3).stylize("bold")
    returned = f"  R {number(columns['return'][step.row], 3)}"
    return Content.assemble(title, " ", value, returned)


def _label(content: Content) -> Text:
    """Return a label of the tree, which reads markup in a plain string."""
    return Text(content.plain, no_wrap=True, overflow="ellipsis")


def _about_rollout(trajectory: dict[str, Any]) -> Content:
    """Return how a rollout ended and where a branch leaves its parent."""
    about = f" · return {number(trajectory['episode_return'])} · {counted(trajectory['length'], 'step')}"
    parent = trajectory["parent"] or ""
    name = line(trajectory["trajectory"].removeprefix(parent), 40)
    leaves = f" · from step {trajectory['branch_step']} of " if parent else ""
    return Content.assemble(
        outcome(trajectory), " ", name, about, leaves, line(parent, 60)
    )


def _head(step: Step, document: dict[str, Any]) -> Content:
    """Return the task, the rollout, and what happened at the step."""
    group = step.group
    steps = group["steps"]
    trajectory = group["trajectories"][steps["trajectory"][step.row]]
    title = line(group["task"] or group["task_id"], 150, "bold")
    about = f"step {document['step']} · reward {number(steps['reward'][step.row], 3)}"
    if document["why_invalid"]:
        about += f" · invalid: {document['why_invalid']}"
    head = Content("\n").join([title, _about_rollout(trajectory), visible(about)])
    if trajectory["error"] is not None:
        reason = "\nAborted: " if trajectory["aborted"] else "\n"
        head += Content.styled(reason, "$text-error") + line(trajectory["error"])
    return head


def _levels(columns: dict[str, Any], row: int) -> list[Content]:
    """Return the levels of context of an estimate: size of the group, advantage and weight."""
    lines: list[Content] = []
    for k in range(sum(name.startswith("size_k") for name in columns)):
        size = columns[f"size_k{k}"][row]
        if size is None:
            break
        before = f"and the same {counted(k, 'state')} before" if k else "same state"
        about = f" {before}: {counted(int(size), 'step')} · A{k} "
        weight = f" · weight {number(columns[f'weight_k{k}'][row])}"
        advantage = signed(columns[f"k{k}"][row])
        lines.append(Content.assemble((f"k = {k}", "bold"), about, advantage, weight))
    return lines


def visible(text: str, style: str = "") -> Content:
    """Return a text in which hidden characters are replaced by their codes, such as U+001B.

    >>> visible("a" + chr(27) + "[31m").plain
    'aU+001B[31m'
    """
    shown = _HIDDEN.sub(lambda found: f"U+{ord(found[0]):04X}", text)
    return Content.styled(shown, style).expand_tabs(4)


def line(text: DocumentText, most: int = 200, style: str = "") -> Content:
    """Return the beginning of a text as one line."""
    whole = text["cut"] if isinstance(text, dict) else text or ""
    words = " ".join(whole[: 4 * most].split())
    return visible(words if len(words) <= most else f"{words[: most - 1]}…", style)


def block(text: DocumentText) -> Content:
    """Return a text with its line breaks, and how much of it is left out."""
    if not text:
        return Content.styled("not stored" if text is None else "empty", "dim italic")
    whole = text["cut"] if isinstance(text, dict) else text
    length = text["length"] if isinstance(text, dict) else len(text)
    more = (
        f"\n{length - STATE_CHARACTERS:,} more characters"
        if length > STATE_CHARACTERS
        else ""
    )
    return visible(whole[:STATE_CHARACTERS]) + Content.styled(more, "dim italic")


def number(value: float | None, digits: int = 2) -> str:
    """Return a number, or a dash for null.

    >>> number(None), number(3.0), number(0.5)
    ('–', '3', '0.50')
    """
    if value is None:
        return "–"
    is_whole = float(value).is_integer() and abs(value) < 1e15
    return f"{value:,.0f}" if is_whole else f"{value:.{digits}f}"


def signed(value: float | None, digits: int = 2) -> Content:
    """Return a number with its sign, such as an advantage, in a colour."""
    if value is None:
        return Content("–")
    text = f"{value:+.{digits}f}"
    if float(text) == 0:
        return Content(text[1:])
    return Content.styled(text, "$text-success" if value > 0 else "$text-error")


def outcome(trajectory: dict[str, Any]) -> Content:
    """Return a word for how a trajectory ended."""
    if trajectory["aborted"]:
        return Content.styled("aborted", "$text-warning")
    if trajectory["won"] is None:
        return Content.styled("unknown", "$text-warning")
    if trajectory["won"]:
        return Content.styled("won", "$text-success")
    word = "cut off" if trajectory["truncated"] else "lost"
    return Content.styled(word, "$text-error")
