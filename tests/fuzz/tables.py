"""Targets that read step tables: manifests, shards, rows, and rollouts written by other programs."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson
from groups import rich_group, with_checks

from hgpo_envs.errors import InputError
from tests.fuzz.mutations import Target

MANIFEST = "manifest.jsonl"


def a_run(folder: Path) -> Path:
    from hgpo_datasets import StepWriter

    with StepWriter(folder / "run", run="r", config={"x": 1}) as writer:
        for number in range(2):
            writer.add_group(rich_group(f"t{number}", number, 2, 3))
            writer.commit()
    return folder / "run"


def manifest_seeds(folder: Path) -> Sequence[bytes]:
    return [(a_run(folder) / MANIFEST).read_bytes()]


def chained(data: bytes) -> bytes:
    """Return the same lines with correct checksums."""
    return with_checks([orjson.loads(line) for line in data.split(b"\n") if line.strip()])


def read_manifest(data: bytes, folder: Path) -> None:
    """Decode a manifest; for one input in a hundred, also read the run with every reader."""
    from hgpo_datasets import StepWriter, manifest, scan_steps, verify

    decoded = manifest.decode(data)
    assert decoded.problem is None or "\n" not in decoded.problem
    if hashlib.sha256(data).digest()[0] > 2:
        return
    run = a_run(folder)
    (run / MANIFEST).write_bytes(data)
    verify(run)
    refused(lambda: scan_steps(run).collect())
    refused(lambda: StepWriter(run).close())


def refused(action: Callable[[], object]) -> None:
    """Call an action; an InputError is a correct outcome as well."""
    with contextlib.suppress(InputError):
        action()


def shard_seeds(folder: Path) -> Sequence[bytes]:
    return [path.read_bytes() for path in sorted(a_run(folder).glob("steps/*.parquet"))]


def read_shard(data: bytes, folder: Path) -> None:
    from hgpo_datasets import scan_steps, verify

    path = folder / "steps-000000.parquet"
    path.write_bytes(data)
    report = verify(path, processes=1)  # a changed file may end the process that decodes it
    if report.ok:
        assert scan_steps(path).collect().height == report.rows


def dump_seeds(_: Path) -> Sequence[bytes]:
    shown = (
        "user\n\nYou are an expert agent operating in the ALFRED Embodied Environment.\n"
        "Your current observation is: You are in a room.\n\nYour task is to: put a mug on a desk\n"
        "Your admissible actions of the current situation are: ['look'\n 'go'].\n\n"
        "Now it's your turn to take an action.\n"
        "\nassistant\n"
    )
    record = {"input": shown, "output": "<think>x</think><action>look</action>", "score": 0.0, "step": 7}
    named = {**record, "traj_uid": "a", "uid": "t", "anchor_obs": "You are in a room.", "rewards": 0.0}
    return [b"".join(json.dumps(one).encode() + b"\n" for one in (named, {**named, "traj_uid": "b", "rewards": 10.0}))]


def read_dump(data: bytes, folder: Path) -> None:
    from hgpo_datasets.interchange.rollouts import import_rollouts

    path = folder / "7.jsonl"
    path.write_bytes(data)
    import_rollouts(path, folder / "run", format="verl-agent")


TARGETS = (
    Target("manifests", manifest_seeds, read_manifest, 600, (b'"file":"', b'"config":', b'"check":"'), chained),
    Target("shards", shard_seeds, read_shard, 10, (b"PAR1", b"hgpo.", b"\x15", b"\x00\x00\x00")),
    Target("rollouts of verl-agent", dump_seeds, read_dump, 40, (b"Your task is to: ", b"observation is: ")),
)
