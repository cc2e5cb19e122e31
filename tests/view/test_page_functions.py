"""Functions of the page that Python has too, and one that reads responses, run by Node."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

VIEWER = Path(__file__).parents[2] / "viewer"
ESBUILD = VIEWER / "node_modules/.bin/esbuild"

pytestmark = pytest.mark.skipif(
    not (shutil.which("node") and ESBUILD.exists()),
    reason="needs Node, and `npm ci` in viewer/",
)


def called(module, expression, values):
    """Return what an expression of a module's functions gives for `values`."""
    build = [
        ESBUILD,
        VIEWER / f"src/{module}.ts",
        "--format=iife",
        "--global-name=page",
        "--bundle",
    ]
    code = subprocess.run(build, check=True, capture_output=True, text=True).stdout
    code += f"\nconst values = JSON.parse(require('fs').readFileSync(0)); console.log(JSON.stringify({expression}));"
    found = subprocess.run(
        ["node", "-e", code],
        input=json.dumps(values),
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return json.loads(found.stdout)


@pytest.mark.slow
def test_shares_round_as_the_commands_round_them():
    shares = [won / trials for trials in range(1, 161) for won in range(trials + 1)]
    shown = called(
        "format",
        "values.map((one) => [0, 1, 2].map((digits) => page.percent(one, digits)))",
        shares,
    )
    assert shown == [[f"{share:.{digits}%}" for digits in range(3)] for share in shares]
    numbers = [0.125, 0.375, -2.5, 2.675, 1e21, 1e-9, 12345.675]
    shown = called(
        "format",
        "values.map((one) => [0, 1, 2].map((digits) => page.number(one, digits)))",
        numbers[:4],
    )
    expected = [
        [f"{one:.{digits}f}".replace("-", "−") for digits in range(3)]
        for one in numbers[:4]
    ]
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
def test_a_response_is_split_into_its_parts(response, parts):
    assert (
        called(
            "response_parts",
            "page.partsOf(values).map((one) => [one.kind, one.text])",
            response,
        )
        == parts
    )


def test_a_long_response_of_openings_alone_is_split():
    """A search from each opening to the end would take hours."""
    response = "<action>" * 500_000
    assert called("response_parts", "page.partsOf(values).length", response) == 1


ROWS = [
    {
        "task": "find a Mug",
        "task_id": "t1",
        "outcome": "won",
        "length": 3,
        "tokens": None,
        "truncated": False,
    },
    {
        "task": "find a pen",
        "task_id": "t2",
        "outcome": "lost",
        "length": 9,
        "tokens": 50,
        "truncated": True,
    },
]
KINDS = {
    "task": "text",
    "outcome": "text",
    "length": "number",
    "tokens": "number",
    "truncated": "flag",
}


def filtered(texts):
    expression = """values.texts.map((text) => {
      try {
        const test = page.compile(text, values.kinds);
        return values.rows.flatMap((row, at) => test(row) ? [at] : []);
      } catch (error) { return error.message; }
    })"""
    found: list[object] = called(
        "filter", expression, {"texts": texts, "rows": ROWS, "kinds": KINDS}
    )
    return found


def test_filters_choose_rollouts():
    filters = {
        "": [0, 1],
        "'MUG'": [0],
        '"t2"': [1],
        "outcome = 'won'": [0],
        "outcome <> 'won'": [1],
        "length >= 3 and length < 9": [0],
        "length = 3 or length = 9": [0, 1],
        "length > 3 or length > 2 and truncated": [1],  # `and` binds closer
        "not (length > 3) and not truncated": [0],
        "NOT NOT task CONTAINS 'find a p'": [1],
        "tokens = null": [0],
        "tokens != null": [1],
        "tokens < 1e2": [1],
        "length > -.5": [0, 1],
    }
    assert filtered(list(filters)) == list(filters.values())


def test_filters_that_cannot_be_read_are_one_line():
    column = (
        "expected a column (see “Columns and operators”) or a text in quotes, received"
    )
    refused = {
        "color = 'red'": f"{column} color",
        "length": "expected = != <> < <= > >= after length, received the end",
        "length = 'three'": "expected a number for length, received three",
        "task > 3": "expected a text in quotes for task, received 3",
        "(length > 3": "expected ), received the end",
        "length > 3 length": "expected and, or, or the end, received length",
        "task contains": "expected a text in quotes, received the end",
        "constructor = 1": f"{column} constructor",
        "length > 3; drop": "expected a column, a value or an operator, received ; drop",
        "(" * 2001: "expected at most 2000 characters, received 2001",
        "": [0, 1],
    }
    found = filtered(list(refused))
    assert found == [
        line if line == [0, 1] else f"filter: {line}" for line in refused.values()
    ]
