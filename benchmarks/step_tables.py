"""Measure step tables: encoding, writing, reading and verification, each beside a reference in the same run.

    python benchmarks/step_tables.py                     # 1,000 episodes of the bundled ALFWorld games
    python benchmarks/step_tables.py --episodes 200

ratios    encoding of a shard beside pyarrow's own with its defaults for zstd; verification beside reading all columns,
          in this process (`verify`), and as processes of their own (`hgpo verify`, which starts another to decode); the
          peak memory of a verification beside that of a run with one shard. Calls take turns; the fastest counts.
formats   the same rows, from and to Python dicts or frames: rows per second of CPU time and bytes per row, with and
          without texts and tokens (token ids are hashes of words, so that they repeat like words)

Minari stores only states, instruction, actions and rewards; it is compared with a step table of these columns.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
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
from record import in_new_process, in_turns, make_parser, memory_mb, print_table, seconds, store

from hgpo_datasets import StepWriter, scan_steps, schema, shards, verify
from hgpo_train.rollout import collect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

REPEATS = 5
"""Calls of which the fastest counts, because the first one also starts threads and imports libraries."""
FEW = ["task_id", "history_hash_2", "reward", "action_valid"]
DERIVED = {column.name for column in schema.columns() if column.derived}
TEXTS = {"prompt", "response", "state", "next_state", "task", "admissible_actions", "action"}
TOKENS = {"prompt_token_ids", "response_token_ids", "response_logprobs"}
MINARI = ["task_id", "trajectory", "step", "task", "state", "next_state", "action", "reward", "terminated", "truncated"]
READ = "import sys; from hgpo_datasets import scan_steps; scan_steps(sys.argv[1]).collect()"


def fastest(
    calls: Mapping[str, Callable[[], object]], clock: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Return the seconds of the fastest call of each function. The functions are called in turns."""
    measures = {name: partial(seconds, call, clock) for name, call in calls.items()}
    return {name: min(found) for name, found in in_turns(REPEATS, measures).items()}


def with_tokens(steps: pl.DataFrame) -> pl.DataFrame:
    draw = random.Random(0)

    def ids(text: str) -> list[int]:
        return [zlib.crc32(word.encode()) % 150_000 for word in re.findall(r"\w+|[^\w\s]", text)]

    response = [ids(text) for text in steps["response"]]
    return steps.with_columns(
        prompt_token_ids=pl.Series([ids(text) for text in steps["prompt"]], dtype=schema.TOKENS),
        response_token_ids=pl.Series(response, dtype=schema.TOKENS),
        response_logprobs=pl.Series(
            [[-draw.expovariate(4) for _ in tokens] for tokens in response], dtype=pl.List(pl.Float32)
        ),
    )


def ratios(run: Path, one_shard: Path, tokens: pl.DataFrame) -> list[dict[str, Any]]:
    """Return each measurement with its reference."""
    steps = pl.read_parquet(next((run / "steps").iterdir()))
    found = [encoding("a shard of a rollout", steps), encoding("the same with token ids", tokens.head(len(steps)))]
    here = fastest({"verify": lambda: verify(run), "read": scan_steps(run).collect}, time.perf_counter)
    found.append(ratio("verify(run)", here["verify"], "reading all columns", here["read"], "s"))
    commands = {
        "verify": [Path(sys.executable).with_name("hgpo"), "verify", run],
        "read": [sys.executable, "-c", READ, run],
    }
    started = {
        name: partial(subprocess.run, words, check=True, capture_output=True) for name, words in commands.items()
    }
    apart = fastest(started, time.perf_counter)
    found.append(ratio("hgpo verify", apart["verify"], "a process that reads all columns", apart["read"], "s"))
    megabytes = [in_new_process(peak_of_verification, folder) for folder in (run, one_shard)]
    rows = [scan_steps(folder).select(pl.len()).collect().item() for folder in (run, one_shard)]
    found.append(ratio(f"peak memory, {rows[0]:,} rows", megabytes[0], f"{rows[1]:,} rows", megabytes[1], "MB"))
    return found


def peak_of_verification(run: Path) -> float:
    assert verify(run).ok
    return memory_mb("VmHWM")


def encoding(name: str, frame: pl.DataFrame) -> dict[str, Any]:
    table = frame.rechunk().to_arrow(compat_level=pl.CompatLevel.newest())
    taken = fastest(
        {
            "ours": lambda: shards.encode(frame, {}),
            "pyarrow": lambda: pq.write_table(table, pa.BufferOutputStream(), compression="zstd"),
        }
    )
    each = {key: value / len(frame) * 1e6 for key, value in taken.items()}
    return ratio(f"encoding, {name}", each["ours"], "pyarrow.parquet.write_table", each["pyarrow"], "µs a row")


