"""Commands in AppWorld's interpreter: run, and their failure as one line."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from typing import TYPE_CHECKING, Final

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.secrets import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_KNOWN: Final = {
    r"command '\S+' failed[^.\n]*|No such file or directory: '(?:gcc|cc|c\+\+|clang)'": (
        "a package has no wheel for this Python and needs a compiler; name Python 3.11 to 3.13 with --python"
    ),
    r"Failed building wheel for \S+": "name Python 3.11 to 3.13 with --python",
    r"No space left on device": "free some space; the environment needs about 300 MB",
    r"Failed to resolve '[^']+'": "check the network",
    r"Connection refused|Network is unreachable|timed out": "check the network",
    r"Could not find a version that satisfies the requirement \S+": "check the network and pip's index (PIP_INDEX_URL)",
    r"ensurepip is not\s+available": "install the system's package python3-venv, or name another Python with --python",
}
"""Errors of pip and AppWorld, as regular expressions, and how to fix each. The first match is reported."""


def run(
    command: Sequence[str],
    what: str,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    told: Callable[[list[object]], None] | None = None,
) -> str:
    """Run a command to its end.

    Args:
        command: The program and its arguments.
        what: What it does, for the error: "pip install appworld".
        environment: Its environment variables; None hands on this process's.
        folder: Its working folder.
        told: Called with each line of its output that is a JSON list.

    Returns:
        What it printed.

    Raises:
        InputError: If it cannot be run or fails. The line has the reason that it gave.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's interpreter
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=environment,
                cwd=folder,
            )
        except OSError as error:
            raise InputError(
                f"cannot run {command[0]}: {error.strerror}; name an interpreter with --python"
            ) from None
        assert process.stdout is not None
        lines = []
        with process:
            try:
                for line in process.stdout:
                    if told and line.startswith("["):
                        told(json.loads(line))
                    lines.append(line)
            except BaseException:
                process.kill()
                raise
        output = "".join(lines)
        if process.returncode:
            complaints.seek(0)
            raise InputError(f"{what} failed: {reason(f'{output}{complaints.read()}')}")
    return output


def reason(output: str) -> str:
    r"""Return why a command failed, in one line, from what it printed: a known reason with a remedy, or its last line.

    >>> reason("ERROR: Could not find a version that satisfies the requirement x (from: none)\nERROR: No x\n")
    "Could not find a version that satisfies the requirement x; check the network and pip's index (PIP_INDEX_URL)"
    >>> reason("Traceback (most recent call last):\n  File ...\nValueError: no such task\n")
    'ValueError: no such task'
    """
    for sign, remedy in _KNOWN.items():
        if found := re.search(sign, output):
            return f"{redact(one_line(found[0], 200))}; {remedy}"
    lines = [line for line in output.splitlines() if line.strip()]
    return redact(one_line(lines[-1] if lines else "it gave no reason", 300))
