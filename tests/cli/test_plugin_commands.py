"""Commands of other distributions: listed without being imported, imported when they are called."""

import sys
from pathlib import Path

import pytest
from distribution import write_distribution

from hgpo_train.cli import command_types

GREET = """
from typing import Annotated
import typer

def greet(name: Annotated[str, typer.Argument(help="Whom to greet.")], times: int = 1) -> None:
    "Greet somebody."
    print(f"hello {name} " * times)
"""


@pytest.fixture
def greeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a distribution with commands at two places."""
    from hgpo_envs.plugins import installed

    points = {"hgpo.commands": {"greet": "greeting:greet", "data.synth.greet": "greeting:greet", "lost": "no_module:x"}}
    write_distribution(tmp_path, "hgpo-greeting", {"greeting": GREET}, points)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "greeting", raising=False)
    installed.cache_clear()
    yield
    installed.cache_clear()


@pytest.mark.usefixtures("greeting")
def test_commands_are_listed_without_import_and_run_when_called(hgpo) -> None:
    for group in ((), ("data", "synth")):
        code, out, _ = hgpo(*group, "--help")
        assert (code, "greet " in out) == (0, True)
    assert "greeting" not in sys.modules
    assert hgpo("greet", "--help")[1].count("Whom to greet.") == 1
    assert hgpo("greet", "you", "--times", 2)[:2] == (0, "hello you hello you \n")
    assert hgpo("data", "synth", "greet", "you")[:2] == (0, "hello you \n")
    assert hgpo("greet")[2] == "error: Missing argument 'name'; see hgpo greet --help\n"


@pytest.mark.usefixtures("greeting")
def test_a_broken_distribution_is_one_line(hgpo) -> None:
    code, _, error = hgpo("lost")
    assert code == 2
    assert "hgpo.commands 'lost' of the distribution hgpo-greeting cannot be loaded from no_module:x" in error


def test_a_known_command_that_is_not_installed_names_the_installation(hgpo, monkeypatch) -> None:
    monkeypatch.setitem(command_types.KNOWN, "absent", "integrations/absent")
    assert "A command of integrations/absent." in hgpo("--help")[1]
    expected = (
        "hgpo absent needs hgpo-absent: pip install hgpo-absent (in a checkout: pip install ./integrations/absent)"
    )
    assert hgpo("absent") == (2, "", f"error: {expected}\n")
