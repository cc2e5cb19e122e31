"""Rows for tests: groups of rollouts as a collector returns them."""

import random
from pathlib import Path
from typing import Any

import xxhash

from hgpo_datasets import StepWriter, manifest

Rows = list[dict[str, Any]]


def step(task_id: str, trajectory: str, t: int, /, **more: Any) -> dict[str, Any]:
    row = {
        "task_id": task_id,
        "trajectory": trajectory,
        "step": t,
        "state": f"room {t}",
        "action": "look",
    }
    return {**row, "reward": 0.0, **more}


def group(task: str, members: int = 2, length: int = 3, **more: Any) -> Rows:
    return [
        step(task, f"{task}/{m}", t, **more)
        for m in range(members)
        for t in range(length)
    ]


def write_run(folder: str | Path, *groups: Any, **header: Any) -> Path:
    """Write a run of these groups of rows, and return its folder."""
    with StepWriter(folder, **header) as writer:
        for rows in groups:
            writer.add_group(rows)
    return Path(folder)


def write_rich_run(folder: Path, **header: Any) -> Path:
    """Write a run of six tasks in three shards, with a value in every column."""
    with StepWriter(folder, **header) as writer:
        for number in range(6):
            writer.add_group(rich_group(f"task {number}", number))
            if number % 2:
                writer.commit()
    return folder


def rich_group(
    task: str, seed: int, members: int = 3, length: int = 5, **more: Any
) -> Rows:
    """Return a group with values in every column, some of them null, that differ from any other group's."""
    draw = random.Random(seed)
    rows = []
    for m in range(members):
        for t in range(length):
            tokens = [draw.randrange(150_000) for _ in range(draw.randrange(12))]
            last = t == length - 1
            drawn = {
                "state": f"You are in room {draw.randrange(4)}. 日本 \x00 {draw.random() if t else ''}",
                "action": draw.choice(["look", "go to shelf 1", "öffne 😀"]),
                "reward": draw.random() if last else 0.0,
                "score": draw.choice([None, draw.random()]),
                "prompt": f"You see {draw.random()}" * draw.randrange(1, 5),
                "response": draw.choice([None, f"<think>{draw.random()}</think>"]),
                "admissible_actions": [
                    f"go to {draw.randrange(9)}" for _ in range(draw.randrange(6))
                ],
                "action_valid": draw.random() < 0.8,
                "response_logprobs": [-draw.random() for _ in tokens[:3]],
                "next_state": f"the end {draw.random()}" if last else None,
                "environment_s": draw.random(),
            }
            drawn |= {
                "terminated": last and m > 0,
                "truncated": last and m == 0,
                "won": last and m == 1,
            }
            drawn |= {
                "prompt_token_ids": tokens,
                "response_token_ids": tokens[:3],
                "policy_s": None,
                "split": "train",
            }
            drawn |= {
                "task": f"do {task}",
                "task_type": "pick",
                "env_id": "HGPO/ALFWorld-v0",
                **more,
            }
            rows.append(step(task, f"{task}/{m}", t, **drawn))
    return rows


def with_checks(lines: Rows) -> bytes:
    """Return a manifest of these lines, whatever they contain, with correct checks."""
    check = ""
    text = b""
    for line in lines:
        values = {name: value for name, value in line.items() if name != "check"}
        check = xxhash.xxh3_64_hexdigest(check.encode() + manifest.canonical(values))
        text += manifest.canonical({**values, "check": check}) + b"\n"
    return text
