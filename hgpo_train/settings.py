"""Typed settings: dataclasses that are read from TOML files and `name=value` texts, and written back as TOML.

Any dataclass can be a settings class: a section of the configuration, the parameters of an estimator, the options of a
policy. Its annotations are its schema, which msgspec validates, ranges included: `Annotated[int, Meta(ge=1)]`. Each
field of the configuration also has a docstring: the string literal below it.

The value of a text `name=value` is parsed as JSON, then as TOML: `3`, `0.5`, `true`, `null`, `[1, 2]`,
`{ top_k = 20 }`. Any other value is text. If it is annotated as text, it is always text: `name=7` is the name "7".
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
import textwrap
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import date, time
from functools import cache, lru_cache
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    get_args,
    get_origin,
)

import msgspec
from msgspec import Meta

from hgpo_envs.errors import InputError, one_line, unknown
from hgpo_envs.files.secrets import redact_json
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_train.field_docs import fields_in_source

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")

LARGEST_FLOAT: Final = sys.float_info.max  # infinity is larger
LARGEST_INT: Final = (1 << 63) - 1  # of the files that store settings

NonNegativeInt = Annotated[int, Meta(ge=0, le=LARGEST_INT)]
PositiveInt = Annotated[int, Meta(ge=1, le=LARGEST_INT)]
NonNegativeFloat = Annotated[float, Meta(ge=0, le=LARGEST_FLOAT)]
PositiveFloat = Annotated[float, Meta(gt=0, le=LARGEST_FLOAT)]
Temperature = NonNegativeFloat
"""A sampling temperature; 0 selects the most likely token."""
StopTexts = tuple[Annotated[str, Meta(min_length=1)], ...]

MAY_CHANGE: Final = {"may_change": True}
"""Metadata of fields that may change when a run is resumed; they affect its weights only by rounding, or not at all."""

_FAULT: Final = re.compile(r"(?:Expected )?(.*?)(?:, got .*?)?(?: - at `\$(.*)`)?")
"""An error message of msgspec: the expected type or range, and the path below the value."""


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `over`; nested tables are merged.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def read_toml(
    path: Path,
    merge_layers: Callable[
        [Mapping[str, Any], Mapping[str, Any]], dict[str, Any]
    ] = merge,
    known: Mapping[str, Path] = {},
    _extended_by: tuple[Path, ...] = (),
) -> dict[str, Any]:
    """Read a TOML file and those that it `extends`, which it overrides: paths relative to it, or names in `known`."""
    path = Path(path).resolve()
    if path in _extended_by:
        raise InputError(
            f"{path} extends itself through {_extended_by[-1].name}; remove one of the `extends`"
        )
    data = read_bytes(path, 16 << 20, "configuration")
    try:
        values = tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))
    except (ValueError, RecursionError) as error:
        # no TOML, no UTF-8, and integers of thousands of digits
        raise InputError(f"{path} is not TOML in UTF-8: {error}") from error
    parents = values.pop("extends", [])
    names = [parents] if isinstance(parents, str) else parents
    if not isinstance(names, list) or not all(
        isinstance(name, str) and "\0" not in name for name in names
    ):
        raise InputError(
            f"{path}: expected extends to name a file or a list of files, received {parents!r}"
        )

    # Later parents override earlier ones, and the file overrides all of them.
    merged: dict[str, Any] = {}
    for name in names:
        parent = known.get(name, path.parent / name)
        merged = merge_layers(
            merged, read_toml(parent, merge_layers, known, (*_extended_by, path))
        )
    return merge_layers(merged, values)


def build(
    cls: type[T], values: Mapping[str, Any], noun: str = "setting", where: str = ""
) -> T:
    """Create a dataclass instance from nested tables.

    Args:
        cls: The dataclass.
        values: Field values by name; a table for a nested dataclass. Missing fields take their defaults.
        noun: The word for one of the values in error messages.
        where: A prefix of the names in error messages.

    Raises:
        InputError: A key is not a field, a field without a default is missing, or a value does not match the field's
            annotation, for example ``policy option top_p: expected float <= 1.0, received 2``.
    """
    if not isinstance(values, Mapping):
        raise InputError(
            f"{noun}s: expected a table of names and values, received {one_line(repr(values))}"
        )

    # Names first: a misspelt one is the cause of a missing one.
    hints = types_of(cls)
    for key in values:
        if key not in hints:
            raise InputError(_unknown_field(cls, key, noun, where))
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # a dataclass
        has_default = (
            field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        )
        if field.init and not has_default and field.name not in values:
            raise InputError(
                f"{noun} {where}{field.name}: expected a value, received none; it has no default"
            )
    converted = {
        key: _converted(hints[key], value, noun, f"{where}{key}")
        for key, value in values.items()
    }
    return cls(**converted)


def _unknown_field(cls: type, key: str, noun: str, where: str) -> str:
    """Return the error message for a name that is no field of a dataclass."""
    known = [f"{where}{name}" for name in types_of(cls)]
    # perhaps a letter of a paper, such as K, with which the meaning of a field begins
    meant = None
    for name, meaning in descriptions(cls).items():
        if meaning.startswith(f"{key}, "):
            meant = f"{where}{name}"
            break
    return unknown(noun, f"{where}{key}", known, limit=99, meant=meant)


def check(settings: object, noun: str = "setting") -> None:
    """Validate and convert the fields of a dataclass instance in place. Call it in `__post_init__`.

    Integers become floats where the annotation is float, and lists become tuples where it is a tuple.

    Args:
        settings: An instance of a dataclass, which may be frozen.
        noun: The word for one of its fields in error messages.
    """
    for name, hint in types_of(type(settings)).items():
        object.__setattr__(
            settings, name, _converted(hint, getattr(settings, name), noun, name)
        )


class Settings:
    """A base class for dataclasses that validate their fields when an instance is created."""

    __slots__ = ()
    __post_init__ = check


def _types_of(cls: type) -> dict[str, Any]:
    """Return the annotation of each field of a dataclass."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


