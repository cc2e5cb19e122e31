"""Hypothesis profiles, the limit of a test's CPU time, and fixtures for originals and their recordings."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

for name, examples in (("quick", 10), ("default", 100), ("thorough", 1_000), ("exhaustive", 10_000)):
    settings.register_profile(name, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
settings.load_profile(PROFILE)

CPU_LIMIT = 4.0
"""CPU seconds of a test without the mark `slow`. One is the rule; four fail, because machines and load differ."""

SHARED = Path(os.environ.get("HGPO_SHARED", Path(__file__).parent.parent / "shared"))
HEAVY = {"torch", "transformers", "marimo", "altair", "datasets", "minari", "pandas"}


@pytest.fixture(scope="session", autouse=True)
def _imported_libraries() -> None:
    """Import what nearly every test needs, so that no test's CPU time contains it."""
    for package in ("gymnasium", "polars", "hgpo_envs", "hgpo_train.advantages"):
        import_module(package)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that takes more than `CPU_LIMIT` CPU seconds, with its processes, and is not marked `slow`.

    The first test of a process that imports a heavy library is not measured.
    """
    absent = HEAVY - sys.modules.keys()
    before = sum(os.times()[:4])
    result = yield
    seconds = sum(os.times()[:4]) - before
    covered = item.config.pluginmanager.hasplugin("_cov")
    limited = PROFILE in {"quick", "default"} and not covered and not absent & sys.modules.keys()
    if limited and seconds > CPU_LIMIT and item.get_closest_marker("slow") is None:
        pytest.fail(
            f"took {seconds:.1f} CPU seconds, limit {CPU_LIMIT}: make it shorter or mark it slow", pytrace=False
        )
    return result


@pytest.fixture
def hgpo(monkeypatch, capsys):
    """Return a function that runs a command line in this process: exit code, output and errors."""
    from hgpo_train.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hgpo", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        shown = capsys.readouterr()
        return end.value.code or 0, shown.out, shown.err

    return run


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of recordings (golden/) and official data (data/), or skip the test if there is none."""
    if not SHARED.is_dir():
        pytest.skip("needs the folder of recordings of the originals beside the checkout, or in HGPO_SHARED")
    return SHARED


@pytest.fixture(scope="session")
def original_python() -> str:
    """Return a Python with the original alfworld and textworld: this one, or the one in HGPO_ORIGINAL_PYTHON."""
    python = os.environ.get("HGPO_ORIGINAL_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import alfworld, textworld"], capture_output=True).returncode:
        pytest.skip("needs the extra `alfworld`, or HGPO_ORIGINAL_PYTHON set to a Python that has it")
    return python
