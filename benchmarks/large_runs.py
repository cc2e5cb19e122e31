"""Measure `hgpo advantages` on a run of many shards: processes, a folder of parts, and Ray Data on an object store.

    python benchmarks/large_runs.py                    a million steps
    python benchmarks/large_runs.py --steps 100000

Rollouts of the bundled ALFWorld games are repeated under other task names, without their long texts. Each row is one
command as users call it, HGPO with K = 2, in a new process: `s` is the whole command with its start and imports. For
parts, `again_s` is the same command when all parts are finished, so that `s - again_s` is the time of the work without
the start of processes and of Ray. `cpu_s` does not contain Ray's workers. The object store is moto's server on this
machine, a Python program, which is slower than a disk or S3.
Every output has the same rows; those in parts have the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl
from record import ROOT, add_keep, store
from rich.console import Console
from rich.table import Table

from hgpo_datasets import StepWriter, object_store, scan_steps, schema
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.run import RolloutSpec, collect_groups

sys.path.insert(0, str(ROOT / "tests/worlds"))
from s3 import options_of, s3_server, upload

CONSOLE = Console()
LONG = ("prompt", "response", "admissible_actions")
SHARD_ROWS = 20_000
WAYS: dict[str, tuple[str, str, list[str]]] = {
    "one file, 1 process": ("disk", "one", []),
    "one file, 2 processes": ("disk", "two", ["--processes", "2"]),
    "parts, 1 process": ("disk", "parts1", ["--parts"]),
    "parts, 2 processes": ("disk", "parts2", ["--parts", "--processes", "2"]),
    "parts on S3, 1 process": ("s3", "parts1", ["--parts"]),
    "Ray on S3, 1 worker": ("s3", "ray1", ["--ray", "--processes", "1"]),
    "Ray on S3, 2 workers": ("s3", "ray2", ["--ray", "--processes", "2"]),
}


def repeated(folder: Path, steps: int) -> int:
    """Write a run of at least as many steps: the same groups again and again, under other names. Return its rows."""
    handle = open_env("HGPO/ALFWorld-v0", action_format="response", max_steps=30)
    policy: Any = make_policy("mixture:expert=0.6,random=0.4", PolicyContext("ALFWorld", "response", {}))
    with StepWriter(folder.parent / "rollout") as writer:
        collect_groups(handle, policy, writer, RolloutSpec(tasks=64, group_size=8, seed=1))
    given = [column.name for column in schema.columns() if not column.derived and column.name not in {"run", *LONG}]
    rows = scan_steps(folder.parent / "rollout").select(given).collect()
    groups = rows.partition_by("task_id", maintain_order=True)
    written = turn = 0
    with StepWriter(folder, shard_rows=SHARD_ROWS) as writer:
        while written < steps:
            for group in groups:
                named = ((pl.lit(f"{turn:04d}/") + pl.col(name)).alias(name) for name in ("task_id", "trajectory"))
                writer.add_group(group.with_columns(named))
                written += group.height
            turn += 1
    return written


def measured(run: str, out: str, options: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Return the durations of a command."""
    program = "from hgpo_train.cli import main; main()"
    command = [sys.executable, "-c", program, "advantages", run, "--out", out, *options]
    before = os.times()
    began = time.perf_counter()
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    after = os.times()
    if done.returncode:
        sys.exit(done.stderr)
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"s": seconds, "cpu_s": cpu}


def digest(contents: dict[str, bytes]) -> str:
    """Return one digest of files by their names and contents."""
    each = (name.encode() + hashlib.sha256(data).digest() for name, data in sorted(contents.items()))
    return hashlib.sha256(b"".join(each)).hexdigest()


def contents(out: str, environment: dict[str, str]) -> dict[str, bytes]:
    """Return the files of an output."""
    if "://" in out:
        import obstore
        from obstore.store import from_url

        options: Any = options_of(environment)
        kept = from_url(out, config=options, client_options={"allow_http": True})
        names = object_store.names(out, options)
        return {name: bytes(obstore.get(kept, name).bytes()) for name in names}
    path = Path(out)
    return {file.name: file.read_bytes() for file in path.iterdir()} if path.is_dir() else {"table": path.read_bytes()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="keep the run here, and use it if it is here already")
    parser.add_argument("--chunk-rows", type=int, default=100_000, help="rows of a part")
    parser.add_argument("--only", nargs="*", default=list(WAYS), choices=list(WAYS), help="rows of the table")
    parser.add_argument("--loaded", action="store_true", help="note that other programs used the machine")
    add_keep(parser)
    options = parser.parse_args()
    figures: dict[str, Any] = {"chunk_rows": options.chunk_rows, "loaded": options.loaded, "ways": {}}
    with tempfile.TemporaryDirectory() as scratch, s3_server() as environment:
        run = (options.folder or Path(scratch)) / f"run-{options.steps}"
        if not run.exists():
            repeated(run, options.steps)
        figures["rows"] = scan_steps(run).select(pl.len()).collect().item()
        figures["shards"] = len(list(run.glob("steps/*")))
        figures["bytes"] = sum(file.stat().st_size for file in run.glob("steps/*"))
        upload(run, "s3://bucket/run", environment)
        digests: dict[str, set[str]] = {}
        for name in options.only:
            place, out, how = WAYS[name]
            source, target = (
                (str(run), f"{scratch}/{out}") if place == "disk" else ("s3://bucket/run", f"s3://bucket/{out}")
            )
            command = source, target, [*how, "--chunk-rows", str(options.chunk_rows)], environment
            found = measured(*command)
            found["rows_per_s"] = figures["rows"] / found["s"]
            if how and how[0] in {"--parts", "--ray"}:
                found["again_s"] = measured(*command)["s"]
                found["work_rows_per_s"] = figures["rows"] / max(found["s"] - found["again_s"], 0.001)
            written = contents(target, environment)
            found["bytes"] = sum(map(len, written.values()))
            digests.setdefault("file" if name.startswith("one") else "parts", set()).add(digest(written))
            figures["ways"][name] = found
            CONSOLE.print(f"{name}: {found['s']:.1f} s")
        figures["same_bytes"] = all(len(each) == 1 for each in digests.values())
    show(figures)
    CONSOLE.print(store("large_runs", figures, keep=options.keep))


def show(figures: dict[str, Any]) -> None:
    """Print the table."""
    table = Table("", "s", "CPU s", "rows/s", "s again", "rows/s without the start", "bytes")
    for name, one in figures["ways"].items():
        parts = "again_s" in one
        again, work = (f"{one['again_s']:.1f}", f"{one['work_rows_per_s']:,.0f}") if parts else ("–", "–")
        cells = f"{one['s']:.1f}", f"{one['cpu_s']:.1f}", f"{one['rows_per_s']:,.0f}", again, work, f"{one['bytes']:,}"
        table.add_row(name, *cells)
    same = "equal" if figures["same_bytes"] else "DIFFERENT"
    CONSOLE.print(table, f"{figures['rows']:,} rows in {figures['shards']} shards; bytes of outputs are {same}")


if __name__ == "__main__":
    main()
