"""Run folders that somebody else made: nothing hangs, nothing leads out of the folder, every refusal is one line."""

import contextlib
import multiprocessing
import os
import resource
import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import orjson
import polars as pl
import pytest
from footers import BINARY, INT32, INT64, LIST, STRUCT, Structure, closed, with_footer
from groups import group, rich_group

from hgpo_datasets import StepTableWarning, StepWriter, footer, manifest, scan_steps, verify
from hgpo_datasets.run_summary import summarize_run
from hgpo_envs.errors import InputError

DEADLINE_S = 60

SPECIAL: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "socket": lambda path: bind(path),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a folder": lambda path: path.symlink_to("."),
    "empty": Path.touch,
}


def bind(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def outcomes(folder: Path) -> dict[str, str]:
    """What every reader says of a folder: a line, or how many rows there are."""

    def rows(source: object) -> str:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", StepTableWarning)
                return str(scan_steps(source).select("step", "state_hash").collect().height)  # type: ignore[arg-type]
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            return f"while reading: {type(error).__name__}"

    paths = sorted(folder.rglob("*"))
    readers: dict[str, Callable[[], object]] = {
        "verify": lambda: [problem.kind for problem in verify(folder).problems],
        "scan": lambda: rows(folder),
        "overview": lambda: summarize_run(folder).steps,
        "writer": lambda: StepWriter(folder).close(),
        **{f"verify {path.name}": lambda path=path: verify(path).ok for path in paths},
        **{f"scan {path.name}": lambda path=path: rows(path) for path in paths},
    }
    said = {}
    for name, call in readers.items():
        try:
            said[name] = str(call())
        except InputError as error:
            said[name] = f"refused: {error}"
        assert "\n" not in said[name], said[name]
    return said


def answered(folder: Path) -> dict[str, str]:
    """The outcomes, from a process that may neither take long nor much memory."""
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    script = "import sys, test_hostile_folders as t; from pathlib import Path; t.answer(Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script, folder],
        env={**os.environ, "PYTHONPATH": paths, "POLARS_MAX_THREADS": "1", "RUST_BACKTRACE": "0"},
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2_000:]
    found: dict[str, str] = orjson.loads(done.stdout)
    return found


def answer(folder: Path) -> None:
    """What `answered` runs."""
    pl.DataFrame({"a": [1]}).lazy().select(pl.len()).collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = outcomes(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000, "took more than 500 MB"
    print(orjson.dumps(said).decode())


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize(
    "name",
    ["steps/steps-000001.parquet", "manifest.jsonl", "steps/steps-000003.parquet", "steps/extra.parquet", "steps"],
)
def test_what_is_no_regular_file_is_refused_at_once(rich_run: Path, name: str, kind: str) -> None:
    path = rich_run / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    SPECIAL[kind](path)
    said = answered(rich_run)
    assert said["verify"] != "[]"
    if name in ("steps/steps-000001.parquet", "steps"):
        assert said["scan"].startswith("refused")
        assert said["overview"].startswith("refused")
    if name != "steps/extra.parquet":
        assert said["writer"].startswith("refused")
    assert path.is_symlink() or path.exists(), "nothing of somebody else's was removed"


def rewritten(folder: Path, change: Callable[[list[dict[str, object]]], object]) -> Path:
    """The run with changed lines in its manifest, whose checks are right."""
    path = folder / manifest.NAME
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    change(lines)
    check, text = "", b""
    for values in lines:
        values.pop("check", None)
        check = manifest._check(values, check)
        text += manifest.canonical({**values, "check": check}) + b"\n"
    path.write_bytes(text)
    return folder


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        (1, "file", "../../secret.parquet"),
        (1, "file", "/etc/passwd"),
        (1, "file", "steps-000001.parquet"),
        (1, "file", "steps-000000.parquet/../steps-000000.parquet"),
        (1, "file", 7),
        (1, "rows", "many"),
        (1, "rows", -1),
        (1, "bytes", 1.5),
        (1, "bytes", True),
        (1, "sha256", "x"),
        (1, "sha256", None),
        (1, "unknown", 1),
        (1, "groups", ...),
        (1, "replaces", ["steps-000000.parquet"]),
        (1, "replaces", "steps-000000.parquet"),
        (2, "replaces", "../rich/steps-000000.parquet"),
        (0, "depth", 10**9),
        (0, "depth", -1),
        (0, "depth", "8"),
        (0, "depth", ...),
        (0, "run", None),
        (0, "run", ...),
        (0, "schema_version", "1"),
        (0, "schema_version", ...),
        (0, "schema_version", 10**9),
        (0, "config", []),
        (0, "format", "another"),
        (0, "extra", {}),
    ],
)
def test_a_manifest_of_odd_values_is_refused_in_one_line(rich_run: Path, line: int, key: str, value: object) -> None:
    shutil.copy(rich_run / "steps/steps-000000.parquet", rich_run.parent / "secret.parquet")

    def change(lines: list[dict[str, object]]) -> None:
        if value is ...:
            del lines[line][key]
        else:
            lines[line][key] = value

    said = outcomes(rewritten(rich_run, change))
    for reader in ("scan", "overview", "writer"):
        assert said[reader].startswith("refused"), said
    assert said["verify"] in {"['manifest', 'foreign', 'foreign', 'foreign']", "['manifest']", "['version']"} or (
        said["verify"].startswith("['manifest'")
    )


