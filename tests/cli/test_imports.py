"""What help imports, commands of other distributions among others; and that what is printed is redacted."""

import json
import sys

import pytest
from command import finished, python
from distribution import write_distribution

from hgpo_envs.plugins import install_command
from hgpo_train.cli import app

HEAVY = {
    "numpy",
    "polars",
    "pyarrow",
    "torch",
    "transformers",
    "gymnasium",
    "hgpo_envs",
    "hgpo_datasets",
    "httpx",
}

PROBE = """
import contextlib, io, json, sys
from hgpo_train.cli import main

found = []
for words in json.load(sys.stdin):
    sys.argv = ["hgpo", *words, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            main()
        except SystemExit as end:
            code = end.code
    found.append([words, code, printed.getvalue(), sorted({name.partition(".")[0] for name in sys.modules})])
print(json.dumps(found))
"""


def test_help_imports_nothing_heavy():
    commands = [(), ("rollout",), ("data", "build", "alfworld")]
    found = json.loads(python(PROBE, input=json.dumps(commands)).stdout)
    assert len(found) == len(commands)
    for words, code, printed, imported in found:
        assert code == 0, words
        assert "Usage:" in printed, words
        assert not HEAVY & set(imported), words


@pytest.mark.slow
@pytest.mark.parametrize(
    "where", ["no such command", "wrong option", "no such run", "standard output"]
)
def test_the_password_of_a_url_is_not_printed(tmp_path, where):
    url = "http://me:hunter2hunter2@host/v1"
    arguments = {
        "no such command": [url],
        "wrong option": ["verify", f"--{url}"],
        "no such run": ["verify", url],
        "standard output": [
            "train",
            "tiny-alfworld",
            "--set",
            f"model.path={url}",
            "--print-config",
        ],
    }[where]
    code, out, error = finished(*arguments)
    assert code == (0 if where == "standard output" else 2), error
    assert "***@host" in out + error
    assert "hunter2" not in out + error


GREET = """
def greet(name: str, /, *, times: int = 1) -> None:
    "Greet somebody.\\n\\nArgs:\\n    name: Whom to greet."
    print(f"hello {name} " * times)
"""


@pytest.fixture
def greeting(tmp_path, monkeypatch):
    """Install a distribution with commands at two places."""
    from hgpo_envs.plugins import installed

    names = ("greet", "data.synth.greet", "mine.greet", "verify")
    points = {
        "hgpo.commands": {
            **dict.fromkeys(names, "greeting:greet"),
            "lost": "no_module:x",
        }
    }
    write_distribution(tmp_path, "hgpo-greeting", {"greeting": GREET}, points)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "greeting", raising=False)
    installed.cache_clear()
    yield
    installed.cache_clear()


@pytest.mark.usefixtures("greeting")
def test_commands_are_listed_without_import_and_run_when_called(hgpo):
    for group in ((), ("data", "synth")):
        code, out, _ = hgpo(*group, "--help")
        assert (code, "greet " in out) == (0, True)
    assert "greeting" not in sys.modules
    assert hgpo("greet", "--help")[1].count("Whom to greet.") == 1
    assert hgpo("greet", "you", "--times", 2)[:2] == (0, "hello you hello you \n")
    assert hgpo("data", "synth", "greet", "you")[:2] == (0, "hello you \n")
    assert hgpo("mine", "greet", "you")[:2] == (0, "hello you \n")  # a group of its own
    # the project's commands are not replaced
    assert "Find changed bytes" in hgpo("verify", "--help")[1]
    assert (
        hgpo("greet")[2]
        == "error: NAME is missing: Whom to greet; see hgpo greet --help\n"
    )


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("play", "[OPTIONS] [ENV]"),
        ("train", "[OPTIONS] [CONFIG]"),
        ("verify", "[OPTIONS] RUN..."),
        ("data import", "--out PATH [OPTIONS] FILES..."),
        ("data compare", "[OPTIONS] A B"),
        ("rollout", "--out PATH [OPTIONS]"),
    ],
)
def test_usage_names_the_arguments(hgpo, command, usage):
    assert hgpo(*command.split(), "--help")[1].startswith(
        f"Usage: hgpo {command} {usage}\n"
    )


@pytest.mark.usefixtures("greeting")
def test_a_broken_distribution_is_one_line(hgpo):
    code, _, error = hgpo("lost")
    assert code == 2
    assert (
        "hgpo.commands 'lost' of the distribution hgpo-greeting cannot be loaded from no_module:x"
        in error
    )


def test_a_known_command_that_is_not_installed_names_the_installation(
    hgpo, monkeypatch
):
    monkeypatch.setitem(
        app.KNOWN, "absent", ("integrations/absent", "Do what is not here.")
    )
    assert "Do what is not here." in hgpo("--help")[1]
    repair = install_command(folder="integrations/absent")
    assert hgpo("absent") == (
        2,
        "",
        f"error: hgpo absent needs hgpo-absent: {repair}\n",
    )
