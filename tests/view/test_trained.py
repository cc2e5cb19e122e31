"""The estimator that a training run used is the one that its page shows first."""

import json
from pathlib import Path

import pytest
from viewed import small_rows

from hgpo_datasets import StepWriter
from hgpo_train.view.page import write_page
from hgpo_train.view.sources import open_sources
from hgpo_train.view.terminal.app import TerminalViewer

TRAINING = {"advantage.estimator": "rloo", "advantage.parameters": {"reward_scale": 1.0}}


def run_with(folder: Path, training: dict[str, object]) -> Path:
    with StepWriter(folder, config={"training": training}) as writer:
        writer.add_group(small_rows("alpha"))
    return folder


def test_a_page_and_a_terminal_begin_with_the_estimator_of_the_training_run(tmp_path: Path) -> None:
    sources = open_sources([str(run_with(tmp_path / "run", TRAINING))])
    assert sources[0].document()["trained"] == {"name": "rloo", "set": {"reward_scale": 1.0}}
    write_page(sources, tmp_path / "page.html")
    data = (tmp_path / "page.html").read_text().partition('id="data">')[2].partition("</script>")[0]
    answers = json.loads(data)["answers"]
    for name in ("rloo", "gigpo"):
        estimate = answers[f"runs/0/groups/0/estimates/{name}"]
        assert estimate["parameters"]["reward_scale"] == 1.0
    assert [variant.name.partition(":")[0] for variant in TerminalViewer(sources).compared] == ["rloo", "hgpo"]
    assert all(variant.estimator.parameters.reward_scale == 1.0 for variant in TerminalViewer(sources).compared)


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"advantage.estimator": "adaptive", "advantage.parameters": {}},
        {"advantage.estimator": "hgpo", "advantage.parameters": {"state_key": "evil:module"}},
    ],
)
def test_an_estimator_that_needs_the_policy_or_a_module_is_not_taken(tmp_path: Path, training: dict) -> None:
    (source,) = open_sources([str(run_with(tmp_path / "run", training))])
    assert source.trained() is None


def test_runs_of_one_name_have_their_folders_and_runs_without_rows_are_left_out(tmp_path: Path) -> None:
    runs = [run_with(tmp_path / folder / "seed0", TRAINING) for folder in "ab"]
    with StepWriter(tmp_path / "empty"):
        pass
    sources = open_sources([str(run) for run in (*runs, tmp_path / "empty")])
    assert [source.name for source in sources] == ["a/seed0", "b/seed0", "empty"]
    assert write_page(sources, tmp_path / "page.html").tasks == 2
