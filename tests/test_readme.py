"""Numbers in the documentation's tables are stored benchmark results, and the README's commands are those of CI."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest
from command import every_command

ROOT = Path(__file__).parent.parent
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
    assert (tmp_path / "levels.html").stat().st_size > 1_000
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
