"""Which modules help imports, so that it is instant; and that what is printed is redacted although help is not."""

import json
import subprocess
import sys

import pytest
from command import every_command, hgpo

from hgpo_train.cli.command_types import RedactedCommand

HEAVY = {"numpy", "polars", "pyarrow", "torch", "transformers", "gymnasium", "hgpo_envs", "hgpo_datasets", "httpx"}

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


EVERY = every_command()


def test_help_imports_nothing_heavy() -> None:
    commands = [(), ("rollout",), ("data", "build", "alfworld")]
    done = subprocess.run(
        [sys.executable, "-c", PROBE], input=json.dumps(commands), capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert len(found) == len(commands)
    for words, code, printed, imported in found:
        assert code == 0, words
        assert "Usage:" in printed, words
        assert not HEAVY & set(imported), words


def test_every_command_is_redacted() -> None:
    leaves = [command for command in EVERY.values() if not hasattr(command, "commands")]
    assert len(leaves) > 10
    assert all(isinstance(command, RedactedCommand) for command in leaves)


@pytest.mark.parametrize("where", ["no such command", "wrong option", "no such run", "standard output"])
def test_the_password_of_a_url_is_not_printed(tmp_path, where: str) -> None:
    url = "http://me:hunter2hunter2@host/v1"
    arguments = {
        "no such command": [url],
        "wrong option": ["verify", f"--{url}"],
        "no such run": ["verify", url],
        "standard output": ["train", "tiny-alfworld", "--set", f"model.path={url}", "--print-config"],
    }[where]
    process = hgpo(*arguments)
    out, error = process.communicate(timeout=120)
    assert process.returncode == (0 if where == "standard output" else 2), error
    assert "***@host" in out + error
    assert "hunter2" not in out + error
