"""`hgpo_envs.env_checker` of environments with tools: their schemas, and what they take as arguments."""

from dataclasses import replace

import pytest
from corridor import CORRIDOR, UNLISTED, Source, Unlisted, checked, walk

from hgpo_envs.env_checks import play as checking
from hgpo_envs.env_checks import replays, states
from hgpo_envs.episode import settings_for
from hgpo_envs.responses import ToolCall, tool_calls
from hgpo_envs.sources import SharedSource


def leap(rooms: int) -> None:
    """Walk on by some rooms.

    Args:
        rooms: How many.
    """


class Leaping(Unlisted):
    """Takes each argument that it can use, and says of others that they are not valid."""

    def act(self, command):
        match tool_calls(command):
            case [ToolCall("leap", {"rooms": rooms})] if self.is_number(rooms):
                return self.state()
        return replace(self.state(), valid=False)


def test_tools_that_take_true_as_a_number_are_named(monkeypatch):
    # Other processes take seconds.
    monkeypatch.setattr(replays, "HASH_SEEDS", ())

    class Loose(Leaping):
        def is_number(self, value):
            return isinstance(value, int)

    class Strict(Leaping):
        def is_number(self, value):
            return type(value) is int

    found = checked(Loose, Source, tools=[leap], **UNLISTED)["odd commands"]
    assert found.verdict == "warning"
    assert "leap takes true as rooms, which is an integer" in found.message
    found = checked(Strict, Source, tools=[leap], **UNLISTED)["odd commands"]
    assert found.verdict == "pass"


def tool(name="walk", description="Walk.", **parameters):
    function = {
        "name": name,
        "description": description,
        "parameters": {"type": "object"} | parameters,
    }
    return {"type": "function", "function": function}


PLACE = {"place": {"type": "string"}}


@pytest.mark.parametrize(
    ("tools", "verdict", "messages"),
    [
        ([tool(), tool()], "fail", ["tool walk: 2 tools have this name"]),
        (
            [tool(properties=PLACE, required="place")],
            "fail",
            [".required: expected a list of names, received 'place'"],
        ),
        (
            [tool(properties=PLACE, required=["plaec"])],
            "fail",
            ["'plaec' is none of its properties (place)"],
        ),
        (
            [tool(properties={"place": {"type": "text"}})],
            "fail",
            ["parameters.properties.place.type: unknown type"],
        ),
        (
            [tool(properties={"place": "string"})],
            "fail",
            ["properties.place: expected a schema such as"],
        ),
        (
            [tool(properties={"to": {"enum": []}})],
            "fail",
            ["properties.to.enum: expected a list of values"],
        ),
        (
            [tool(properties={"to": {"$ref": "#/$defs/Room"}})],
            "fail",
            ["properties.to.$ref: '#/$defs/Room' is not in"],
        ),
        (
            [tool(properties={"to": {"type": "array", "items": {"type": "int"}}})],
            "fail",
            ["to.items.type: unknown"],
        ),
        (
            [tool(properties={"to": {"anyOf": {"type": "string"}}})],
            "fail",
            ["to.anyOf: expected a list of schemas"],
        ),
        ([tool(type="array")], "fail", ['parameters: expected {"type": "object"']),
        (
            [tool("walk on", 3)],
            "fail",
            ["expected a name of 1 to 64 letters", "description: expected a text"],
        ),
        ([tool(description="")], "warning", ["no description: walk"]),
        (
            [tool("go", properties=PLACE, required=["place"]), walk],
            "pass",
            ["2 tools with sound schemas"],
        ),
    ],
)
def test_schemas_of_tools_are_checked(tools, verdict, messages):
    spec = replace(CORRIDOR, tools=tools, **UNLISTED)
    play = checking.Play(SharedSource(Source(Unlisted)), settings_for("Corridor"), spec)
    found = checking.guarded("tools", states.tools, play)
    assert found.verdict == verdict
    for message in messages:
        assert message in found.message


def test_nothing_is_played_with_tools_that_no_call_fits():
    assert (
        list(checked(Unlisted, tools=[tool(properties=["place"])], **UNLISTED))[-1]
        == "tools"
    )
