"""Tables of advantages of many shards: several processes, Ray and object stores write what one process computes."""

import signal

import polars as pl
import pytest
from command import MAIN, environment, python
from large_run import OWN, collect
from s3 import options_of, s3_server, upload

from hgpo_datasets import scan_steps
from hgpo_train.advantages import compute, get
from hgpo_train.advantages.advantage_tables import read_metadata, write_advantages

ROWS = 200


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rollouts") / "run"
    collect(folder, tasks=16)
    return folder


def specs(*names):
    return [get(name).with_parameters(column=name) for name in names]


def hgpo(folder, *arguments, **variables):
    return python(
        MAIN, *arguments, env=environment(**variables), cwd=folder, timeout=500
    )


def agrees(run, table, name):
    want = compute(scan_steps(run), name).collect()
    rows = table.select("trajectory", "step").equals(
        want.select(pl.col("trajectory", "step"))
    )
    return rows and float(abs(table[name] - want["advantage"]).max()) <= 1e-12


@pytest.mark.slow
def test_processes_write_the_same_table(run, tmp_path):
    """Rows of a group are never divided, nor those of a batch where an estimator needs them."""
    for processes in (1, 2, 3):
        out = tmp_path / str(processes)
        rows = write_advantages(
            run, specs("hgpo", "gigpo"), out, processes=processes, chunk_rows=ROWS
        )
        assert rows == scan_steps(run).select(pl.len()).collect().item()
        table = pl.read_parquet(out)
        assert all(agrees(run, table, name) for name in ("hgpo", "gigpo"))
        write_advantages(
            run, specs("reinforce_pp"), out, processes=processes, chunk_rows=ROWS
        )
        assert agrees(run, pl.read_parquet(out), "reinforce_pp")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3"]


@pytest.mark.slow
def test_a_killed_process_leaves_nothing(run, tmp_path):
    """Whether the command or one of its workers is killed; the same command starts again."""
    (tmp_path / "own.py").write_text(OWN)
    steps = scan_steps(run).collect()
    once = f"once {steps['trajectory'][steps.height // 2]}"
    command = (
        "advantages",
        run,
        "-e",
        "own:killed",
        "--chunk-rows",
        ROWS,
        "--out",
        "out",
        "--processes",
    )
    (tmp_path / "fault").write_text(once)
    assert hgpo(tmp_path, *command, 1).returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    (tmp_path / "fault").write_text(once)
    done = hgpo(tmp_path, *command, 2)
    assert done.returncode == 1
    assert "error: a process was killed, perhaps for its memory" in done.stderr
    assert not (tmp_path / "out").exists()
    done = hgpo(tmp_path, *command, 2)
    assert done.returncode == 0, done.stderr
    assert pl.read_parquet(tmp_path / "out").height == steps.height


@pytest.mark.slow
def test_ray_and_object_stores(run, tmp_path):
    pytest.importorskip("ray")
    with s3_server() as store:
        upload(run, "s3://bucket/run", store)
        arguments = (
            "-e",
            "hgpo",
            "-e",
            "gigpo",
            "--chunk-rows",
            ROWS,
            "--processes",
            2,
            "--out",
        )
        for more in ([], ["--ray"]):
            url = f"s3://bucket/table{len(more)}.parquet"
            done = hgpo(
                tmp_path,
                "advantages",
                "s3://bucket/run",
                *arguments,
                url,
                *more,
                **store,
            )
            assert done.returncode == 0, done.stderr
            table = pl.read_parquet(url, storage_options=options_of(store))
            table = table.rename({"advantage_hgpo": "hgpo", "advantage_gigpo": "gigpo"})
            assert agrees(run, table, "hgpo")
            assert agrees(run, table, "gigpo")
        for source, out, line in (
            (
                "s3://bucket/nothing",
                ["--out", "s3://bucket/x"],
                "error: s3://bucket/nothing",
            ),
            ("s3://bucket/run", ["--out", "s3://nowhere/x"], "error: s3://nowhere/x"),
            (
                "s3://bucket/run",
                [],
                "error: s3://bucket/run: expected --out with the path or URL of the table",
            ),
        ):
            done = hgpo(tmp_path, "advantages", source, *out, **store)
            assert done.returncode == 2
            assert done.stderr.startswith(line), done.stderr
            assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_memory_does_not_grow_with_the_table(tmp_path):
    """Four times as many rows take at most a quarter more memory."""
    peaks = []
    for copies in (4, 16):
        code = (
            "import polars as pl, sys; from pathlib import Path\n"
            "from hgpo_train.advantages import get\n"
            "from hgpo_train.advantages.advantage_tables import write_advantages\n"
            "n = 100_000\n"
            "rows = pl.LazyFrame({'trajectory': pl.int_range(n, eager=True) // 20}).with_columns(\n"
            "    step=pl.int_range(pl.len()) % 20, task_id=pl.format('task {}', pl.col('trajectory') // 16),\n"
            "    reward=(pl.col('trajectory') % 3 == 0).cast(pl.Float64) * (pl.int_range(pl.len()) % 20 == 19),\n"
            "    trajectory=pl.format('{}', 'trajectory'), action_valid=True, state_hash=pl.int_range(pl.len()) % 97)\n"
            "rows.collect().write_parquet(sys.argv[1])\n"
            "table, copies = pl.scan_parquet(sys.argv[1]), range(int(sys.argv[2]))\n"
            "steps = pl.concat([table.with_columns(run=pl.lit(f'{i}')) for i in copies])\n"
            "write_advantages(steps, [get('hgpo')], Path(sys.argv[1] + '.out'), chunk_rows=50_000)\n"
            "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
        )
        peaks.append(int(python(code, tmp_path / "steps.parquet", copies).stdout))
    assert peaks[1] <= 1.25 * peaks[0]
    assert (
        read_metadata(tmp_path / "steps.parquet.out")["columns"]["advantage"][
            "estimator"
        ]
        == "hgpo"
    )
