"""scan_steps over files, runs, folders of runs, patterns, depths, versions, damage, and servers."""

import contextlib
import functools
import random
import warnings
from pathlib import Path
from typing import ClassVar

import polars as pl
import pytest
from groups import group, write_run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from local_server import Files, QuietHandler, serving
from polars.testing import assert_frame_equal
from refusals import refused

from hgpo_datasets import (
    StepTableWarning,
    StepWriter,
    manifest,
    scan_steps,
    schema,
    verify,
)
from hgpo_datasets.partitions import partitions
from hgpo_train.advantages import compute
from hgpo_train.analysis.run_summary import summarize_run
from hgpo_train.analysis.statistics import statistics
from hgpo_train.training.verify_run import verify_run


def count(steps):
    return steps.select(pl.len()).collect().item()


def test_runs_of_other_depths_share_their_hashes(tmp_path):
    for name, depth in (("shallow", 1), ("deep", 4)):
        write_run(tmp_path / name, group(name, length=6), depth=depth)
    for order in (["shallow", "deep"], ["deep", "shallow"]):
        both = scan_steps([tmp_path / name for name in order]).collect()
        assert both.schema == schema.polars_schema(1)
        assert both["history_hash_1"].null_count() == 4
        deep = both.filter(run="deep")
        assert_frame_equal(
            deep, scan_steps(tmp_path / "deep").select(deep.columns).collect()
        )


def test_files_of_another_schema_version_are_refused(tmp_path, monkeypatch):
    write_run(tmp_path / "old", group("a"))
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    shard = next((tmp_path / "old/steps").iterdir())
    for read in (scan_steps, StepWriter):
        with refused(r"expected schema version 5, received 4; .* or upgrade hgpo"):
            read(tmp_path / "old")
    with refused("expected schema version 5, received 4"):
        scan_steps(shard.rename(tmp_path / "alone.parquet"))
    assert {problem.kind for problem in verify(tmp_path / "old").problems} == {
        "version"
    }


def test_damaged_and_missing_files_are_named(rich_run):
    first, second, _ = sorted(rich_run.glob("steps/*.parquet"))
    rows = count(scan_steps(rich_run))
    first.write_bytes(first.read_bytes()[:-1])
    with refused(
        r"steps-000000\.parquet is damaged: expected [\d,]+ bytes, received [\d,]+"
    ):
        scan_steps(rich_run)
    second.unlink()
    with pytest.warns(StepTableWarning, match="; skipped") as warned:
        assert count(scan_steps(rich_run, damaged="skip")) == rows / 3
    assert all(
        str(file) in str(warning.message)
        for file, warning in zip((first, second), warned, strict=True)
    )


def test_what_is_not_committed_is_left_out(rich_run):
    manifest = rich_run / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    rows = count(scan_steps(rich_run))
    manifest.write_bytes(b"".join(lines[:-1]))
    (rich_run / "steps/steps-000003.parquet.part").write_bytes(b"half")
    with pytest.warns(
        StepTableWarning, match=r"steps-000002\.parquet is not committed; skipped"
    ):
        assert count(scan_steps(rich_run)) == rows * 2 / 3


def test_what_cannot_be_read_is_one_line(tmp_path):
    for number, (make, line) in enumerate((
        (lambda path: None, "no such file or run"),
        (lambda path: path.mkdir(), "not a run"),
        (lambda path: path.write_bytes(b"not Parquet"), "cannot be read"),
        (lambda path: pl.DataFrame({"a": [1]}).write_parquet(path), "without the metadata hgpo.schema_version"),
        (lambda path: StepWriter(path).close(), "no committed rows"),
    )):  # fmt: skip
        make(tmp_path / str(number))
        with refused(rf"^.*{line}.*$"):
            scan_steps(tmp_path / str(number))


class RangeHandler(Files):
    """Serves parts of files, as object stores do."""

    asked: ClassVar[list[tuple[str, int]]] = []

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        begin = 0
        end = len(data)
        if (wanted := self.headers.get("Range")) is not None:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin = int(first) if first else max(0, len(data) - int(last))
            end = min(len(data), int(last) + 1) if first and last else len(data)
        self.asked.append((path.name, end - begin))
        sent = {
            "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}",
            "ETag": '"x"',
            "Last-Modified": MODIFIED,
        }
        self.answer(data[begin:end], 206 if wanted else 200, **sent)


MODIFIED = "Thu, 01 Jan 2026 00:00:00 GMT"


@pytest.fixture
def served(tmp_path):
    with serving(functools.partial(RangeHandler, directory=str(tmp_path))) as address:
        yield address


