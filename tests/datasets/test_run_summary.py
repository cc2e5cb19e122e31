"""What `hgpo data show` and `hgpo verify` say of a run, counted by hand."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest
from groups import group, step

from hgpo_datasets import StepWriter
from hgpo_datasets.run_summary import summarize_run
from hgpo_envs.errors import InputError

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two shards: task a won once in two, task b played twice with one aborted, an unknown kind."""
    folder = tmp_path / "first"
    with StepWriter(folder, config={"seed": 3}, defaults={"env_id": "HGPO/ALFWorld-v0", "split": "train"}) as writer:
        won = [step("a", "a0", 0), step("a", "a0", 1, won=True, terminated=True, reward=1.0, score=1.0)]
        lost = [step("a", "a1", t, score=0.0, action_valid=t > 0, won=False) for t in range(4)]
        writer.add_group({**row, "task_type": "pick"} for row in won + lost)
        writer.commit()
        writer.add_group([step("b", "b0", 0, task_type="look", won=False, aborted=True, error="gone")])
        writer.add_group([step("b", "b1", 0, task_type="look", group=1, won=False)])
        writer.add_group(group("c", 1, 3, iteration=2))
    return folder


def test_the_overview_counts(run: Path) -> None:
    seen = summarize_run(run)
    assert (seen.runs, seen.env_ids, seen.splits) == (["first"], ["HGPO/ALFWorld-v0"], ["train"])
    assert (seen.groups, seen.group_sizes, seen.iterations) == (4, {1: 3, 2: 1}, (0, 2))
    assert (seen.steps, seen.shortest, seen.median, seen.longest) == (11, 1, 2.0, 4)
    assert (seen.files, seen.depth, seen.config) == (2, 8, {"seed": 3})
    look, pick, unknown = seen.kinds
    assert (look.task_type, look.tasks, look.episodes, look.aborted, look.success) == ("look", 1, 2, 1, 0.0)
    assert [(kind.success_low, kind.success_high) for kind in seen.kinds] == [(0.0, 0.5), (0.5, 0.5), (None, None)]
    assert (pick.episodes, pick.success, pick.score, pick.mean_return, pick.mean_length) == (2, 0.5, 0.5, 0.5, 3.0)
    assert pick.valid == 5 / 6
    assert (unknown.task_type, unknown.score, unknown.episodes) == (None, None, 1)
    assert (seen.total.episodes, seen.total.success) == (5, 1 / 3)
    assert (seen.total.success_low, seen.total.success_high) == (0.2, 0.6)


def test_bytes_by_family_are_those_that_the_footer_names(run: Path) -> None:
    files = sorted(run.glob("steps/*.parquet"))
    groups = [pq.read_metadata(file).row_group(0) for file in files]
    total = sum(chunks.column(i).total_compressed_size for chunks in groups for i in range(chunks.num_columns))
    seen = summarize_run(run)
    assert sum(seen.family_bytes.values()) == total
    assert seen.bytes == sum(file.stat().st_size for file in files)


def test_show_prints_json_and_tables(run: Path, hgpo: Command) -> None:
    shown = json.loads(hgpo("data", "show", run, "--json")[1])
    assert (shown["steps"], shown["group_sizes"], shown["total"]["episodes"]) == (11, {"1": 3, "2": 1}, 5)
    _, text, _ = hgpo("data", "show", run)
    assert all(word in text for word in ("HGPO/ALFWorld-v0", "pick", "unknown", "hashes to depth 8", "Next: hgpo")), (
        text
    )
    assert "3 of 1 rollout, 1 of 2 rollouts" in " ".join(text.split())
    assert "1 episode; success is 20.0% of all episodes if they are lost, 60.0% if they are won" in " ".join(
        text.split()
    )


def test_groups_of_one_size_are_counted_once(tmp_path: Path, hgpo: Command) -> None:
    with StepWriter(tmp_path / "run") as writer:
        for task in "abc":
            writer.add_group(group(task, 2))
    (row,) = (line for line in hgpo("data", "show", tmp_path / "run")[1].splitlines() if line.startswith("groups"))
    assert row.split(maxsplit=1)[1].strip() == "3, each of 2 rollouts"


def test_verify_says_so_with_its_exit_code(run: Path, hgpo: Command) -> None:
    code, shown, _ = hgpo("verify", run, "--json")
    assert (code, json.loads(shown)[0]["ok"]) == (0, True)
    assert "no problems" in hgpo("verify", run)[1]
    file = run / "steps/steps-000001.parquet"
    file.write_bytes(file.read_bytes()[:-5])
    code, shown, _ = hgpo("verify", run, "--json")
    (report,) = json.loads(shown)
    assert (code, report["ok"], report["problems"][0]["kind"]) == (1, False, "size")
    assert "1 problem" in hgpo("verify", run)[1]
    code, shown, line = hgpo("verify", "--json", run, run.parent / "nothing")
    assert (code, "no such run or file" in line) == (2, True)
    assert [report["ok"] for report in json.loads(shown)] == [False], "the other report is printed all the same"


