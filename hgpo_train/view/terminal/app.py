"""The application: a tree of runs, tasks, rollouts and steps, and beside it the chosen step with its advantages."""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from rich.text import Text
from textual.app import App
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.widgets import Footer, Input, Static, Tree

from hgpo_envs.errors import InputError
from hgpo_envs.wording import counted
from hgpo_train.advantages.variants import read_variants
from hgpo_train.view.documents import group_document, step_documents
from hgpo_train.view.estimates import AS_TRAINED, estimate, trained_estimate
from hgpo_train.view.rollouts import tasks_of
from hgpo_train.view.terminal.texts import block, branch_of, line, number, outcome, short_names, signed, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from textual.app import ComposeResult
    from textual.widgets.tree import TreeNode

    from hgpo_train.advantages.registry import Estimator
    from hgpo_train.view.index import Index
    from hgpo_train.view.sources import Source

    Node = TreeNode[Any]

DEFAULT: Final = ("hgpo", "gigpo")
TASKS: Final = 500
"""Tasks that the tree contains."""

# The next step is usually of the same group.
_estimate = lru_cache(16)(estimate)
_trained_estimate = lru_cache(16)(trained_estimate)


class Compared(NamedTuple):
    """An estimator as it was written, with its parameters; None for the advantages of training."""

    name: str
    estimator: Estimator | None


class Step(NamedTuple):
    """A step of the tree: a row of a group's document."""

    source: Source
    run: Index
    group: dict[str, Any]
    row: int


def read_two(texts: Sequence[str]) -> list[Compared]:
    """Read the one or two estimators to compare, separated by commas or spaces: ``["hgpo, hgpo:history_length=4"]``.

    Args:
        texts: The estimators; ``trained`` stands for the advantages that a run was trained on.

    Raises:
        InputError: There are none or more than two, or an estimator or a parameter is unknown or invalid.

    >>> [compared.name for compared in read_two(["hgpo:alpha=2 grpo:reward_scale=1"])]
    ['hgpo:alpha=2', 'grpo:reward_scale=1']
    """
    names = [name for text in texts for name in text.replace(",", " ").split()]
    if not 1 <= len(names) <= 2:
        raise InputError(f"expected two estimators, such as hgpo gigpo; received {len(names)}")
    computed = [name for name in names if name != AS_TRAINED]
    variants = read_variants(computed) if computed else []
    found = {variant.name: variant.estimator for variant in variants}
    return [Compared(name, found.get(name)) for name in names]


