"""The tree of runs, tasks, groups and trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Input, Static, Tree

from hgpo_envs.wording import counted
from hgpo_train.view.documents import group_document
from hgpo_train.view.tasks import PAGE, TaskFilter, tasks_document
from hgpo_train.view.terminal.step import StepScreen
from hgpo_train.view.terminal.texts import line, number, outcome, short_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.style import Style
    from textual.app import ComposeResult
    from textual.widgets.tree import TreeNode

    from hgpo_train.view.index import Index
    from hgpo_train.view.sources import Source
    from hgpo_train.view.terminal.session import Session

COLUMNS: Final = {"won": 6, "return": 9, "length": 8, "invalid": 8}
"""The columns at the right side, with their widths."""

COLOURS: Final = {"success": "green", "warning": "yellow", "error": "red"}
"""The colours of outcomes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a node of the tree shows and does.

    Attributes:
        name: Its name, one line.
        figures: The values of `COLUMNS`.
        mark: A mark before the name, and its meaning (`COLOURS`).
        load: Adds the children; None for a node without children.
        enter: Called when the node is chosen; None if it opens and closes instead.
    """

    name: str
    figures: tuple[str, ...] = ()
    mark: tuple[str, str] | None = None
    load: Callable[[TreeNode[Entry]], object] | None = None
    enter: Callable[[TreeNode[Entry]], None] | None = None


class RunTree(Tree[Entry]):
    """A tree with columns of figures at the right side."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "close", show=False),
        Binding("right", "open", show=False),
    ]

    def on_mount(self) -> None:
        """Show only what is below the root."""
        self.show_root = False
        self.guide_depth = 2
        self.auto_expand = False

    def add(self, parent: TreeNode[Entry], entry: Entry) -> TreeNode[Entry]:
        """Add a node."""
        return parent.add(Text(entry.name), entry, allow_expand=entry.load is not None)

    def render_label(self, node: TreeNode[Entry], base_style: Style, style: Style) -> Text:
        """Return the name, cut or padded to the width that is left, and the figures."""
        entry = node.data
        if entry is None:
            return Text("")
        level = -2
        above: TreeNode[Entry] | None = node
        while above is not None:
            level, above = level + 1, above.parent
        label = Text(no_wrap=True)
        if entry.load is not None:
            label.append("▼ " if node.is_expanded else "▶ ", base_style)
        if entry.mark is not None:
            label.append(f"{entry.mark[0]} ", COLOURS[entry.mark[1]])
        width_taken = label.cell_len + level * self.guide_depth + sum(COLUMNS.values())
        name = Text(entry.name, style)
        name.truncate(max(8, self.scrollable_content_region.width - width_taken), overflow="ellipsis", pad=True)
        label.append_text(name)
        for value, width in zip(entry.figures, COLUMNS.values(), strict=False):
            label.append(value.rjust(width), style)
        return label

    def action_open(self) -> None:
        """Open the node, or go to its first child."""
        node = self.cursor_node
        if node is not None and node.allow_expand and not node.is_expanded:
            node.expand()
        else:
            self.action_cursor_down()

    def action_close(self) -> None:
        """Close the node, or go to its parent."""
        node = self.cursor_node
        if node is not None and node.is_expanded:
            node.collapse()
        else:
            self.action_cursor_parent()


