"""The notebooks run, from beginning to end, as a script and as a page, with their own data and with other runs."""

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from groups import write_run

from hgpo_train import collect

pytest.importorskip("marimo")
pytest.importorskip("altair")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


def ran(tmp_path, *command):
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT}/datasets",
        "TMPDIR": str(tmp_path),
    }
    return subprocess.run(
        [sys.executable, *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_as_a_script(tmp_path, notebook):
    done = ran(tmp_path, str(notebook))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_in_order(tmp_path, notebook):
    done = ran(tmp_path, "-m", "marimo", "check", "--strict", str(notebook))
    assert done.returncode == 0, done.stdout + done.stderr


def definitions(notebook):
    """What the cells of a notebook define."""
    spec = importlib.util.spec_from_file_location(
        notebook, ROOT / "notebooks" / f"{notebook}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.app.run()[1]


def percent(number):
    return f"{number:.0%}"


def test_no_sentence_contradicts_its_plot(monkeypatch):
    """Each sentence above a plot, recomputed from the notebook's data by counting."""
    monkeypatch.setattr(sys, "argv", ["notebook"])
    found = definitions("context_inconsistency")
    shares = {}
    differing = {}
    largest = {}
    early = {}
    late = {}
    for name in ("ALFWorld", "WebShop"):
        table = pl.read_parquet(ROOT / "notebooks/data" / f"{name.lower()}.parquet")
        steps = table.sort("iteration", "trajectory", "step").select(
            "iteration", "task_id", "trajectory", "step", "state"
        )
        past: dict[str, tuple[str, ...]] = {}
        rows = []
        for iteration, task, trajectory, step, state in steps.iter_rows():
            past[trajectory] = (*(past[trajectory] if step else ()), state)
            rows.append((iteration, task, past[trajectory][-5:]))
        deep = Counter(
            (iteration, task, history)
            for iteration, task, history in rows
            if len(history) == 5
        )
        shares[name] = sum(number for number in deep.values() if number > 1) / len(rows)
        states = Counter(
            (iteration, task, history[-1]) for iteration, task, history in rows
        )
        histories = Counter(rows)
        pairs = sum(number * (number - 1) for number in states.values())
        differing[name] = (
            1 - sum(number * (number - 1) for number in histories.values()) / pairs
        )
        of_state: Counter[str] = Counter()
        for (_, _, state), number in states.items():
            of_state[state] += number * (number - 1)
        largest[name] = max(of_state.values()) / pairs
        one_before = Counter(
            (iteration, task, history[-2:])
            for iteration, task, history in rows
            if len(history) > 1
        )
        last = max(iteration for iteration, _, _ in rows)
        for of_third, (low, high) in (
            (early, (0, last / 3)),
            (late, (last * 2 / 3, last)),
        ):
            kept = [row for row in rows if low <= row[0] <= high]
            shared = [
                one_before[iteration, task, history[-2:]] > 1
                for iteration, task, history in kept
                if len(history) > 1
            ]
            of_third[name] = sum(shared) / len(kept)
    both = "{} of ALFWorld's and {} of WebShop's"
    assert (
        found["shared_contexts"]
        == f"With 4 past states, {both.format(*map(percent, shares.values()))} steps keep a group."
    )
    assert (
        found["inconsistent"]
        == f"At one state, {both.format(*map(percent, differing.values()))} pairs differ in history."
    )
    most = max(largest, key=largest.__getitem__)
    assert (
        found["carried"]
        == f"One state carries {percent(largest[most])} of {most}'s pairs."
    )
    change = f"raises shared contexts (k = 1) from {percent(early['WebShop'])} to {percent(late['WebShop'])}"
    assert found["trend"] == f"Training {change}."
    explained = found["found"].intervals.filter(statistic="explained", level="4")
    assert (explained["low"] > explained["chance"].clip(0)).to_list() == [True, False]
    assert found["explaining"] == "Histories explain returns beyond chance in ALFWorld."
    levels = found["by_step"].group_by("level").agg(pl.col("step").min())
    assert dict(levels.iter_rows()) == {f"k = {k}": k for k in (0, 1, 4)}, (
        "level k begins at step k"
    )
    deepest = found["by_step"].filter(level="k = 4")["value"]
    assert (
        found["falling"]
        == f"In ALFWorld, k = 4 falls from {percent(deepest[0])} to {percent(deepest[-1])} of steps."
    )
    ends = found["found"].intervals.filter(statistic="sign_disagreement", level="0")[
        "value"
    ]
    assert (
        found["changing"]
        == f"Among equal states alone, {both.format(*map(percent, ends))} signs differ."
    )


def test_the_least_alike_estimators_are_named(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["notebook"])
    found = definitions("seven_estimators")
    names = found["estimators"]
    ranks = found["estimated"].select(pl.col(name).rank() for name in names)
    matrix = {
        (a, b): ranks.select(pl.corr(a, b)).item()
        for a in names
        for b in names
        if a < b
    }
    (first, second), value = min(matrix.items(), key=lambda item: item[1])
    assert f"{value:.2f}" in found["alike"]
    assert first in found["alike"]
    assert second in found["alike"]


def test_opens_any_run(tmp_path):
    """A folder that is given is read, and exported with every cell's output."""

    rows = [
        {
            "task_id": f"task {task}",
            "trajectory": f"{task}/{rollout}",
            "step": step,
            "state": f"room {(task + rollout * step) % 3}",
            "action": "look",
            "task_type": "looking",
            "reward": float(step == 4 and rollout % 2),
            "terminated": step == 4,
            "won": step == 4 and rollout % 2 == 1,
        }
        for task in range(4)
        for rollout in range(4)
        for step in range(5)
    ]
    write_run(
        tmp_path / "run",
        *(
            [row for row in rows if row["task_id"] == f"task {task}"]
            for task in range(4)
        ),
    )
    page = tmp_path / "page.html"
    notebook = str(ROOT / "notebooks" / "context_inconsistency.py")
    done = ran(
        tmp_path,
        "-m",
        "marimo",
        "export",
        "html",
        notebook,
        "-o",
        str(page),
        "--",
        "--run",
        str(tmp_path / "run"),
    )
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"With 4 past states, \d+% of run.s steps keep a group", page.read_text("utf-8")
    )


def test_estimators_of_another_run(tmp_path):
    """No rollout of this run wins, so all advantages are 0 and no signs differ."""
    collect(
        "HGPO/ALFWorld-v0",
        "random",
        tmp_path / "run",
        tasks=3,
        group_size=3,
        max_steps=8,
        progress=False,
    )
    notebook = str(ROOT / "notebooks" / "seven_estimators.py")
    done = ran(tmp_path, notebook, "--", "--run", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
