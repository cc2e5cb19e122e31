"""Tools of an environment: JSON schemas of Python functions, and random calls of tools."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.responses import ToolCall

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

_NAMED: Final = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
_DEEPEST: Final = 8  # a schema that contains itself ends here


def tool_schema(function: Callable[..., Any]) -> dict[str, Any]:
    '''Return the JSON schema of a Python function as a tool, in OpenAI's form.

    The annotations give the types of the arguments: int, float, str, bool, None, Literal, Optional and other unions,
    list, dict, enums, dataclasses. Arguments with a default are optional. The description is the docstring's text, and
    those of the arguments are its section ``Args:``, in Google's style, or in that of NumPy or Sphinx.

    Args:
        function: The function. A first argument ``self`` is left out.

    Raises:
        InputError: An argument has no annotation or one that JSON cannot express, or cannot be given by name; or there
            is no docstring.

    >>> def ask(trait: str, times: int = 1) -> str:
    ...     """Ask whether the thing has a trait.
    ...
    ...     Args:
    ...         trait: An adjective.
    ...     """
    >>> tool_schema(ask)["function"]["parameters"]["properties"]
    {'trait': {'type': 'string', 'description': 'An adjective.'}, 'times': {'type': 'integer', 'default': 1}}
    '''
    from docstring_parser import parse

    name = function.__name__
    docstring = parse(inspect.getdoc(function) or "")
    if not docstring.description:
        raise InputError(
            f"tool {name}: expected a docstring, which tells the model what the tool does"
        )
    described = {one.arg_name: one.description for one in docstring.params}
    parameters = [
        one
        for one in inspect.signature(function).parameters.values()
        if one.name != "self"
    ]
    try:
        types = typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # an annotation is any expression
        raise InputError(
            f"tool {name}: an annotation cannot be evaluated ({one_line(error)})"
        ) from error
    properties: dict[str, Any] = {}
    components: dict[str, Any] = {}
    for one in parameters:
        if one.kind not in _NAMED or one.name not in types:
            raise InputError(
                f"tool {name}: expected an argument with a name and a type, received {one}"
            )
        try:
            (schema,), parts = msgspec.json.schema_components(
                (types[one.name],), ref_template="#/$defs/{name}"
            )
            default = (
                {}
                if one.default is one.empty
                else {"default": msgspec.to_builtins(one.default)}
            )
        except (TypeError, NotImplementedError) as error:
            raise InputError(
                f"tool {name}: {one} cannot be expressed as JSON ({one_line(error)})"
            ) from error
        components |= parts
        if "enum" in schema and all(isinstance(value, str) for value in schema["enum"]):
            schema["type"] = "string"  # which some servers require
        if meaning := described.get(one.name):
            schema["description"] = " ".join(meaning.split())
        properties[one.name] = schema | default
    body: dict[str, Any] = {"type": "object", "properties": properties}
    body["required"] = [one.name for one in parameters if one.default is one.empty]
    if components:
        body["$defs"] = components
    what = {
        "name": name,
        "description": docstring.description,
        "parameters": body,
    }
    return {"type": "function", "function": what}


def referenced(reference: object, root: object) -> Any:  # noqa: ANN401 - a JSON value
    """Return the schema to which a ``$ref`` leads in the parameters of a tool; None if there is none."""
    head, *names = str(reference).split("/")
    target: Any = root if head == "#" and names else None
    for name in names:
        target = target.get(name) if isinstance(target, Mapping) else None
    return target


def random_call(  # noqa: C901 - one case a type
    tools: Sequence[Mapping[str, Any]],
    rng: random.Random,
    words: Sequence[str] = ("look",),
) -> str:
    """Return a call of one of the tools with random arguments that fit its schema, as text.

    Args:
        tools: JSON schemas in OpenAI's form.
        rng: Draws the tool and the arguments.
        words: What texts are drawn from.
    """
    function = rng.choice(tools)["function"]
    parameters = function.get("parameters") or {}

    def drawn(schema: Mapping[str, Any], depth: int = 0) -> Any:  # noqa: ANN401, C901 - a JSON value
        if depth > _DEEPEST:
            return None
        if "$ref" in schema:
            return drawn(referenced(schema["$ref"], parameters), depth + 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return drawn(rng.choice(schema[union]), depth + 1)
        kind = schema.get("type", "string")
        match kind if isinstance(kind, str) else rng.choice(kind):
            case "object":
                required = schema.get("required", ())
                properties = schema.get("properties", {})
                given = [
                    name
                    for name in properties
                    if name in required or rng.random() < 0.5
                ]
                return {name: drawn(properties[name], depth + 1) for name in given}
            case "array":
                least = schema.get("minItems", 0)
                count = rng.randint(least, schema.get("maxItems", least + 2))
                return [drawn(schema.get("items", {}), depth + 1) for _ in range(count)]
            case "integer":
                low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
                high = schema.get(
                    "maximum", schema.get("exclusiveMaximum", max(low, 0) + 10) - 1
                )
                return rng.randint(low, max(low, high))
            case "number":
                return round(
                    rng.uniform(schema.get("minimum", 0), schema.get("maximum", 10)), 2
                )
            case "boolean":
                return rng.random() < 0.5
            case "null":
                return None
            case _:
                return rng.choice([*schema.get("examples", ()), *words])

    arguments = drawn({"type": "object", **parameters})
    return ToolCall(function["name"], arguments).text()
