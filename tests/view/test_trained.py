"""A training run is shown with the advantages it was trained on, or else with the estimator that it used."""

import shutil

import polars as pl
import pytest
from groups import write_run
from refusals import refused
from viewed import data_of, small_rows

from hgpo_train.advantages.advantage_tables import trained_advantages
from hgpo_train.view.estimates import estimate
from hgpo_train.view.page import write_page
from hgpo_train.view.sources import open_sources

TRAINING = {
    "advantage.estimator": "rloo",
    "advantage.parameters": {"reward_scale": 1.0},
}


def run_with(folder, training):
    write_run(folder, small_rows("alpha"), config={"training": training})
    return folder


def test_the_stored_advantages_are_those_of_the_run(trained_run):
    """Groups 0 and 2 are alpha's of two iterations; 1 and 3 were filtered, 4 and 5 are of an iteration without any."""
    (source,) = open_sources([str(trained_run)])
    index = source.index()
    assert source.document()["stored"]
    for number in range(6):
        seen = estimate(index, number, None)
        trained = [0.25, 1.25, 2.25] * 3 + [None, None]  # z was aborted
        assert seen["columns"]["advantage"] == (
            trained if number in (0, 2) else [None] * 11
        )
        gamma = 0.5 if number < 4 else 0.95  # of the iteration's table, or the default
        won = [10 * gamma**2, 10 * gamma, 10.0]
        assert seen["columns"]["return"][:3] == pytest.approx(won)
        assert seen["parameters"].get("history_length") == (1 if number < 4 else None)


def test_a_run_without_stored_advantages_has_none(small_run):
    (source,) = open_sources([str(small_run)])
    assert not source.document()["stored"]
    assert trained_advantages(small_run) is None
    with refused(
        "expected the advantages of a training run in the folder 'advantages'"
    ):
        estimate(source.index(), 0, None)


@pytest.mark.parametrize("damage", ["bytes", "another table", "rows twice", "texts"])
def test_damaged_advantages_are_one_line_with_their_place(trained_run, damage):
    (source,) = open_sources([str(trained_run)])
    file = trained_run / "advantages" / "000001.parquet"
    table = pl.read_parquet(file)
    metadata = {"hgpo.advantages": '{"columns": {}}'}
    if damage == "bytes":
        file.write_bytes(b"PAR1" + bytes(40))
    elif damage == "another table":
        table.write_parquet(file)
    elif damage == "rows twice":
        pl.concat([table, table]).write_parquet(file, metadata=metadata)
    else:
        shutil.rmtree(file.parent)
        file.parent.mkdir()
        table.with_columns(advantage=pl.lit("much")).write_parquet(
            file, metadata=metadata
        )
    with refused(r"advantages") as raised:
        estimate(source.index(), 0, None)
    assert str(raised.value).startswith(str(trained_run / "advantages"))


@pytest.mark.slow
def test_a_page_begins_with_what_was_trained_on(trained_run, tmp_path):
    write_page(open_sources([str(trained_run)]), tmp_path / "page.html")
    data = data_of(tmp_path / "page.html")
    assert data["runs"][0]["stored"]
    assert data["answers"]["runs/0/groups/0/estimates/trained"]["columns"]["advantage"][
        :3
    ] == [
        0.25,
        1.25,
        2.25,
    ]
    assert (
        data["answers"]["runs/0/groups/0/estimates/gigpo"]["parameters"]["gamma"] == 0.5
    )


def test_a_page_has_the_estimator_of_the_training_run(tmp_path):
    sources = open_sources([str(run_with(tmp_path / "run", TRAINING))])
    assert sources[0].document()["trained"] == {
        "name": "rloo",
        "set": {"reward_scale": 1.0},
    }
    write_page(sources, tmp_path / "page.html")
    answers = data_of(tmp_path / "page.html")["answers"]
    for name in ("rloo", "gigpo"):
        seen = answers[f"runs/0/groups/0/estimates/{name}"]
        assert seen["parameters"]["reward_scale"] == 1.0


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"advantage.estimator": "adaptive", "advantage.parameters": {}},
        {
            "advantage.estimator": "hgpo",
            "advantage.parameters": {"state_key": "evil:module"},
        },
    ],
)
def test_an_estimator_that_needs_the_policy_or_a_module_is_not_taken(
    tmp_path, training
):
    (source,) = open_sources([str(run_with(tmp_path / "run", training))])
    assert source.trained() is None


@pytest.mark.slow
def test_runs_of_one_name_have_their_folders_and_runs_without_rows_are_left_out(
    tmp_path,
):
    runs = [run_with(tmp_path / folder / "seed0", TRAINING) for folder in "ab"]
    write_run(tmp_path / "empty")
    sources = open_sources([str(run) for run in (*runs, tmp_path / "empty")])
    assert [source.name for source in sources] == ["a/seed0", "b/seed0", "empty"]
    assert write_page(sources, tmp_path / "page.html").tasks == 2
