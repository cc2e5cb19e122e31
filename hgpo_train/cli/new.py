"""`hgpo new environment | estimator | policy`: a minimal file of one's own, with a test that passes."""

from __future__ import annotations

import keyword
import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

_NEXT: Final = {
    "environment": (
        "hgpo check env {name}:{upper}",
        "hgpo rollout --env {name}:{upper} --tasks 10 --out runs/{name}",
    ),
    "estimator": (
        "hgpo quickstart",
        "hgpo advantages runs/quickstart/run -e {name}:{name}",
    ),
    "policy": (
        "hgpo rollout --env HGPO/ALFWorld-v0 --policy {name}:{name} --tasks 10 --out runs/{name}",
    ),
}
"""What can be done with each kind of file once its test passes."""


def new(
    kind: Literal["environment", "estimator", "policy"],
    name: str,
    /,
    *,
    tools: bool = False,
    out: Path = Path(),
) -> None:
    """Write NAME.py, a minimal environment, estimator or policy of your own, and a test that passes.

    Args:
        kind: What to write.
        name: Name of the module and of what is in it, such as my_maze.
        tools: Write an environment whose actions are calls of tools.
        out: The folder for the two files.
    """
    from hgpo_envs.errors import InputError
    from hgpo_envs.files.atomic import write_file

    module = out / f"{name}.py"
    test = out / f"test_{name}.py"
    for path in (module, test):
        if path.exists():
            raise InputError(
                f"{path} exists already; choose another name, or another folder with --out"
            )
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise InputError(
            f"NAME: expected a Python name in lower case, such as my_maze, received {name!r}"
        )
    if tools and kind != "environment":
        raise InputError(
            f"--tools: expected an environment, received {kind}; leave --tools out"
        )
    if find_spec(name) is not None:
        raise InputError(
            f"NAME: {name!r} is an installed module, which would be imported instead; choose another name"
        )

    out.mkdir(parents=True, exist_ok=True)
    template = f"tool_{kind}" if tools else kind
    write_file(module, filled(template, name).encode())
    write_file(test, filled(f"{template}_test", name).encode())

    print(f"Written: {module}, {test}. Next:")
    commands = [] if out.resolve() == Path.cwd() else [f"cd {shlex.quote(str(out))}"]
    if find_spec("pytest") is None:  # the extra dev alone installs it
        commands.append("pip install pytest")
    commands.append(f"pytest {test.name}")
    commands += [
        command.format(name=name, upper=name.upper()) for command in _NEXT[kind]
    ]
    for command in commands:
        print(f"    {command}")


def filled(template: str, name: str) -> str:
    """Return a template of `hgpo_train/scaffold` with a name in it, in its three spellings."""
    from importlib.resources import files
    from string import Template

    text = (files("hgpo_train") / "scaffold" / f"{template}.txt").read_text(
        encoding="utf-8"
    )
    return Template(text).substitute(
        name=name, NAME=name.upper(), Name=name.title().replace("_", "")
    )
