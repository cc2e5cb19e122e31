"""The tree of runs, tasks, groups and trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Static, Tree

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
    from hgpo_train.view.terminal.app import TerminalViewer

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
        load: Adds the children, when the node is opened for the first time.
        enter: Called when a node without children is chosen.
    """

    name: str
    figures: tuple[str, ...] = ()
    mark: tuple[str, str] | None = None
    load: Callable[[TreeNode[Entry]], object] | None = None
    enter: Callable[[], object] | None = None


class RunTree(Tree[Entry]):
    """A tree with columns of figures at the right side."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("left,right", "toggle_node", "Open or close", show=False)]

    def on_mount(self) -> None:
        """Show only what is below the root."""
        self.show_root = False
        self.guide_depth = 2
        self.auto_expand = False

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
        if entry.enter is None:
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


class TreeScreen(Screen[None]):
    """Tasks → groups → trajectories of every run."""

    HELP = "Tasks, their groups and trajectories. Enter opens and closes, and shows a trajectory's steps."
    app: TerminalViewer
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "find", "Find a task", key_display="/"),
        Binding("escape", "show_all", "All tasks", show=False),
        Binding("r", "fill", "Read what was committed since"),
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
        yield Footer()

    def on_mount(self) -> None:
        """Fill the tree."""
        self.action_fill()

    def action_fill(self) -> None:
        """Read the tasks that contain the text."""
        tree = self.query_one(RunTree)
        tree.clear()
        tasks, alone = 0, len(self.sources) == 1
        for source in self.sources:
            with self.app.reporting():
                index = source.index()
                parent = tree.root if alone else _add(tree.root, Entry(line(source.name).plain))
                tasks += self._add_tasks(index, parent)
                if source is self.sources[0] or self.text:
                    parent.expand()
        head = Content.assemble(("hgpo view ", "bold"), line(self.sources[0].name if alone else ""))
        about = f" · {counted(tasks, 'task')}" + (" contain " if self.text else "")
        searched = line(self.text, 40, "bold") + " · Esc shows all" if self.text else ""
        self.query_one("#head", Static).update(head + about + searched)
        tree.focus()
        tree.move_cursor_to_line(0)

    def _add_tasks(self, index: Index, parent: TreeNode[Entry]) -> int:
        """Add the tasks that contain the text, up to a page of them; return their number."""
        document = tasks_document(index, TaskFilter(text=self.text, limit=PAGE))
        for task in document["tasks"]:
            groups = task["groups"]
            load = partial(self._add_groups, index, groups)
            if len(groups) == 1:
                load = partial(self._add_trajectories, index, groups[0]["number"])
            name = line(task["task"] if task["task"] is not None else task["task_id"])
            _add(parent, Entry(name.plain, _figures(task), load=load))
        if document["total"] > PAGE:
            _add(parent, Entry(f"… {document['total'] - PAGE:,} more: find a task", enter=self.action_find))
        return int(document["total"])

    def _add_groups(self, index: Index, groups: list[dict[str, Any]], parent: TreeNode[Entry]) -> None:
        for group in groups:
            name = f"iteration {group['iteration']}" + (f", group {group['group']}" if group["group"] else "")
            _add(parent, Entry(name, _figures(group), load=partial(self._add_trajectories, index, group["number"])))

    def _add_trajectories(self, index: Index, group: int, parent: TreeNode[Entry]) -> None:
        first = index.group(group)["row"]
        rows = index.members(group).to_dicts()
        for trajectory, name in zip(rows, short_names([row["trajectory"] for row in rows]), strict=True):
            won = "–" if trajectory["aborted"] or trajectory["won"] is None else str(int(trajectory["won"]))
            invalid = str(trajectory["invalid"] or "")
            figures = (won, number(trajectory["episode_return"]), str(trajectory["length"]), invalid)
            enter = partial(self._open, index, group, trajectory["row"] - first)
            _add(parent, Entry(line(name).plain, figures, outcome(trajectory), enter=enter))

    def _open(self, index: Index, group: int, row: int) -> None:
        self.app.push_screen(StepScreen(index, group_document(index, group), row))

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[Entry]) -> None:
        """Add the children of a node that is opened for the first time."""
        entry = event.node.data
        if entry is not None and entry.load is not None and not event.node.children:
            with self.app.reporting():
                entry.load(event.node)

    def on_tree_node_selected(self, event: Tree.NodeSelected[Entry]) -> None:
        """Open a trajectory, or open or close another node."""
        entry = event.node.data
        if entry is None or entry.enter is None:
            event.node.toggle()
        else:
            with self.app.reporting():
                entry.enter()

    def action_find(self) -> None:
        """Ask for a text, and show the tasks that contain it."""
        self.app.ask("A part of a task's id or instruction", self.text, self._find)

    def _find(self, text: str) -> None:
        self.text = text
        self.action_fill()

    def action_show_all(self) -> None:
        """Show all tasks."""
        self._find("")


def _add(parent: TreeNode[Entry], entry: Entry) -> TreeNode[Entry]:
    return parent.add(Text(entry.name), entry, allow_expand=entry.enter is None)


def _figures(of: dict[str, Any]) -> tuple[str, ...]:
    """Return the figures of a task or a group."""
    whole = of["size"] - of["aborted"]
    won = f"{of['won'] / whole:.0%}" if whole and of["won"] is not None else "–"
    return won, number(of["mean_return"]), number(of["mean_length"], 1), str(of["invalid"] or "")
