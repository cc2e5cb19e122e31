"""Fixtures of runs to look at, each written once and copied for every test; and of a browser that looks at them."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from groups import write_rich_run, write_run
from viewed import (
    hostile_rows,
    small_rows,
    write_token_run,
    write_trained,
    write_training,
)

from hgpo_datasets import StepWriter

Copied = Callable[[Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def _written(tmp_path_factory: pytest.TempPathFactory) -> Copied:
    """Return a function that returns the run that a function writes."""

    @cache
    def written(write: Callable[[Path], object]) -> Path:
        folder = tmp_path_factory.mktemp("written") / "run"
        write(folder)
        return folder

    return written


@pytest.fixture
def copied(
    _written: Copied, tmp_path: Path
) -> Callable[[str, Callable[[Path], object]], Path]:
    """Return a function that copies the run that a function writes to a folder of a name."""
    return lambda name, write: Path(shutil.copytree(_written(write), tmp_path / name))


def write_small(folder: Path) -> None:
    """Write a run of two tasks."""
    with StepWriter(folder, config={"policy": "written by hand"}) as writer:
        writer.add_group(small_rows("alpha"))
        writer.commit()
        writer.add_group(small_rows("omega"))


def write_hostile(folder: Path) -> None:
    """Write a run whose texts try to run code."""
    write_run(folder, hostile_rows())


def write_six(folder: Path) -> None:
    """Write a run of six tasks; in some of them, x wins as well."""
    with StepWriter(folder) as writer:
        for number in range(6):
            rows = small_rows(f"task {number}")
            for row in rows:
                if number % 2 and row["trajectory"].endswith("x") and row["terminated"]:
                    row |= {"reward": 1.0, "won": True}
            writer.add_group(rows)


def write_branched(folder: Path) -> None:
    """Write one task: a lost, b won, c and d leave a at step 1, and e leaves c at step 2; d and e won."""
    same = {
        "task_id": "t",
        "group": 0,
        "action": "go",
        "reward": 0.0,
        "action_valid": True,
        "won": False,
    }
    won = {"terminated": True, "won": True, "reward": 1.0}
    rows = [
        same | {"trajectory": "a", "step": step, "state": f"s{step}"}
        for step in range(3)
    ]
    rows.append(same | won | {"trajectory": "b", "step": 0, "state": "s0"})
    at_one = {"step": 1, "state": "s1", "parent": "a", "branch_step": 1}
    rows.append(same | at_one | {"trajectory": "c", "action": "stay"})
    rows.append(same | at_one | {"trajectory": "c", "action": "stay", "step": 2})
    rows.append(same | won | at_one | {"trajectory": "d", "action": "run"})
    rows.append(
        same
        | won
        | {"trajectory": "e", "step": 2, "state": "s1", "parent": "c", "branch_step": 2}
    )
    write_run(folder, rows, config={"branches": {"at": "uniform"}})


@pytest.fixture
def branched_run(copied) -> Path:
    return copied("branched", write_branched)


@pytest.fixture
def small_run(copied) -> Path:
    return copied("small", write_small)


@pytest.fixture
def rich_run(copied) -> Path:
    """A run of six tasks in three shards, with a value in every column."""
    return copied("rich", write_rich_run)


@pytest.fixture
def hostile_run(copied) -> Path:
    return copied("hostile", write_hostile)


@pytest.fixture
def six_tasks(copied) -> Path:
    return copied("six", write_six)


@pytest.fixture
def training_run(copied) -> Path:
    return copied("training", write_training)


@pytest.fixture
def trained_run(copied) -> Path:
    """A training run with the advantages that it was trained on."""
    return copied("trained", write_trained)


@pytest.fixture
def token_run(tmp_path: Path) -> Path:
    """Write a run that names a model whose tokenizer is on this machine."""
    pytest.importorskip("tokenizers")
    return write_token_run(tmp_path)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = next(
        filter(
            None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
        ),
        None,
    )
    if chromium is None:
        pytest.skip("needs Chromium")
    quiet = [
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-sync",
    ]
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", *quiet]
        )
        yield found
        found.close()


@pytest.fixture
def page(browser) -> Iterator[Any]:
    """A page without network that fails the test for an error in its console, or a request to another place."""
    context = browser.new_context(
        viewport={"width": 1300, "height": 900}, color_scheme="light"
    )
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(f"{error} {error.stack}"))
    page.on(
        "console",
        lambda line: (
            problems.append(line.text) if line.type in ("error", "warning") else None
        ),
    )
    here = ("http://127.0.0.1:", "file://", "data:")
    page.on(
        "request",
        lambda asked: (
            None if asked.url.startswith(here) else problems.append(asked.url)
        ),
    )
    page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
    # waits end when what they wait for is there: these are for a loaded machine
    page.set_default_timeout(90_000)
    pytest.importorskip("playwright.sync_api").expect.set_options(timeout=30_000)
    yield page
    context.close()
    assert problems == []


@pytest.fixture
def viewer() -> Iterator[Callable[..., str]]:
    """Return a function that serves runs as the command does, and returns the address."""
    running = []

    def serve(*runs: Path) -> str:
        words = [
            "-c",
            "from hgpo_train.cli import main; main()",
            "view",
            *map(str, runs),
            "--no-browser",
        ]
        process = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, text=True
        )
        running.append(process)
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        return found[0]

    yield serve
    for process in running:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
