"""Typed settings: dataclasses filled from TOML files and `a.b=c` overrides, checked by msgspec, written back as TOML.

Any dataclass can be a settings class: a section of the configuration, the parameters of an estimator, the options of a
policy. Annotations are its schema, ranges included: `Annotated[int, Meta(ge=1)]`. In the configuration each field also
carries a docstring, the string literal below it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import sys
import textwrap
import tomllib
import typing
from datetime import date, time
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from hgpo_envs.errors import InputError, one_line, unknown
from hgpo_envs.untrusted_files import read_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

T = TypeVar("T")
S = TypeVar("S", bound="DataclassInstance")

LARGEST_FLOAT: Final = sys.float_info.max

NonNegativeInt = Annotated[int, Meta(ge=0)]
PositiveInt = Annotated[int, Meta(ge=1)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]
PositiveFloat = Annotated[float, Meta(gt=0)]
Temperature = Annotated[float, Meta(ge=0, le=LARGEST_FLOAT)]
"""Of sampling; 0 takes the most likely token."""

EXTENDS = "extends"
"""The key by which a file names the files (relative to itself) whose values it starts from."""

_BYTES: Final = 16 << 20
"""The longest configuration file that is read."""

_FAULT: Final = re.compile(r"(?:Expected )?(.*?)(?:, got .*?)?(?: - at `\$(.*)`)?")
"""An error of msgspec: what it expected, and where below the value."""

_TOML_NAMES: Final = {"array": "a list", "object": "a table", "null": "none"}


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


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Values of `over` over those of `base`, table by table.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


class Settings:
    """Base of dataclasses that check their fields whenever one is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check(self)


def build(cls: type[T], values: Mapping[str, Any], kind: str = "setting", where: str = "") -> T:
    """Makes a dataclass from nested tables.

    Args:
        cls: The dataclass.
        values: Its fields by name; the fields of a nested dataclass are a table. Absent ones take their defaults.
        kind: What one of the values is called in errors.
        where: What stands before their names in errors.

    Raises:
        InputError: A key is not a field, or a value is not what the field's annotation says.

    >>> @dataclasses.dataclass
    ... class Sampling:
    ...     top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    >>> build(Sampling, {"top_p": 1})
    Sampling(top_p=1.0)
    >>> build(Sampling, {"top_p": 2}, "policy option")
    Traceback (most recent call last):
    hgpo_envs.errors.InputError: policy option top_p: expected float <= 1.0, got 2
    """
    hints = types_of(cls)
    for key in values:
        if key not in hints:
            raise InputError(unknown(kind, f"{where}{key}", [f"{where}{name}" for name in hints], limit=99))
    return cls(**{key: _converted(hints[key], value, kind, f"{where}{key}") for key, value in values.items()})


def check(settings: object, kind: str = "setting") -> None:
    """Checks the fields of a dataclass by their annotations; call it in `__post_init__`, also of frozen ones.

    Whole numbers for floats become floats, and lists for tuples become tuples.

    Args:
        settings: The dataclass.
        kind: What one of its fields is called in errors.

    Raises:
        InputError: A value is not what its annotation says.
    """
    for name, hint in types_of(type(settings)).items():
        object.__setattr__(settings, name, _converted(hint, getattr(settings, name), kind, name))


def types_of(cls: type) -> dict[str, Any]:
    """The annotation of each field of a dataclass."""
    return dict(_types_of(cls))


@lru_cache(64)  # bounded: each use of an estimator that is a function brings a class of its own
def _types_of(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def annotation_of(cls: type, name: str) -> object:
    """The annotation of a field by its name, such as `section.field`; `Any` if nothing is known of it."""
    found: object = cls
    for key in name.split("."):
        found = types_of(found).get(key, Any) if isinstance(found, type) and dataclasses.is_dataclass(found) else Any
    return found


def _converted(hint: Any, value: Any, kind: str, name: str) -> Any:  # noqa: ANN401 (any annotation, any value)
    """A value as its annotation says."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, dict):
        return build(hint, value, kind, f"{name}.")
    if value == "none" and type(None) in get_args(hint):  # TOML has no null
        return None
    if isinstance(value, float):
        value = float(value)  # NumPy's are no plain ones
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise InputError(_line(hint, value, kind, name, str(error))) from None
    except UnicodeEncodeError:  # bytes of the command line that are not UTF-8
        raise InputError(f"{kind} {name}: expected text in UTF-8, got {one_line(repr(value))}") from None
    except TypeError:  # msgspec does not know this annotation, so the value is not checked
        return value


def _line(hint: object, value: object, kind: str, name: str, message: str) -> str:
    """The line for an error of msgspec."""
    if message.startswith("Invalid enum value") and (choices := _choices(hint)):
        return unknown(f"{kind} {name}", value, map(str, choices), limit=99)
    found = _FAULT.fullmatch(message)
    assert found is not None
    text = "a smaller number" if message.startswith("Number out of range") else found[1]
    expected = re.sub(r"`(.*?)`", lambda kinds: _words(kinds[1]), text)
    return f"{kind} {name}{found[2] or ''}: expected {expected}, got {one_line(repr(value))}"


def _words(kinds: str) -> str:
    return " or ".join(_TOML_NAMES.get(kind, kind) for kind in kinds.split(" | "))


def _choices(hint: object) -> tuple[object, ...]:
    """The choices of a `Literal`, or of the one in a union."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return next((found for part in get_args(hint) if (found := _choices(part))), ())


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

    Raises:
        InputError: An option holds something that TOML cannot.
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
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, date | time):
        return value.isoformat()
    raise InputError(
        f"expected text, a number, true, false, a list or a table in a setting, got {one_line(repr(value))}"
    )


def to_dict(settings: DataclassInstance) -> dict[str, Any]:
    """Settings as nested plain dictionaries, for JSON and trackers."""
    return dataclasses.asdict(settings)
