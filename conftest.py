"""Hypothesis profiles, and fixtures for originals and their recordings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, so that a change fails for what it changed. Nightly, the larger profiles and the
# inputs of HGPO_TESTS=all are new ones every time.
for name, examples, is_random in (
    ("quick", 10, False),
    ("default", 100, "HGPO_TESTS" in os.environ),
    ("thorough", 1_000, True),
    ("exhaustive", 10_000, True),
):
    settings.register_profile(
        name,
        max_examples=examples,
        derandomize=not is_random,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

SHARED = Path(os.environ.get("HGPO_SHARED", Path(__file__).parent.parent / "shared"))


collect_ignore_glob = ["research/benchmarks/*", "integrations/*/benchmarks/*"]
"""Pytest would import them as `benchmarks`, in the place of the folder of that name here."""


class Command:
    """Runs command lines in this process."""

    def __init__(self, monkeypatch, capsys):
        self.monkeypatch = monkeypatch
        self.capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        """Run a command: its exit code, output and errors."""
        from hgpo_train.cli import main

        self.monkeypatch.setattr(sys, "argv", ["hgpo", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        shown = self.capsys.readouterr()
        return end.value.code or 0, shown.out, shown.err

    def output(self, *arguments: object) -> str:
        """Run a command that succeeds, and return its output."""
        code, out, errors = self(*arguments)
        assert code == 0, errors
        return out


@pytest.fixture
def hgpo(monkeypatch, capsys):
    """A function that runs a command line in this process."""
    return Command(monkeypatch, capsys)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of recordings (golden/) and official data (data/), or skip the test if there is none."""
    if not SHARED.is_dir():
        pytest.skip(
            "needs the folder of recordings of the originals beside the checkout, or in HGPO_SHARED"
        )
    return SHARED


@pytest.fixture(scope="session")
def original_python() -> str:
    """Return a Python with the original alfworld and textworld: this one, or the one in HGPO_ORIGINAL_PYTHON."""
    python = os.environ.get("HGPO_ORIGINAL_PYTHON", sys.executable)
    if subprocess.run(
        [python, "-c", "import alfworld, textworld"], capture_output=True
    ).returncode:
        pytest.skip(
            "needs the extra `alfworld`, or HGPO_ORIGINAL_PYTHON set to a Python that has it"
        )
    return python
