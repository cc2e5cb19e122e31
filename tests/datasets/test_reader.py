"""scan_steps over files, runs, patterns, depths, versions, damage, and an object store."""

import functools
import http.server
import random
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import polars as pl
import pytest
from groups import group
from local_server import Quiet, serving
from polars.testing import assert_frame_equal

from hgpo_datasets import StepTableWarning, StepWriter, scan_steps, schema, verify
from hgpo_envs.errors import InputError


def count(steps: pl.LazyFrame) -> int:
    return steps.select(pl.len()).collect().item()


def test_runs_of_other_depths_share_their_hashes(tmp_path: Path) -> None:
    for name, depth in (("shallow", 1), ("deep", 4)):
        with StepWriter(tmp_path / name, depth=depth) as writer:
            writer.add_group(group(name, length=6))
    for order in (["shallow", "deep"], ["deep", "shallow"]):
        both = scan_steps([tmp_path / name for name in order]).collect()
        assert both.schema == schema.polars_schema(1)
        assert both["history_hash_1"].null_count() == 4
        deep = both.filter(run="deep")
        assert_frame_equal(deep, scan_steps(tmp_path / "deep").select(deep.columns).collect())


def test_a_column_that_came_later_is_null_in_older_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StepWriter(tmp_path / "old") as writer:
        writer.add_group(group("a"))
    later = schema.Column("mood", schema.TEXT, "How it felt.", "unknown", since=schema.VERSION + 1, family="text")
    original = schema.columns
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    for module in ("schema", "rows", "derived_columns"):
        monkeypatch.setattr(f"hgpo_datasets.{module}.columns", lambda depth=8: (*original(depth), later))
    with StepWriter(tmp_path / "new") as writer:
        writer.add_group(group("b", mood="calm"))
    assert "mood" not in scan_steps(tmp_path / "old").collect_schema()
    both = scan_steps([tmp_path / "old", tmp_path / "new"]).select("task_id", "mood").unique().sort("task_id").collect()
    assert both.rows() == [("a", None), ("b", "calm")]
    for name in ("old", "new"):
        assert verify(tmp_path / name).problems == []
    with pytest.raises(InputError, match="schema version 2, not 3"):
        StepWriter(tmp_path / "old")


def test_damaged_and_missing_files_are_named(rich_run: Path) -> None:
    first, second, _ = sorted(rich_run.glob("steps/*.parquet"))
    rows = count(scan_steps(rich_run))
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"steps-000000\.parquet is damaged: expected [\d,]+ bytes, received [\d,]+"):
        scan_steps(rich_run)
    second.unlink()
    with pytest.warns(StepTableWarning, match="; skipped") as warned:
        assert count(scan_steps(rich_run, damaged="skip")) == rows / 3
    assert all(str(file) in str(warning.message) for file, warning in zip((first, second), warned, strict=True))


def test_what_is_not_committed_is_left_out(rich_run: Path) -> None:
    manifest = rich_run / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    rows = count(scan_steps(rich_run))
    manifest.write_bytes(b"".join(lines[:-1]))
    (rich_run / "steps/steps-000003.parquet.part").write_bytes(b"half")
    with pytest.warns(StepTableWarning, match=r"steps-000002\.parquet is not committed; skipped"):
        assert count(scan_steps(rich_run)) == rows * 2 / 3


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda path: None, "no such file or run"),
        (lambda path: path.mkdir(), "not a run"),
        (lambda path: path.write_bytes(b"not Parquet"), "cannot be read"),
        (lambda path: pl.DataFrame({"a": [1]}).write_parquet(path), "without the metadata hgpo.schema_version"),
        (lambda path: StepWriter(path).close(), "no committed rows"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, make: object, line: str) -> None:
    make(tmp_path / "thing")  # type: ignore[operator]
    with pytest.raises(InputError, match=rf"^.*{line}.*$"):
        scan_steps(tmp_path / "thing")


class RangeHandler(Quiet, http.server.SimpleHTTPRequestHandler):
    """Serves parts of files, as object stores do."""

    asked: ClassVar[list[tuple[str, int]]] = []

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        begin, end = 0, len(data)
        if (wanted := self.headers.get("Range")) is not None:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin = int(first) if first else max(0, len(data) - int(last))
            end = min(len(data), int(last) + 1) if first and last else len(data)
        self.asked.append((path.name, end - begin))
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(data[begin:end])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    handler = functools.partial(RangeHandler, directory=str(tmp_path))
    with serving(handler) as address:
        yield address


def test_a_run_over_http(tmp_path: Path, rich_run: Path, served: str) -> None:
    here = scan_steps(rich_run).collect()
    for url in ("rich", "rich/", "rich/steps", "rich/steps/"):
        assert_frame_equal(scan_steps(f"{served}/{url}").collect(), here)
    assert_frame_equal(
        scan_steps(f"{served}/rich/steps/steps-000001.parquet").collect(),
        here.filter(pl.col("task_id").is_in(["task 2", "task 3"])),
    )
    with StepWriter(tmp_path / "big", depth=0) as writer:
        for seed in range(30):
            writer.add_group(group(f"t{seed}", response=random.Random(seed).randbytes(300_000).hex()))
    size = sum(file.stat().st_size for file in (tmp_path / "big/steps").iterdir())
    RangeHandler.asked.clear()
    assert scan_steps(f"{served}/big").select(pl.len(), pl.col("reward").sum()).collect().row(0) == (180, 0.0)
    assert sum(count for _, count in RangeHandler.asked) < size / 2, "only the columns asked for travel"
    with pytest.raises(InputError, match="cannot be read"):
        scan_steps(f"{served}/nothing")
    (rich_run / "steps/steps-000000.parquet").unlink()
    with pytest.raises(InputError, match=r"^\S+rich/steps/steps-000000.parquet cannot be read.*$"):
        scan_steps(f"{served}/rich")