@pytest.mark.slow
def test_a_run_over_http(tmp_path, rich_run, served):
    here = scan_steps(rich_run).collect()
    for url in ("rich", "rich/", "rich/steps", "rich/steps/"):
        assert_frame_equal(scan_steps(f"{served}/{url}").collect(), here)
    assert_frame_equal(
        scan_steps(f"{served}/rich/steps/steps-000001.parquet").collect(),
        here.filter(pl.col("task_id").is_in(["task 2", "task 3"])),
    )
    write_run(
        tmp_path / "big",
        *(
            group(f"t{seed}", response=random.Random(seed).randbytes(300_000).hex())
            for seed in range(30)
        ),
        depth=0,
    )
    size = sum(file.stat().st_size for file in (tmp_path / "big/steps").iterdir())
    RangeHandler.asked.clear()
    assert scan_steps(f"{served}/big").select(
        pl.len(), pl.col("reward").sum()
    ).collect().row(0) == (180, 0.0)
    assert sum(count for _, count in RangeHandler.asked) < size / 2, (
        "only the columns asked for travel"
    )
    with refused("cannot be read"):
        scan_steps(f"{served}/nothing")
    (rich_run / "steps/steps-000000.parquet").unlink()
    with refused(r"^\S+rich/steps/steps-000000.parquet cannot be read.*$"):
        scan_steps(f"{served}/rich")


class Endless(QuietHandler):
    """Sends an endless manifest, as one line or as many; reports a size only for a range request."""

    line = b"x"
    whole = 64 << 20

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        first, last = (
            map(int, wanted.removeprefix("bytes=").split("-")) if wanted else (0, -1)
        )
        part = {
            "Content-Range": f"bytes {first}-{last}/{self.whole}",
            "Content-Length": last - first + 1,
        }
        self.begin(
            206 if wanted else 200, **(part if wanted else {}), Last_Modified=MODIFIED
        )
        left = last - first + 1 if wanted else 1 << 40
        piece = (self.line * (1 << 16))[: 1 << 16]
        with contextlib.suppress(OSError):
            while left:
                left -= self.wfile.write(piece[:left])


