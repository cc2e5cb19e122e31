"""Advantages of a group by any registered estimator, and the parameters that a page can offer."""

from __future__ import annotations

import dataclasses
import inspect
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

import polars as pl
from msgspec import Meta

from hgpo_datasets import scan_steps
from hgpo_datasets.reader import errors
from hgpo_envs.errors import InputError, unknown
from hgpo_train.advantages import registry
from hgpo_train.advantages.input_columns import prepare
from hgpo_train.advantages.registry import EstimatorSpec
from hgpo_train.assignments import read_assignments
from hgpo_train.settings import types_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_train.view.index import Index

RETURNS: Final = ("return", "penalty")
"""Input columns of estimators (`hgpo_train.advantages.input_columns`) that an estimate contains."""


def estimator_documents(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the name, the summary, the scope and the parameters of estimators.

    Args:
        names: Registered names, or ``module:function``.

    Raises:
        InputError: An estimator is unknown.
    """
    found = [(name, registry.get(name)) for name in names]
    return [
        {"name": name, "summary": one.summary, "scope": one.scope, "parameters": _parameters(one.parameters)}
        for name, one in found
    ]


def _parameters(of: type) -> list[dict[str, Any]]:
    """Describe each parameter: its kind, its default, its choices or range, and its meaning."""
    hints, docs = types_of(of), _meanings(of)
    defaults = {field.name: field.default for field in dataclasses.fields(of)}
    return [
        {"name": name, "default": _plain(defaults[name]), "meaning": docs.get(name, ""), **_kind(hint)}
        for name, hint in hints.items()
    ]


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _kind(hint: Any) -> dict[str, Any]:  # noqa: ANN401 (any annotation)
    """Return the kind of a parameter, and its range or its choices."""
    limits: dict[str, Any] = {}
    if hasattr(hint, "__metadata__"):
        for note in hint.__metadata__:
            if isinstance(note, Meta):
                limits |= {"least": note.ge if note.ge is not None else note.gt, "most": note.le}
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        return {"kind": "choice", "choices": list(get_args(hint))}
    names = {bool: "bool", int: "int", float: "float"}
    return {"kind": names.get(hint, "text"), **limits}


def _meanings(of: type) -> dict[str, str]:
    """Return the meaning of each parameter, from the `Attributes` of the docstrings of a class and its bases."""
    found: dict[str, str] = {}
    for one in reversed(of.__mro__):
        _, _, listed = (inspect.cleandoc(one.__doc__ or "")).partition("Attributes:\n")
        for name, text in re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", listed, re.MULTILINE):
            found[name] = " ".join(text.replace("`", "").split())
    return found


def estimate(index: Index, number: int, name: str, settings: Sequence[str], known: Sequence[str]) -> dict[str, Any]:
    """Return the advantages of a group's steps.

    Args:
        index: The index of the run.
        number: The position of the group.
        name: The estimator.
        settings: Its parameters, as ``name=value``.
        known: The estimators that may be used: a page must not name a module to import.

    Returns:
        ``parameters`` (all of them), and ``columns``: `advantage`, the estimator's details, and `RETURNS`, one value
        per row of the group, in the order of the table. Values of aborted trajectories are null.

    Raises:
        InputError: The estimator or a parameter is unknown or invalid, or the table lacks a column that it reads.
    """
    if name not in known:
        raise InputError(unknown("estimator", name, known, limit=99))
    found = registry.get(name)
    parameters = found.parameters.of(read_assignments("parameters", settings, types_of(found.parameters)))
    depth = getattr(parameters, "history_length", 0)
    if depth > index.depth:
        most = f"{index.depth}, the depth of the stored contexts"
        raise InputError(f"parameter history_length: expected at most {most}, received {depth}")
    spec = EstimatorSpec(found, parameters, details=True)
    group = index.group(number)
    first, rows = _range(group)
    if found.scope == "batch":
        numbers, columns = _batch(index, spec, str(group["run"]), int(str(group["iteration"])))
        begin = int(numbers.search_sorted(first))
        columns = columns.slice(begin, rows)
    else:
        columns = _columns(index.lazy(first, rows), spec)
    return {
        "estimator": name,
        "parameters": {key: _plain(value) for key, value in dataclasses.asdict(parameters).items()},
        "columns": {column: columns[column].to_list() for column in columns.columns},
    }


def _range(group: dict[str, object]) -> tuple[int, int]:
    return int(str(group["row"])), int(str(group["rows"]))


def _columns(steps: pl.LazyFrame, spec: EstimatorSpec) -> pl.DataFrame:
    with errors("the step table"):
        added = registry.compute_many(steps, [spec]).select(list(spec.added))
        returns = prepare(steps, spec.parameters, ()).select(RETURNS)
        estimated, returned = pl.collect_all([added, returns], engine="in-memory")
    return estimated.rename(spec.added).hstack(returned)


@lru_cache(8)
def _batch(index: Index, spec: EstimatorSpec, run: str, iteration: int) -> tuple[pl.Series, pl.DataFrame]:
    """Return the row numbers and the estimate of one iteration, which such an estimator needs as a whole."""
    own = (pl.col("run") == run) & (pl.col("iteration") == iteration)
    with errors("the step table"):
        steps = scan_steps(index.files)
        numbers = steps.select("run", "iteration").with_row_index("row").filter(own).select("row").collect()["row"]
    return numbers, _columns(steps.filter(own), spec)
