"""The tables of the pages are those of the kept results."""

import re
from importlib import import_module
from pathlib import Path

import polars as pl
import pytest

ROOT = Path(__file__).parents[2]


def test_every_table_is_a_kept_result():
    script = import_module("research.benchmarks.tables")
    for name in script.PAGES:
        page = script.rewrite(name, script.PAGES, script.COMMAND)
        assert page == (ROOT / name).read_text("utf-8"), f"run: {script['COMMAND']}"


@pytest.mark.parametrize("page", ["docs/training.md", "research/docs/study.md", "README.md"])
def test_differences_between_estimators_have_no_intervals_by_tasks(page):
    assert not re.search(r"interval by tasks", (ROOT / page).read_text("utf-8"))


def test_the_first_estimator_runs_again_with_other_seeds():
    """The A/A test beside every curve: the same configuration but for the seed, compared like another estimator."""
    from hgpo_train.advantages.variants import read_variants
    from hgpo_train.training.config import load_config

    learning = import_module("benchmarks.learning")
    drawn = import_module("benchmarks.learning_figures")
    base = load_config("tiny-webshop")
    estimators = read_variants(["grpo,hgpo"])
    runs = learning.planned(base, Path("warm"), estimators, (0, 1), learning.WORLDS["webshop"]["estimators"])
    assert runs.keys() == {f"{name}-{seed}" for name in ("grpo", "hgpo", "grpo, other seeds") for seed in (0, 1)}
    assert runs["hgpo-0"].advantage.parameters["mode"] == "mean_norm"
    assert "mode" not in runs["grpo-0"].advantage.parameters
    again = runs["grpo, other seeds-1"]
    assert again.seed not in {run.seed for name, run in runs.items() if "other" not in name}
    assert again.advantage == runs["grpo-1"].advantage
    values = {
        "env_id": "e",
        "task_id": ["a", "b"],
        "task": "win",
        "success": [1.0, 0.0],
    }
    table = pl.DataFrame(values | {"aborted": False})
    played = drawn.by_estimator(dict.fromkeys(runs, table))
    pair = {"grpo", "grpo, other seeds"}
    (row,) = [each for each in drawn.differences(played, {}) if {each["first"], each["second"]} == pair]
    assert set(row) == {
        "first",
        "second",
        "difference",
        "seeds",
        "margin_of_seeds",
    }, "no interval over tasks"
