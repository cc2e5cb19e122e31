"""AppWorld's interpreter: a virtual environment of its own, since its pins exclude this package's.

AppWorld's plain part has the licence Apache-2.0. Its apps, API documentation and tasks come encrypted; they, and what
is derived from them, may be redistributed in public only encrypted.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hgpo_appworld.data.commands import run
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import new_folder
from hgpo_envs.files.untrusted_files import writing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VERSION: Final = "0.1.3.post1"
"""The version of `appworld` that this package was tried with."""

VARIABLE: Final = "HGPO_APPWORLD_PYTHON"
"""The environment variable that names AppWorld's interpreter."""

LICENCE: Final = (
    "AppWorld (https://appworld.dev) is licensed under Apache-2.0. You also accept its condition on the parts that it "
    "encrypts (apps, API documentation, tasks): they, and anything derived from them, may be redistributed in public "
    "only encrypted."
)
_PYTHONS: Final = ((3, 11), (3, 13))
_ASK_VERSION: Final = "import sys; print(*sys.version_info[:2])"
_ASK_APPS: Final = (
    "import appworld, appworld.apps.spotify.models; print(appworld.__version__)"
)


def default_folder() -> Path:
    """Return where `install` makes the environment: ``hgpo/appworld`` in the user's data folder."""
    data = os.environ.get("XDG_DATA_HOME", "")
    return (
        (Path(data) if data else Path.home() / ".local" / "share") / "hgpo" / "appworld"
    )


def default_python() -> Path:
    """Return AppWorld's interpreter: the one in ``HGPO_APPWORLD_PYTHON``, or else the one that `install` made.

    Raises:
        InputError: If there is none.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    python = python_in(default_folder())
    if not python.exists():
        raise InputError(
            f"AppWorld is not installed: {default_folder()} has no interpreter; run hgpo data install appworld, or "
            f"name the interpreter that has appworld in {VARIABLE}"
        )
    return python


def python_in(environment: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install(into: Path | None, python: str, tell: Callable[[str], None]) -> Path:
    """Make a virtual environment, install AppWorld, and decrypt its apps there.

    An interrupted or failed call leaves nothing; the next one is quick, as pip keeps what it has downloaded.

    Args:
        into: The folder to create. None uses `default_folder`.
        python: The interpreter to make it with: Python 3.11 to 3.13.
        tell: Called with each thing that is done.

    Returns:
        The new interpreter.

    Raises:
        InputError: If the folder exists, the interpreter is unsuitable, or a part of the installation fails.
    """
    into = (into or default_folder()).absolute()
    with writing(into), new_folder(into) as made:
        found = run(
            [python, "-c", _ASK_VERSION], f"{python} -c '{_ASK_VERSION}'"
        ).split()
        version = tuple(map(int, found))
        if not _PYTHONS[0] <= version <= _PYTHONS[1]:
            raise InputError(
                f"expected Python {_dotted(_PYTHONS[0])} to {_dotted(_PYTHONS[1])}, which AppWorld's packages support; "
                f"{python} is {_dotted(version)}; name another with --python"
            )
        tell(LICENCE)
        tell(f"making a virtual environment in {into}")
        run([python, "-m", "venv", str(made)], f"{python} -m venv")
        inside = str(python_in(made))
        tell(f"installing appworld {VERSION} with pip (about 85 packages, 230 MB)")
        pip = [
            inside,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            f"appworld=={VERSION}",
        ]
        run(pip, f"pip install appworld=={VERSION}")
        tell("decrypting its apps (appworld install)")
        decrypt(inside, made)
        _relocate(made, into)
    return python_in(into)


def decrypt(python: str, environment: Path) -> None:
    """Run `appworld install` and check that the apps can be imported.

    Raises:
        InputError: If that fails.
    """
    variables = {**os.environ, **own_folders(environment / "appworld")}
    run(
        [python, "-m", "appworld.cli", "install"],
        "appworld install",
        environment=variables,
        folder=environment,
    )
    run(
        [python, "-c", _ASK_APPS],
        "appworld's installation",
        environment=variables,
        folder=environment,
    )


def own_folders(folder: Path) -> Mapping[str, str]:
    """Return the environment variables that keep AppWorld's files in a folder, and out of the user's home."""
    return {
        "APPWORLD_ROOT": str(folder),
        "APPWORLD_CACHE": str(folder / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _relocate(made: Path, into: Path) -> None:
    """Write the final path of an environment into its scripts, which name their interpreter by its path."""
    for script in python_in(made).parent.iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        if str(made).encode() in content and b"\0" not in content:
            script.write_bytes(content.replace(str(made).encode(), str(into).encode()))