def test_a_manifest_of_absurd_size_is_not_read(rich_run: Path) -> None:
    with (rich_run / manifest.NAME).open("ab") as file:
        file.truncate(1 << 40)
    said = answered(rich_run)
    assert "expected at most" in said["scan"]
    assert "expected at most" in said["writer"]
    assert said["verify"] == "['manifest']"


def test_a_shard_of_absurd_size_is_not_read(rich_run: Path) -> None:
    path = rich_run / "steps/steps-000001.parquet"
    with path.open("ab") as file:
        file.truncate(1 << 40)
    rewritten(rich_run, lambda lines: lines[2].update(bytes=1 << 40))
    said = answered(rich_run)
    assert said["scan"].startswith("refused")
    assert said["verify"] == "['unreadable']"


def first_group(footer: Structure) -> Structure:
    group: Structure = footer[4][1][1][0]
    return group


def every_column(number: int, value: int) -> Callable[[Structure], None]:
    def change(footer: Structure) -> None:
        for chunk in first_group(footer)[1][1][1]:
            if number in chunk[3][1]:
                chunk[3][1][number][1] = value

    return change


def claims_rows(footer: Structure) -> None:
    footer[3][1] = first_group(footer)[3][1] = 10**12
    every_column(5, 10**12)(footer)


def swaps_columns(footer: Structure) -> None:
    chunks = first_group(footer)[1][1][1]
    chunks[0], chunks[-1] = chunks[-1], chunks[0]


BOMBS: dict[str, Callable[[Structure], object]] = {
    "10^12 rows": claims_rows,
    "rows that no row group has": lambda footer: footer[3].__setitem__(1, 10**12),
    "2^31 rows": lambda footer: footer[3].__setitem__(1, 2**31),
    "negative rows": lambda footer: footer[3].__setitem__(1, -1),
    "2^60 stored bytes": every_column(7, 2**60),
    "2^60 bytes": every_column(6, 2**60),
    "negative bytes": every_column(7, -1),
    "negative offsets": every_column(9, -5),
    "offsets beyond the end": every_column(9, 2**50),
    "an unknown type": every_column(1, 99),
    "a column too few": lambda footer: first_group(footer)[1][1][1].pop(),
    "columns in another order": swaps_columns,
    "no schema": lambda footer: footer.pop(2),
    "no row groups": lambda footer: footer.pop(4),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_file_that_claims_too_much_is_refused_in_one_line(rich_run: Path, bomb: str) -> None:
    import hashlib

    path = rich_run / "steps/steps-000001.parquet"
    data = with_footer(path.read_bytes(), BOMBS[bomb])
    path.write_bytes(data)
    rewritten(rich_run, lambda lines: lines[2].update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))
    said = answered(rich_run)
    assert said["scan"].startswith("refused"), said
    assert said["overview"].startswith("refused")
    assert said["scan steps-000001.parquet"].startswith("refused")
    assert said["verify"] != "[]"


def element(name: bytes, **fields: list[int]) -> Structure:
    """An element of a file's schema: optional, unless it is the root."""
    numbers = {"type": 1, "repetition": 3, "children": 5}
    return {4: [BINARY, name]} | {numbers[field]: value for field, value in fields.items()}


def schema_of(*elements: Structure, groups: tuple[Structure, ...] = ()) -> bytes:
    """A file that holds nothing but a footer."""
    footer = {1: [INT32, 1], 2: [LIST, (STRUCT, elements)], 3: [INT64, 0], 4: [LIST, (STRUCT, groups)]}
    return b"PAR1" + closed(footer)


