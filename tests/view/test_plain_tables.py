"""Tables of other programs in the viewer: the same steps and advantages as in the table, and what is refused."""

import math
import shutil

import polars as pl
import pytest
from polars.testing import assert_series_equal
from refusals import refused_saying

from hgpo_train.advantages import compute
from hgpo_train.view.documents import group_document, step_documents
from hgpo_train.view.estimates import estimate, estimator_with
from hgpo_train.view.overview import overview_document
from hgpo_train.view.sources import open_sources

ROWS = {
    "task": ["a"] * 4 + ["b"] * 4,
    "trajectory": ["x", "x", "y", "y", "u", "u", "v", "v"],
    "step": [1, 2] * 4,
    "reward": [0.0, 1, 0, 0, 0, 0, 0, 1],
    "state": ["s", "t", "s", "u", "s", "t", "s", "t"],
    "action_valid": [True] * 7 + [False],
}
TABLE = pl.DataFrame(ROWS)


def opened(path):
    (source,) = open_sources([str(path)])
    return source


def test_the_six_columns_suffice(tmp_path):
    path = tmp_path / "mine.parquet"
    TABLE.sample(fraction=1.0, shuffle=True, seed=1).write_parquet(path)
    before = path.read_bytes()
    source = opened(path)
    seen = overview_document(source, source.index())
    assert source.document()["name"] == "mine.parquet"
    assert seen["total"].items() >= {"tasks": 2, "episodes": 4, "steps": 8}.items()
    assert seen["total"]["success"] is None, (
        "the table does not say which rollouts were won"
    )
    group = group_document(source.index(), 1)
    assert group["task_id"] == "b"
    assert [group["states"][place] for place in group["steps"]["state"]] == [
        "s",
        "t",
        "s",
        "t",
    ]
    assert group["steps"]["step"] == [0, 1, 0, 1], "counted from 0"
    (step,) = step_documents(source.index(), 7)
    assert (step["action"], step["action_valid"], step["prompt"]) == (None, False, None)
    assert path.read_bytes() == before


@pytest.mark.parametrize("estimator", ["hgpo", "gigpo", "rloo"])
def test_advantages_are_those_of_the_table(tmp_path, estimator):
    path = tmp_path / "mine.parquet"
    keys = pl.col("state").replace_strict(
        {"s": 7, "t": 7, "u": 8}, return_dtype=pl.Int64
    )
    # with gaps, and states that count as equal
    table = TABLE.with_columns(pl.col("step") * 5, state_hash=keys)
    table.write_parquet(path)
    source = opened(path)
    index = source.index()
    expected = compute(table, estimator).collect()["advantage"]
    found = [
        estimate(index, number, estimator_with(estimator, (), [estimator]))["columns"][
            "advantage"
        ]
        for number in (0, 1)
    ]
    assert_series_equal(pl.Series("advantage", [*found[0], *found[1]]), expected)


def test_a_folder_and_a_pattern_are_one_table(tmp_path):
    """A group may be in several files."""
    folder = tmp_path / "of mine [1]"
    folder.mkdir()
    TABLE[:1].write_parquet(folder / "a.parquet")
    TABLE[1:].write_parquet(folder / "b.parquet")
    source = opened(folder)
    assert source.name == "of mine [1]"
    assert source.index().groups["size"].to_list() == [2, 2]
    shutil.copytree(folder, tmp_path / "plain")
    assert opened(tmp_path / "plain" / "*.parquet").index().rows == 8


def test_the_flags_and_columns_of_a_table(tmp_path):
    """Programs mark every row of an aborted rollout, and know the next state of every step."""
    table = TABLE.with_columns(
        aborted=pl.col("trajectory") == "v",
        next_state=pl.col("state").shift(-1).over("trajectory").fill_null("end"),
        won=pl.col("trajectory") == "y",
        iteration=pl.lit(3),
        run=pl.when(task="a").then(pl.lit("r1")).otherwise(pl.lit("r2")),
        prompt=pl.lit("p"),
        advantage=pl.lit(0.5),
    )
    table.cast({"task": pl.Categorical}).write_parquet(tmp_path / "mine.parquet")
    source = opened(tmp_path / "mine.parquet")
    seen = overview_document(source, source.index())
    assert (seen["total"]["aborted"], seen["iterations"]) == (1, [3])
    assert source.index().episodes["task_id"].to_list() == ["r1/a"] * 2 + ["r2/b"] * 2
    assert source.index().episodes.filter("won")["trajectory"].to_list() == ["r1/y"]
    group = group_document(source.index(), 0)
    assert [group["states"][place] for place in group["steps"]["next"]] == [
        "t",
        "end",
        "u",
        "end",
    ]


@pytest.mark.parametrize(
    ("table", "line"),
    [
        (TABLE.drop("reward"), "has no `reward`"),
        (
            TABLE.drop("state").with_columns(state_hash=pl.lit(1, pl.Int64)),
            "expected a column `state`",
        ),
        (TABLE.with_columns(reward=pl.lit("much")), "column reward: expected numbers"),
        (pl.concat([TABLE, TABLE]), "several rows of one step"),
        (TABLE[:0], "without rows"),
        (
            TABLE.with_columns(won=pl.lit(math.nan)),
            "column won: expected true, false, 0 or 1, received nan",
        ),
        (TABLE.with_columns(aborted=pl.lit(0.5)), "true, false, 0 or 1"),
        (
            TABLE.with_columns(iteration=pl.lit(0.5)),
            "column iteration: expected Int32, received 0.5",
        ),
        (
            TABLE.with_columns(response_token_ids=pl.lit([1.5])),
            "column response_token_ids: expected List(Int32)",
        ),
        (
            TABLE.with_columns(step=pl.col("step").cast(pl.Int128)),
            "column step: expected integers, received Int128",
        ),
    ],
    ids=range(10),
)
def test_what_cannot_be_shown_is_refused_in_one_line(tmp_path, table, line):
    table.write_parquet(tmp_path / "mine.parquet")
    with refused_saying(line):
        opened(tmp_path / "mine.parquet")


@pytest.mark.slow
def test_texts_without_the_utf8_mark(tmp_path, hgpo):
    """As Spark, Impala and Go write them: every command reads them, or says in one line what is no text."""
    texts = ["task", "trajectory", "state"]
    marked, unmarked, broken = (
        tmp_path / f"{name}.parquet" for name in ("marked", "unmarked", "broken")
    )
    TABLE.write_parquet(marked)
    TABLE.cast(dict.fromkeys(texts, pl.Binary)).write_parquet(unmarked)
    TABLE.cast({"state": pl.Binary}).with_columns(state=pl.lit(b"\xff")).write_parquet(
        broken
    )
    for name, *options in (["stats"], ["advantages", "--overwrite"], ["view", "-o"]):
        seen = []
        for table in (marked, unmarked, broken):
            page = [table.with_suffix(".html")] if "-o" in options else []
            code, shown, error = hgpo(name, table, *options, *page)
            seen.append((code, shown.replace("unmarked", "marked")))
        assert seen[0] == seen[1], name
        assert [code for code, _ in seen] in ([0, 0, 1], [0, 0, 2]), name
        assert error.startswith("error: "), name
        assert len(error.splitlines()) == 1, name
