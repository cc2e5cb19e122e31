"""Comparison with the original program: walks, listings, names."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from nightly import sample_or_all
from refusals import refused

from hgpo_envs.alfworld.data.game_folder import FolderStore, write_folder
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.reference.original import OriginalEngine

ROOT = Path(__file__).parents[2]
BUNDLED = ALFWorldSource()
GAMES = sample_or_all(5, 100)
slow = [pytest.mark.slow, pytest.mark.original]


def run(python, *arguments, **given):
    """Run code in the original's interpreter with this checkout; `given` is its standard input as JSON."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, *arguments],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


FUZZ = """
import json, pathlib, sys
from benchmarks.alfworld_fuzz import fuzz
given = json.load(sys.stdin)
data = given["data"] and pathlib.Path(given["data"])
report, _ = fuzz(data, given["games"], steps=30, seed=given["seed"], put=0.4)
print(json.dumps(report))
"""


@pytest.mark.parametrize(
    "data", [pytest.param(name, marks=slow) for name in ("bundled", "official")]
)
def test_walks_agree(data, original_python):
    where = None if data == "bundled" else str(ROOT / "tests/alfworld/official.pack")
    seed = random.SystemRandom().randrange(10**6)
    report = json.loads(
        run(original_python, "-c", FUZZ, data=where, games=GAMES, seed=seed)
    )
    assert report["differences"] == 0
    assert report["lines"] > 10 * min(GAMES, 7)
    assert report["fired"]["nothing happens"] > 0


LIST = """
import contextlib, json, os, sys
from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv
given = json.load(sys.stdin)
os.chdir(given["folder"])
root = given["folder"] + "/json_2.1.1/"
paths = {"data_path": root + "train", "eval_id_data_path": root + "valid_seen"}
paths["eval_ood_data_path"] = root + "valid_unseen"
config = {
    "env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6], "domain_randomization": False},
    "dataset": paths | {"num_train_games": -1, "num_eval_games": -1},
}
found = []
with contextlib.redirect_stdout(sys.stderr):
    for split in ("train", "eval_in_distribution", "eval_out_of_distribution"):
        found += [os.path.relpath(os.path.dirname(p), root) for p in AlfredTWEnv(config, split).game_files]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.original
def test_the_same_games_are_listed(original_python, tmp_path):
    """The original's environment finds the written games, except those that both skip."""
    ids = [
        BUNDLED.ids(split)[n]
        for split in ("train", "valid_seen", "valid_unseen")
        for n in range(4)
    ]
    write_folder(BUNDLED, ids, tmp_path)
    places = [tmp_path / "json_2.1.1" / task for task in ids]
    for place, changed in (
        (places[0], {"solvable": False}),
        (places[5], {"solvable": None}),
        (places[6], None),
    ):
        file = json.loads((place / "game.tw-pddl").read_text())
        file.pop("solvable")
        (place / "game.tw-pddl").write_text(json.dumps(file | (changed or {})))
    places[1].parent.rename(
        places[1].parent.with_name("pick_and_place_with_movable_recep-Cup-Bowl-Shelf-1")
    )
    places[9].parent.rename(
        places[9].parent.with_name("pick_and_place_simple-AppleSliced-None-Fridge-1")
    )
    listed = json.loads(run(original_python, "-c", LIST, folder=str(tmp_path)))
    assert sorted(listed) == FolderStore(tmp_path).ids()
    assert len(listed) == 7


def test_the_error_without_the_original_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "alfworld", None)
    monkeypatch.setitem(sys.modules, "alfworld.agents.environment.alfred_tw_env", None)
    with refused(r"needs the original program .*pip install .*\[alfworld\]"):
        OriginalEngine()
    monkeypatch.setattr(sys, "version_info", (3, 13, 1))
    with refused(r"needs Python 3.11 or 3.12: textworld 1.7.0 fails on 3.13"):
        OriginalEngine()
