"""Runs that version 0.1 began: they are resumed if nothing that it stored has changed, with a note of what is unknown.

`recorded/version_0_1` is a run of 3 groups that version 0.1 wrote, and its prompt template.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hgpo_datasets import manifest, scan_steps, verify
from hgpo_envs.errors import InputError
from hgpo_train.cli import app
from hgpo_train.rollout.older_runs import comparable

RECORDED = Path(__file__).parent / "recorded" / "version_0_1"
COMMAND = ["rollout", "--env", "doors_env:HGPO-Test/Doors-v0", "--env-option", "count=10", "--max-steps", "5"]
COMMAND += ["--env-option", "prompt_template=mine.j2", "--tasks", "6", "--group-size", "2"]
NOTE = "stores no fingerprints of its data (version 0.1): they may have changed since"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recorded run in the working folder."""
    shutil.copytree(RECORDED, tmp_path / "run")
    (tmp_path / "run" / "mine.j2").rename(tmp_path / "mine.j2")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def resume(out: str, *more: str, seed: int = 4) -> Result:
    arguments = [*COMMAND, "--seed", str(seed), "--out", out, *more]
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_a_run_of_version_0_1_is_resumed_with_a_note(folder: Path) -> None:
    recorded = scan_steps(folder).collect()
    assert recorded["task_id"].n_unique() == 3
    resumed = resume("run")
    assert NOTE in " ".join(resumed.output.split())
    assert resumed.exit_code == 0
    assert verify(folder).ok
    steps = scan_steps(folder).collect()
    assert steps.head(recorded.height).equals(recorded)
    straight = resume("straight")
    assert NOTE not in " ".join(straight.output.split())
    assert straight.exit_code == 0
    columns = ["trajectory", "step", "task_id", "prompt", "state", "action", "reward", "terminated", "truncated"]
    by_step = steps.select(columns).sort("trajectory", "step")
    assert by_step.equals(scan_steps("straight").select(columns).sort("trajectory", "step").collect())


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--group-size", "3"], "was written with group_size = 2, not 3"),
        (["--history-length", "1"], "was written with env.history_length = 2, not 1"),
        (["--env-option", "something=1"], "something"),
        (["--policy", "mixture:random=1"], "was written with policy.name = "),
        (["--policy-option", "x=1"], "x"),
    ],
)
def test_everything_that_it_stores_must_be_equal(folder: Path, more: list[str], line: str) -> None:
    """A key that version 0.1 stores and that is missing is a difference."""
    before = (folder / "manifest.jsonl").read_bytes()
    with pytest.raises((InputError, TypeError), match=line):
        resume("run", *more)
    assert (folder / "manifest.jsonl").read_bytes() == before


def test_another_prompt_template_under_the_same_path_is_refused(folder: Path) -> None:
    Path("mine.j2").write_text("{{ task }}")
    with pytest.raises(InputError, match="was written with prompt_template = "):
        resume("run")


def test_other_tasks_under_the_same_names_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import doors

    real = doors.DoorsSource.task
    monkeypatch.setattr(doors.DoorsSource, "task", lambda self, name: replace(real(self, name), instruction="Leave."))
    with pytest.raises(InputError, match="run was written with another task 'train-"):
        resume("run")


def header(folder: Path, config: dict) -> None:
    """Begin a run whose manifest contains a configuration."""
    folder.mkdir()
    line, _ = manifest.encode_line(manifest.Header("r", 8, 1, "0.1.0", config), "")
    (folder / "manifest.jsonl").write_bytes(line)


NEW = {"tasks": "t", "seed": 1, "policy": {"name": "transformers:m", "weights": "w"}}


BEFORE = {"seed": 1, "policy": {"name": "transformers:m"}}


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        (NEW, None),
        (BEFORE, "data and weights"),
        ({**BEFORE, "tasks": "t"}, "its weights"),
        ({"seed": 1, "policy": NEW["policy"]}, "its data"),
    ],
)
def test_only_fingerprints_that_are_not_stored_are_left_out(tmp_path: Path, stored, named) -> None:
    pytest.importorskip("torch")  # for the options of the policy
    header(tmp_path / "run", stored)
    said: list[str] = []
    assert comparable(tmp_path / "run", NEW, None, said.append) == stored  # there are no rows whose tasks are compared
    assert [named in line for line in said] == ([] if named is None else [True])


@pytest.mark.parametrize(
    ("stored", "line"),
    [
        ({**NEW, "tasks": "other"}, "was written with tasks = 'other', not 't'; use another folder"),
        ({**NEW, "seed": 2}, "was written with seed = 2, not 1"),
        ({**NEW, "policy": {"name": "transformers:m", "weights": "v"}}, "policy.weights = 'v', not 'w'"),
        ({**NEW, "policy": {**NEW["policy"], "top_p": 0.5}}, "with policy.top_p = 0.5, which is not given now"),
        ({"tasks": "t", "policy": NEW["policy"]}, "was written without seed, which is now 1"),
        ({**NEW, "policy": "odd"}, "was written with policy = 'odd'"),
    ],
)
def test_the_first_value_that_differs_is_named(tmp_path: Path, stored, line) -> None:
    pytest.importorskip("torch")
    header(tmp_path / "run", stored)
    with pytest.raises(InputError, match="was written with") as caught:
        comparable(tmp_path / "run", NEW, None)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_that_do_not_affect_replies_are_kept_as_they_are_stored(tmp_path: Path) -> None:
    """Version 0.1 stored the address of the server, and refused another one."""
    before = {"policy": {"name": "openai:m", "base_url": "http://a/v1", "retries": 2, "top_p": 0.5}}
    header(tmp_path / "run", before)
    assert comparable(tmp_path / "run", {"policy": {"name": "openai:m", "top_p": 0.5}}, None) == before
    with pytest.raises(InputError, match=r"policy\.top_p = 0\.5, not 0\.6"):
        comparable(tmp_path / "run", {"policy": {"name": "openai:m", "top_p": 0.6}}, None)


@pytest.mark.parametrize("content", [None, b"", b"{}\n", b"\xff\n"])
def test_a_folder_without_a_run_is_left_to_the_writer(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "manifest.jsonl").write_bytes(content)
    assert comparable(tmp_path, NEW, None) == NEW