class TreeScreen(Screen[None]):
    """Tasks → groups → trajectories of every run."""

    app: Session
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "find", "Find a task", key_display="/"),
        Binding("escape", "show_all", "All tasks", show=False),
        Binding("r", "reload", "Read again"),
    ]

    def __init__(self, sources: Sequence[Source]) -> None:
        super().__init__()
        self.sources = sources
        self.text = ""

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(id="head", markup=False)
        yield Static("".join(name.rjust(width) for name, width in COLUMNS.items()), id="columns", markup=False)
        yield RunTree("")
        yield Input(placeholder="A part of a task's id or instruction; Enter finds, Esc leaves", id="find")
        yield Footer()

    def on_mount(self) -> None:
        """Hide the input, and fill the tree."""
        self.query_one(Input).display = False
        self.fill()

    def fill(self) -> None:
        """Read the tasks that contain the text."""
        tree = self.query_one(RunTree)
        tree.clear()
        tasks = 0
        for source in self.sources:
            with self.app.reporting():
                index = source.index()
                if len(self.sources) == 1:
                    tasks += self._add_tasks(index, 0, tree.root)
                else:
                    name = line(source.name).plain
                    load = partial(self._add_tasks, index, 0)
                    node = tree.add(tree.root, Entry(name, load=load))
                    tasks += tasks_document(index, TaskFilter(text=self.text, limit=0))["total"]
                    if source is self.sources[0] or self.text:
                        node.expand()
        head = Content.assemble(("hgpo view ", "bold"), line(self.sources[0].name if len(self.sources) == 1 else ""))
        about = f" · {counted(tasks, 'task')}" + (" contain " if self.text else "")
        searched = line(self.text, 40, "bold") + " · Esc shows all" if self.text else ""
        self.query_one("#head", Static).update(head + about + searched)
        tree.focus()
        tree.move_cursor_to_line(0)

    def _add_tasks(self, index: Index, offset: int, parent: TreeNode[Entry]) -> int:
        """Add a page of tasks, and a node for the next one; return the number of all tasks."""
        tree = self.query_one(RunTree)
        document = tasks_document(index, TaskFilter(text=self.text, offset=offset, limit=PAGE))
        for task in document["tasks"]:
            groups = task["groups"]
            single = groups[0]["number"] if len(groups) == 1 else None
            load = partial(self._add_groups, index, groups)
            if single is not None:
                load = partial(self._add_trajectories, index, single)
            name = line(task["task"] if task["task"] is not None else task["task_id"])
            tree.add(parent, Entry(name.plain, _figures(task), load=load))
        total, end = int(document["total"]), offset + len(document["tasks"])
        if end < total:
            more = partial(self._more, index, end)
            tree.add(parent, Entry(f"… {counted(total - end, 'more task')}: press Enter", enter=more))
        return total

    def _more(self, index: Index, offset: int, node: TreeNode[Entry]) -> None:
        parent, at = node.parent, node.line
        assert parent is not None
        node.remove()
        self._add_tasks(index, offset, parent)
        self.call_after_refresh(self.query_one(RunTree).move_cursor_to_line, at)

    def _add_groups(self, index: Index, groups: list[dict[str, Any]], parent: TreeNode[Entry]) -> None:
        tree = self.query_one(RunTree)
        for group in groups:
            name = f"iteration {group['iteration']}" + (f", group {group['group']}" if group["group"] else "")
            load = partial(self._add_trajectories, index, group["number"])
            tree.add(parent, Entry(name, _figures(group), load=load))

    def _add_trajectories(self, index: Index, number_: int, parent: TreeNode[Entry]) -> None:
        tree = self.query_one(RunTree)
        first = index.group(number_)["row"]
        rows = index.members(number_).to_dicts()
        for trajectory, name in zip(rows, short_names([row["trajectory"] for row in rows]), strict=True):
            won = "–" if trajectory["aborted"] or trajectory["won"] is None else str(int(trajectory["won"]))
            invalid = str(trajectory["invalid"] or "")
            figures = (won, number(trajectory["episode_return"]), str(trajectory["length"]), invalid)
            enter = partial(self._open, index, number_, trajectory["row"] - first)
            tree.add(parent, Entry(line(name).plain, figures, outcome(trajectory), enter=enter))

    def _open(self, index: Index, number_: int, row: int, _: TreeNode[Entry]) -> None:
        with self.app.reporting():
            self.app.push_screen(StepScreen(index, group_document(index, number_), row))

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[Entry]) -> None:
        """Add the children of a node that is opened for the first time."""
        entry = event.node.data
        if entry is not None and entry.load is not None and not event.node.children:
            with self.app.reporting():
                entry.load(event.node)

    def on_tree_node_selected(self, event: Tree.NodeSelected[Entry]) -> None:
        """Open a trajectory, or open or close another node."""
        entry = event.node.data
        if entry is not None and entry.enter is not None:
            entry.enter(event.node)
        else:
            event.node.toggle()

    def action_find(self) -> None:
        """Ask for a text."""
        search = self.query_one(Input)
        search.display = True
        search.value = self.text
        search.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Show the tasks that contain the text."""
        self.query_one(Input).display = False
        self.text = event.value.strip()
        self.fill()

    def action_show_all(self) -> None:
        """Leave the input, or show all tasks."""
        search = self.query_one(Input)
        if search.display:
            search.display = False
            self.query_one(RunTree).focus()
        elif self.text:
            self.text = ""
            self.fill()

    def action_reload(self) -> None:
        """Read what was committed since."""
        self.fill()


def _figures(of: dict[str, Any]) -> tuple[str, ...]:
    """Return the figures of a task or a group."""
    whole = of["size"] - of["aborted"]
    won = f"{of['won'] / whole:.0%}" if whole and of["won"] is not None else "–"
    return won, number(of["mean_return"]), number(of["mean_length"], 1), str(of["invalid"] or "")
