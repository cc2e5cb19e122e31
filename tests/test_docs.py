"""Documentation: its headings and links, its tables of results and columns, and the README's commands."""

import ast
import json
import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest
from command import every_command

from hgpo_datasets import schema
from tools import schema_page

ROOT = Path(__file__).parent.parent
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "research").rglob("*.md")])


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, by GitHub's rule."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        assert not anchor or anchor in headings(linked), target


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_pages_start_with_their_purpose(page: Path) -> None:
    title, purpose, *_ = page.read_text("utf-8").split("\n\n")
    assert title.startswith("# ")
    assert re.match(r"[A-Z].*\.$", purpose, re.DOTALL), purpose
    assert headings(page)


README = (ROOT / "README.md").read_text("utf-8")


def test_every_number_of_a_table_is_a_kept_result() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks/readme.py"))
    for name in script["PAGES"]:
        assert script["rewrite"](name) == (ROOT / name).read_text("utf-8"), "run: python benchmarks/readme.py"


def test_the_two_commands_need_only_python_and_pip() -> None:
    commands = [line for line in README.splitlines() if line.startswith("python3 -m venv")]
    assert [command.split("/")[-1].split()[0] for command in commands] == ["hgpo", "pytest"]
    assert "grep -m1 -E '^python3 -m venv .*pytest' README.md" in (ROOT / ".ci/run").read_text("utf-8")


@pytest.mark.slow
def test_the_examples_run(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    first, play = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in first.splitlines() if line]) <= 10
    shown: dict = {}
    exec(first, shown)
    assert shown["steps"]["advantage"].is_not_nan().all()
    assert b"oracle" in (tmp_path / "levels.svg").read_bytes()
    exec(play, shown)
    query = re.search(r"search\[(.*)\]", play)[1]
    assert query in shown["info"]["task"], "the example searches for what its task wants"
    printed = capsys.readouterr().out
    assert "Context inconsistency: " in printed
    assert f"> search[{query}]" in printed


def test_the_named_extras_and_commands_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    (listed,) = re.findall(r"^Extras: (.*?)\.$", README, re.MULTILINE | re.DOTALL)
    installed = re.findall(r"(?:hgpo|'\.)\[(\w+)\]", README)
    named = {*re.findall(r"`(\w+)`", listed), *installed}
    assert named <= extras.keys()
    assert extras.keys() - named == {"dev", "examples"} - named
    known = {words[0] for words in every_command() if words}
    assert set(re.findall(r"`hgpo (\w[\w-]*)", README)) <= known


def test_the_benchmarks_commands_have_their_options() -> None:
    page = (ROOT / "docs/measurements.md").read_text("utf-8")
    commands = re.findall(r"`python (benchmarks/\w+\.py)(.*?)`", page)
    assert len(commands) > 10
    for script, rest in commands:
        source = (ROOT / script).read_text("utf-8")
        for option in set(re.findall(r"--[\w-]+", rest)) - {"--keep"}:
            assert f'"{option}"' in source, (script, option)
        assert "--keep" in rest or not re.search("add_keep|make_parser", source)


def test_the_page_is_the_schema() -> None:
    page = (ROOT / "docs/step_table.md").read_text("utf-8")
    assert schema_page.rewrite(page) == page, "run: python -m tools.schema_page docs/step_table.md"
    for column in schema.columns(depth=1):
        assert f"`{column.name.replace('_hash_1', '_hash_k')}`" in page


SCRIPTS = sorted(
    path
    for path in (*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "research/benchmarks").glob("*.py"))
    if path.stem not in {"__init__", "record", "readme", "tables", "learning_figures", "what_learns"}
)


def calls(path: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_benchmark_asks_before_it_replaces_kept_results(path: Path) -> None:
    assert {"add_keep", "make_parser"} & {name_of(call) for call in calls(path)}
    stored = [call for call in calls(path) if name_of(call) in {"store", "report"} and call.keywords]
    assert stored
    for call in stored:
        (keep,) = [keyword.value for keyword in call.keywords if keyword.arg == "keep"]
        assert isinstance(keep, ast.Attribute)  # the command line's, never a constant
        assert keep.attr == "keep"


def test_results_are_stored_where_git_ignores_them_unless_kept(tmp_path, monkeypatch) -> None:
    record = runpy.run_path(str(ROOT / "benchmarks/record.py"))
    store = record["store"]
    for name in ("RESULTS", "SCRATCH", "ROOT"):
        monkeypatch.setitem(store.__globals__, name, tmp_path / name.lower() if name != "ROOT" else tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/speed.json").write_text("kept")
    line = store("speed", {"µs": 3}, keep=False)
    assert "scratch/speed.json" in line
    assert "results/speed.json are unchanged (--keep)" in line
    assert (tmp_path / "results/speed.json").read_text() == "kept"
    assert json.loads((tmp_path / "scratch/speed.json").read_text())["figures"] == {"µs": 3}
    assert "results/speed.json" in store("speed", {"µs": 4}, keep=True)
    assert json.loads((tmp_path / "results/speed.json").read_text())["figures"] == {"µs": 4}
    assert record["make_parser"]("").parse_args([]).keep is False
    assert record["make_parser"]("").parse_args(["--keep"]).keep is True
    ignored = subprocess.run(
        ["git", "check-ignore", "-q", str(record["SCRATCH"] / "x.json")], cwd=ROOT, check=False
    ).returncode
    assert ignored in (0, 128)  # 128: not a checkout
