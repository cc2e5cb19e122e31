"""Charts: what they show, the files that they are written to, and `hgpo stats --plot`."""

import re
import sys

import polars as pl
import pytest
from refusals import refused

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

from hgpo_train.analysis.charts import (
    check_chart_file,
    levels_chart,
    save_chart,
    statistics_chart,
)
from hgpo_train.analysis.statistics import statistics

TABLE = pl.DataFrame(
    [
        (
            task,
            kind,
            f"{task}/{rollout}",
            step,
            state,
            10.0 * (rollout % 2) if step == 2 else 0.0,
            True,
        )
        for task, kind in (("a", "easy"), ("b", "easy"), ("c", "hard"), ("d", "hard"))
        for rollout in range(4)
        for step, state in enumerate(("start", f"room {rollout % 2}", "hall"))
    ],
    ["task", "task_type", "trajectory", "step", "state", "reward", "action_valid"],
    orient="row",
)


def data_of(drawn):
    return drawn["datasets"][drawn["data"]["name"]]


@pytest.fixture(scope="module")
def sure():
    return statistics(TABLE, by="task_type", history_length=2, permutations=2).intervals


def test_a_chart_contains_the_table(sure):
    drawn = levels_chart(sure, "shared", by="task_type").to_dict()
    assert (
        data_of(drawn)
        == sure.filter(
            pl.col("statistic") == "shared", pl.col("value").is_not_null()
        ).to_dicts()
    )
    encoded = [layer["encoding"] for layer in drawn["layer"]]
    assert [layer["y"]["field"] for layer in encoded] == [
        "chance",
        "low",
        "value",
        "value",
    ], "the last is hollow"
    assert encoded[1]["y2"]["field"] == "high"
    assert encoded[2]["color"]["field"] == "task_type"
    assert encoded[2]["color"]["legend"]["title"] == "task type"


def test_a_title_keeps_its_capitals_and_symbols(sure):
    assert (
        levels_chart(sure, "sign_disagreement").to_dict()["title"]["text"]
        == "Signs of A_k and A_K differ"
    )


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".html", ".svg", ".png", ".json"])
def test_files_need_no_network(sure, ending, tmp_path):
    path = tmp_path / f"chart{ending}"
    path.write_text("an older picture")
    save_chart(statistics_chart(sure, by="task_type"), path)
    content = path.read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert content.startswith(b"\x89PNG") if ending == ".png" else b"oracle" in content
    assert not re.search(rb'(src|href)="https?:', content)


def test_a_chart_without_its_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    monkeypatch.delitem(sys.modules, "hgpo_train.analysis.charts")
    with refused(r"^chart needs altair: pip install .*\[notebooks\]'?$"):
        statistics(TABLE).chart()


@pytest.mark.parametrize("name", ["chart.pdf", "chart", "missing/chart.svg"])
def test_wrong_files_are_refused(name, tmp_path):
    with refused("expected"):
        check_chart_file("--plot", tmp_path / name)
