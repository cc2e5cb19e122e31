"""`hgpo learn-tabular`: its files and its errors."""

import re

import polars as pl
import pytest
from command import invoke, outcome

from hgpo_envs.errors import InputError

LEVERS = [
    "learn-tabular",
    "--env",
    "hgpo_research.levers:LEVERS",
    "--tasks",
    "1",
    "--memory",
    "0",
    "--skill",
    "0",
]
LEVERS += [
    "--seeds",
    "2",
    "--iterations",
    "1",
    "--evaluation",
    "2",
    "--group-size",
    "4",
]


@pytest.fixture(autouse=True)
def _no_pictures(request, monkeypatch):
    """Draw pictures, which takes a second, only in the slow tests."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_kept_graphs_are_read_again_at_any_path(tmp_path):
    out = tmp_path / "e[1]"
    for _ in range(2):
        invoke(*LEVERS, "-e", "grpo", "--out", out, "--overwrite")
    assert (out / "tasks-0" / "edges.parquet").exists()


def test_a_call_replaces_all_results_of_the_earlier_one_and_nothing_else(
    tmp_path,
):
    names = "grpo,hgpo:history_length=0:mode=mean_norm"
    more = ["--gain-at", "1", "--gain-copies", "4", "--task-sets", "2"]
    output = invoke(*LEVERS, "-e", names, *more, "--out", tmp_path)
    assert "hgpo:history_length=0:" in output
    assert "mode=mean_norm" in output
    assert re.search(r"estimator +final +area +difference", output)
    assert "Gain after 1 update, in percent" in output
    assert "2 tasks, 42 nodes." in output
    (tmp_path / "tasks-1" / "mine").touch()
    output = invoke(*LEVERS, "-e", "grpo", "--out", tmp_path, "--overwrite")
    assert "1 task, 21 nodes." in output
    files = {
        str(path.relative_to(tmp_path))
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    graphs = {"tasks-0/nodes.parquet", "tasks-0/edges.parquet"}
    assert files == {
        "curves.parquet",
        "summary.md",
        "tasks-1/mine",
        *graphs,
    }


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--samples 0", "--samples. Must be > 0"),
        ("--reads -1", "--reads. Must be >= 0"),
        ("--gain-copies 1", "--gain-copies. Must be >= 4"),
        ("--seeds 0", "--seeds: expected int >= 1, received 0"),
        (
            "--gain-at 0 --group-size 1",
            "--group-size: expected an integer of at least 2, received 1",
        ),
        (
            "--gain-at 2",
            "--gain-at: expected 0 to 1, the number of updates, received 2",
        ),
        (
            "--gain-at -1",
            "--gain-at: expected 0 to 1, the number of updates, received -1",
        ),
    ],
)
def test_wrong_numbers_are_reported_before_anything_is_written(options, line, tmp_path):
    code, printed = outcome(
        *LEVERS, "-e", "grpo", *options.split(), "--out", tmp_path / "out"
    )
    assert (code, printed.count("\n")) == (2, 1)
    assert line in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_command_writes_curves_tables_and_pictures(tmp_path):
    out = tmp_path / "out"
    small = [
        *[
            "--tasks",
            "2",
            "--seeds",
            "2",
            "--iterations",
            "2",
            "--evaluation",
            "2",
            "--out",
        ],
        out,
    ]
    names = "grpo,hgpo:mode=mean_norm,adaptive"
    gains = [
        "--samples",
        "2",
        "--task-sets",
        "2",
        "--gain-at",
        "1",
        "--gain-copies",
        "4",
    ]
    output = invoke("learn-tabular", "-e", names, *gains, *small)
    assert "hgpo:mode=mean_norm" in output
    files = {path.name for path in out.iterdir()}
    assert {
        "curves.parquet",
        "summary.md",
        "gains.parquet",
        "metrics.parquet",
        "tasks-0",
        "tasks-1",
    } <= files
    assert {path.name for path in (out / "tasks-1").iterdir()} == {
        "nodes.parquet",
        "edges.parquet",
    }
    table = pl.read_parquet(out / "curves.parquet")
    assert table.height == 4 * 2 * 3
    assert table.group_by("tasks").agg(pl.col("seed").unique()).sort("tasks")[
        "seed"
    ].to_list() == [
        [0],
        [1],
    ]
    with pytest.raises(InputError, match="has results already"):
        invoke("learn-tabular", "-e", "grpo", *small)
    with pytest.raises(InputError, match="use another folder"):
        invoke("learn-tabular", "-e", "grpo", *small, "--overwrite", "--memory", 0)
