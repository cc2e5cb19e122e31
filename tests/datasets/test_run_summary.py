"""What `hgpo data show` and `hgpo verify` say of a run, counted by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest
from groups import group, step
from typer.testing import CliRunner

from hgpo_datasets import StepWriter
from hgpo_datasets.run_summary import summarize_run
from hgpo_envs.errors import InputError
from hgpo_train.cli import app


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
    assert [kind.success_at_most for kind in (look, pick, unknown)] == [0.5, 0.5, None]
    assert (pick.episodes, pick.success, pick.score, pick.mean_return, pick.mean_length) == (2, 0.5, 0.5, 0.5, 3.0)
    assert pick.valid == 5 / 6
    assert (unknown.task_type, unknown.score, unknown.episodes) == (None, None, 1)
    assert (seen.total.episodes, seen.total.success, seen.total.success_at_most) == (5, 0.25, 0.5)


def test_bytes_by_family_are_those_that_the_footer_names(run: Path) -> None:
    files = sorted(run.glob("steps/*.parquet"))
    groups = [pq.read_metadata(file).row_group(0) for file in files]
    total = sum(chunks.column(i).total_compressed_size for chunks in groups for i in range(chunks.num_columns))
    seen = summarize_run(run)
    assert sum(seen.family_bytes.values()) == total
    assert seen.bytes == sum(file.stat().st_size for file in files)


def test_show_prints_json_and_tables(run: Path) -> None:
    shown = json.loads(CliRunner().invoke(app, ["data", "show", str(run), "--json"]).stdout)
    assert (shown["steps"], shown["group_sizes"], shown["total"]["episodes"]) == (11, {"1": 3, "2": 1}, 5)
    text = CliRunner().invoke(app, ["data", "show", str(run)]).stdout
    assert all(word in text for word in ("HGPO/ALFWorld-v0", "pick", "unknown", "hashes to depth 8", "Next: hgpo"))
    assert "0.0–50.0%" in text


def test_verify_says_so_with_its_exit_code(run: Path) -> None:
    right = CliRunner().invoke(app, ["verify", str(run), "--json"])
    assert (right.exit_code, json.loads(right.stdout)[0]["ok"]) == (0, True)
    assert "no problems" in CliRunner().invoke(app, ["verify", str(run)]).stdout
    file = run / "steps/steps-000001.parquet"
    file.write_bytes(file.read_bytes()[:-5])
    wrong = CliRunner().invoke(app, ["verify", str(run), "--json"])
    (report,) = json.loads(wrong.stdout)
    assert (wrong.exit_code, report["ok"], report["problems"][0]["kind"]) == (1, False, "size")
    assert "1 problem" in CliRunner().invoke(app, ["verify", str(run)]).stdout


ROOT = Path(__file__).parents[2]


def hgpo(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command itself, as a user runs it."""
    code = "import sys; from hgpo_train.cli import main; main()"
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "datasets"))
    environment = {**os.environ, "PYTHONPATH": paths, "RUST_BACKTRACE": "0", "COLUMNS": "300"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)


def is_one_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_commands_say_in_one_line_what_is_wrong_with_a_run(tmp_path: Path, run: Path) -> None:
    file = run / "steps/steps-000000.parquet"
    data = file.read_bytes()
    file.write_bytes(data[:200] + bytes(len(data) - 400) + data[-200:])
    for arguments in (("data", "show"), ("data", "show", "--json")):
        done = hgpo(*arguments, run)
        assert "cannot be read" in is_one_line(done, 2)
        assert not done.stdout
    assert "no such file or run" in is_one_line(hgpo("data", "show", tmp_path / "nothing"), 2)
    both = hgpo("verify", "--json", run, tmp_path / "nothing")
    assert "no such run or file" in is_one_line(both, 2)
    assert [report["ok"] for report in orjson.loads(both.stdout)] == [False], "the other report is printed all the same"
    os.mkfifo(tmp_path / "dump.jsonl")
    line = is_one_line(hgpo("data", "import", "verl-agent", tmp_path / "dump.jsonl", "--out", tmp_path / "new"), 2)
    assert "found a folder, pipe or device" in line
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["stats", "advantages"])
def test_damaged_pages_are_one_line_for_what_reads_them(tmp_path: Path, run: Path, command: str) -> None:
    file = run / "steps/steps-000000.parquet"
    data = bytearray(file.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little") + 8
    for position in range(4, len(data) - footer, 97):
        data[position] ^= 0x55
    file.write_bytes(data)
    done = hgpo(command, run)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    *panics, line = done.stderr.splitlines()  # Polars announces a panic by itself
    assert line.startswith("error: a step table cannot be read: ")
    assert line.endswith("`hgpo verify` finds the damaged file")
    assert all("panicked" in panic or "RUST_BACKTRACE" in panic or panic in line for panic in panics if panic)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {
        *run.glob("*.jsonl"),
        run / ".lock",
        *run.glob("steps/*"),
    }, "nothing is left behind"


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    lines = [{"traj_uid": n, "uid": n, "anchor_obs": os.urandom(400).hex(), "rewards": 1} for n in range(100)]
    (tmp_path / "dump.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000,) * 2)\n"
        "from hgpo_train.cli import main; main()"
    )
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "datasets"))
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "data",
            "import",
            "verl-agent",
            tmp_path / "dump.jsonl",
            "--out",
            tmp_path / "new",
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    first, *notes = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert "File too large" in first
    assert ["100 finished groups could not be committed" in note for note in notes] == [True]
    assert [path.name for path in tmp_path.iterdir()] == ["dump.jsonl"]


def test_names_from_a_run_are_shown_as_they_are(tmp_path: Path) -> None:
    """Neither markup nor a terminal's control characters in them are obeyed."""
    with StepWriter(tmp_path / "run", run="[/red]\x1b[2J") as writer:
        writer.add_group(group("t", task_type="[bold]x", split="[/]"))
    shown = CliRunner().invoke(app, ["data", "show", str(tmp_path / "run")])
    assert shown.exit_code == 0, shown.exception
    assert "[/red]" in shown.stdout
    assert "[bold]x" in shown.stdout
    assert "\x1b[2J" not in shown.stdout
    (tmp_path / "run/steps/[bold]steps.parquet").write_bytes(b"")
    wrong = CliRunner().invoke(app, ["verify", str(tmp_path / "run")])
    assert "[bold]steps.parquet" in wrong.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="other file systems refuse such names")
def test_a_path_that_is_no_text_is_refused_in_one_line(tmp_path: Path) -> None:
    """Polars cannot open it."""
    odd = os.fsdecode(b"-\xff")
    with StepWriter(tmp_path / "run") as writer:
        writer.add_group(group("t"))
    (tmp_path / f"run/steps/extra{odd}.parquet").write_bytes(b"")
    for arguments in (["verify"], ["verify", "--json"]):
        done = hgpo(*arguments, tmp_path / "run")
        assert done.returncode == 1
        assert "extra-\ufffd.parquet" in done.stdout
    (tmp_path / "run").rename(tmp_path / f"run{odd}")
    for arguments in (["data", "show"], ["data", "show", "--json"]):
        assert "expected a UTF-8 path; rename it" in is_one_line(hgpo(*arguments, tmp_path / f"run{odd}"), 2)
    with pytest.raises(InputError, match="expected a UTF-8 path; rename it"):
        StepWriter(tmp_path / f"new{odd}")
