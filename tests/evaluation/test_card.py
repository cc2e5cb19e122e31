"""The card of a run that is counted by hand, and its check, which names whatever was changed."""

import json
import shutil
from pathlib import Path

import pytest
from command import outcome

from hgpo_datasets import StepWriter, scan_steps
from hgpo_train.evaluation.card import rollout_counts, run_card
from hgpo_train.evaluation.card_page import card_page, card_problems, read_card

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


def write_run(folder, played, name="by hand", **config):
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
            once = {
                "iteration": seed,
                "task_id": task,
                "env_id": "e",
                "trajectory": f"{seed}/{task}",
                "action": "go",
            }
            first = {"step": 0, "state": "here", "reward": 0.0, "won": False}
            writer.add_group(
                [once | first, once | {"step": 1, "state": "there"} | last]
            )
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
    # of two values
    assert seeds["standard deviation"] == pytest.approx((2 / 3 - 1 / 2) / 2**0.5)
    # c, b, a: 0, 1/2, 1
    tasks = {"number": 3, "lowest": 0.0, "highest": 1.0, "standard deviation": 0.5}
    assert card["spread"]["tasks"] == pytest.approx(tasks)
    assert {
        seed: point["success"] for seed, point in card["by_seed"].items()
    } == pytest.approx({"1": 1 / 2, "2": 2 / 3})
    counts = card["rollouts"]["evaluation"]
    shown = {
        "stored": 6,
        "failed": 1,
        "reasons": {"no | answer": 1},
        "at_step_limit": 2,
        "environment_steps": 12,
    }
    assert {name: counts[name] for name in shown} == shown
    assert counts["planned"] is None  # no session says that the run is complete
    assert card["tasks"] == ["a", "b", "c"]
    assert list(card["files"]) == ["manifest.jsonl"]
    page = card_page(card)
    for text in (
        "**Question:** Is it any good?",
        "| failed | 1 |",
        "no / answer = 1",
        "| planned | unknown |",
    ):
        assert text in page
    for text in ("/home/me", "question (--"):
        assert text not in page
    assert "how many rollouts were planned" in page.partition("## Not known")[2]


def test_a_run_of_one_seed_lists_its_variance_as_not_known(tmp_path):
    one = {key: end for key, end in PLAYED.items() if key[0] == 1}
    card = run_card(write_run(tmp_path / "one", one))
    assert card["spread"]["seeds"]["standard deviation"] is None
    assert any("variance over seeds" in text for text in card["open"])


