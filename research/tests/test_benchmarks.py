"""The tables of the pages are those of the kept results."""

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hgpo_train.advantages import compute

ROOT = Path(__file__).parents[2]


def test_every_table_is_a_kept_result():
    script = import_module("research.benchmarks.tables")
    for name in script.PAGES:
        page = script.rewrite(name, script.PAGES, script.COMMAND)
        assert page == (ROOT / name).read_text("utf-8"), f"run: {script.COMMAND}"


@pytest.mark.parametrize(
    "page", ["docs/training.md", "research/docs/study.md", "README.md"]
)
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
    runs = learning.planned(
        base, Path("warm"), estimators, (0, 1), learning.WORLDS["webshop"]["estimators"]
    )
    assert runs.keys() == {
        f"{name}-{seed}"
        for name in ("grpo", "hgpo", "grpo, other seeds")
        for seed in (0, 1)
    }
    assert runs["hgpo-0"].advantage.parameters["mode"] == "mean_norm"
    assert "mode" not in runs["grpo-0"].advantage.parameters
    again = runs["grpo, other seeds-1"]
    assert again.seed not in {
        run.seed for name, run in runs.items() if "other" not in name
    }
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
    (row,) = [
        each
        for each in drawn.differences(played, {})
        if {each["first"], each["second"]} == pair
    ]
    assert set(row) == {
        "first",
        "second",
        "difference",
        "seeds",
        "margin_of_seeds",
    }, "no interval over tasks"


def test_holm_is_a_t_test_with_one_mean_and_stricter_with_more():
    """Student's quantiles with 60 degrees of freedom are 2.000 at 0.975 and 2.299 at 0.9875."""
    holm = import_module("research.benchmarks.gagpo").holm
    spread = np.linspace(-1, 1, 61)

    def with_ratio(ratio):
        return spread + ratio * spread.std(ddof=1) / 61**0.5

    assert holm([with_ratio(-2.01)]) == [True]
    assert holm([with_ratio(1.99)]) == [False]
    assert holm([with_ratio(2.28), with_ratio(2.1)]) == [False, False]
    assert holm([with_ratio(2.1), with_ratio(-2.32)]) == [True, True]


def test_states_with_different_pasts_are_not_compared():
    """Without other visits a value is the own return, so that one step ahead nothing is surprising."""
    variant = import_module("research.benchmarks.gagpo").variant
    steps = pl.DataFrame(
        {"task": "a", "trajectory": ["x", "x", "y", "y"], "step": [0, 1, 0, 1]}
    ).with_columns(
        state=pl.Series(["s", "u", "t", "u"]),
        reward=pl.Series([0.0, 1.0, 0.0, 0.0]),
        action_valid=pl.lit(True),
    )
    steps = steps.with_columns(action=pl.lit("go"))
    found = compute(steps, variant, gae_lambda=0.0).collect()["advantage"]
    assert found.equals(compute(steps, "gagpo", gae_lambda=0.0).collect()["advantage"])
    assert found.abs().min() > 0.1
    assert compute(steps, variant, gae_lambda=0.0, past=1).collect()[
        "advantage"
    ].to_list() == pytest.approx([0] * 4)