# bounded: each use of an estimator that is a function creates a new class
types_of: Callable[[type], dict[str, Any]] = lru_cache(64)(_types_of)


def annotation_of(cls: type, name: str) -> object:
    """Return the annotation of a field by its dotted name, such as `section.field`; `Any` if there is none."""
    annotation: object = cls
    for key in name.split("."):
        is_section = isinstance(annotation, type) and dataclasses.is_dataclass(
            annotation
        )
        annotation = types_of(annotation).get(key, Any) if is_section else Any  # type: ignore[arg-type]
    return annotation


def _converted(hint: Any, value: Any, noun: str, name: str) -> Any:  # noqa: ANN401 (any annotation, any value)
    """Convert a value to the type of its annotation."""
    if (
        dataclasses.is_dataclass(hint)
        and isinstance(hint, type)
        and isinstance(value, dict)
    ):
        return build(hint, value, noun, f"{name}.")
    if value == "none" and type(None) in get_args(hint):  # TOML has no null
        return None
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()  # msgspec rejects NumPy's numbers
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise InputError(_message(hint, value, noun, name, str(error))) from None
    except UnicodeEncodeError:
        # arguments of the command line may contain bytes that are not UTF-8
        raise InputError(
            f"{noun} {name}: expected text in UTF-8, received {one_line(repr(value))}"
        ) from None
    except TypeError:
        # msgspec does not support this annotation: the value is not validated
        return value


def _message(hint: object, value: object, noun: str, name: str, message: str) -> str:
    """Return the error message for a validation error of msgspec."""
    choices = _choices(hint)
    if choices and message.startswith("Invalid enum value"):
        # The name is known; the value is not.
        return f"{noun} {name}: {unknown('value', value, map(str, choices), limit=99)}"

    # msgspec's words, with those of TOML and Python in the place of JSON's.
    fault = _FAULT.fullmatch(message)
    assert fault is not None
    text = "a smaller number" if message.startswith("Number out of range") else fault[1]
    names = {
        "`": "",
        " | ": " or ",
        "array": "a list",
        "object": "a table",
        "null": "none",
    }
    expected = re.sub(
        "|".join(map(re.escape, names)), lambda match: names[match[0]], text
    )
    return f"{noun} {name}{fault[2] or ''}: expected {expected}, received {one_line(repr(value))}"


def _choices(hint: object) -> tuple[object, ...]:
    if get_origin(hint) is Literal:
        return get_args(hint)
    return next(filter(None, map(_choices, get_args(hint))), ())


