"""Parts of advantages in an object store, computed by processes and by Ray Data: the same bytes, also after kills."""

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from large_run import OWN, collect, dies, doubled, refuses
from s3 import download, options_of, s3_server, upload

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError, ProcessError
from hgpo_train.advantages import EstimatorSpec, compute, get
from hgpo_train.advantages.parts import partitions_for, write_folder

ROOT = Path(__file__).parents[2]
ROWS = 200
HGPO = [EstimatorSpec(get("hgpo"), get("hgpo").parameters(), "hgpo")]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rollouts") / "run"
    collect(folder, tasks=16)
    return folder


@pytest.fixture(scope="module")
def store(run: Path):
    with s3_server() as environment:
        upload(run, "s3://bucket/run", environment)
        yield environment


def hgpo(folder: Path, environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from hgpo_train.cli import main; main()", *map(str, arguments)]
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT}/datasets"}
    return subprocess.run(
        command, cwd=folder, env=os.environ | paths | environment, capture_output=True, text=True, timeout=500
    )


def local_parts(run: Path, folder: Path, specs: list[EstimatorSpec]) -> dict[str, bytes]:
    """Return the parts that one process writes."""
    write_folder(partitions_for(run, specs, ROWS), specs, str(folder), chunk_rows=ROWS)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_parts_in_an_object_store_are_those_of_a_folder(run: Path, store: dict[str, str], tmp_path: Path) -> None:
    options = {"storage_options": options_of(store)}
    parts = partitions_for("s3://bucket/run", HGPO, ROWS, **options)

    def written(**more: object) -> list[bool]:
        return [one.computed for one in write_folder(parts, HGPO, "s3://bucket/hgpo", **options, **more)]

    assert written() == [True] * len(parts)
    assert download("s3://bucket/hgpo", store) == local_parts(run, tmp_path / "parts", HGPO)
    assert written() == [False] * len(parts)
    table = pl.read_parquet("s3://bucket/hgpo/", storage_options=options["storage_options"])
    assert table["hgpo"].equals(compute(scan_steps(run), "hgpo").collect()["advantage"].alias("hgpo"))
    deeper = [EstimatorSpec(get("hgpo"), get("hgpo").parameters(history_length=3), "hgpo")]
    with pytest.raises(InputError, match=r"^s3://bucket/hgpo/part-000000.parquet has other estimators"):
        write_folder(parts, deeper, "s3://bucket/hgpo", **options)
    larger = partitions_for("s3://bucket/run", deeper, 3 * ROWS, **options)
    write_folder(larger, deeper, "s3://bucket/hgpo", overwrite=True, **options)
    assert len(download("s3://bucket/hgpo", store)) == len(larger) < len(parts)


def test_errors_of_object_stores_are_one_line(store: dict[str, str], tmp_path: Path) -> None:
    for source, out, line in (
        ("s3://bucket/nothing", "s3://bucket/x", "error: s3://bucket/nothing"),
        ("s3://bucket/run", "s3://nowhere/x", "error: s3://nowhere/x"),
        ("s3://bucket/run", "s3://bucket/run/x", "error: expected a folder outside of the input s3://bucket/run, "),
        ("s3://bucket/run", None, "error: s3://bucket/run: expected --out with the folder or URL of the parts"),
    ):
        done = hgpo(tmp_path, store, "advantages", source, "--parts", *(["--out", out] if out else []))
        assert done.returncode == 2
        assert done.stderr.startswith(line), done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_ray_job_writes_the_same_bytes_though_a_worker_is_killed(
    run: Path, store: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("ray.data")
    (tmp_path / "own.py").write_text(OWN)
    arguments = ("-e", "own:killed", "--chunk-rows", ROWS, "--processes", 2)
    done = hgpo(tmp_path, {}, "advantages", run, *arguments, "--parts", "--out", "local")
    assert done.returncode == 0, done.stderr
    expected = {path.name: path.read_bytes() for path in sorted((tmp_path / "local").iterdir())}
    assert len(expected) > 3
    steps = scan_steps(run).collect()
    (tmp_path / "fault").write_text(f"once {steps['trajectory'][steps.height // 2]}")
    job = ("advantages", "s3://bucket/run", *arguments, "--ray", "--out", "s3://bucket/ray")
    done = hgpo(tmp_path, store, *job)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "fault").exists()  # a worker was killed
    assert f"({len(expected)} of {len(expected)} parts computed)" in " ".join(done.stderr.split())
    assert download("s3://bucket/ray", store) == expected
    done = hgpo(tmp_path, store, *job)
    assert done.returncode == 0, done.stderr
    assert f"(0 of {len(expected)} parts computed)" in " ".join(done.stderr.split())
    assert download("s3://bucket/ray", store) == expected


@pytest.mark.slow
def test_errors_and_deaths_on_ray_reach_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    from hgpo_datasets import ray_tasks

    monkeypatch.setattr(ray_tasks, "RETRIES", 1)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT}/datasets:{ROOT}/tests/worlds")  # of the workers
    with ray_tasks._running(2):
        assert list(ray_tasks.on_ray(doubled, list(range(9)), 2)) == [2 * number for number in range(9)]
        with pytest.raises(InputError, match=r"^expected another number, received 0$"):
            list(ray_tasks.on_ray(refuses, [0, 1], 2))
        with pytest.raises(ProcessError, match=r"^the Ray job failed: "):
            list(ray_tasks.on_ray(dies, [0, 1], 2))
    assert not ray.is_initialized()
