"""Typed settings: frozen dataclasses filled from TOML files and `a.b=c` overrides, and written back as TOML.

A settings class is a frozen dataclass whose fields each carry a docstring (the string literal below the field).
Unknown keys are refused with the nearest known one, values of another type with what was expected.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
import tomllib
import types
import typing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.files import read_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")

EXTENDS = "extends"
"""The key by which a file names the files (relative to itself) whose values it starts from."""

_BYTES: Final = 16 << 20
"""The longest configuration file that is read."""


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file together with the files it `extends`, later values over earlier ones."""
    return _read_toml(Path(path), ())


def _read_toml(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    path = path.resolve()
    if path in above:
        raise InputError(f"{path} extends itself by way of {above[-1].name}; take one `extends` out")
    values = _parsed(path)
    parents = values.pop(EXTENDS, [])
    named = [parents] if isinstance(parents, str) else parents
    if not isinstance(named, list) or not all(isinstance(parent, str) and "\0" not in parent for parent in named):
        raise InputError(f"{path}: expected {EXTENDS} to name a file or a list of files, got {parents!r}")
    merged: dict[str, Any] = {}
    for parent in named:
        merged = merge(merged, _read_toml(path.parent / parent, (*above, path)))
    return merge(merged, values)


def _parsed(path: Path) -> dict[str, Any]:
    """The values of one file."""
    data = read_bytes(path, _BYTES, "configuration")
    try:
        return tomllib.loads(data.decode("utf-8").replace("\r\n", "\n"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not TOML: byte {error.start} is not UTF-8") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, and integers of thousands of digits
        raise InputError(f"{path} is not TOML: {error}") from error


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Values of `over` over those of `base`, table by table.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def parse_override(text: str) -> dict[str, Any]:
    """One `a.b=c`: the value is read as TOML, and as text where it is not TOML.

    >>> parse_override("update.clip_high=0.28"), parse_override("model.path=./tiny")
    ({'update': {'clip_high': 0.28}}, {'model': {'path': './tiny'}})
    """
    name, equals, value = text.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(keys):
        raise InputError(f"expected an override of the form section.field=value, got {text!r}")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value.strip()
    for key in reversed(keys):
        parsed = {key: parsed}
    return typing.cast("dict[str, Any]", parsed)


def build(cls: type[T], values: dict[str, Any], where: str = "") -> T:
    """Makes a settings object from nested tables.

    Raises:
        InputError: A key is not a field, or a value is not of the field's type.
    """
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]  # cls is a dataclass
    for key in values:
        if key not in names:
            raise InputError(
                unknown("configuration key", f"{where}{key}", [f"{where}{name}" for name in names], shown=40)
            )
    return cls(**{key: _convert(hints[key], value, f"{where}{key}") for key, value in values.items()})


def _convert(hint: object, value: object, where: str) -> object:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise InputError(f"expected {where} to be a table of settings, got {value!r}")
        return build(hint, value, f"{where}.")
    origin, choices = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if type(None) in choices and value in (None, "none"):
            return None
        return _convert(next(choice for choice in choices if choice is not type(None)), value, where)
    if origin is Literal:
        if value not in choices:
            raise InputError(f"expected {where} to be one of {', '.join(map(repr, choices))}, got {value!r}")
        return value
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(choices[0], item, where) for item in value)
    if hint is float and type(value) is int:
        return _float(value, where)
    kind: Any = origin or hint
    if kind is not Any and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        name = "a list" if kind is tuple else f"a value of type {kind.__name__}"
        raise InputError(f"expected {where} to be {name}, got {value!r}")
    return value


def _float(value: int, where: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"expected {where} to be a value of type float, got an integer too large for one") from None


@cache
def field_docs(cls: type) -> dict[str, str]:
    """The docstring of each field of a settings class, in one line each."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            literal = following.value
            if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                docs[ast.unparse(statement.target)] = " ".join(literal.value.split())
    return docs


def to_toml(settings: DataclassInstance, *, docs: bool = False) -> str:
    """Writes settings as TOML that `read_toml` and `build` read back to an equal object.

    Args:
        settings: A settings object.
        docs: Also write each field's docstring as a comment above it.
    """
    return "\n".join(_toml_lines(settings, "", docs)).lstrip("\n") + "\n"


def _toml_lines(settings: DataclassInstance, table: str, docs: bool) -> list[str]:
    comments = field_docs(type(settings)) if docs else {}
    lines: list[str] = []
    tables: list[str] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        comment = textwrap.wrap(comments.get(field.name, ""), 118, initial_indent="# ", subsequent_indent="# ")
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            tables += ["", *comment, f"[{table}{field.name}]", *_toml_lines(value, f"{table}{field.name}.", docs)]
        else:
            lines += [*comment, f"{field.name} = {_toml_value(value)}"]
    return lines + tables


def _toml_value(value: object) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML's basic strings are JSON's
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml_value(key)} = {_toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return repr(value)


def to_dict(settings: DataclassInstance) -> dict[str, Any]:
    """Settings as nested plain dictionaries, for JSON and trackers."""
    return dataclasses.asdict(settings)
