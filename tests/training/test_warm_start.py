"""Demonstrations for a small model."""

import io

from rich.console import Console

from hgpo_datasets import scan_steps
from hgpo_envs.webshop.bundled import bundled_folder
from hgpo_train.config import load_config
from hgpo_train.display import Display
from hgpo_train.warm_start import WarmStart, demonstrate


def test_each_place_is_demonstrated_as_much_and_only_once(tmp_path):
    config = load_config("tiny-webshop")
    start = WarmStart(data=(str(bundled_folder()), str(bundled_folder())), demonstrations=8)
    for _ in range(2):  # the second time everything is there already
        demonstrate(tmp_path, config, start, Display(Console(file=io.StringIO()), 1))
    steps = scan_steps(tmp_path).collect()
    assert steps.filter(steps["step"] == 0)["iteration"].value_counts().sort("iteration").rows() == [(0, 4), (1, 4)]
    assert steps.select("iteration", "trajectory", "step").is_unique().all()
