"""The checks: what advantage code owes whatever its formula, each with the public report of a trainer that missed it.

A check calls the code with small tables and returns what is wrong in a line, or None. A few return a note: something
that is a choice, and that its user should know.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError, one_line, unknown
from hgpo_record.conform import groups, stopping, values
from hgpo_record.conform.adapters import ADAPTERS, CallError
from hgpo_record.conform.rollouts import PLAIN, table
from hgpo_record.conform.verdicts import Estimate, Note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes:
        check: The name of the check.
        kind: ``ok``, ``fault``, ``note`` (a choice that its user should know), or ``skipped``.
        text: What was found, or what the check asks for.
    """

    check: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind:<8}{self.check}: {self.text}"


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its function, the adapters that it is for, and whether it needs baselines of single tasks, or γ = 1."""

    name: str
    asks: str
    find: Callable[[Estimate], str | None]
    adapters: tuple[str, ...] = tuple(ADAPTERS)
    per_task: bool = False
    undiscounted: bool = False


def conform(
    function: Callable[..., Any],
    adapter: str = "plain",
    *,
    scope: str = "group",
    settings: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """Check advantage code.

    Args:
        function: The code, called as its adapter says.
        adapter: One of `ADAPTERS`.
        scope: ``group`` if advantages depend only on the rollouts of a task, or ``batch`` if they are normalised over
            all tasks, as in REINFORCE++. Checks of single tasks are then left out.
        settings: Keyword arguments of the function. Each must have an effect.

    Returns:
        One finding for each check, in the order of `CHECKS`.

    Raises:
        InputError: The adapter, the scope or a setting is unknown, or the function needs arguments that the adapter
            does not pass.

    >>> from hgpo_train.advantages import grpo
    >>> {finding.kind for finding in conform(grpo) if finding.check != "rows or rollouts"}
    {'ok'}
    """
    if adapter not in ADAPTERS:
        raise InputError(unknown("adapter", adapter, ADAPTERS))
    if scope not in ("group", "batch"):
        raise InputError(unknown("scope", scope, ("group", "batch")))
    given = dict(settings or {})
    call = partial(ADAPTERS[adapter], function)
    estimate = partial(call, settings=given)
    chosen = [
        check
        for check in CHECKS
        if adapter in check.adapters and not (check.per_task and scope == "batch")
    ]
    # With a discount, returns that are equal at the end differ before: to stop early is better.
    try:
        parameters = signature(function).parameters
    except (TypeError, ValueError) as error:  # not callable, or built in
        raise InputError(
            f"expected a function of Python, received {one_line(repr(function))}"
        ) from error
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for name in given:
        if name not in parameters and not takes_any:
            raise InputError(unknown("setting", name, parameters))
    without_discount = estimate
    if "gamma" in parameters:
        without_discount = partial(call, settings={**given, "gamma": 1.0})
    try:
        estimate(table(PLAIN))
    except CallError as error:  # all checks would fail for the same reason
        return [Finding("call", "fault", str(error))]
    findings = [
        _run(check, without_discount if check.undiscounted else estimate)
        for check in chosen
    ]
    for name, value in given.items():
        others = {other: kept for other, kept in given.items() if other != name}
        effect = partial(
            values.has_effect,
            without=partial(call, settings=others),
            shown=f"{name}={value!r}",
        )
        findings.append(
            _run(Check(f"setting {name}", "it has an effect", effect), estimate)
        )
    return findings


def _run(check: Check, estimate: Estimate) -> Finding:
    name = check.name
    asks = check.asks
    try:
        found = check.find(estimate)
    except CallError as error:
        return Finding(name, "fault", str(error))
    if found is None:
        return Finding(name, "ok", asks)
    return Finding(name, "note" if isinstance(found, Note) else "fault", str(found))


_TENSORS: Final = ("verl", "skyrl")
_NAMED: Final = ("plain", "verl", "skyrl")
CHECKS: Final = (
    Check(
        "finite",
        "one finite number for each step",
        values.finite,
        _NAMED,
    ),
    Check(
        "mask",
        "advantages only inside of each sequence's own mask",
        values.mask,
        _TENSORS,
    ),
    Check(
        "equal returns",
        "0 for equal returns",
        values.equal,
        per_task=True,
        undiscounted=True,
    ),
    Check(
        "group of one",
        "0 without a baseline",
        values.alone,
    ),
    Check(
        "other tasks",
        "tasks are not mixed",
        groups.other_tasks,
        per_task=True,
    ),
    Check(
        "names of tasks",
        "whole names are compared",
        groups.names,
        _NAMED,
    ),
    Check(
        "order of rows",
        "any order of the rows",
        groups.order,
        ("plain",),
    ),
    Check(
        "mixed tasks",
        "rollouts of other tasks in between",
        groups.mixed_tasks,
        _NAMED,
    ),
    Check(
        "order of rollouts",
        "any order of a task's rollouts",
        groups.rollout_order,
    ),
    Check(
        "sizes of groups",
        "groups of different sizes",
        groups.sizes,
        _NAMED,
        per_task=True,
    ),
    Check(
        "sign",
        "better rollouts are above 0, worse ones below",
        values.sign,
    ),
    Check(
        "shift",
        "a constant in all returns changes nothing",
        values.shift,
        undiscounted=True,
    ),
    Check(
        "scale",
        "larger rewards do not give smaller advantages",
        values.scale,
    ),
    Check(
        "NaN",
        "a reward of NaN is an error, or stays NaN",
        values.nan,
    ),
    Check(
        "aborted",
        "aborted rollouts are left out",
        groups.aborted,
        ("plain",),
    ),
    Check(
        "equal states",
        "states of different tasks are different",
        groups.other_states,
        ("plain",),
        per_task=True,
    ),
    Check(
        "arguments",
        "arguments are not modified",
        values.untouched,
    ),
    Check(
        "repeated",
        "two calls agree",
        values.repeated,
    ),
    Check(
        "iterations",
        "iterations are not mixed",
        groups.iterations,
        ("plain",),
    ),
    Check(
        "sum",
        "the baseline is the mean return",
        values.centred,
        per_task=True,
    ),
    Check(
        "rows or rollouts",
        "each rollout counts once",
        groups.longer,
        _NAMED,
    ),
    Check(
        "stopping",
        "no bias by when a rollout stops",
        stopping.stopping,
        per_task=True,
        undiscounted=True,
    ),
    Check(
        "better choice",
        "the gradient points to the better choice",
        stopping.better,
        per_task=True,
        undiscounted=True,
    ),
)
"""The checks, in the order of the report."""