CHANGES = {
    "a figure": ("| aborted lost | 0.5 |", "| aborted lost | 0.6 |"),
    "a failure": ("| failed | 1 |", "| failed | 0 |"),
    "a reason": ("no / answer = 1", "none"),
    "a rule": ("| limit lost |", "| limit, lost |"),
    "the run": ("# by hand", "# by head"),
    "a line more": ("## Spread of success", "In truth 99%.\n## Spread of success"),
    "a row more": ("| best |", "| best | 0.99 | | | |\n| best |"),
    "the question": ("**Question:** not given", "**Question:** other"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_page_is_refused_and_the_change_is_named(run, tmp_path, name):
    page = tmp_path / "card.md"
    text = card_page(run_card(run))
    before, after = CHANGES[name]
    assert before in text
    changed = text.replace(before, after, 1)
    page.write_text(changed)
    code, printed = outcome("card", "check", page, "--run", run)
    assert code == 1
    assert "is not the card of" in printed
    differing = [
        f"-{line}" for line in changed.splitlines() if line not in text.splitlines()
    ]
    differing += [
        f"+{line}" for line in text.splitlines() if line not in changed.splitlines()
    ]
    assert differing
    assert sorted(printed.splitlines()[:-1]) == sorted(differing)


def test_a_rule_that_is_left_out_is_named(run, tmp_path):
    page = tmp_path / "card.md"
    lines = card_page(run_card(run)).splitlines(keepends=True)
    page.write_text(
        "".join(line for line in lines if not line.startswith("| aborted lost"))
    )
    code, printed = outcome("card", "check", page, "--run", run)
    assert code == 1
    assert printed.startswith("+| aborted lost | 0.5 |")


def leaves(value, *path):
    """Return the paths of all values inside of tables."""
    if not isinstance(value, dict) or not value:
        return [path]
    return [inner for name in value for inner in leaves(value[name], *path, name)]


def test_every_value_of_a_document_is_compared(run, tmp_path):
    code, printed = outcome("card", run, "--json", "-o", tmp_path / "card.json")
    assert code == 0, printed
    found, given = read_card(tmp_path / "card.json")
    card = run_card(run, given.question)
    assert card_problems(card, found) == []
    free = ("head", "open", "format")
    for path in leaves(
        {name: value for name, value in card.items() if name not in free}
    ):
        changed = json.loads(json.dumps(found))
        inner = changed
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = "changed"
        problems = card_problems(card, changed)
        assert [
            problem.partition(":")[0][: len(".".join(path))] for problem in problems
        ] == [".".join(path)]
    del found["rules"]["aborted lost"]
    assert card_problems(card, found)[0].startswith("rules.aborted lost: expected {")


def test_what_the_author_may_write_is_not_compared(run, tmp_path):
    page = tmp_path / "card.md"
    text = card_page(run_card(run, "Is --> it `any` <b>good</b>?"))
    text = text.replace("tags:", "license: mit\ntags:").replace(
        "- the licenses of data and weights", "The license is MIT."
    )
    page.write_text(text.replace("\n", "\r\n"), newline="")
    code, printed = outcome("card", "check", page, "--run", run)
    assert code == 0, printed
    assert "Every figure" in printed


def test_a_changed_or_swapped_run_is_refused(run, tmp_path):
    page = tmp_path / "card.md"
    page.write_text(card_page(run_card(run)))
    without = {key: end for key, end in PLAYED.items() if end in ("won", "limit")}
    other = write_run(tmp_path / "other", without)
    code, printed = outcome("card", "check", page, "--run", other)
    assert code == 1
    assert "-| failed | 1 |" in printed
    assert "+| failed | 0 |" in printed
    shutil.rmtree(run / "steps")
    code, printed = outcome("card", "check", page, "--run", run)
    assert code == 2
    assert printed.count("\n") == 1


BAD = {
    "empty": b"",
    "no card": b"# A page\n",
    "another format": b'{"format": "hgpo card 9", "question": null, "iteration": null}',
    "no JSON": b'{"format": ',
    "deep": b'{"a":' * 100_000,
    "bytes": b"<!-- \xff -->",
    "a wrong type": b'<!-- {"format":"hgpo card 1","question":3,"iteration":null} -->',
    "a number": b'<!-- {"format":"hgpo card 1","question":null,"iteration":1e999} -->',
}


@pytest.mark.parametrize("name", [*BAD, "missing", "folder"])
def test_a_file_that_is_no_card_is_one_line(run, tmp_path, name):
    path = tmp_path if name == "folder" else tmp_path / "card.md"
    if name in BAD:
        path.write_bytes(BAD[name])
    code, printed = outcome("card", "check", path, "--run", run)
    assert code == 2
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1


def test_a_folder_without_a_run_is_one_line_and_nothing_is_written(run, tmp_path):
    cases = [
        ("card", tmp_path, "-o", tmp_path / "card.md"),
        ("card", run, "--iteration", 1),
    ]
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
    assert [line for line in page.splitlines() if line.startswith("# ")] == [
        "# x ## Not known / best / 99% /"
    ]


@pytest.mark.parametrize(
    ("second", "counts"),
    [
        ({"finish_reason": "length", "prompt_token_ids": [1, 2]}, (1, 5)),
        ({"finish_reason": None, "prompt_token_ids": None}, (None, None)),
        # A step that failed has no reply.
        ({"finish_reason": None, "prompt_token_ids": None, "aborted": True}, (0, 3)),
    ],
)
def test_counts_of_which_a_part_is_unknown_are_unknown(tmp_path, second, counts):
    step = {"task_id": "t", "step": 0, "state": "s", "action": "a", "reward": 0.0}
    first = {"finish_reason": "stop", "prompt_token_ids": [1, 2, 3]}
    rows = [step | first | {"trajectory": "x"}, step | second | {"trajectory": "y"}]
    with StepWriter(tmp_path / "run") as writer:
        writer.add_group(rows)
    found = rollout_counts(scan_steps(tmp_path / "run"), None)
    assert (found["responses_cut"], found["prompt_tokens"]) == counts
