"""Run Python code in a separate process with a limit on the memory used after its imports."""

import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = """
import re, resource, sys
from pathlib import Path
from hgpo_envs.errors import InputError
{imports}
size = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (size + ({megabytes} << 20),) * 2)
try:
    {call}
except InputError as error:
    print("refused:", error)
else:
    print("accepted")
"""


def outcome(imports: str, call: str, *arguments: object, megabytes: int = 256, seconds: float = 60) -> str:
    """Return the call's outcome: ``accepted``, or ``refused:`` and the line. More memory or time fails the test."""
    if not Path("/proc/self/status").is_file():
        pytest.skip("needs /proc")
    code = PRELUDE.format(imports=imports, call=call, megabytes=megabytes)
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("\n") == 1
    return done.stdout.strip()
