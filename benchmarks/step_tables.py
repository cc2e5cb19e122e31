"""Measure step tables: encoding, writing, reading and verification, each beside a reference in the same run.

    python -m benchmarks step_tables                     1,000 episodes of the bundled ALFWorld games
    python -m benchmarks step_tables --episodes 200

The encoding of a shard is compared with pyarrow's own, with its defaults for zstd; verification with reading all
columns; and its peak memory with that of a run with one shard. The same rows are written from and read to Python dicts
or frames as a step table and as JSON lines, with and without texts and tokens (token ids are hashes of words, so that
they repeat like words). Calls take turns; the fastest counts.
"""

from __future__ import annotations

import random
import re
import tempfile
import time
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.runner import Row, in_new_process, least, memory_mb, seconds
from hgpo_datasets import StepWriter, scan_steps, schema, shards, verify
from hgpo_train.rollout import collect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

REPEATS = 4
FEW = ["task_id", "history_hash_2", "reward", "action_valid"]
DERIVED = {column.name for column in schema.columns() if column.derived}
TEXTS = {
    "prompt",
    "response",
    "state",
    "next_state",
    "task",
    "admissible_actions",
    "action",
}
TOKENS = {"prompt_token_ids", "response_token_ids", "response_logprobs"}


def fastest(
    calls: Mapping[str, Callable[[], object]], clock: Callable[[], float]
) -> tuple[float, ...]:
    """Return the seconds of the fastest call of each function. The functions are called in turns."""
    timed = {name: partial(seconds, call, clock) for name, call in calls.items()}
    return tuple(least(REPEATS, timed).values())


def with_tokens(steps: pl.DataFrame) -> pl.DataFrame:
    draw = random.Random(0)

    def ids(text: str) -> list[int]:
        return [
            zlib.crc32(word.encode()) % 150_000
            for word in re.findall(r"\w+|[^\w\s]", text)
        ]

    prompt = list(map(ids, steps["prompt"]))
    response = list(map(ids, steps["response"]))
    logprobs = [[-draw.expovariate(4) for _ in tokens] for tokens in response]
    return steps.with_columns(
        prompt_token_ids=pl.Series(prompt, dtype=schema.TOKENS),
        response_token_ids=pl.Series(response, dtype=schema.TOKENS),
        response_logprobs=pl.Series(logprobs, dtype=pl.List(pl.Float32)),
    )


def encoding(name: str, frame: pl.DataFrame) -> Row:
    """Compare the encoding of a shard with pyarrow's."""
    table = frame.rechunk().to_arrow(compat_level=pl.CompatLevel.newest())
    calls = {
        "ours": lambda: shards.encode(frame, {}),
        "pyarrow": lambda: pq.write_table(
            table, pa.BufferOutputStream(), compression="zstd"
        ),
    }
    ours, theirs = fastest(calls, time.process_time)
    return Row(
        f"Step table: encoding of a row of a rollout{name}",
        ours / len(frame),
        "s",
        rival=("pyarrow.parquet.write_table", theirs / len(frame)),
    )


def verification(run: Path, one_shard: Path) -> Iterator[Row]:
    """Compare verification with reading all columns, and its memory with that of a run with one shard."""
    ours, reading = fastest(
        {"verify": lambda: verify(run), "read": scan_steps(run).collect},
        time.perf_counter,
    )
    yield Row(
        "Step table: verify(run)",
        ours,
        "s",
        floor=("reading all columns", reading),
    )
    large = in_new_process(peak_of_verification, run)
    small = in_new_process(peak_of_verification, one_shard)
    yield Row(
        "Step table: peak memory of verify", large, "MB", floor=("64 tasks", small)
    )


def peak_of_verification(run: Path) -> float:
    assert verify(run).ok
    return memory_mb("VmHWM")


def stored(
    folder: Path,
    rows: int,
    write: Callable[[], object],
    read: Callable[[], object],
    read_few: Callable[[], object] | None = None,
) -> dict[str, float]:
    """Write and read a format; return bytes a row, and rows a second. One that reads whole rows has no `read_few`."""
    written = seconds(write)
    everything, few = fastest({"all": read, "few": read_few or read}, time.process_time)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {
        "size": size / rows,
        "rows written": rows / written,
        "rows read": rows / max(everything, 1e-9),
        "four columns read": rows / max(few, 1e-9),
    }


def step_table(folder: Path, rows: list[dict[str, Any]]) -> dict[str, float]:
    run = folder / "run"
    few = [name for name in FEW if name in rows[0] or name in DERIVED]

    def write() -> None:
        with StepWriter(run) as writer:
            writer.add_group(rows)

    return stored(
        run,
        len(rows),
        write,
        lambda: scan_steps(run).collect(),
        lambda: scan_steps(run).select(few).collect(),
    )


def json_lines(folder: Path, rows: list[dict[str, Any]]) -> dict[str, float]:
    path = folder / "rows.jsonl"
    return stored(
        folder,
        len(rows),
        lambda: path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows)),
        lambda: [orjson.loads(line) for line in path.read_bytes().splitlines()],
    )


def formats(steps: pl.DataFrame) -> Iterator[Row]:
    """Compare a step table with JSON lines of the same rows."""
    given = steps.drop("run", *(DERIVED & set(steps.columns)))
    shapes = {
        "numbers and state": given.drop(TEXTS - {"state"}, TOKENS),
        "texts": given.drop(TOKENS),
        "texts and tokens": given,
    }
    for shape, table in shapes.items():
        rows = table.to_dicts()
        with tempfile.TemporaryDirectory() as folder:
            ours = step_table(Path(folder), rows)
        with tempfile.TemporaryDirectory() as folder:
            theirs = json_lines(Path(folder), rows)
        yield Row(
            f"Step table: row with {shape}",
            ours.pop("size"),
            "bytes",
            rival=("JSON lines", theirs["size"]),
            shown="readme" if shape == "texts and tokens" else "",
        )
        for title, value in ours.items():
            rival = ("JSON lines", theirs[title])
            yield Row(f"Step table: {title}, {shape}", value, "/s", rival=rival)


def run(episodes: int = 1_000) -> Iterator[Row]:
    """Measure runs of so many episodes."""
    tasks = max(episodes // 8, 8)
    play = partial(
        collect, "HGPO/ALFWorld-v0", action_format="response", progress=False
    )
    with tempfile.TemporaryDirectory() as folder:
        run = play("random", f"{folder}/random", tasks=tasks)
        few = play("random", f"{folder}/few", tasks=min(tasks, 64))
        mixture = "mixture:expert=0.5,random=0.5"
        mixed = play(mixture, f"{folder}/mixed", tasks=tasks)
        steps = with_tokens(mixed.steps.collect())
        shard = pl.read_parquet(next((run.path / "steps").iterdir()))
        yield encoding("", shard)
        yield encoding(" with token ids", steps.head(len(shard)))
        yield from verification(run.path, few.path)
    yield from formats(steps)
