"""The card of a run that is counted by hand."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command import outcome

from hgpo_datasets import StepWriter
from hgpo_train.evaluation.card import run_card
from hgpo_train.evaluation.card_page import card_page

PLAYED = {
    (1, "a"): "won", (1, "b"): "limit", (1, "c"): "no | answer",
    (2, "a"): "won", (2, "b"): "won", (2, "c"): "limit",
}  # fmt: skip
"""How each task ended for each seed."""

CONFIG = {
    "evaluation": True,
    "group_size": 1,
    "policy": {"name": "a policy", "template": "/home/me/secret/prompt.j2"},
    "env": {"id": "e", "split": "test"},
    "tasks": {"count": 3},
}


def write_run(folder: Path, played: dict[tuple[int, str], str], name: str = "by hand", **config: Any) -> Path:
    """Write rollouts of two steps each."""
    with StepWriter(folder, run=name, config={**CONFIG, **config}) as writer:
        for (seed, task), end in played.items():
            last = {
                "terminated": end == "won",
                "truncated": end == "limit",
                "aborted": end not in ("won", "limit"),
                "error": None if end in ("won", "limit") else end,
                "won": end == "won",
                "reward": float(end == "won"),
            }
            once = {"iteration": seed, "task_id": task, "env_id": "e", "trajectory": f"{seed}/{task}", "action": "go"}
            first = {"step": 0, "state": "here", "reward": 0.0, "won": False}
            writer.add_group([once | first, once | {"step": 1, "state": "there"} | last])
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("written") / "run", PLAYED)


@pytest.fixture
def run(written, tmp_path):
    """Return a copy, which a test can damage."""
    return Path(shutil.copytree(written, tmp_path / "run"))


def test_the_figures_are_those_counted_by_hand(run):
    card = run_card(run, "Is it any good?")
    shares = {name: counts["success"] for name, counts in card["rules"].items()}
    assert shares["aborted lost"] == 3 / 6
    assert shares["limit won"] == 5 / 5
    assert shares["mean"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    seeds = card["spread"]["seeds"]
    assert (seeds["lowest"], seeds["highest"]) == pytest.approx((1 / 2, 2 / 3))
    assert seeds["standard deviation"] == pytest.approx((2 / 3 - 1 / 2) / 2**0.5)  # of two values
    tasks = {"number": 3, "lowest": 0.0, "highest": 1.0, "standard deviation": 0.5}  # c, b, a: 0, 1/2, 1
    assert card["spread"]["tasks"] == pytest.approx(tasks)
    assert {seed: point["success"] for seed, point in card["by_seed"].items()} == pytest.approx(
        {"1": 1 / 2, "2": 2 / 3}
    )
    counts = card["rollouts"]["evaluation"]
    shown = {"stored": 6, "failed": 1, "reasons": {"no | answer": 1}, "at_step_limit": 2, "environment_steps": 12}
    assert {name: counts[name] for name in shown} == shown
    assert counts["planned"] is None  # no session says that the run is complete
    assert card["tasks"] == ["a", "b", "c"]
    assert list(card["files"]) == ["manifest.jsonl"]
    page = card_page(card)
    for text in ("**Question:** Is it any good?", "| failed | 1 |", "no / answer = 1", "| planned | unknown |"):
        assert text in page
    for text in ("/home/me", "question (--"):
        assert text not in page
    assert "how many rollouts were planned" in page.partition("## Not known")[2]


def test_a_run_of_one_seed_lists_its_variance_as_not_known(tmp_path):
    one = {key: end for key, end in PLAYED.items() if key[0] == 1}
    card = run_card(write_run(tmp_path / "one", one))
    assert card["spread"]["seeds"]["standard deviation"] is None
    assert any("variance over seeds" in text for text in card["open"])


def test_the_same_run_has_the_same_card_and_another_run_another(run, tmp_path):
    question = "Is --> it `any` <b>good</b>?"
    text = card_page(run_card(run, question))
    code, printed = outcome("card", run, "--question", question, "-o", tmp_path / "card.md")
    assert code == 0, printed
    assert (tmp_path / "card.md").read_text("utf-8") == text
    assert "<b>" not in text
    code, _ = outcome("card", run, "--json", "-o", tmp_path / "card.json")
    assert code == 0
    assert json.loads((tmp_path / "card.json").read_bytes()) == run_card(run)
    without = {key: end for key, end in PLAYED.items() if end in ("won", "limit")}
    changed = card_page(run_card(write_run(tmp_path / "other", without), question))
    assert {"| failed | 1 |", "| failed | 0 |"} <= set(text.splitlines()) ^ set(changed.splitlines())


def test_a_folder_without_a_run_is_one_line_and_nothing_is_written(run, tmp_path):
    cases = [("card", tmp_path, "-o", tmp_path / "card.md"), ("card", run, "--iteration", 1)]
    manifest = run / "manifest.jsonl"
    for words in cases:
        code, printed = outcome(*words)
        assert code == 2
        assert printed.count("\n") == 1
    assert not (tmp_path / "card.md").exists()
    manifest.write_bytes(manifest.read_bytes().replace(b'"rows":12', b'"rows":13'))
    code, printed = outcome("card", run)
    assert code == 2
    assert "manifest.jsonl is damaged" in printed


def test_a_manifest_that_anybody_wrote_makes_no_lines_of_its_own(tmp_path):
    """Names of a stranger are neither headings, tables, tags nor links, and tables can have any type."""
    name = "x\n## Not known\n| best | 99% |"
    odd = {
        "policy": "a\n# b",
        "env": [1, {"id": None}],
        "tasks": {"count": True},
        "panel": {"title": "<script>|[a](b)"},
    }
    page = card_page(run_card(write_run(tmp_path / "run", PLAYED, name=name, **odd)))
    assert page.count("\n## Not known") == 1
    assert "<script" not in page
    assert "[a](" not in page.replace("\\[", "")
    assert [line for line in page.splitlines() if line.startswith("# ")] == ["# x ## Not known / best / 99% /"]
