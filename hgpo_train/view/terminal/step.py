"""One step: its texts, its advantages, and its hierarchy of groups."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from hgpo_envs.errors import InputError
from hgpo_envs.wording import counted
from hgpo_train.advantages.parameters import REWARD_SCALE
from hgpo_train.view.documents import step_documents
from hgpo_train.view.estimates import estimate
from hgpo_train.view.terminal.texts import block, line, number, outcome, short_names, signed, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from hgpo_train.advantages.variants import Variant
    from hgpo_train.view.index import Index
    from hgpo_train.view.terminal.app import TerminalViewer

_DEPTH: Final = 2
"""The largest k that is shown if no estimator has levels."""

_estimate = lru_cache(16)(estimate)  # the next step is usually of the same group


def shared_depths(contexts: Sequence[Sequence[int | None]], row: int) -> dict[int, int]:
    """Return the rows that share at least the state of a row, itself included, in the order of the table.

    The values are the largest k for which they also share the k previous states, so that level k of the hierarchy
    contains those with k or more. `contexts` are those of a document (`hgpo_train.view.documents.group_document`).

    >>> shared_depths([[1, 1, 2, 1], [None, 3, 4, 3]], 1)
    {0: 0, 1: 1, 3: 1}
    """
    depths: dict[int, int] = {}
    for k, numbers in enumerate(contexts):
        if numbers[row] is not None:
            depths |= {other: k for other, number in enumerate(numbers) if number == numbers[row]}
    return depths


class StepScreen(Screen[None]):
    """The step at a position (`row`) of a group's document: its texts, and its groups, between which Tab changes."""

    HELP = f"""\
Level k of the hierarchy contains the steps in the same state that came there through the same k states before, and all
deeper levels; a member is listed in the deepest level that it shares, and Enter goes to it. A and B are advantages; R
is the discounted return, with rewards times {REWARD_SCALE:g} unless reward_scale is set."""
    app: TerminalViewer
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "move(1)", "Next"),
        Binding("p", "move(-1)", "Previous"),
        Binding("tab,shift+tab", "panel", "Panel", key_display="Tab", priority=True),
        Binding("e", "app.choose", "Estimators"),
        Binding("escape", "app.back", "Back", key_display="Esc"),
        Binding("t", "app.tree", "Tree"),
    ]

    def __init__(self, index: Index, group: dict[str, Any], row: int, panel: str = "#texts") -> None:
        super().__init__()
        self.index = index
        self.group = group
        self.row = row
        self.panel = panel
        self.names = short_names([trajectory["trajectory"] for trajectory in group["trajectories"]])

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(id="head", markup=False)
        with Horizontal():
            with VerticalScroll(id="texts"):
                yield Static(id="step", markup=False)
            with Vertical(id="groups"):
                yield Static(id="advantages", markup=False)
                yield OptionList(id="members", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Show the step."""
        self.show()
        self._focus_panel()

    def show(self) -> None:
        """Show the step, with the estimators that are chosen now."""
        with self.app.reporting():
            (document,) = step_documents(self.index, self.group["row"] + self.row)
            self.query_one("#step", Static).update(_texts(document, self.group, self.row))
        self.query_one("#head", Static).update(_head(self.group, self.row))
        self.show_groups()

    def show_groups(self) -> None:
        """Show the advantages and the hierarchy of groups."""
        estimates, lines = [], []
        for letter, variant in zip("AB", self.app.compared, strict=False):
            values, about = self._estimate(variant)
            estimates.append(values)
            lines.append(Content.assemble((f"{letter} ", "bold"), visible(variant.name), " ", about))
        self.query_one("#advantages", Static).update(Content("\n").join(lines))
        levelled = next((estimated for estimated in estimates if "k0" in estimated["columns"]), None)
        context = levelled["parameters"].get("context", "states") if levelled else "states"
        depths = (estimated["parameters"].get("history_length") for estimated in estimates)
        depth = next((int(value) for value in depths if value is not None), _DEPTH)
        contexts = self.group["contexts"][context][: depth + 1]
        options: list[Option] = []
        deepest = shared_depths(contexts, self.row)
        for k in range(deepest[self.row] + 1):
            level = [other for other in deepest if deepest[other] >= k]
            options.append(Option(Content("\n").join(self._level(k, level, levelled)), disabled=True))
            only = [other for other in level if deepest[other] == k]
            options += [Option(self._member(other, estimates), id=f"{k} {other}") for other in only]
        listed = self.query_one("#members", OptionList)
        listed.set_options(options)
        listed.highlighted = next((at for at, option in enumerate(options) if not option.disabled), None)

    def _estimate(self, variant: Variant) -> tuple[dict[str, Any], Content]:
        """Return the columns and parameters of an estimate, and a line about the step; empty if it is refused."""
        try:
            estimated = _estimate(self.index, self.group["number"], variant.estimator)
        except InputError as error:
            return {"columns": {}, "parameters": {}}, visible(str(error), "$text-error")
        value, returned = (estimated["columns"][name][self.row] for name in ("advantage", "return"))
        return estimated, Content.assemble(signed(value, 3).stylize("bold"), f"  R {number(returned, 3)}")

    def _level(self, k: int, level: Sequence[int], levelled: dict[str, Any] | None) -> list[Content]:
        """Return the lines of a level: its advantage and weight; its size and mean R."""
        steps, trajectories = self.group["steps"], self.group["trajectories"]
        states = ("", "the same state", f"the same {k} states")[min(k, 2)]
        title = Content.assemble((f"k = {k}", "bold"), f" and {states} before" if k else " same state")
        whole = [row for row in level if not trajectories[steps["trajectory"][row]]["aborted"]]
        rollouts = counted(len({steps["trajectory"][row] for row in whole}), "rollout")
        facts = f"{'singleton' if len(whole) == 1 else counted(len(whole), 'step')} of {rollouts}"
        if len(whole) < len(level):
            facts += f" (+{len(level) - len(whole)} aborted)"
        if levelled is None:
            return [title, Content(facts)]
        columns = levelled["columns"]
        returns = [columns["return"][row] for row in whole]
        mean = sum(returns) / len(returns) if returns else None
        value, weight = (columns[name][self.row] if name in columns else None for name in (f"k{k}", f"weight_k{k}"))
        estimated = Content.assemble(f" · A{k} ", signed(value), f" · weight {number(weight)}")
        return [title + estimated, Content(f"{facts} · mean R {number(mean)}")]

    def _member(self, row: int, estimates: Sequence[dict[str, Any]]) -> Content:
        """Return the line of a member: its trajectory and step, its return, its advantages and its action."""
        steps, trajectories = self.group["steps"], self.group["trajectories"]
        owner = steps["trajectory"][row]
        name = line(f"{self.names[owner]} · {steps['step'][row]}", 24, "bold" if row == self.row else "")
        parts: list[Content | str] = [_mark(trajectories[owner]), " ", name]
        parts.append(" " * max(1, 16 - name.cell_length))
        returned = next((estimated["columns"]["return"][row] for estimated in estimates if estimated["columns"]), None)
        parts.append(f"R {number(returned):>6}")
        for letter, estimated in zip("AB", estimates, strict=False):
            value = signed(estimated["columns"]["advantage"][row] if estimated["columns"] else None)
            parts += [f"  {letter} ", " " * (5 - value.cell_length), value]
        action = steps["action"][row]
        parts += ["  ", line(None if action is None else self.group["actions"][action], 60, "dim")]
        return Content.assemble(*parts)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Go to the member."""
        _, other = map(int, (event.option.id or "").split())
        self.app.push_screen(StepScreen(self.index, self.group, other, self.panel))

    def action_move(self, by: int) -> None:
        """Go to the next or the previous step of the trajectory."""
        steps = self.group["steps"]
        other = self.row + by
        if 0 <= other < len(steps["step"]) and steps["trajectory"][other] == steps["trajectory"][self.row]:
            self.row = other
            self.show()
            self.query_one("#texts").scroll_home(animate=False)

    def action_panel(self) -> None:
        """Go to the other part of the screen."""
        self.panel = "#texts" if self.panel == "#members" else "#members"
        self._focus_panel()

    def _focus_panel(self) -> None:
        self.set_class(self.panel == "#members", "-groups")  # narrow windows show one half
        self.query_one(self.panel).focus()


def _head(group: dict[str, Any], row: int) -> Content:
    """Return the task, the trajectory, and where the step is in it."""
    trajectory = group["trajectories"][group["steps"]["trajectory"][row]]
    done = f" · step {group['steps']['step'][row]} of {trajectory['length']}"
    done += f" · return {number(trajectory['episode_return'])}"
    task = line(group.get("task", group["task_id"]), 150, "bold")
    lines = [task, Content.assemble(_mark(trajectory), " ", line(trajectory["trajectory"], 40), done)]
    if trajectory["error"] is not None:
        lines.append(
            Content.assemble(("Aborted: " if trajectory["aborted"] else "", "$text-error"), line(trajectory["error"]))
        )
    return Content("\n").join(lines)


def _mark(trajectory: dict[str, Any]) -> Content:
    mark, meaning = outcome(trajectory)
    return Content.styled(mark, f"$text-{meaning}")


def _texts(step: dict[str, Any], group: dict[str, Any], row: int) -> Content:
    """Return the texts of a step, each below its name."""
    steps = group["steps"]
    about = f"reward {number(steps['reward'][row], 3)}"
    if steps["score"][row] is not None:
        about += f" · score {number(steps['score'][row], 3)}"
    about += f" · policy after {counted(step['policy_version'], 'update')}"
    for name in ("prompt_tokens", "response_tokens"):
        about += "" if step[name] is None else f" · {step[name]:,} {name.replace('_', ' ')}"
    if step["logprobs"]:
        about += f" · log-probability {sum(step['logprobs']):.2f}"
    valid = (
        Content.styled("valid", "$text-success") if step["action_valid"] else Content.styled("invalid", "$text-error")
    )
    action = Content.assemble(("Action", "bold underline"), "  ", valid)
    if step["why_invalid"]:
        action += visible(f": {step['why_invalid']}")
    parts = [
        _titled("State", block(step["state"])),
        Content.assemble(action, "\n", block(step["action"]), "\n", Content.styled(about, "dim")),
        _titled("Response", block(step["response"])),
    ]
    if step["message"] is not None:
        parts.append(_titled("Message as the server sent it", block(step["message"])))
    last = steps["step"][row] + 1 == group["trajectories"][steps["trajectory"][row]]["length"]
    if last and steps["next"][row] is not None:
        parts.insert(2, _titled("State after the last step", block(group["states"][steps["next"][row]])))
    if step["admissible_actions"] is not None:
        listed = [
            Content.assemble("→ ", line(text, 120, "bold")) if text == step["action"] else "  " + line(text, 120)
            for text in step["admissible_actions"]
        ]
        parts.append(_titled(f"{step['admissible_count']:,} admissible actions", Content("\n").join(listed)))
    parts.append(_titled("Prompt", block(step["prompt"])))
    return Content("\n\n").join(parts)


def _titled(title: str, text: Content) -> Content:
    return Content.assemble((title, "bold underline"), "\n", text)
