"""Checks of tools: their form, which every use of them needs, and what servers and chat templates expect of schemas."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError, one_line, unknown
from hgpo_envs.tools import referenced, tool_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
"""The types of JSON Schema (draft 2020-12, 6.1.1)."""

FORM: Final = (
    '{"type": "function", "function": {"name": …, "description": …, "parameters": …}}'
)
"""The form of a tool in requests to OpenAI-compatible servers, which chat templates read too."""

# of a function, in OpenAI's reference of chat completions
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_UNIONS: Final = ("anyOf", "oneOf", "allOf")
_MAPS: Final = ("properties", "$defs", "definitions")
_DEEPEST: Final = 32


def tools_of(tools: object) -> tuple[dict[str, Any], ...]:
    """Return tools as JSON schemas in OpenAI's form. Python functions become such schemas.

    Args:
        tools: A list of schemas and functions.

    Raises:
        InputError: It is no list, or a tool is neither a function nor a schema in this form.
    """
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise InputError(
            f"tools: expected a list, received {_named(tools)}; one tool is a list too: [find_user]"
        )
    return tuple([_tool(tool, place) for place, tool in enumerate(tools)])


def _named(value: object) -> str:
    """Return a value as a message quotes it: a function by its name, anything else by its beginning."""
    return str(getattr(value, "__name__", None) or one_line(repr(value), 60))


def _tool(tool: object, place: int) -> dict[str, Any]:
    if callable(tool) and hasattr(tool, "__name__"):
        return tool_schema(tool)
    if not isinstance(tool, Mapping):
        raise InputError(
            f"tools[{place}]: expected a function or a schema {FORM}, received {type(tool).__name__} {_named(tool)}"
        )

    # 1. Without the outer object: Anthropic's form (`input_schema`), that of MCP (`inputSchema`), or the inner half.
    name = tool.get("name")
    if "function" not in tool and isinstance(name, str):
        schemas = [
            key for key in ("parameters", "input_schema", "inputSchema") if key in tool
        ]
        renamed = (
            f" and rename {schemas[0]!r} to 'parameters'"
            if schemas and schemas[0] != "parameters"
            else ""
        )
        advice = f'write {{"type": "function", "function": {{"name": {json.dumps(one_line(name, 60))}, …}}}}{renamed}'
        raise InputError(
            f"tools[{place}], {one_line(name, 60)!r}: expected the form {FORM}; {advice}"
        )

    # 2. What is read of every tool.
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    known = f", {one_line(name, 60)!r}" if isinstance(name, str) else ""
    if tool.get("type") != "function":
        raise InputError(
            f'tools[{place}]{known}: expected "type": "function" in {FORM}, received {_named(tool)}'
        )
    if not isinstance(name, str) or not name:
        raise InputError(
            f"tools[{place}]: expected a function with a name in {FORM}, received {_named(tool)}"
        )
    try:
        json.dumps(tool, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"tools[{place}]{known}: expected JSON values alone ({one_line(error)})"
        ) from error
    return dict(tool)


def flaws(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with tools in OpenAI's form, each flaw with its tool, place and repair.

    Checked is what chat templates and servers rely on: names, and the parts of JSON Schema that describe arguments
    (``type``, ``properties``, ``required``, ``items``, ``enum``, unions, references and descriptions).

    Args:
        tools: The schemas, of the form that `tools_of` returns.

    >>> call = {"name": "open", "parameters": {"type": "object", "properties": {}, "required": ["box"]}}
    >>> flaws([{"type": "function", "function": call}])
    ["tool open, parameters.required: 'box' is none of its properties (none)"]
    """
    names = [tool["function"]["name"] for tool in tools]
    found = [
        f"tool {one_line(name)}: {times} tools have this name, and a call does not say which is meant; rename one"
        for name, times in Counter(names).items()
        if times > 1
    ]
    for name, tool in zip(names, tools, strict=True):
        found += [
            f"tool {one_line(name, 64)}{flaw}"
            for flaw in _tool_flaws(name, tool["function"])
        ]
    return found


def undescribed(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the tools without a description, of which a model learns only the name."""
    functions = [tool["function"] for tool in tools]
    return [
        function["name"] for function in functions if not function.get("description")
    ]


def _tool_flaws(name: str, function: Mapping[str, Any]) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield ": expected a name of 1 to 64 letters a-z and A-Z, digits, _ and -, which servers require"
    if not isinstance(function.get("description", ""), str):
        yield f", description: expected a text, received {_named(function['description'])}"
    parameters = function.get("parameters")
    if parameters in (None, {}):  # a tool without arguments
        return
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        yield f', parameters: expected {{"type": "object", "properties": …}}, received {_named(parameters)}'
        return
    yield from _schema_flaws(parameters, parameters, ", parameters")


def _schema_flaws(  # noqa: C901 - one paragraph a keyword
    schema: object, root: Mapping[str, Any], place: str, depth: int = 0
) -> Iterator[str]:
    """Yield the flaws of a JSON schema and of those in it."""
    if isinstance(schema, bool):  # anything, or nothing
        return
    if not isinstance(schema, Mapping):
        yield f'{place}: expected a schema such as {{"type": "string"}}, received {_named(schema)}'
        return
    if depth > _DEEPEST:
        yield f"{place}: more than {_DEEPEST} schemas in one another"
        return

    # 1. Types: one, or a list of them.
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        for kind in kinds:
            if kind not in TYPES:
                yield f"{place}.type: {unknown('type', kind, TYPES)}"

    # 2. Values.
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        yield f"{place}.enum: expected a list of values, received {_named(schema['enum'])}"
    if not isinstance(schema.get("description", ""), str):
        yield f"{place}.description: expected a text, received {_named(schema['description'])}"
    if "$ref" in schema and referenced(schema["$ref"], root) is None:
        yield f"{place}.$ref: {_named(schema['$ref'])} is not in these parameters; write '#/$defs/NAME' and give $defs"

    # 3. Required arguments, each of which a property describes.
    if "required" in schema:
        yield from _required_flaws(schema, place)

    # 4. The schemas in this one.
    for key in _MAPS:
        parts = schema.get(key, {})
        if not isinstance(parts, Mapping):
            yield f"{place}.{key}: expected schemas by name, received {_named(parts)}"
            continue
        for name, part in parts.items():
            yield from _schema_flaws(
                part, root, f"{place}.{key}.{one_line(name, 60)}", depth + 1
            )
    for key in _UNIONS:
        parts = schema.get(key, [True])
        if not isinstance(parts, list) or not parts:
            yield f"{place}.{key}: expected a list of schemas, received {_named(parts)}"
            continue
        for number, part in enumerate(parts):
            yield from _schema_flaws(part, root, f"{place}.{key}[{number}]", depth + 1)
    for key in ("items", "additionalProperties"):
        yield from _schema_flaws(
            schema.get(key, True), root, f"{place}.{key}", depth + 1
        )


def _required_flaws(schema: Mapping[str, Any], place: str) -> Iterator[str]:
    required = schema["required"]
    if not isinstance(required, list) or not all(
        isinstance(name, str) for name in required
    ):
        advice = f"; write [{required!r:.60}]" if isinstance(required, str) else ""
        yield f"{place}.required: expected a list of names, received {_named(required)}{advice}"
        return
    properties = schema.get("properties", {})
    if (
        "$ref" in schema
        or any(key in schema for key in _UNIONS)
        or not isinstance(properties, Mapping)
    ):
        return  # another schema may describe them
    for name in required:
        if name not in properties:
            known = one_line(", ".join(properties), 200) or "none"
            yield f"{place}.required: {one_line(name, 60)!r} is none of its properties ({known})"
