"""Checks of generated tasks: parts of the `evaluation.py` that AppWorld runs when a task is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import indent
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        requirement: What must hold, in words. AppWorld's reports show it.
        code: The body of the check. It may use `answer`, `test`, `private_data`, `models` and `ground_truth_answer`.
        holds_at_start: Whether it holds when nothing was done.
    """

    requirement: str
    code: str
    holds_at_start: bool = False

    @property
    def label(self) -> str:
        """AppWorld's label for checks that doing nothing passes or fails."""
        return "no_op_pass" if self.holds_at_start else "no_op_fail"


RIGHT_ANSWER: Final = Check(
    "the answer is right", "test.answer(answer, ground_truth_answer)"
)
NOTHING_CHANGED: Final = Check(
    "nothing in the apps has changed",
    "test.case(models.changed_model_names(), '==', set())",
    holds_at_start=True,
)
NO_ANSWER: Final = Check(
    "no answer is given",
    "test.case(answer, 'in', [None, '<<NOT_GIVEN>>'])",
    holds_at_start=True,
)


def only_changed(*models: str) -> Check:
    """Return the check that some models have changed and no others.

    >>> only_changed("phone.Alarm").code
    "test.case(models.changed_model_names(), '==', {'phone.Alarm'})"
    """
    names = ", ".join(repr(name) for name in sorted(models))
    return Check(
        f"only {names} changed",
        f"test.case(models.changed_model_names(), '==', {{{names}}})",
    )


def counts(
    model: str, *, added: str = "0", updated: str = "0", removed: str = "0"
) -> Check:
    """Return the check of how many records of a model were added, updated and removed.

    Args:
        model: The model.
        added: The expected number, as an expression.
        updated: The same, of records that changed.
        removed: The same, of records that are gone.
    """
    return Check(
        f"the right number of records of {model} changed",
        f"changes = models.changed_records({model!r})\n"
        f"test.case([len(records) for records in changes], '==', [{added}, {updated}, {removed}])",
    )


def records(
    requirement: str, model: str, which: str, values: str, expected: str
) -> Check:
    """Return the check of the values of changed records.

    Args:
        requirement: What must hold, in words.
        model: The model.
        which: ``added``, ``updated`` or ``removed``.
        values: An expression for a record named `record`.
        expected: An expression for the list of expected values, in any order.
    """
    return Check(
        requirement,
        f"added, updated, removed = models.changed_records({model!r})\n"
        f"test.case(sorted({values} for record in {which}), '==', sorted({expected}))",
    )


def only_fields(model: str, *fields: str) -> Check:
    """Return the check that of the updated records only some fields changed."""
    names = ", ".join(repr(name) for name in fields)
    return Check(
        f"of records of {model}, only {names} changed",
        f"updated = models.changed_records({model!r})[1]\n"
        f"found = [models.changed_field_names({model!r}, record.id) for record in updated]\n"
        f"test.case(found, '==', [{{{names}}}] * len(found))",
        holds_at_start=True,
    )


def evaluation(checks: Sequence[Check]) -> str:
    """Return the text of `evaluation.py`."""
    blocks = [
        f"with test({check.requirement!r}):\n{indent(check.code, '    ')}"
        for check in checks
    ]
    body = "\n".join(
        ["answer = json.loads(models.end.supervisor.Task.first().answer)", *blocks]
    )
    parameters = (
        "test, public_data, private_data, main_user, models, ground_truth_answer"
    )
    return f"import json\n\n\ndef evaluate({parameters}):\n{indent(body, '    ')}\n"


ONE_NEW_FILE: Final = (
    only_changed("file_system.File", "file_system.Directory"),
    counts("file_system.File", added="1"),
    only_fields("file_system.Directory", "updated_at"),
    records(
        "the file has the right path and content",
        "file_system.File",
        "added",
        "(record.path, record.content.strip())",
        "[(private_data.path, private_data.content)]",
    ),
)
"""Exactly one file was added, with the right path and content."""
