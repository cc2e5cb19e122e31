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
    return with_checks(
        [orjson.loads(line) for line in data.split(b"\n") if line.strip()]
    )


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
    # a changed file may end the process that decodes it
    report = verify(path, processes=1)
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
    record = {
        "input": shown,
        "output": "<think>x</think><action>look</action>",
        "score": 0.0,
        "step": 7,
    }
    named = {
        **record,
        "traj_uid": "a",
        "uid": "t",
        "anchor_obs": "You are in a room.",
        "rewards": 0.0,
    }
    return [
        b"".join(
            json.dumps(one).encode() + b"\n"
            for one in (named, {**named, "traj_uid": "b", "rewards": 10.0})
        )
    ]


SAMPLES = Path(__file__).parents[1] / "datasets/samples"
ROLLOUTS = {
    "inspect": "inspect/*",
    "openai": "",
    "rllm": "rllm*/**/episode_*",
    "skyrl": "skyrl/*/toy*",
    "trl": "trl/*/*",
    "verifiers": "verifiers/**/traces.jsonl",
    "verl": "verl*/*",
    "verl-agent": "",
}
"""The formats of rollouts, each with the samples that its program wrote."""


def talk_seeds(_: Path) -> Sequence[bytes]:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "look", "arguments": "{}"},
    }
    talk = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "content": [{"type": "text", "text": "A door."}],
            "tool_call_id": "c",
        },
        {"role": "assistant", "content": "open door"},
    ]
    steps = [
        {
            "step": 0,
            "prompt_token_ids": [1],
            "response_token_ids": [2, 3],
            "response_logprobs": [-0.5, -1.0],
        },
        {},
    ]
    records = (
        {
            "messages": talk,
            "task_id": 7,
            "reward": 1,
            "group": 0,
            "iteration": 2,
            "steps": steps,
        },
        {
            "messages": talk,
            "trajectory": "x",
            "rewards": [0.5, 0.25],
            "truncated": True,
            "error": None,
        },
    )
    return [b"".join(json.dumps(record).encode() + b"\n" for record in records)]


def sample_seeds(pattern: str) -> Sequence[bytes]:
    """Return samples; a JSON file in one line, so that its values are mutated."""
    files = [path for path in sorted(SAMPLES.glob(pattern)) if path.is_file()]
    return [
        json.dumps(json.loads(f.read_bytes())).encode()
        if f.suffix == ".json"
        else f.read_bytes()
        for f in files
    ]


def rollouts_target(name: str) -> Target:
    from hgpo_datasets.interchange.rollouts import FORMATS, import_rollouts

    own = {"openai": talk_seeds, "verl-agent": dump_seeds}

    def read_rollouts(data: bytes, folder: Path) -> None:
        from hgpo_datasets import scan_steps, verify

        is_archive = name == "inspect" and data[:2] != b"PK"
        path = folder / f"7{FORMATS[name].suffixes[-1 if is_archive else 0]}"
        path.write_bytes(data)
        import_rollouts(path, folder / "run", format=name)
        assert verify(folder / "run", processes=1).ok
        scan_steps(folder / "run").collect()

    seeds = own.get(name, lambda _: sample_seeds(ROLLOUTS[name]))
    words = (
        b"Your task is to: ",
        b"observation is: ",
        b'"role": "assistant"',
        b"PK\x01\x02",
        b"PAR1",
    )
    return Target(f"rollouts of {name}", seeds, read_rollouts, 40, words)


TARGETS = (
    Target(
        "manifests",
        manifest_seeds,
        read_manifest,
        600,
        (b'"file":"', b'"config":', b'"check":"'),
        chained,
    ),
    Target(
        "shards",
        shard_seeds,
        read_shard,
        10,
        (b"PAR1", b"hgpo.", b"\x15", b"\x00\x00\x00"),
    ),
    *map(rollouts_target, ROLLOUTS),
)