def ratio(name: str, value: float, reference: str, other: float, unit: str) -> dict[str, Any]:
    return {"name": name, "value": value, "reference": reference, "other": other, "unit": unit, "ratio": value / other}


def step_table(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    def write() -> None:
        with StepWriter(folder / "run") as writer:
            writer.add_group(rows)

    few = [name for name in FEW if name in rows[0] or name in DERIVED]
    return stored(
        folder / "run",
        len(rows),
        write,
        lambda: scan_steps(folder / "run").collect(),
        lambda: scan_steps(folder / "run").select(few).collect(),
    )


def stored(
    folder: Path,
    rows: int,
    write: Callable[[], object],
    read: Callable[[], object],
    read_few: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """Write and read a format; return its speed and size. A format that reads whole rows has no `read_few`."""
    write_s = seconds(write)
    reads = fastest({"all": read, "few": read_few} if read_few else {"all": read})
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {
        "rows": rows,
        "written_rows_per_s": round(rows / write_s),
        "read_rows_per_s": round(rows / max(reads["all"], 1e-9)),
        "read_4_columns_rows_per_s": round(rows / max(reads.get("few", reads["all"]), 1e-9)),
        "bytes_per_row": round(size / rows, 1),
    }


def json_lines(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    path = folder / "rows.jsonl"
    return stored(
        folder,
        len(rows),
        lambda: path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows)),
        lambda: [orjson.loads(line) for line in path.read_bytes().splitlines()],
    )


def minari_dataset(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    os.environ["MINARI_DATASETS_PATH"] = str(folder / "minari")
    import minari

    from hgpo_datasets.interchange.minari import to_minari

    with tempfile.TemporaryDirectory() as source:
        with StepWriter(source) as writer:
            writer.add_group(rows)
        return stored(
            folder / "minari",
            len(rows),
            lambda: to_minari(source, "hgpo/benchmark-v0"),
            lambda: [episode.rewards for episode in minari.load_dataset("hgpo/benchmark-v0").iterate_episodes()],
        )


def formats(steps: pl.DataFrame) -> dict[str, Any]:
    given = steps.drop("run", *(DERIVED & set(steps.columns)))
    shapes: dict[str, Iterable[str]] = {
        "numbers": [name for name in given.columns if name not in TEXTS | TOKENS] + ["state"],
        "numbers, texts": [name for name in given.columns if name not in TOKENS],
        "numbers, texts, tokens": given.columns,
    }
    found: dict[str, Any] = {}
    for shape, columns in shapes.items():
        rows = given.select(columns).to_dicts()
        for name, call in (("step table", step_table), ("JSON lines", json_lines)):
            with tempfile.TemporaryDirectory() as folder:
                found[f"{shape}: {name}"] = call(Path(folder), rows)
    rows = given.select(MINARI).head(5_000).to_dicts()  # Minari is slow
    rows = rows[: max(i for i, row in enumerate(rows) if row["step"] == 0)]  # only complete trajectories
    for name, call in (("step table", step_table), ("Minari", minari_dataset)):
        with tempfile.TemporaryDirectory() as folder:
            found[f"what Minari holds: {name}"] = call(Path(folder), rows)
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--episodes", type=int, default=1_000)
    given = parser.parse_args()
    tasks = max(given.episodes // 8, 8)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options: dict[str, Any] = {"action_format": "response", "progress": False}
        run = collect("HGPO/ALFWorld-v0", "random", folder / "random", tasks=tasks, **options)
        few = collect("HGPO/ALFWorld-v0", "random", folder / "few", tasks=min(tasks, 64), **options)
        mixed = collect("HGPO/ALFWorld-v0", "mixture:expert=0.5,random=0.5", folder / "mixed", tasks=tasks, **options)
        steps = with_tokens(mixed.steps.collect())
        beside = ratios(run.path, few.path, steps)
    columns = {"measured": "{name}", "value": "{value:.3g} {unit}", "reference": "{reference}"}
    columns |= {"its value": "{other:.3g} {unit}", "ratio": "{ratio:.2f} ×"}
    print_table(beside, columns, "Beside a reference of the same run")
    found = {"ratios": beside, "formats": formats(steps)}
    columns = {"rows": "{format}", "written/s": "{written_rows_per_s:,}", "read/s": "{read_rows_per_s:,}"}
    columns |= {"4 columns/s": "{read_4_columns_rows_per_s:,}", "bytes a row": "{bytes_per_row:,}"}
    print_table(({"format": name, **row} for name, row in found["formats"].items()), columns, "Formats, CPU time")
    print(store("step_tables", found, keep=given.keep))


if __name__ == "__main__":
    main()
