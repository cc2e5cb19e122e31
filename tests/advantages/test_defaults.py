"""One set of defaults: Python, commands, statistics, viewer and training give the same numbers for one run."""

import inspect
import json
from pathlib import Path
from typing import get_type_hints

import polars as pl
import pytest
from command import invoke
from groups import write_run
from refusals import refused

from hgpo_datasets import scan_steps
from hgpo_train import advantages
from hgpo_train.advantages import compute, get, names
from hgpo_train.advantages.advantage_tables import read_metadata
from hgpo_train.advantages.parameters import Parameters, SharedOptions
from hgpo_train.analysis.statistics import statistics
from hgpo_train.settings import read_toml, types_of

CONFIGURATIONS = Path(advantages.__file__).parents[1] / "training" / "configs" / "parts"


def viewed(run, estimator):
    from hgpo_train.view.estimates import estimate, estimator_with
    from hgpo_train.view.index import read_index

    index = read_index([str(path) for path in sorted(run.glob("steps/*"))])
    found = [
        estimate(index, group, estimator_with(estimator, (), [estimator]))
        for group in range(6)
    ]
    return [value for group in found for value in group["columns"]["advantage"]]


def trained(run, estimator):
    from hgpo_train.training.config import AdvantageConfig

    config = AdvantageConfig(estimator=estimator)
    return compute(scan_steps(run), config.estimator, **config.parameters).collect()[
        "advantage"
    ]


@pytest.mark.parametrize("name", ["hgpo", "grpo"])
def test_advantages_are_the_same_wherever_they_are_asked(run, name):
    expected = compute(scan_steps(run), name).collect()["advantage"]
    expected = pytest.approx(expected.to_list(), abs=1e-12)
    assert (
        getattr(advantages, name)(scan_steps(run)).collect()["advantage"].to_list()
        == expected
    )
    invoke("advantages", run, "-e", name)
    table = run.parent / "first.advantages" / f"{name}.parquet"
    assert pl.read_parquet(table)["advantage"].to_list() == expected
    parameters = read_metadata(table)["columns"]["advantage"]["parameters"]
    assert parameters["reward_scale"] == 10
    assert viewed(run, name) == expected
    assert trained(run, name).to_list() == expected
    assert "reward_scale=10.0" in invoke("advantages", "--list", "unused")
    # the configurations of the papers say what they use
    for world in ("alfworld", "webshop"):
        own = read_toml(CONFIGURATIONS / f"{world}.toml")["advantage"]["parameters"]
        assert {
            name: own[name] for name in ("reward_scale", "invalid_action_penalty")
        }.items() <= parameters.items()


def test_statistics_are_the_same_wherever_they_are_asked(run, tmp_path):
    from hgpo_train.view.index import read_index
    from hgpo_train.view.overview import levels_document

    found = statistics(run, permutations=20)
    shown = levels_document(
        read_index([str(path) for path in sorted(run.glob("steps/*"))]), chance=True
    )
    invoke("stats", run, "--out", tmp_path / "tables")
    assert found.levels["level"].to_list() == ["0", "1", "2", "3", "4", "oracle"]
    for name, frame in found._asdict().items():
        printed = pl.read_csv(tmp_path / "tables" / f"{name}.csv", schema=frame.schema)
        assert printed.equals(frame)
    for row in shown["levels"]:
        assert (
            row.items()
            <= found.levels.row(
                by_predicate=pl.col("level") == row["level"], named=True
            ).items()
        )
    for row in found.intervals.iter_rows(named=True):
        assert shown["intervals"][row["statistic"]][row["level"]].items() <= row.items()
    advantage = compute(
        scan_steps(run), "hgpo", history_length=4, details=True
    ).collect()
    assert found.summary["mean_return"].item() == 0.5
    for k, weight in zip("01234", found.levels["weight"], strict=False):
        assert advantage[f"advantage_weight_k{k}"].mean() == pytest.approx(
            weight, abs=1e-12
        )


def test_results_are_the_same_wherever_they_are_asked(run):
    """Of the last of 25 rollouts, which was aborted at an invalid action, only that it was is counted."""
    from hgpo_train.rollout.collection import CollectedRun
    from hgpo_train.rollout.outcomes import rollout_table
    from hgpo_train.rollout.tally import Tally
    from hgpo_train.view.overview import overview_document
    from hgpo_train.view.sources import open_sources

    lost = {
        "task_id": "task 6",
        "trajectory": "6/0",
        "step": 0,
        "state": "room 0",
        "action": "fly",
    }
    write_run(
        run,
        [
            {
                **lost,
                "action_valid": False,
                "reward": 0.5,
                "won": False,
                "aborted": True,
                "error": "-",
            }
        ],
    )
    results = {"success": 0.5, "mean_return": 0.5, "mean_length": 4.0, "valid": 10 / 16}
    bounds = {"success_if_aborted_lost": 12 / 25, "success_if_aborted_won": 13 / 25}
    shown = json.loads(invoke("data", "show", run, "--json"))["total"]
    plain = scan_steps(run).drop("episode_return")
    for asked in (
        shown,
        CollectedRun(
            run, Tally(), rollout_table(scan_steps(run), branches=True).collect()
        ).summary,
        statistics(run).summary.row(0, named=True),
        statistics(plain, reward_scale=3, reward="success").summary.row(0, named=True),
    ):
        assert {name: asked[name] for name in results | bounds} == pytest.approx(
            results | bounds
        )
    (source,) = open_sources([str(run)])
    viewed = overview_document(source, source.index())["total"]
    assert {name: viewed[name] for name in results} == pytest.approx(results)
    assert viewed["bounds"] == list(bounds.values())


def test_calls_of_estimators_take_the_parameters_of_returns():
    """`SharedOptions`, which editors read, has names and types of `Parameters`, and the two options of `compute`."""
    declared = get_type_hints(SharedOptions, include_extras=True)
    assert {name: declared.pop(name) for name in ("column", "details")} == {
        "column": str,
        "details": bool,
    }
    assert declared == {name: types_of(Parameters)[name] for name in declared}
    overridden = types_of(Parameters).keys() - declared.keys()
    assert overridden == {"epsilon", "precision"}
    for name in names():
        shown = inspect.signature(get(name)).parameters
        assert {
            *types_of(type(get(name).parameters)),
            "steps",
            "column",
            "details",
        } == shown.keys()


def test_an_estimator_in_a_module_of_its_own_name(tmp_path, monkeypatch):
    # so that it is not among those of tables alone
    decorator = "@estimator('lonely', reads=(), scores=('entropy',))"
    source = f"from hgpo_train.advantages import estimator\n\n{decorator}\ndef lonely(steps):\n    return steps\n"
    (tmp_path / "lonely.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    assert get("lonely:lonely").name == "lonely"
    assert get("lonely:lonely") is get("lonely")
    with refused("expected a name without parameters, such as 'lonely'"):
        get("lonely:gamma=1")