OPTIONAL, ONE, LEAF = [INT32, 1], [INT32, 1], element(b"x", type=[INT32, 1], repetition=[INT32, 1])
FORGED: dict[str, Callable[[], bytes]] = {
    "10,000 levels of groups": lambda: schema_of(
        element(b"root", children=ONE), *[element(b"g", repetition=OPTIONAL, children=ONE)] * 10_000, LEAF
    ),
    "200,000 columns": lambda: schema_of(element(b"root", children=[INT32, 200_000]), *[LEAF] * 200_000),
    "200,000 columns in a row group": lambda: schema_of(
        element(b"root", children=ONE),
        LEAF,
        groups=({1: [LIST, (STRUCT, [{2: [INT64, 0]}] * 200_000)], 2: [INT64, 0], 3: [INT64, 0]},),
    ),
    "a footer of 20 MB": lambda: b"PAR1" + bytes(20 << 20) + (20 << 20).to_bytes(4, "little") + b"PAR1",
    "no footer": lambda: b"PAR1" + (0).to_bytes(4, "little") + b"PAR1",
    "a footer longer than the file": lambda: b"PAR1" + (99).to_bytes(4, "little") + b"PAR1",
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_footer_is_refused_in_one_line(rich_run: Path, forged: str) -> None:
    """Polars ends the process at a schema of 10,000 levels; a MB of column chunks may take 230 MB."""
    path = rich_run / "steps/steps-000001.parquet"
    path.write_bytes(FORGED[forged]())
    said = answered(rich_run)
    assert said["scan steps-000001.parquet"].startswith("refused"), said
    assert said["scan"].startswith("refused")
    assert said["overview"].startswith("refused")
    assert said["verify steps-000001.parquet"] == "False"


def test_columns_that_decompress_to_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """True to their claims: ten million nulls take a few kilobytes in a file, and 160 MB in memory."""
    monkeypatch.setattr("hgpo_datasets.footer.MOST_BYTES", 100_000_000)
    rows = pl.DataFrame({"a": pl.repeat(None, 10_000_000, dtype=pl.String, eager=True)})
    rows.write_parquet(tmp_path / "nulls.parquet", row_group_size=len(rows))
    assert (tmp_path / "nulls.parquet").stat().st_size < 1_000_000
    with pytest.raises(InputError, match="expected row groups of at most"):
        scan_steps(tmp_path / "nulls.parquet")
    rows.write_parquet(tmp_path / "large.parquet", row_group_size=1_000_000)
    footer.check_file(tmp_path / "large.parquet")  # a query reads it row group by row group


def test_a_neighbour_named_part_survives_an_import(tmp_path: Path) -> None:
    from hgpo_datasets.interchange.verl_agent import import_rollouts

    (tmp_path / "theirs.part").mkdir()
    (tmp_path / "theirs.part/thesis.txt").write_text("precious")
    (tmp_path / "dump.jsonl").write_text('{"traj_uid": 1, "uid": 1, "anchor_obs": "a", "rewards": 1}\n')
    (tmp_path / "bad.jsonl").write_text('{"traj_uid": 1, "uid": 1, "anchor_obs": "a", "rewards": "much"}\n')
    with pytest.raises(InputError, match=r"bad\.jsonl, line 1: expected a finite number as 'rewards', received 'much'"):
        import_rollouts(tmp_path / "bad.jsonl", tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()
    import_rollouts(tmp_path / "dump.jsonl", tmp_path / "theirs")
    assert (tmp_path / "theirs.part/thesis.txt").read_text() == "precious"
    assert verify(tmp_path / "theirs").ok
    with pytest.raises(InputError, match="already exists"):
        import_rollouts(tmp_path / "dump.jsonl", tmp_path / "theirs")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "dump.jsonl", "theirs", "theirs.part"]


def test_another_programs_file_under_the_next_name_is_not_replaced(tmp_path: Path) -> None:
    with StepWriter(tmp_path) as writer:
        writer.add_group(group("a"))
        (tmp_path / "steps/steps-000000.parquet").write_text("somebody's")
        with pytest.raises(InputError, match="created by another program"):
            writer.commit()
        assert (tmp_path / "steps/steps-000000.parquet").read_text() == "somebody's"
        (tmp_path / "steps/steps-000000.parquet").unlink()
    assert verify(tmp_path).ok


def test_a_folder_that_was_moved_is_not_written_to(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with StepWriter(run) as writer:
        writer.add_group(group("a"))
        writer.commit()
        writer.add_group(group("b"))
        run.rename(tmp_path / "moved")
        with pytest.raises(InputError, match="was moved or replaced"):
            writer.commit()
        with StepWriter(run) as other:  # another run is begun under the old name
            other.add_group(group("c"))
        with pytest.raises(InputError, match="was moved or replaced"):
            writer.commit()
        assert verify(run).ok
        shutil.rmtree(run)
        (tmp_path / "moved").rename(run)
    assert verify(run).ok
    assert set(scan_steps(run).collect()["task_id"]) == {"a", "b"}


def test_a_copy_of_an_open_run_is_a_run(tmp_path: Path) -> None:
    with StepWriter(tmp_path / "run", run="r") as writer:
        writer.add_group(group("a"))
        writer.commit()
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        with StepWriter(tmp_path / "copy", run="r") as copy:
            copy.add_group(group("b"))
    assert verify(tmp_path / "run").ok
    assert verify(tmp_path / "copy").ok


def test_a_relative_path_stays_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with StepWriter("run") as writer:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        writer.add_group(group("a"))
    assert verify(tmp_path / "run").ok
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_two_writers_through_a_symlink_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("run")
    with StepWriter(tmp_path / "run"), pytest.raises(InputError, match="is in use: process"):
        StepWriter(tmp_path / "link")
    with StepWriter(tmp_path / "link") as writer:
        writer.add_group(group("a"))
    assert verify(tmp_path / "run").ok


def test_the_lock_does_not_disturb_readers(rich_run: Path) -> None:
    import duckdb

    with StepWriter(rich_run):
        assert (rich_run / ".lock").exists()
        everything = scan_steps(rich_run).collect()
        assert duckdb.sql(f"SELECT count(*) FROM '{rich_run}/steps/*.parquet'").fetchall() == [(len(everything),)]
        assert duckdb.sql(f"SELECT count(*) FROM '{rich_run}/**/*.parquet'").fetchall() == [(len(everything),)]
        assert len(pl.read_parquet(rich_run / "steps/*.parquet")) == len(everything)
        import datasets

        loaded = datasets.load_dataset(str(rich_run), split="train", cache_dir=str(rich_run.parent / "cache"))
        assert len(loaded) == len(everything)
        assert verify(rich_run).notes == []


def write_shards(folder: Path, count: int) -> None:
    with StepWriter(folder, run="run") as writer:
        for number in range(count):
            writer.add_group(rich_group(f"t{number}", number, 2, 3))
            writer.commit()


def replace_trajectories(folder: Path, times: int) -> None:
    with StepWriter(folder, run="run") as writer:
        for number in range(times):
            writer.replace(rich_group(f"t{number % 4}", 100 + number, 2, 3))


def test_readers_beside_a_writer_that_replaces_files(tmp_path: Path) -> None:
    """A file may be gone a moment after the manifest named it; then the manifest names another."""
    write_shards(tmp_path / "run", 4)
    context = multiprocessing.get_context("spawn")
    writer = context.Process(target=replace_trajectories, args=(tmp_path / "run", 40))
    writer.start()
    looked = 0
    while writer.is_alive():
        assert verify(tmp_path / "run").problems == []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StepTableWarning)
            try:
                assert scan_steps(tmp_path / "run").select("step").collect().height == 24
            except (FileNotFoundError, InputError) as error:  # replaced after the manifest was read
                assert "No such file" in str(error) or "is missing" in str(error)  # noqa: PT017
        looked += 1
    writer.join()
    assert writer.exitcode == 0
    assert looked
    report = verify(tmp_path / "run")
    assert (report.problems, report.notes) == ([], [])


def test_readers_beside_a_writer_see_committed_shards_only(tmp_path: Path) -> None:
    """Whatever moment they look at: complete groups, never fewer than before, no problem, no error."""
    write_shards(tmp_path / "run", 1)
    shutil.rmtree(tmp_path / "run")
    writer = multiprocessing.get_context("spawn").Process(target=write_shards, args=(tmp_path / "run", 40))
    writer.start()
    seen = 0
    looked = 0
    while writer.is_alive():
        with contextlib.suppress(InputError):  # not a run yet, or nothing committed yet
            report = verify(tmp_path / "run")
            assert report.problems == []
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", StepTableWarning)
                rows = scan_steps(tmp_path / "run").collect().height
                summary = summarize_run(tmp_path / "run")
            assert rows % 6 == 0
            assert rows >= seen
            assert summary.steps == 6 * summary.files
            assert summary.steps >= rows
            seen, looked = rows, looked + 1
    writer.join()
    assert writer.exitcode == 0
    assert looked
    assert scan_steps(tmp_path / "run").collect().height == 240
