"""`hgpo card`: it says what was trained, and how the best of several evaluations is to be read."""

import json
import shlex

import polars as pl
import pytest
from lazily import Lazy

from hgpo_datasets import scan_steps
from hgpo_envs.wording import counted
from hgpo_train.models.checkpoint_files import STATE, list_checkpoints
from hgpo_train.proportions import wilson_interval
from hgpo_train.training.config import replace

evaluation_result = Lazy("hgpo_train.training.evaluations:evaluation_result")


@pytest.fixture
def run(config, runs):
    """Two iterations with an evaluation each; whatever it measured, the first one is the best."""
    config = replace(
        config,
        iterations=2,
        evaluation={"every": 1},
        checkpoint={"every": 1, "keep": 0},
    )
    config = replace(
        config, rollout={"tasks": 2, "group_size": 2, "max_response_tokens": 3}
    )
    folder = runs.train(config).shared.folder
    for checkpoint in list_checkpoints(folder / "checkpoints"):
        state = json.loads((checkpoint / STATE).read_text())
        assert {"best", "best_success", "stalled"} <= state.keys()
    return folder


@pytest.mark.slow
def test_the_card_says_what_was_trained_and_its_command_evaluates_the_model(
    run, config, hgpo, tmp_path
):
    best = json.loads((list_checkpoints(run / "checkpoints")[-1] / STATE).read_text())[
        "best"
    ]
    trained = run / "checkpoints" / f"{best:06d}"
    output = hgpo.output("card", run, "-o", tmp_path / "card.md")
    assert f"hf upload ME/NAME {trained} . --exclude 'trainer/*'" in output
    assert f"hf upload ME/NAME {tmp_path / 'card.md'} README.md" in output
    card = (tmp_path / "card.md").read_text()
    assert hgpo("card", run)[1] == card
    header, _, text = card.removeprefix("---\n").partition("---\n")
    assert 'library_name: "transformers"' in header
    assert "base_model" not in header  # a folder of this machine
    assert "/tmp" not in text
    size = f"iterations of the checkpoint = {best}, of the run = 2, planned = 2, tasks = 2, group size = 2"
    for line in (
        "Doors",
        "the estimator hgpo",
        "alpha = 1.0",
        "| 0 | ",
        size,
        "hgpo eval",
        "this model",
    ):
        assert line in text, line
    played = scan_steps(run / "evaluation").filter(pl.col("iteration") == best)
    won = (
        played.group_by("task_id")
        .agg(pl.col("episode_won").mean())
        .collect()["episode_won"]
    )
    low, high = wilson_interval(won.mean(), len(won))
    size = counted(len(won), "task")
    assert (
        f"Iteration {best}: success {won.mean():.1%} ({low:.1%} to {high:.1%}) on {size} of split"
        in text
    )

    hgpo.output("card", "check", tmp_path / "card.md", "--run", run)
    (tmp_path / "card.md").write_text(card.replace("alpha = 1.0", "alpha = 2.0"))
    code, output, errors = hgpo("card", "check", tmp_path / "card.md", "--run", run)
    assert code == 1
    changed, expected = output.splitlines()
    assert changed.startswith("-| its parameters")
    assert changed[1:].replace("alpha = 2.0", "alpha = 1.0") == expected[1:]

    command = next(line for line in text.splitlines() if "hgpo eval" in line).partition(
        " #"
    )[0]
    names = {
        "FOLDER": trained,
        "runs/eval": tmp_path / "eval",
        "short.j2": config.environment.prompt_template,
    }
    for name, path in names.items():
        command = command.replace(name, str(path))
    hgpo.output(*shlex.split(command)[1:])
    prompts = [
        scan_steps(path).select("prompt").collect().item(0, 0)
        for path in (run, tmp_path / "eval")
    ]
    # as the template does
    assert all(prompt.startswith("light the lamp") for prompt in prompts)

    assert (
        f"{run}/checkpoints/000001"
        in hgpo("card", run, "--iteration", 1, "-o", tmp_path / "first.md")[1]
    )
    hgpo("card", run, "--iteration", 1, "--json", "-o", tmp_path / "first.json")
    shown = json.loads((tmp_path / "first.json").read_text())
    assert (
        shown["rollouts"]["training"]["planned"]
        == shown["rollouts"]["training"]["stored"]
        == 2 * 2 * 2
    )
    assert list(shown["by_seed"]) == ["0", "1", "2"]
    assert shown["tasks"] == sorted(
        scan_steps(run / "evaluation").select("task_id").unique().collect()["task_id"]
    )
    assert hgpo("card", "check", tmp_path / "first.json", "--run", run)[0] == 0
    code, _, errors = hgpo("card", run, "--iteration", 7)
    assert code == 2
    assert "expected one with a checkpoint (1, 2), received 7" in errors


def evaluations_of(wins, tasks=12):
    """Return episodes of evaluations in which the first tasks won: so many of each iteration."""
    rows = [
        {"seed": iteration, "task_id": str(task), "won": task < won}
        for iteration, won in wins.items()
        for task in range(tasks)
    ]
    return pl.DataFrame(rows).with_columns(
        env_id=pl.lit("e"), aborted=pl.lit(value=False)
    )


def test_the_highest_of_several_evaluations_is_called_so_and_the_last_one_is_given(
    config,
):
    """Wilson's intervals of 6, 9 and 7 of 12, and of 1 of 1 evaluation."""
    found = evaluations_of({0: 6, 5: 9, 10: 7})
    split = config.evaluation.split
    assert evaluation_result(config, found, 5) == (
        f"Iteration 5: success 75.0% (46.8% to 91.1%) on 12 tasks of split {split}. It is the highest of 3 "
        "evaluations on these tasks: chosen for that, it is too high. The last, iteration 10: 58.3% (32.0% to 80.7%)."
    )
    last = f"Iteration 10: success 58.3% (32.0% to 80.7%) on 12 tasks of split {split}."
    assert evaluation_result(config, found, 10) == last
    assert (
        evaluation_result(config, found, 7)
        == "Iteration 7 was not evaluated on held-out tasks."
    )
    # equal evaluations: none was chosen
    assert evaluation_result(config, evaluations_of({0: 0, 5: 0}), 5).endswith(
        "on 12 tasks of split " + split + "."
    )
    assert "highest" not in evaluation_result(config, evaluations_of({5: 9}), 5)
    untold = evaluations_of({5: 9}).with_columns(won=pl.lit(None, pl.Boolean))
    unknown = f"Iteration 5: success unknown on 12 tasks of split {split}."
    assert evaluation_result(config, untold, 5) == unknown
