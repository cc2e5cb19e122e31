"""The episodes of a panel are the same with any slots and workers, order of files, and interruption."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from hgpo_datasets import scan_steps
from hgpo_envs.alfworld.data.game_folder import write_folder
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_train.evaluation import evaluate_panel
from hgpo_train.panels import load_panel

Document = dict[str, Any]


def episodes_of(panel, folder, **options):
    run = evaluate_panel(panel, "random", folder, progress=False, **options)
    return json.loads((run.path / "certificate.json").read_bytes())["episodes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "panel", ["alfworld-bundled@1+max_steps=12", "webshop-bundled@1"]
)
def test_episodes_are_the_same_however_they_are_played(panel, tmp_path):
    expected = episodes_of(panel, tmp_path / "256")
    assert len(expected) == 36
    assert len({episode["trajectory"] for episode in expected}) > 12  # seeds differ
    assert episodes_of(panel, tmp_path / "1", slots=1) == expected
    assert episodes_of(panel, tmp_path / "workers", workers=True, slots=2) == expected


@pytest.mark.slow
def test_episodes_do_not_depend_on_the_order_of_a_folder(tmp_path):
    panel = load_panel("alfworld-bundled@1+max_steps=12")
    source = ALFWorldSource()
    for name, ids in (
        ("a", source.ids("valid_unseen")),
        ("b", sorted(source.ids("all"), key=lambda each: each[::-1])),
    ):
        write_folder(source, ids, tmp_path / name)
    bundled = episodes_of(panel, tmp_path / "run")
    assert episodes_of(panel, tmp_path / "run a", data=tmp_path / "a") == bundled
    assert episodes_of(panel, tmp_path / "run b", data=tmp_path / "b") == bundled


KILLED = """
import os, signal, sys
from hgpo_train.evaluation import evaluate_panel
def kill(tally):
    if tally.trajectories > 14:  # the first seed is committed
        os.kill(os.getpid(), signal.SIGKILL)
evaluate_panel(sys.argv[1], "random", sys.argv[2], slots=3, progress=kill)
"""


@pytest.mark.slow
def test_a_killed_and_resumed_run_has_the_same_episodes(tmp_path):
    panel = "alfworld-bundled@1+max_steps=12"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, panel, tmp_path / "killed"], env=os.environ
    )
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "certificate.json").exists()
    assert scan_steps(tmp_path / "killed").collect()[
        "iteration"
    ].unique().to_list() == [123]
    assert episodes_of(panel, tmp_path / "killed") == episodes_of(
        panel, tmp_path / "whole"
    )
