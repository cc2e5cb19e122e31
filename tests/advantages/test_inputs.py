"""The forms of a step table that `compute` and `statistics` accept."""

import math
from decimal import Decimal

import polars as pl
import pytest
from refusals import refused

import hgpo_train as hgpo
from hgpo_train.rollout import collect


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forms") / "run"
    collect(
        "doors_env:HGPO-Test/Doors-v0",
        "random",
        folder,
        tasks=6,
        group_size=6,
        max_steps=20,
        progress=False,
    )
    return folder


def as_file(run):
    file = run.parent / "plain.parquet"
    hgpo.scan_steps(run).sink_parquet(file)
    return file


def as_duckdb(run):
    steps = as_arrow(run)  # noqa: F841 (the query names it)
    return pytest.importorskip("duckdb").sql(
        "SELECT * FROM steps ORDER BY task_id, trajectory, step"
    )


def as_pandas(run, **options):
    pytest.importorskip("pandas")
    frame = hgpo.scan_steps(run).collect().to_pandas(**options)
    return frame.set_axis(frame.index + 7)


def as_arrow(run):
    return hgpo.scan_steps(run).collect().to_arrow()


FORMS = {
    "DataFrame": lambda run: hgpo.scan_steps(run).collect(),
    "path": lambda run: run,
    "text": str,
    "URL": lambda run: run.as_uri(),
    "list of paths": lambda run: [run],
    "Parquet file": as_file,
    "pandas": as_pandas,
    "pandas with Arrow types": lambda run: as_pandas(
        run, use_pyarrow_extension_array=True
    ),
    "pyarrow": as_arrow,
    "pyarrow reader": lambda run: as_arrow(run).to_reader(),
    "DuckDB": as_duckdb,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_advantages_and_statistics(run, form):
    expected = hgpo.compute(hgpo.scan_steps(run), "gigpo").collect()
    received = hgpo.compute(FORMS[form](run), "gigpo").collect()
    assert received.columns == expected.columns
    assert received["advantage"].equals(expected["advantage"])
    assert expected["advantage"].n_unique() > 1
    statistics = hgpo.statistics(hgpo.scan_steps(run))
    assert all(
        one.equals(other)
        for one, other in zip(
            hgpo.statistics(FORMS[form](run)), statistics, strict=True
        )
    )


@pytest.mark.parametrize(
    "steps", [{"task": ["a"]}, None, [], [{"task": "a"}], pl.Series([1]), open]
)
@pytest.mark.parametrize(
    "function", [lambda steps: hgpo.compute(steps, "hgpo"), hgpo.statistics]
)
def test_other_forms_are_refused_in_one_line(function, steps):
    expected = r"expected a step table \(a Polars LazyFrame or DataFrame, a path or URL, a pandas or pyarrow table\), "
    with refused(f"{expected}received {type(steps).__name__}"):
        function(steps)


@pytest.mark.parametrize("flag", ["aborted", "action_valid", "won"])
@pytest.mark.parametrize("value", [math.nan, 0.5, Decimal("0.5")])
def test_a_flag_that_is_no_truth_value_is_refused_by_row(flag, value):
    """NaN is true as a boolean: pandas writes it for a missing value. So is every other number."""
    steps = pl.DataFrame(
        {
            "task": "a",
            "trajectory": ["x", "y"],
            "step": 0,
            "state": "s",
            "reward": [1.0, 0.0],
            "action_valid": True,
            "won": False,
            flag: [type(value)(0), value],
        }
    )
    options = {"reward": "success"} if flag == "won" else {}
    with refused(
        f"expected .* as {flag}, received {value} at task='a', trajectory='y', step=0"
    ):
        hgpo.compute(steps.lazy(), "grpo", **options).collect()
