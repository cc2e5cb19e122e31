"""Documentation: its headings and links, its tables of results and columns, and the README's commands."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from command import app, every_command

from benchmarks import readme, runner
from hgpo_datasets import schema
from tools import schema_page

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [
        *(ROOT / "docs").glob("*.md"),
        *ROOT.glob("*.md"),
        *(ROOT / "research").rglob("*.md"),
    ]
)


def headings(page):
    """The anchors of a page's headings, by GitHub's rule."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        assert not anchor or anchor in headings(linked), target


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name
)
def test_pages_start_with_their_purpose(page):
    title, purpose, *_ = page.read_text("utf-8").split("\n\n")
    assert title.startswith("# ")
    assert re.match(r"[A-Z].*\.$", purpose, re.DOTALL), purpose
    assert headings(page)


README = (ROOT / "README.md").read_text("utf-8")


def test_every_number_of_a_table_is_a_kept_result():
    for name in readme.PAGES:
        assert readme.rewrite(name) == (ROOT / name).read_text("utf-8"), (
            "run: python benchmarks/readme.py"
        )


def test_the_two_commands_need_only_python_and_pip():
    commands = [
        line for line in README.splitlines() if line.startswith("python3 -m venv")
    ]
    assert [command.split("/")[-1].split()[0] for command in commands] == [
        "hgpo",
        "pytest",
    ]
    assert "grep -m1 -E '^python3 -m venv .*pytest' README.md" in (
        ROOT / ".ci/run"
    ).read_text("utf-8")


@pytest.mark.slow
def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, play = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in first.splitlines() if line]) <= 10
    shown: dict = {}
    exec(first, shown)
    assert shown["steps"]["advantage"].is_not_nan().all()
    assert b"oracle" in (tmp_path / "levels.svg").read_bytes()
    exec(play, shown)
    query = re.search(r"search\[(.*)\]", play)[1]
    assert query in shown["info"]["task"], (
        "the example searches for what its task wants"
    )
    printed = capsys.readouterr().out
    assert "Context inconsistency: " in printed
    assert f"> search[{query}]" in printed


def test_the_named_extras_and_commands_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    (listed,) = re.findall(r"^Extras: (.*?)\.$", README, re.MULTILINE | re.DOTALL)
    installed = re.findall(r"(?:hgpo|'\.)\[(\w+)\]", README)
    named = {*re.findall(r"`(\w+)`", listed), *installed}
    assert named <= extras.keys()
    assert extras.keys() - named == {"dev", "examples"} - named
    # those of other distributions, too
    known = {words[0] for words in every_command() if words} | app.KNOWN.keys()
    assert set(re.findall(r"`hgpo (\w[\w-]*)", README)) <= known


def options(name):
    """The options of a benchmark: the parameters of its function `run`."""
    tree = ast.parse((ROOT / f"benchmarks/{name}.py").read_text("utf-8"))
    (run,) = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "run"
    ]
    return {argument.arg.rstrip("_").replace("_", "-") for argument in run.args.args}


def test_the_benchmarks_commands_have_their_options():
    pages = [*PAGES, *(ROOT / "integrations").glob("*/README.md")]
    commands = [
        command
        for page in pages
        for command in re.findall(
            r"python -m benchmarks ([a-z]\w*)(.*?)[`\n]", page.read_text("utf-8")
        )
    ]
    assert len(commands) > 30
    for name, rest in commands:
        assert {*re.findall(r"--([\w-]+)", rest)} <= options(name) | {"keep"}, (
            name,
            rest,
        )


def test_the_page_is_the_schema():
    page = (ROOT / "docs/step_table.md").read_text("utf-8")
    assert schema_page.rewrite(page) == page, (
        "run: python -m tools.schema_page docs/step_table.md"
    )
    for column in schema.columns(depth=1):
        assert f"`{column.name.replace('_hash_1', '_hash_k')}`" in page


SCRIPTS = [
    path
    for pattern in ("research/benchmarks/*.py", "integrations/*/benchmarks/*.py")
    for path in sorted(ROOT.glob(pattern))
    if "store(" in path.read_text("utf-8") and path.stem != "what_learns"
]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_of_other_distributions_ask_before_they_replace_kept_results(path):
    """Those of benchmarks/ leave this to the runner."""
    tree = ast.parse(path.read_text("utf-8"))
    calls = {
        getattr(node.func, "id", ""): node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    assert {"add_keep", "make_parser"} & calls.keys()
    (keep,) = [
        keyword.value for keyword in calls["store"].keywords if keyword.arg == "keep"
    ]
    assert isinstance(keep, ast.Attribute)  # the command line's, never a constant
    assert keep.attr == "keep"


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
    """Return a function that runs a benchmark of fixed values with options, and returns its two possible results."""
    module = ModuleType("benchmarks.conversations", "Measure nothing.")
    code = """
from __future__ import annotations
from benchmarks.runner import Part, Row
def run(size: int = 1, names: tuple[str, ...] = ("a",), fast: bool = False):
    yield Row("cost", 2.0 * size, "s", rival=("other", 5.0), note=f"{names} {fast}")
    yield Row("rate", 30.0, "rows/s", rival=("other", 10.0))
    yield Row("overhead", 6.0, "MB", floor=("nothing", 3.0))
    yield Part(figures={"x": 1}, suffix="_more")
"""
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("RESULTS", "SCRATCH", "ROOT"):
        monkeypatch.setattr(
            runner, name, tmp_path if name == "ROOT" else tmp_path / name.lower()
        )
    (tmp_path / "results").mkdir()
    (tmp_path / "results/conversations.json").write_text("kept")

    def run(*arguments: str) -> tuple[Path, Path]:
        monkeypatch.setattr(sys, "argv", ["benchmarks", "conversations", *arguments])
        runner.main()
        return (
            tmp_path / "scratch/conversations.json",
            tmp_path / "results/conversations.json",
        )

    return run


def test_a_benchmark_is_a_function_of_options_that_yields_rows(benchmark, capsys):
    scratch, kept = benchmark(
        "--size", "2", "--names", "b", "c", "--names", "d", "--fast"
    )
    found = json.loads(scratch.read_text("utf-8"))
    # times better, or times the floor
    assert [row["ratio"] for row in found["rows"]] == [5 / 4, 3.0, 2.0]
    assert found["rows"][0]["note"] == "('b', 'c', 'd') True"
    assert found["made"]["python"]
    assert json.loads(scratch.with_stem("conversations_more").read_text("utf-8"))[
        "figures"
    ] == {"x": 1}
    printed = capsys.readouterr().out
    assert "other 5 s (1.2 ×)" in printed
    assert "results/conversations.json are unchanged (--keep)" in printed
    assert kept.read_text() == "kept"


def test_a_kept_result_is_replaced_only_on_request(benchmark):
    _, kept = benchmark("--keep")
    assert json.loads(kept.read_text("utf-8"))["rows"][0]["note"] == "('a',) False"
    assert runner.load_rows("conversations")[1].shown_value() == "30 rows/s"


def test_results_that_are_not_kept_are_ignored_by_git():
    command = ["git", "check-ignore", "-q", str(runner.SCRATCH / "x.json")]
    # 128: not a checkout
    assert subprocess.run(command, cwd=ROOT, check=False).returncode in (0, 128)