class TerminalViewer(App[None]):
    """Tasks, rollouts, steps and advantages of runs in a terminal."""

    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 (as Textual declares it)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "find", "Find a task", key_display="/"),
        Binding("e", "choose", "Estimators"),
        Binding("r", "fill", "Read new rows"),
        Binding("tab", "app.focus_next", "Tree or text", key_display="Tab"),
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
    ToastRack { align: right top; }
    """

    def __init__(self, sources: Sequence[Source], estimators: Sequence[str] = ()) -> None:
        super().__init__()
        self.sources = sources
        self.searched = ""
        self.step: Step | None = None
        self._take: Callable[[str], object] = self._find
        name, parameters = sources[0].trained() or (DEFAULT[0], {})
        others = [other for other in DEFAULT if other != name]
        variants = read_variants([name, others[0]], parameters)
        self.compared = [Compared(variant.name, variant.estimator) for variant in variants]
        if sources[0].stored():
            self.compared[0] = Compared(AS_TRAINED, None)
        if estimators:
            self.compared = read_two(estimators)

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        tree: Tree[Any] = Tree("")
        tree.show_root = False
        tree.guide_depth = 2
        with Container(id="body"):
            yield tree
            with VerticalScroll(id="text"):
                yield Static(id="step", markup=False)
        yield Input()
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
            self.notify(
                visible(str(error)).plain,
                severity="error",
                markup=False,
                timeout=10,
            )

    # ----------------------------------------------------------------------------------------------------- the tree

    def action_fill(self) -> None:
        """Read the tasks that contain the searched text."""
        tree = self.query_one(Tree)
        tree.clear()
        for source in self.sources:
            parent = tree.root
            if len(self.sources) > 1:
                parent = parent.add(_label(line(source.name)), expand=True)
            with self._reporting():
                self._add_tasks(source, parent)
        tree.focus()
        tree.move_cursor_to_line(0)

    def _add_tasks(self, source: Source, parent: Node) -> None:
        index = source.index()
        found = tasks_of(index, self.searched)
        for task in found[:TASKS]:
            title = line(task["task_id"] if task["task"] is None else task["task"])
            parent.add(
                _label(_share_won(task) + title + _figures(task)),
                partial(self._add_groups, source, index, task["groups"]),
            )
        if len(found) > TASKS:
            parent.add_leaf(Text(f"… {len(found) - TASKS:,} more: find a task"))

    def _add_groups(self, source: Source, index: Index, groups: list[dict[str, Any]], parent: Node) -> None:
        if len(groups) == 1:
            self._add_trajectories(source, index, groups[0]["number"], parent)
            return
        for group in groups:
            name = f"iteration {group['iteration']}" + (f", group {group['group']}" if group["group"] else "")
            load = partial(self._add_trajectories, source, index, group["number"])
            parent.add(_label(_share_won(group) + name + _figures(group)), load)

    def _add_trajectories(self, source: Source, index: Index, number_of_group: int, parent: Node) -> None:
        group = group_document(index, number_of_group)
        names = short_names([trajectory["trajectory"] for trajectory in group["trajectories"]])
        for trajectory, name in zip(group["trajectories"], names, strict=True):
            about = f" · return {number(trajectory['episode_return'])} · {counted(trajectory['length'], 'step')}"
            first = Step(source, index, group, trajectory["row"] - group["row"])
            load = partial(self._add_steps, first, trajectory["length"])
            label = outcome(trajectory) + " " + line(name) + about + branch_of(trajectory)
            parent.add(_label(label), load)

    def _add_steps(self, first: Step, length: int, parent: Node) -> None:
        steps = first.group["steps"]
        for row in range(first.row, first.row + length):
            position = steps["action"][row]
            action = "no action" if position is None else line(first.group["actions"][position], 100)
            mark = "" if steps["valid"][row] else " (invalid)"
            parent.add_leaf(_label(Content.assemble(f"{steps['step'][row]} ", action, mark)), first._replace(row=row))

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[Any]) -> None:
        """Add the children of a node that is opened for the first time."""
        if event.node.data is not None and not event.node.children:
            with self._reporting():
                event.node.data(event.node)

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Any]) -> None:
        """Show the step at the cursor."""
        if isinstance(event.node.data, Step):
            self.step = event.node.data
            self.show()
            self.query_one("#text").scroll_home(animate=False)

    # ----------------------------------------------------------------------------------------------------- the step

    def show(self) -> None:
        """Show the step with the estimators that are compared."""
        if self.step is None:
            return
        step = self.step
        with self._reporting():
            (document,) = step_documents(step.run, step.group["row"] + step.row)
            estimates = []
            lines = []
            for letter, compared in zip("AB", self.compared, strict=False):
                estimated, about = _estimated(step, compared)
                estimates.append(estimated)
                lines.append(Content.assemble((f"{letter} ", "bold"), visible(compared.name), " ", about))
            parts = [
                _head(step.group, step.row),
                Content("\n").join(lines),
                _levels(estimates, step.row),
                *_texts(document, step.group, step.row),
            ]
            self.query_one("#step", Static).update(Content("\n\n").join(parts))

    # ------------------------------------------------------------------------------------------------- the questions

    def _ask(self, title: str, text: str, take: Callable[[str], object]) -> None:
        """Show the line of input, whose text a function receives."""
        self._take = take
        field = self.query_one(Input)
        field.placeholder = title
        field.value = text
        field.display = True
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Hand over what was written; the line stays if it is refused."""
        with self._reporting():
            self._take(event.value.strip())
            self._close()

    def _close(self) -> None:
        self.query_one(Input).display = False
        self.query_one(Tree).focus()

    def action_leave(self) -> None:
        """Leave the line of input, or show all tasks again."""
        if self.query_one(Input).display:
            self._close()
        elif self.searched:
            self._find("")

    def action_find(self) -> None:
        """Ask for a text, and show the tasks that contain it."""
        self._ask("A part of a task's id or instruction", self.searched, self._find)

    def _find(self, text: str) -> None:
        self.searched = text
        self.action_fill()

    def action_choose(self) -> None:
        """Ask for two estimators."""
        names = " ".join(compared.name for compared in self.compared)
        self._ask("Estimators A and B, such as hgpo:history_length=4 gigpo", names, self._compare)

    def _compare(self, text: str) -> None:
        self.compared = read_two([text])
        self.show()


