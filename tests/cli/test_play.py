"""`hgpo play`: whole games typed at the terminal, what is shown, what is saved, and how a game is left."""

import signal
import subprocess
import sys

import pytest
from command import MAIN, environment, outcome

from hgpo_datasets import scan_steps
from hgpo_train import collect
from hgpo_train.cli.new import filled

WORLDS = ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"]


def play(typed, *options):
    code, shown = outcome("play", *options, typed=typed, COLUMNS="100")
    assert code == 0, shown
    return shown


def expert(env, folder, tasks):
    """The expert's actions in the tasks that `hgpo play` plays."""
    run = collect(
        env,
        "expert",
        folder,
        tasks=tasks,
        group_size=1,
        action_format="command",
        progress=False,
    )
    games = run.steps.collect().partition_by("trajectory", maintain_order=True)
    return [game["action"].to_list() for game in games]


@pytest.mark.parametrize("env", WORLDS)
def test_whole_games_are_saved_like_a_policys(env, tmp_path):
    games = expert(env, tmp_path / "expert", tasks=2)
    out = tmp_path / "mine"
    for game in games:  # one after the other: the second command adds a game
        done = play("\n".join(game), env, "--out", str(out))
        assert "Solved in" in done
        assert f"Next: hgpo view {out}" in done
    columns = [
        "task_id",
        "step",
        "state",
        "action",
        "reward",
        "won",
        "next_state",
        "history_hash_2",
    ]
    mine, theirs = (
        scan_steps(run).select(columns).collect() for run in (out, tmp_path / "expert")
    )
    assert mine.equals(theirs)


def test_actions_by_number_lists_and_the_prompt(tmp_path):
    """The numbers are those of `action_format="number"`."""
    first = collect("HGPO/ALFWorld-v0", lambda request: "2", tmp_path / "run", tasks=1, group_size=1, max_steps=1,
                    action_format="number", progress=False)  # fmt: skip
    row = first.steps.collect().row(0, named=True)
    done = play(
        "/zzz\n/go to\n99\n0\nh\np\n2\n",
        "--max-steps",
        "1",
        "--out",
        str(tmp_path / "mine"),
    )
    assert scan_steps(tmp_path / "mine").collect()["action"].to_list() == [
        row["action"]
    ]
    for part in (
        "no action contains 'zzz'",
        "expected a number from 1 to",
        "show the prompt that a model would see",
    ):
        assert part in done
    assert "Answer with exactly one action" in done
    assert "Not solved in 1 steps" in done


def test_an_open_query_is_written_not_chosen():
    done = play("1\nclick[nothing]\nsearch[red shoes]\nq\n", "HGPO/WebShop-v0")
    assert "search[<your query>]: write it with your own text" in done
    assert done.count("not admissible") == 1
    assert "step 1" in done


def test_tools_are_shown_and_called(tmp_path, monkeypatch):
    """Without a list of actions a number is a text; the step's number is the prompt's."""
    (tmp_path / "box_played.py").write_text(filled("tool_environment", "box_played"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hgpo_envs.environment_spec._added", {})
    typed = ["h", "t", "1", "read_note {", 'read_note {"place": "shelf"}', "p",
             '<tool_call>{"name": "open_box", "arguments": {"code": 4}}</tool_call>']  # fmt: skip
    done = play(
        "\n".join(typed), "box_played:BOX_PLAYED", "--max-steps", "3", "--out", "mine"
    )
    for part in (
        'read_note(place: "carpet" | "drawer" | "shelf")  Read the note',
        "open_box(code: integer)  Try a code on the box.",
        '<tool_call>{"name": "NAME", "arguments": {…}}</tool_call>',
        '"required": [',
        "read_note: expected its arguments as JSON",
        "step 3 ──",
        "Step 3. You see:",
    ):
        assert part in done, part
    assert "expected a number" not in done
    call = '<tool_call>\n{"name": "read_note", "arguments": {"place": "shelf"}}\n</tool_call>'
    assert scan_steps("mine").collect()["action"].to_list()[:2] == ["1", call]


@pytest.mark.parametrize("typed", ["look\nq\n", "look\n"], ids=["quit", "end of input"])
def test_an_unfinished_game_is_not_saved(typed, tmp_path):
    out = tmp_path / "mine"
    done = play(typed, "--out", str(out))
    assert "error" not in done
    assert "0 of 1 played." in done
    assert not list(out.glob("steps/*.parquet"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a child")
def test_ctrl_c_ends_the_question_at_once():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, "play"], env=environment(), **pipes
    ) as child:
        assert child.stdout is not None
        shown = ""
        # the handler is in place before the question is printed
        while "action (h: help)" not in shown:
            shown += child.stdout.read(1)
        child.send_signal(signal.SIGINT)
        assert "0 of 1 played." in child.stdout.read()
        assert child.wait(60) == 0
