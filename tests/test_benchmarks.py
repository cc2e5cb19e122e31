"""Benchmarks replace the kept results, from which the documentation's tables are written, only with `--keep`."""

import ast
import json
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(
    path
    for path in (*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "research/benchmarks").glob("*.py"))
    if path.stem not in {"__init__", "record", "readme", "tables", "learning_figures", "what_learns"}
)


def calls(path: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_benchmark_asks_before_it_replaces_kept_results(path: Path) -> None:
    assert {"add_keep", "make_parser"} & {name_of(call) for call in calls(path)}
    stored = [call for call in calls(path) if name_of(call) in {"store", "report"} and call.keywords]
    assert stored
    for call in stored:
        (keep,) = [keyword.value for keyword in call.keywords if keyword.arg == "keep"]
        assert isinstance(keep, ast.Attribute)  # the command line's, never a constant
        assert keep.attr == "keep"


def test_results_are_stored_where_git_ignores_them_unless_kept(tmp_path, monkeypatch) -> None:
    record = runpy.run_path(str(ROOT / "benchmarks/record.py"))
    store = record["store"]
    for name in ("RESULTS", "SCRATCH", "ROOT"):
        monkeypatch.setitem(store.__globals__, name, tmp_path / name.lower() if name != "ROOT" else tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/speed.json").write_text("kept")
    line = store("speed", {"µs": 3}, keep=False)
    assert "scratch/speed.json" in line
    assert "results/speed.json are unchanged (--keep)" in line
    assert (tmp_path / "results/speed.json").read_text() == "kept"
    assert json.loads((tmp_path / "scratch/speed.json").read_text())["figures"] == {"µs": 3}
    assert "results/speed.json" in store("speed", {"µs": 4}, keep=True)
    assert json.loads((tmp_path / "results/speed.json").read_text())["figures"] == {"µs": 4}
    assert record["make_parser"]("").parse_args([]).keep is False
    assert record["make_parser"]("").parse_args(["--keep"]).keep is True
    ignored = subprocess.run(
        ["git", "check-ignore", "-q", str(record["SCRATCH"] / "x.json")], cwd=ROOT, check=False
    ).returncode
    assert ignored in (0, 128)  # 128: not a checkout