def _estimated(step: Step, compared: Compared) -> tuple[dict[str, Any], Content]:
    """Return the document of an estimate, and a line about the step; empty if it is refused."""
    number_of_group = step.group["number"]
    try:
        if compared.estimator is not None:
            found = _estimate(step.run, number_of_group, compared.estimator)
        else:
            found = _trained_estimate(step.source.run, step.run, number_of_group)
    except InputError as error:
        return {"columns": {}}, visible(str(error), "$text-error")
    columns = found["columns"]
    value = signed(columns["advantage"][step.row], 3).stylize("bold")
    return found, Content.assemble(value, f"  R {number(columns['return'][step.row], 3)}")


def _label(content: Content) -> Text:
    """Return a label of the tree, which reads markup in a plain string."""
    return Text(content.plain, no_wrap=True, overflow="ellipsis")


def _share_won(of: dict[str, Any]) -> Content:
    """Return the share of a task's or group's rollouts that won, of one width."""
    whole = of["size"] - of["aborted"]
    won = f"{of['won'] / whole:.0%}" if whole and of["won"] is not None else "–"
    return Content(f"{won:>4} won  ")


def _figures(of: dict[str, Any]) -> str:
    """Return the other figures of a task or a group."""
    return f" · return {number(of['mean_return'])} · {number(of['mean_length'], 1)} steps"


def _head(group: dict[str, Any], row: int) -> Content:
    """Return the task, the rollout, and where the step is in it."""
    trajectory = group["trajectories"][group["steps"]["trajectory"][row]]
    length = trajectory["length"] + (trajectory["branch_step"] or 0)
    about = f" · step {group['steps']['step'][row]} of {length}"
    about += f" · return {number(trajectory['episode_return'])}"
    task = line(group.get("task", group["task_id"]), 150, "bold")
    title = Content.assemble(
        task,
        "\n",
        outcome(trajectory),
        " ",
        line(trajectory["trajectory"], 40),
        about,
        branch_of(trajectory),
    )
    if trajectory["error"] is not None:
        title += Content.styled("\nAborted: " if trajectory["aborted"] else "\n", "$text-error")
        title += line(trajectory["error"])
    return title


def _levels(estimates: Sequence[dict[str, Any]], row: int) -> Content:
    """Return the levels of context of the first estimate that has some: size of the group, advantage and weight."""
    columns: dict[str, Any] = next((each["columns"] for each in estimates if "size_k0" in each["columns"]), {})
    lines = []
    for k in range(len(columns)):
        size = columns.get(f"size_k{k}", [None] * (row + 1))[row]
        if size is None:
            break
        before = f"and the same {counted(k, 'state')} before" if k else "same state"
        title = Content.assemble((f"k = {k}", "bold"), f" {before}: {counted(int(size), 'step')} · A{k} ")
        weight = f" · weight {number(columns[f'weight_k{k}'][row])}"
        lines.append(title + signed(columns[f"k{k}"][row]) + weight)
    return Content("\n").join(lines)


def _texts(step: dict[str, Any], group: dict[str, Any], row: int) -> list[Content]:
    """Return the texts of a step, each below its name."""
    steps = group["steps"]
    about = f"reward {number(steps['reward'][row], 3)} · policy after {counted(step['policy_version'], 'update')}"
    if steps["score"][row] is not None:
        about += f" · score {number(steps['score'][row], 3)}"
    if step["response_tokens"] is not None:
        about += f" · {step['response_tokens']:,} response tokens"
    if step["logprobs"]:
        about += f" · log-probability {sum(step['logprobs']):.2f}"
    if step["why_invalid"]:
        about += f" · invalid: {step['why_invalid']}"
    parts = [
        _titled("State", block(step["state"])),
        _titled("Action", block(step["action"])) + "\n" + visible(about, "dim"),
        _titled("Response", block(step["response"])),
    ]
    if step["message"] is not None:
        parts.append(_titled("Message as the server sent it", block(step["message"])))
    trajectory = group["trajectories"][steps["trajectory"][row]]
    is_last = steps["step"][row] + 1 == trajectory["length"] + (trajectory["branch_step"] or 0)
    if is_last and steps["next"][row] is not None:
        parts.append(_titled("State after the last step", block(group["states"][steps["next"][row]])))
    if step["admissible_actions"] is not None:
        listed = Content("\n").join(line(text, 120) for text in step["admissible_actions"])
        parts.append(_titled(f"{step['admissible_count']:,} admissible actions", listed))
    return [*parts, _titled("Prompt", block(step["prompt"]))]


def _titled(title: str, text: Content) -> Content:
    return Content.assemble((title, "bold underline"), "\n", text)
