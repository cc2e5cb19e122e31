"""docs/tutorial.md: its commands exist, and those that need no training run in the order of the page."""

import re
import shlex
from pathlib import Path

import pytest
from command import every_command, invoke

PAGE = (Path(__file__).parent.parent / "docs/tutorial.md").read_text("utf-8")
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE, re.DOTALL)


def commands(block: str) -> list[list[str]]:
    """The words of a block's `hgpo` commands."""
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("hgpo ")]


COMMANDS = [command for kind, block in BLOCKS if kind == "sh" for command in commands(block)]


def test_the_page_goes_from_rollouts_to_an_evaluation() -> None:
    names = [command[0] for command in COMMANDS]
    assert names == ["rollout", "stats", "view", "advantages", "quickstart", "eval", "eval"]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_accepts_its_arguments(words: list[str]) -> None:
    command = every_command()[words[0],]
    command.make_context(words[0], words[1:])


@pytest.mark.slow
def test_what_needs_no_training_runs(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, block in BLOCKS:
        if kind == "python":
            exec(block, {})
            continue
        for command in commands(block):
            if command[0] in ("rollout", "stats", "advantages"):
                invoke(*command)
    printed = capsys.readouterr().out
    assert "Answer with exactly one action" in printed
    assert "shape: (5, 3)" in printed
