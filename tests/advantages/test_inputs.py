"""The forms of a step table that `compute` and `statistics` accept."""

from pathlib import Path

import polars as pl
import pytest

import hgpo_train as hgpo
from hgpo_train.rollout import collect


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("forms") / "run"
    collect("doors_env:HGPO-Test/Doors-v0", "random", folder, tasks=6, group_size=6, max_steps=20, progress=False)
    return folder


def plain_file(run: Path) -> Path:
    file = run.parent / "plain.parquet"
    hgpo.scan_steps(run).sink_parquet(file)
    return file


FORMS = {
    "DataFrame": lambda run: hgpo.scan_steps(run).collect(),
    "path": lambda run: run,
    "text": str,
    "URL": lambda run: run.as_uri(),
    "list of paths": lambda run: [run],
    "Parquet file": plain_file,
    "pandas": lambda run: hgpo.scan_steps(run).collect().to_pandas(),
    "pandas with an index": lambda run: hgpo.scan_steps(run).collect().to_pandas().iloc[::-1].iloc[::-1],
    "pandas with Arrow types": lambda run: hgpo.scan_steps(run).collect().to_pandas(use_pyarrow_extension_array=True),
    "pyarrow": lambda run: hgpo.scan_steps(run).collect().to_arrow(),
    "pyarrow reader": lambda run: hgpo.scan_steps(run).collect().to_arrow().to_reader(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("estimator", ["hgpo", "gigpo"])
def test_every_form_gives_the_same_advantages(run, form, estimator):
    if form.startswith("pandas"):
        pytest.importorskip("pandas")
    expected = hgpo.compute(hgpo.scan_steps(run), estimator).collect()
    found = hgpo.compute(FORMS[form](run), estimator).collect()
    assert found.columns == expected.columns
    assert found["advantage"].equals(expected["advantage"])
    assert expected["advantage"].n_unique() > 1


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_statistics(run, form):
    if form.startswith("pandas"):
        pytest.importorskip("pandas")
    expected = hgpo.statistics(hgpo.scan_steps(run))
    assert all(one.equals(other) for one, other in zip(hgpo.statistics(FORMS[form](run)), expected, strict=True))


def test_duckdb_relations_are_tables(run):
    duckdb = pytest.importorskip("duckdb")
    steps = hgpo.scan_steps(run).collect().to_arrow()
    found = hgpo.compute(duckdb.sql("SELECT * FROM steps"), "hgpo").collect()
    assert found.height == steps.num_rows


@pytest.mark.parametrize(
    ("steps", "received"),
    [
        ({"task": ["a"]}, r"received dict \{'task': \['a'\]\}"),
        (None, "received NoneType None"),
        (3, "received int 3"),
        ([], r"received list \[\]"),
        ([{"task": "a"}], "received list"),
        (pl.Series([1]), "received Series"),
        (open, "received builtin_function_or_method"),
    ],
)
@pytest.mark.parametrize("function", [lambda steps: hgpo.compute(steps, "hgpo"), hgpo.statistics])
def test_other_forms_are_refused_in_one_line(function, steps, received):
    expected = r"expected a step table \(a Polars LazyFrame or DataFrame, a path or URL, a pandas or pyarrow table\), "
    with pytest.raises(hgpo.InputError, match=expected + received) as caught:
        function(steps)
    assert "\n" not in str(caught.value)