@cache
def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring of each field of a settings class and its bases, as one line each."""
    # Subclasses override the docstrings of their bases.
    docs: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if dataclasses.is_dataclass(each):
            found = fields_in_source(inspect.getsource(each))
            docs |= {name: field.doc for name, field in found.items()}
    return docs


def descriptions(cls: type) -> dict[str, str]:
    """Return what the fields of a dataclass mean: the docstring below each, or the `Meta.description` of its type."""
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        # a class that was made by a function is in no file
        with suppress(OSError, TypeError):
            meanings |= field_docs(base)
    for name, hint in types_of(cls).items():
        notes = [
            note.description
            for note in getattr(hint, "__metadata__", ())
            if isinstance(note, Meta)
        ]
        if described := [note for note in notes if note]:
            meanings[name] = described[-1]  # an alias of an alias says the last word
    return meanings


def to_toml(settings: DataclassInstance, *, docs: bool = False, table: str = "") -> str:
    """Return settings as TOML, from which `read_toml` and `build` create an equal object, but for secrets.

    Args:
        settings: A settings object.
        docs: Whether to add each field's docstring as a comment above it.
        table: The name of the table that they are in, with a dot at its end.
    """
    # Values come before tables: what follows the head of a table belongs to it.
    comments = field_docs(type(settings)) if docs else {}
    lines: list[str] = []
    tables = ""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        comment = textwrap.wrap(
            comments.get(field.name, ""),
            118,
            initial_indent="# ",
            subsequent_indent="# ",
        )
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            name = f"{table}{field.name}"
            head = "\n".join(["", *comment, f"[{name}]", ""])
            tables += head + to_toml(value, docs=docs, table=f"{name}.")
        else:
            # some secrets are known by their names
            public = redact_json({field.name: value})[field.name]
            lines += [*comment, f"{field.name} = {_toml_value(public)}"]
    values = "".join(f"{line}\n" for line in lines)
    return (values + tables).lstrip("\n")


def _toml_value(value: object) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, str | bool):  # TOML's basic strings are JSON's, except for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        return (
            "{ "
            + ", ".join(
                f"{_toml_value(key)} = {_toml_value(item)}"
                for key, item in value.items()
            )
            + " }"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, int | float | date | time):
        return str(value)
    raise InputError(
        f"expected text, a number, a list or a table in a setting, received {one_line(repr(value))}"
    )


def split_assignment(
    text: str, option: str, form: str = "name=value"
) -> tuple[str, str]:
    """Split ``name=value`` into the name and the text of the value, which may contain further equals signs.

    The option that received the text and the expected form are for the error message.
    """
    name, equals, value = text.partition("=")
    if not (equals and name.strip()):
        raise InputError(f"{option}: expected {form}, received {text!r}")
    return name.strip(), value.strip()


def read_value(text: str, annotation: object = Any) -> Any:  # noqa: ANN401 (whatever the user writes)
    """Parse the text of a value for an option with the given annotation.

    >>> read_value("7"), read_value("7", str), read_value('"7"', str | None), read_value("shuffled")
    (7, '7', '7', 'shuffled')
    """
    # What neither reads is a text without quotes.
    value: Any = text
    with suppress(ValueError, RecursionError):
        entries = tomllib.loads(f"value = {text}")
        if len(entries) == 1 and not isinstance(entries["value"], date | time):
            value = entries["value"]
    with suppress(ValueError, RecursionError):  # JSON decides where both can read it
        value = json.loads(text)
    value = {"True": True, "False": False}.get(text, value)

    # What looks like a number is a text where a text is expected; a quoted one is the text in the quotes.
    if annotation is str or annotation == str | None:
        is_none = value is None and annotation is not str
        return value if isinstance(value, str) or is_none else text
    if annotation is float and isinstance(value, str):  # `.5` is neither JSON nor TOML
        with suppress(ValueError):
            return float(value)
    return value


def read_assignments(
    option: str, texts: Iterable[str], annotations: Mapping[str, object]
) -> dict[str, Any]:
    """Parse ``name=value`` texts into a dictionary.

    Args:
        option: The option that received the texts, for the error message.
        texts: ``name=value`` texts.
        annotations: Annotations by name; a name without one accepts any value.

    >>> read_assignments("--env-option", ["goals=human", "price_seed=3", "show_attributes=true"], {})
    {'goals': 'human', 'price_seed': 3, 'show_attributes': True}
    """
    named = [split_assignment(text, option) for text in texts]
    return {
        name: read_value(value, annotations.get(name, Any)) for name, value in named
    }
