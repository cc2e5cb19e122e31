"""Functions of the page that Python has too, and one that reads responses, run by Node."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

VIEWER = Path(__file__).parents[2] / "viewer"
ESBUILD = VIEWER / "node_modules/.bin/esbuild"

pytestmark = pytest.mark.skipif(
    not (shutil.which("node") and ESBUILD.exists()), reason="needs Node, and `npm ci` in viewer/"
)


def called(module: str, expression: str, values: object) -> Any:
    """Return what an expression of a module's functions gives for `values`."""
    build = [ESBUILD, VIEWER / f"src/{module}.ts", "--format=iife", "--global-name=page", "--bundle"]
    code = subprocess.run(build, check=True, capture_output=True, text=True).stdout
    code += f"\nconst values = JSON.parse(require('fs').readFileSync(0)); console.log(JSON.stringify({expression}));"
    found = subprocess.run(
        ["node", "-e", code], input=json.dumps(values), check=True, capture_output=True, text=True, timeout=300
    )
    return json.loads(found.stdout)


@pytest.mark.slow
def test_shares_round_as_the_commands_round_them() -> None:
    shares = [won / trials for trials in range(1, 161) for won in range(trials + 1)]
    shown = called("format", "values.map((one) => [0, 1, 2].map((digits) => page.percent(one, digits)))", shares)
    assert shown == [[f"{share:.{digits}%}" for digits in range(3)] for share in shares]
    numbers = [0.125, 0.375, -2.5, 2.675, 1e21, 1e-9, 12345.675]
    shown = called("format", "values.map((one) => [0, 1, 2].map((digits) => page.number(one, digits)))", numbers[:4])
    expected = [[f"{one:.{digits}f}".replace("-", "−") for digits in range(3)] for one in numbers[:4]]
    assert shown == expected


@pytest.mark.parametrize(
    ("response", "parts"),
    [
        ("a<think>b</think>c<action>d</action>", [[None, "a"], ["think", "<think>b</think>"], [None, "c"],
                                                  ["action", "<action>d</action>"]]),
        ("<THINK>b", [["think", "<THINK>b"]]),
        ("<action>d", [[None, "<action>d"]]),
        ("<action><think>b</think>", [[None, "<action>"], ["think", "<think>b</think>"]]),
        ("<tool_call>{}</tool_call>İ<action>x</ACTION>!", [["tool_call", "<tool_call>{}</tool_call>"], [None, "İ"],
                                                           ["action", "<action>x</ACTION>"], [None, "!"]]),
        ("", []),
    ],
)  # fmt: skip
def test_a_response_is_split_into_its_parts(response: str, parts: list[list[str | None]]) -> None:
    assert called("response_parts", "page.partsOf(values).map((one) => [one.kind, one.text])", response) == parts


def test_a_long_response_of_openings_alone_is_split() -> None:
    """A search from each opening to the end would take hours."""
    response = "<action>" * 500_000
    assert called("response_parts", "page.partsOf(values).length", response) == 1
