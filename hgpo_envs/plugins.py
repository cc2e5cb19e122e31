"""Objects of other packages, found by entry point or as ``module:object``.

Entry points are listed without importing a package. A package is imported when one of its names is used, so a broken
package never breaks the others: its error is one line with the name of its distribution.
"""

from __future__ import annotations

import json
import shlex
import sys
import warnings
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.metadata import distribution as installed_distribution
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from hgpo_envs.errors import InputError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from importlib.metadata import EntryPoint

A = TypeVar("A")
T = TypeVar("T")


@cache
def installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name. Of two with the same name the first is used, with a warning."""
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        first = points.setdefault(point.name, point)
        if first.value != point.value:
            warnings.warn(
                f"{group} {point.name!r} is declared by {distribution(first)} and by {distribution(point)}; "
                f"{distribution(first)} is used",
                stacklevel=2,
            )
    return points


def load(point: EntryPoint) -> object:
    """Import the object of an entry point.

    Raises:
        InputError: If it cannot be imported.
    """
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{point.group} {point.name!r} of the distribution {distribution(point)} cannot be loaded from "
            f"{point.value}: {type(error).__name__}: {one_line(error, 200)}; repair or uninstall it"
        ) from error


def distribution(point: EntryPoint) -> str:
    """Return the name of the distribution that declares an entry point."""
    return point.dist.name if point.dist is not None else "(unknown)"


def install_command(extra: str = "", folder: str = "") -> str:
    """Return the command that installs an extra, or another distribution of the repository that hgpo came from.

    pip records that place (PEP 610): a checkout, a repository, or, if there is no record, a package index.

    Args:
        extra: An extra of hgpo, such as ``"train"``.
        folder: The folder of a distribution in the repository, such as ``"integrations/textworld"``.
    """
    name = f"hgpo-{folder.rpartition('/')[2]}" if folder else "hgpo"
    wanted = f"[{extra}]" if extra else ""
    try:
        record = installed_distribution("hgpo").read_text("direct_url.json")
    except PackageNotFoundError:  # imported from a checkout that is not installed
        record = None
    origin = json.loads(record or '{"url": ""}')
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        place = Path(url2pathname(urlsplit(origin["url"]).path)) / folder
        return f"pip install {editable}{shlex.quote(f'{place}{wanted}')}"
    if not origin["url"]:
        return f"pip install {shlex.quote(f'{name}{wanted}')}"
    tool = f"{origin['vcs_info']['vcs']}+" if "vcs_info" in origin else ""
    part = f"#subdirectory={folder}" if folder else ""
    requirement = f"{name}{wanted} @ {tool}{origin['url']}{part}"
    return f"pip install {shlex.quote(requirement)}"


def installed_version(name: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def import_object(text: str, expected: str) -> object:
    """Import an object given as ``module:object``. Modules are also found in the working directory.

    The working directory remains on the path, so that worker processes find the module too.

    Args:
        text: ``module:object``.
        expected: What the object should be, for the error line.

    Raises:
        InputError: If there is no such module or object, or the module cannot be imported.
    """
    find_in_working_directory()
    module, _, name = text.partition(":")
    try:
        return getattr(import_module(module), name)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {one_line(error, 200)}"
        if module.endswith(".py"):
            own = f"{Path(module).stem}:{name}"
            reason = f"modules are named without .py, such as {own} in the folder of its file"
        raise InputError(
            f"expected {expected} as module:object, received {text!r}: {reason}"
        ) from error


def check_code_in_file(
    named: Mapping[str, object], file: object, allow: Collection[str]
) -> None:
    """Check the code that a file of a run names, before any of it is imported or started: the run can be a stranger's.

    Args:
        named: Modules and interpreters by what they are named for; null and empty texts are none. Names of entry
            points, which the user has installed, are not among them.
        file: The file, for the error line.
        allow: The names that the user gave.

    Raises:
        InputError: A name is not among those of the user.
    """
    for purpose, name in named.items():
        if name and str(name) not in allow:
            raise InputError(
                f"{file} names {purpose} {one_line(repr(name))}, which would run as code; if you trust it, add "
                f"--allow {one_line(name)}"
            )


def answer_of(
    name: str, function: Callable[[A], object], argument: A, kind: type[T]
) -> T:
    """Return a user's function of a value. Raises InputError if it fails, or returns anything but a `kind`."""
    cause: Exception | None = None
    try:
        value = function(argument)
    except Exception as error:  # noqa: BLE001 - of a function of the user
        reason = f"raised {type(error).__name__}: {one_line(error)}"
        cause = error
    else:
        if isinstance(value, kind):
            return value
        reason = f"returned {one_line(repr(value))}"
    expected = "text" if kind is str else f"a {kind.__name__}"
    raise InputError(
        f"{name}: expected a function that returns {expected}, which {reason}"
    ) from cause


def name_of(function: Callable[..., object]) -> str:
    """Return a function as ``module:name``, and an object that can be called by its class."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def find_in_working_directory() -> None:
    """Add the working directory to the end of Python's path."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