@pytest.mark.slow
@pytest.mark.parametrize("line", [b"x", b'{"check":"0"}\n'], ids=["one line", "lines"])
def test_an_endless_manifest_is_refused_at_the_limit(monkeypatch, line):
    monkeypatch.setattr(manifest, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(Endless, "line", line)
    refusal = r"^.*manifest\.jsonl: expected at most 1,048,576 bytes, received more$"
    with serving(Endless) as address, refused(refusal):
        scan_steps(f"{address}/run")


@pytest.mark.slow
def test_a_server_that_is_not_there_is_one_line():
    for address in ("http://127.0.0.1:9/run", "http://", "https://[/run"):
        with refused(r"^.*cannot be read.*$"):
            scan_steps(address)


def write(folder, *tasks):
    with StepWriter(folder) as writer:
        for task in tasks:
            writer.add_group(group(task))
            writer.commit()
    return folder


def tasks(source, **options):
    return (
        scan_steps(source, **options)
        .select("task_id")
        .unique()
        .sort("task_id")
        .collect()["task_id"]
        .to_list()
    )  # type: ignore[arg-type]


@pytest.fixture
def runs(tmp_path):
    """A folder of runs at several depths, with everything that is usually beside them."""
    folder = tmp_path / "runs"
    write(folder / "first", "a")
    write(folder / "deep/er/second", "b")
    training = write(folder / "training", "c")
    (training / "config.toml").touch()
    write(training / "evaluation", "held out")
    for table in ("first.advantages/hgpo.parquet", ".hidden/x.parquet"):
        (folder / table).parent.mkdir()
        pl.DataFrame({"advantage": [0.0]}).write_parquet(folder / table)
    return folder


def test_any_level_of_folders_and_patterns(runs, monkeypatch):
    everything = ["a", "b", "c"]
    for source, expected in (
        (runs, everything),
        (f"{runs}/*", everything),
        (runs.parent, everything),
        (runs / "deep/er/second", ["b"]),
        (f"{runs}/*/*/second", ["b"]),
        (runs / "first/steps", ["a"]),
        (f"{runs}/first/steps/*.parquet", ["a"]),
        (f"{runs}/first/**/*.parquet", ["a"]),
        (runs / "training", ["c"]),
        (f"{runs}/training/*", ["c"]),
        (f"{runs}/*/steps", ["a", "c"]),
        (f"{runs}/*/evaluation", ["held out"]),
        (runs / "training/evaluation/steps", ["held out"]),
        ([runs / "first", f"{runs}/tr*"], ["a", "c"]),
        ((runs / "first").as_uri(), ["a"]),
    ):
        assert tasks(source) == expected, source
        if not isinstance(source, list):
            summarize_run(str(source).removeprefix("file://"))
    for place, name in (
        ("first/steps", "."),
        ("first", "steps"),
        ("first/steps", ".."),
        ("training", "."),
    ):
        monkeypatch.chdir(runs / place)
        assert tasks(name) == (["a"] if "first" in place else ["c"])


HOSTILE_NAMES = st.lists(
    st.sampled_from(
        [*"ab[]*?{}!~%#$:;,&=@ '\"^-é日", "[ab]", "[!a]", "**", "%61", "{a,b}"]
    ),
    min_size=1,
    max_size=4,
).map("".join)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(HOSTILE_NAMES)
@example("lr[1]")
@example("what?")
@example("~")
def test_names_are_no_patterns(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """Beside folders that the name would match as a pattern, every reader reads the run that was named."""
    folder = tmp_path_factory.mktemp("names")
    siblings = {
        name.translate(str.maketrans("[]?*%", "\0\0xx\0")).replace("\0", ""),
        "a",
        "b",
        "lr1",
        "whatx",
    } - {
        name,
        "",
    }
    for sibling in siblings:
        write(folder / sibling, "other")
    run = write(folder / name, "mine")
    with contextlib.chdir(folder):
        for source in (
            run,
            f"{run}/steps",
            f"{run}/steps/steps-000000.parquet",
            f"{run}/steps/*.parquet",
            [Path(name)],
        ):
            assert tasks(source) == ["mine"], source
        assert tasks(f"{run}/steps/steps-000000.parquet", plain=True) == ["mine"]
        assert verify(run).ok
        assert [
            report.source for report in verify_run(Path(f"{run}/steps/*.parquet"))
        ] == [f"{run}/steps/steps-000000.parquet"]
        assert summarize_run(run)["total"]["tasks"] == 1
        assert [
            part.scan().collect()["task_id"][0] for part in partitions(run, 10)
        ] == ["mine"]
        StepWriter(run).close()


def test_the_folders_of_a_partitioned_table_are_columns(tmp_path):
    """DuckDB, Spark, pandas and Polars leave the columns that a table is partitioned by out of its files."""
    rows = pl.DataFrame({"trajectory": ["x", "y"], "step": 0, "reward": [1.0, 0.0]})
    parts = ("iteration=0/task=01", "iteration=1/task=1", "iteration=1/task=a%2Fb")
    for part in parts:
        (tmp_path / "table" / part).mkdir(parents=True)
        named = rows.with_columns(pl.col("trajectory") + part)
        named.write_parquet(tmp_path / "table" / part / "0.parquet")
    table = scan_steps(f"{tmp_path}/table/**/*.parquet", plain=True).collect()
    names = table.select("iteration", "task").unique(maintain_order=True).rows()
    assert names == [("0", "01"), ("1", "1"), ("1", "a/b")]
    estimated = compute(table, "grpo", invalid_action_penalty=0, reward_scale=1)
    assert estimated.collect()["advantage"].round(3).to_list() == [0.707, -0.707] * 3

    # what a file has itself is not replaced, and files without a folder's column are other tables
    (tmp_path / "step=7").mkdir()
    rows.write_parquet(tmp_path / "step=7/0.parquet")
    alone = scan_steps(f"{tmp_path}/step=7/*.parquet", plain=True).collect()
    assert alone.equals(rows)
    with refused("cannot be read: .* should all have the same schema"):
        scan_steps(
            [f"{tmp_path}/table/**/*.parquet", tmp_path / "step=7/0.parquet"],
            plain=True,
        )


def test_a_run_that_is_named_twice_is_read_once(runs):
    (runs / "link").symlink_to("first")
    for source in (
        [runs / "first", runs / "first/steps", runs / "link"],
        [runs / "first", runs / "first/steps/steps-000000.parquet"],
        f"{runs}/[fl]i*",
    ):
        assert scan_steps(source).collect().height == 6, source


def test_links_and_loops(runs):
    (runs / "deep/loop").symlink_to(runs)
    (runs / "self").symlink_to("self")
    assert tasks(runs / "deep") == ["a", "b", "c"]
    elsewhere = runs.parent / "elsewhere"
    elsewhere.symlink_to(runs / "first/steps")
    assert tasks(elsewhere) == ["a"], "a link to the folder of the shards"


def test_empty_runs_among_others_are_counted(runs):
    for name in ("x", "y"):
        StepWriter(runs / name).close()
    with pytest.warns(
        StepTableWarning, match="runs: 5 runs, 2 of them without committed rows"
    ):
        assert tasks(runs) == ["a", "b", "c"]
    for source, line in (
        (
            f"{runs}/[xy]",
            r"no committed rows in .*\[xy\]: found 2 runs, none of them with committed",
        ),
        (runs / "x", r"no committed rows in .*/x$"),
        (
            runs / "first.advantages",
            r"is not a run, and contains none: .*/first.advantages/\*\.parquet\)",
        ),
        (runs / ".hidden/none", "no such file or run"),
        (f"{runs}/nothing*", "no such file or run"),
        (f"{runs}/*.advantages", "is not a run, and contains none"),
        (
            f"{runs}/**",
            "matches runs .* and Parquet files outside of them .*hgpo.parquet",
        ),
    ):
        with refused(rf"^.*{line}.*$"):
            scan_steps(source)


def test_a_file_in_place_of_the_folder_of_shards_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/steps").write_text("somebody's")
    with refused("expected a folder, received the file"):
        StepWriter(tmp_path / "run")
    assert (tmp_path / "run/steps").read_text() == "somebody's"


READERS = {
    "polars": lambda steps: pl.read_parquet(steps),
    "pandas": lambda steps: pl.from_pandas(
        __import__("pandas").read_parquet(steps, dtype_backend="pyarrow")
    ),
    "pyarrow": lambda steps: pl.from_arrow(
        __import__("pyarrow.dataset").dataset.dataset(steps).to_table()
    ),
    "duckdb": lambda steps: (
        __import__("duckdb").sql(f"SELECT * FROM '{steps}/*.parquet'").pl()
    ),
    "datasets": lambda steps: pl.from_arrow(
        __import__("datasets")
        .load_dataset(
            "parquet",
            data_dir=str(steps),
            split="train",
            cache_dir=str(steps.parent.parent / "cache"),
        )
        .data.table
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_other_programs_read_the_folder_as_it_is(tmp_path, reader):
    pytest.importorskip(reader)
    run = write(tmp_path / "run", "a", "b")
    expected = scan_steps(run).sort("task_id", "trajectory", "step").collect()
    for is_open in (False, True):
        with contextlib.ExitStack() as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if is_open:
                stack.enter_context(StepWriter(run))
            found = READERS[reader](run / "steps")
        columns = [
            "task_id",
            "trajectory",
            "step",
            "state",
            "action",
            "reward",
            "history_hash_1",
        ]
        found = found.select(columns).sort("task_id", "trajectory", "step")
        assert_frame_equal(found, expected.select(columns), check_dtypes=False)


def test_runs_of_one_name_are_told_apart(tmp_path, monkeypatch):
    """Their groups and rollouts have the same names, and would be one."""
    folders = {"a/run": "won", "b/run": "lost", "b/other": "other"}
    for folder, name in folders.items():
        write_run(tmp_path / folder, group("task", won=name == "won"))
    both = [tmp_path / "a/run", tmp_path / "b/run"]
    names = {"a/run", "b/run"}
    for source in (both, [folder / "steps" for folder in both], tmp_path / "*/run"):
        assert set(scan_steps(source).collect()["run"]) == names
    files = [next((folder / "steps").iterdir()) for folder in both]
    assert set(scan_steps(files).collect()["run"]) == names
    monkeypatch.chdir(tmp_path / "a")
    assert set(scan_steps(["run", "../b/run"]).collect()["run"]) == names
    assert set(scan_steps(tmp_path).collect()["run"]) == names | {"other"}
    assert set(scan_steps("run").collect()["run"]) == {"run"}, "alone, as it is stored"

    # Whatever reads several runs takes them as two.
    rows = [part.scan() for part in partitions(both, 1)]
    assert [set(part.collect()["run"]) for part in rows] == [{"a/run"}, {"b/run"}]
    parts = summarize_run(tmp_path)
    assert parts["runs"] == ["a/run", "b/run", "other"]
    assert (parts["groups"], parts["total"]["success"]) == (3, 1 / 3)
    summary = statistics(both, by="run").summary
    assert summary.select("run", "success").rows() == [("a/run", 1.0), ("b/run", 0.0)]
    each = [compute(scan_steps(folder), "gigpo") for folder in both]
    alone = pl.concat(each).select("advantage").collect()
    together = compute(both, "gigpo").select("advantage").collect()
    assert_frame_equal(together, alone)


def test_runs_that_were_given_one_name_are_called_as_their_folders(tmp_path):
    for folder, name in {"p/x": "exp", "p/y": "exp", "q/x": "x"}.items():
        write_run(tmp_path / folder, group("task"), run=name)
    assert set(scan_steps(tmp_path).collect()["run"]) == {"p/x", "y", "x"}