def test_commands_say_in_one_line_what_is_wrong_with_a_run(tmp_path: Path, run: Path, hgpo: Command) -> None:
    file = run / "steps/steps-000000.parquet"
    data = file.read_bytes()
    file.write_bytes(data[:200] + bytes(len(data) - 400) + data[-200:])
    os.mkfifo(tmp_path / "dump.jsonl")
    for arguments, text in (
        (("data", "show", run), "cannot be read"),
        (("data", "show", tmp_path / "nothing"), "no such file or run"),
        (("data", "import", "verl-agent", tmp_path / "dump.jsonl", "--out", tmp_path / "new"), "found a folder, pipe"),
    ):
        code, shown, error = hgpo(*arguments)
        (line,) = error.splitlines()
        assert (code, shown, text in line) == (2, "", True)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["stats", "advantages"])
def test_damaged_pages_are_one_line_for_what_reads_them(tmp_path: Path, run: Path, command: str) -> None:
    file = run / "steps/steps-000000.parquet"
    data = bytearray(file.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little") + 8
    for position in range(4, len(data) - footer, 97):
        data[position] ^= 0x55
    file.write_bytes(data)
    done = command_line(command, run)
    assert done.returncode == 1
    *panics, line = done.stderr.splitlines()  # Polars announces a panic by itself
    assert line.startswith("error: a step table cannot be read: ")
    assert line.endswith("`hgpo verify` finds the damaged file")
    assert all("panicked" in panic or "RUST_BACKTRACE" in panic or panic in line for panic in panics if panic)
    left = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*run.glob("*.jsonl"), run / ".lock", *run.glob("steps/*")}, "nothing is left behind"


def command_line(*arguments: object, before: str = "") -> subprocess.CompletedProcess[str]:
    """The command itself, as a user runs it."""
    root = Path(__file__).parents[2]
    paths = os.pathsep.join(str(root / part) for part in (".", "datasets"))
    environment = {**os.environ, "PYTHONPATH": paths, "RUST_BACKTRACE": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", f"{before}\nfrom hgpo_train.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)


@pytest.mark.slow
def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    lines = [{"traj_uid": n, "uid": n, "anchor_obs": os.urandom(400).hex(), "rewards": 1} for n in range(100)]
    (tmp_path / "dump.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    limit = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000,) * 2)"
    )
    arguments = ("data", "import", "verl-agent", tmp_path / "dump.jsonl", "--out", tmp_path / "new")
    done = command_line(*arguments, before=limit)
    assert done.returncode == 1
    first, *notes = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert "File too large" in first
    assert ["100 finished groups could not be committed" in note for note in notes] == [True]
    assert [path.name for path in tmp_path.iterdir()] == ["dump.jsonl"]


def test_names_from_a_run_are_shown_as_they_are(tmp_path: Path, hgpo: Command) -> None:
    """Neither markup nor a terminal's control characters in them are obeyed."""
    with StepWriter(tmp_path / "run", run="[/red]\x1b[2J") as writer:
        writer.add_group(group("t", task_type="[bold]x", split="[/]"))
    code, shown, _ = hgpo("data", "show", tmp_path / "run")
    assert (code, "[/red]" in shown, "[bold]x" in shown, "\x1b[2J" in shown) == (0, True, True, False)
    (tmp_path / "run/steps/[bold]steps.parquet").write_bytes(b"")
    assert "[bold]steps.parquet" in hgpo("verify", tmp_path / "run")[1]


@pytest.mark.skipif(sys.platform != "linux", reason="other file systems refuse such names")
def test_a_path_that_is_no_text_is_refused_in_one_line(tmp_path: Path, hgpo: Command) -> None:
    """Polars cannot open it."""
    odd = os.fsdecode(b"-\xff")
    with StepWriter(tmp_path / "run") as writer:
        writer.add_group(group("t"))
    (tmp_path / f"run/steps/extra{odd}.parquet").write_bytes(b"")
    code, shown, _ = hgpo("verify", tmp_path / "run", "--json")
    assert (code, "extra-\ufffd.parquet" in shown) == (1, True)
    (tmp_path / "run").rename(tmp_path / f"run{odd}")
    for call in (summarize_run, StepWriter):
        with pytest.raises(InputError, match="expected a UTF-8 path; rename it"):
            call(tmp_path / f"run{odd}")
