"""The tables of the pages are those of the kept results, and the study judges what it planned."""

import json
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import polars as pl
import pytest

ROOT = Path(__file__).parents[2]


def test_every_table_is_a_kept_result():
    script = import_module("research.benchmarks.tables")
    for name in script.PAGES:
        page = script.rewrite(name, script.PAGES, script.COMMAND)
        assert page == (ROOT / name).read_text("utf-8"), f"run: {script['COMMAND']}"


def test_the_study_s_tables_are_its_kept_result():
    study = import_module("research.benchmarks.study")
    kept = json.loads((ROOT / "benchmarks/results/study.json").read_text("utf-8"))["figures"]
    page = (ROOT / "research/docs/study.md").read_text("utf-8")
    for world, result in kept.items():
        assert study.tables(world, result) in page


def test_a_claim_is_judged_by_its_pooled_difference():
    study = import_module("research.benchmarks.study")
    claim, equal = study.Claim("H", "a", "b"), study.Claim("H", "a", "b", equal=True)
    assert [claim.verdict(*ends) for ends in ((0.01, 0.2), (-0.1, 0.2), (-0.2, -0.1))] == [
        "confirmed",
        "open",
        "refuted",
    ]
    assert [equal.verdict(*ends) for ends in ((-0.01, 0.01), (-0.01, 0.03), (0.03, 0.1))] == [
        "confirmed",
        "open",
        "refuted",
    ]
    named = {name for each in study.CLAIMS for name in (each.first, each.second)}
    for world in study.WORLDS.values():
        assert named <= world.estimators.keys()


def test_no_cosine_of_the_study_is_impossible():
    """Measures called cosines reached 2.3 and 4.0; now what is uncertain is null."""
    kept = json.loads((ROOT / "benchmarks/results/study.json").read_text("utf-8"))["figures"]
    values = [
        measures[name][0]
        for world in kept.values()
        for policy in world["policies"].values()
        for gamma in ("γ = 0.95", "γ = 1")
        for measures in policy[gamma].values()
        for name in ("gradient", "model_gradient", "correlation")
    ]
    known = np.array([value for value in values if value is not None])
    assert len(known) > 500
    assert np.abs(known).max() <= 1.05


def test_web_shop_s_estimators_have_the_modes_of_their_configurations():
    """The study, the curves and the papers' configurations name one mode, step weight and γ for each estimator."""
    from hgpo_train.advantages.variants import read_variants
    from hgpo_train.training.config import load_config

    study, learning = (import_module(name) for name in ("research.benchmarks.study", "learning"))
    names = {"GRPO": "grpo", "GiGPO": "gigpo", "HGPO (K = 2)": "hgpo-k2", "G2PO": "g2po", "GraphGPO": "graphgpo"}
    for label, name in names.items():
        (variant,) = read_variants([study.WORLDS["webshop"].estimators[label]])
        parameters = vars(variant.estimator.parameters)
        wanted = load_config(f"webshop-1.5b-{name}").advantage.parameters
        for key in ("mode", "step_weight", "gamma"):
            assert key not in wanted or parameters[key] == wanted[key], (label, key)
        own = learning.WORLDS["webshop"]["estimators"].get(name.removesuffix("-k2"), {})
        for key, value in own.items():
            assert wanted.get(key, value) == value, (label, key)


@pytest.mark.parametrize("page", ["docs/training.md", "research/docs/study.md", "README.md"])
def test_differences_between_estimators_have_no_intervals_by_tasks(page):
    assert not re.search(r"interval by tasks", (ROOT / page).read_text("utf-8"))


def test_the_first_estimator_runs_again_with_other_seeds():
    """The A/A test beside every curve: the same configuration but for the seed, compared like another estimator."""
    from hgpo_train.advantages.variants import read_variants
    from hgpo_train.training.config import load_config

    import_module("research.benchmarks")
    learning, drawn = import_module("learning"), import_module("learning_figures")
    base, estimators = load_config("tiny-webshop"), read_variants(["grpo,hgpo"])
    runs = learning.planned(base, Path("warm"), estimators, (0, 1), learning.WORLDS["webshop"]["estimators"])
    assert runs.keys() == {f"{name}-{seed}" for name in ("grpo", "hgpo", "grpo, other seeds") for seed in (0, 1)}
    assert runs["hgpo-0"].advantage.parameters["mode"] == "mean_norm"
    assert "mode" not in runs["grpo-0"].advantage.parameters
    again = runs["grpo, other seeds-1"]
    assert again.seed not in {run.seed for name, run in runs.items() if "other" not in name}
    assert again.advantage == runs["grpo-1"].advantage
    table = pl.DataFrame({"task_id": ["a", "b"], "success": [1.0, 0.0], "aborted": False})
    played = drawn.by_estimator(dict.fromkeys(runs, table))
    pair = {"grpo", "grpo, other seeds"}
    (row,) = [each for each in drawn.differences(played, {}) if {each["first"], each["second"]} == pair]
    assert set(row) == {"first", "second", "difference", "seeds", "margin_of_seeds"}, "no interval over tasks"
