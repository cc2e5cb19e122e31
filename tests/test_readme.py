"""The numbers of written tables are those that benchmarks kept, and the README's commands those that CI runs."""

import runpy
from pathlib import Path

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


def test_links_lead_somewhere() -> None:
    import re

    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
