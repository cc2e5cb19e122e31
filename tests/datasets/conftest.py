"""Fixtures that write step tables."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from groups import write_rich_run

from hgpo_datasets import manifest, schema, shards


@pytest.fixture
def rich_run(tmp_path: Path) -> Path:
    """Write a run of three shards."""
    return write_rich_run(tmp_path / "rich", config={"seed": 7})


@pytest.fixture
def raw_run(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a run of given frames, with correct checksums whatever the rows contain."""

    def make(*frames: pl.DataFrame, depth: int = 8, run: str = "rich") -> Path:
        folder = tmp_path / "raw"
        (folder / "steps").mkdir(parents=True)
        header = manifest.Header(run, depth, schema.VERSION, "test", {})
        text, check = manifest.encode_line(header, "")
        for number, frame in enumerate(frames):
            name = f"steps-{number:06d}.parquet"
            data = shards.encode(frame, shards.metadata_of(header))
            (folder / "steps" / name).write_bytes(data)
            digest = hashlib.sha256(data).hexdigest()
            line, check = manifest.encode_line(
                manifest.Shard(name, digest, len(data), len(frame), 0, 0), check
            )
            text += line
        (folder / manifest.NAME).write_bytes(text)
        return folder

    return make
