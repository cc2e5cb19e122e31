"""The certificate of an evaluation on a panel, `RUN/certificate.json`: the tasks, the policy and the results.

It contains the outcome of every task and seed, so that its figures can be recomputed from it alone
(`hgpo_train.evaluation.certificate_check`), and a hash of every trajectory, so that it can be compared with the run's
table and with a replay in the environment. docs/repeatable.md documents the keys.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict, get_type_hints

import polars as pl
from msgspec import Meta

from hgpo_datasets import manifest, scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import write_file
from hgpo_envs.files.sealed import seal
from hgpo_envs.files.secrets import redact_json
from hgpo_train.evaluation.report import episode_table, evaluation_reports
from hgpo_train.evaluation.reporting_rules import success_by_rule
from hgpo_train.evaluation.summary import INTERVALS, expense
from hgpo_train.models.checkpoint_files import BUNDLED, file_names, known_sha256
from hgpo_train.rollout.sessions import read_sessions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hgpo_train.panels.panel import Panel

NAME: Final = "certificate.json"
FORMAT: Final = "hgpo certificate 1"

Count = Annotated[int, Meta(ge=0, lt=1 << 31)]


class Outcome(TypedDict):
    """What a certificate says of an episode: columns of `episode_table`, and the hash of its steps."""

    seed: Count
    task_id: str
    task: str | None
    task_type: str | None
    won: bool | None
    score: float | None
    length: Annotated[float, Meta(ge=0, lt=1 << 31)]
    invalid: Count
    judged: Count
    admissible: Count
    aborted: bool
    truncated: bool
    trajectory: str


OUTCOME: Final = get_type_hints(Outcome)
"""The types of the columns by name."""


def write_certificate(run: Path, panel: Panel) -> None:
    """Write the certificate of a run atomically.

    Raises:
        InputError: As `certificate`.
        OSError: The disk cannot be written. An existing certificate is unchanged.
    """
    text = json.dumps(
        certificate(run, panel), indent=1, ensure_ascii=False, allow_nan=False
    )
    write_file(run / NAME, seal(text.encode()))


def certificate(run: Path, panel: Panel) -> dict[str, Any]:
    """Return the certificate of a complete evaluation on a panel, as JSON values.

    Raises:
        InputError: The run was played with another panel, or episodes of the panel are missing.
    """
    header = manifest.read(run).header
    config = {} if header is None else header.config
    played = config.get("panel", {})
    if played.get("digest") != panel.digest:
        found = f"{played.get('title', 'none')} with digest {played.get('digest')}"
        raise InputError(
            f"{run}: expected a run of panel {panel.title} with digest {panel.digest}, found {found}"
        )
    steps = scan_steps(run)
    episodes = _episodes(steps, panel)
    sessions = read_sessions(run)
    return {
        "format": FORMAT,
        "panel": {
            "title": played["title"],
            "digest": panel.digest,
            "settings": panel.canonical(),
        },
        "data": {
            "tasks": played["tasks"],
            "pinned": panel.is_pinned,
            **_plain(config["tasks"]),
        },
        "policy": {**_plain(config["policy"]), "files": policy_files(config["policy"])},
        **figures(episodes, panel.environment["env"]),
        "cost": {
            **expense(sessions),
            "environment_steps": int(sum(episode["length"] for episode in episodes)),
        },
        "versions": sessions[-1].versions if sessions else {},
        "machine": machine(),
        "episodes": episodes,
    }


def figures(episodes: Sequence[Mapping[str, Any]], env_id: str) -> dict[str, Any]:
    """Return every figure of a certificate that follows from its episodes.

    Args:
        episodes: Values of `OUTCOME` of each episode.
        env_id: The Gymnasium id of the environment.
    """
    table = as_table(episodes, env_id)
    reports = evaluation_reports(table)
    counts = {
        "won": table.filter(pl.col("won") & ~pl.col("aborted")).height,
        "aborted": table["aborted"].sum(),
        "truncated": table["truncated"].sum(),
    }
    found: dict[str, Any] = _plain(
        {
            "counts": {"played": len(table), **counts},
            "results": [asdict(report) for report in reports],
            "intervals": INTERVALS,
            "success_by_rule": {
                name: counted._asdict()
                for name, counted in success_by_rule(table).items()
            },
        }
    )
    return found


def as_table(episodes: Sequence[Mapping[str, Any]], env_id: str) -> pl.DataFrame:
    """Return a certificate's episodes as `hgpo_train.evaluation.episode_table` does, without scenarios."""
    table = pl.DataFrame(episodes, schema=OUTCOME)
    return table.with_columns(
        pl.lit(env_id).alias("env_id"),
        pl.col("won").cast(pl.Float64).alias("success"),
    )


def _episodes(steps: pl.LazyFrame, panel: Panel) -> list[dict[str, Any]]:
    """Return the outcomes of all episodes, in the panel's order."""
    hashes = {
        (seed, task_id): digest for seed, task_id, digest in trajectory_hashes(steps)
    }
    table = episode_table(steps)
    rows = {(row["seed"], row["task_id"]): row for row in table.iter_rows(named=True)}
    planned = [(seed, task_id) for seed in panel.seeds for task_id in panel.tasks]
    missing = [key for key in planned if key not in rows]
    # A task that was played several times per seed would be counted with the episode that happens to be the last one.
    if missing or len(table) > len(planned):
        advice = (
            "run the evaluation again to complete it"
            if missing
            else "play the panel into a new folder"
        )
        raise InputError(
            f"expected {len(planned)} episodes of panel {panel.title}, one per task and seed, found {len(table)}; "
            f"{len(missing)} are missing; {advice}"
        )
    episodes = []
    for key in planned:
        row = rows[key] | {"trajectory": hashes[key]}
        episodes.append({name: row[name] for name in OUTCOME})
    return episodes


def trajectory_hashes(steps: pl.LazyFrame) -> Iterable[tuple[int, str, str]]:
    """Yield the seed, the task and the hash of each episode of an evaluation."""
    values = pl.struct("state", "action", "reward", "next_state").sort_by("step")
    table = (
        steps.group_by("iteration", "task_id", "trajectory")
        .agg(values.alias("steps"))
        .collect()
    )
    for seed, task_id, _, rows in table.iter_rows():
        yield seed, task_id, trajectory_hash([tuple(row.values()) for row in rows])


def trajectory_hash(steps: Iterable[tuple[str, str | None, float, str | None]]) -> str:
    """Return the SHA-256 of an episode's steps, in hexadecimal digits.

    Args:
        steps: State, action, reward and, of the last step, the state after it, in the order of steps.
    """
    digest = hashlib.sha256()
    for step in steps:
        digest.update(json.dumps(step).encode() + b"\n")
    return digest.hexdigest()


def policy_files(policy: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the SHA-256 of a local model's files by name; None without a model, or if it is not on this machine."""
    weights = policy.get("weights")
    if not isinstance(weights, str):
        return None
    folder = BUNDLED.get(weights, Path(weights))
    if not folder.is_dir():
        # no such library, or a model that is not in its cache
        with suppress(Exception):
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(weights, local_files_only=True))
    if not folder.is_dir():
        return None
    return {
        name: known_sha256(folder / name)
        for name in file_names(folder)
        if not name.startswith("trainer/")
    }


def machine() -> dict[str, Any]:
    """Return what is known of this machine: system, processor, number of processors, and the GPU that PyTorch uses."""
    torch = sys.modules.get("torch")  # a policy without a model has not imported it
    gpu = (
        torch.cuda.get_device_name()
        if torch is not None and torch.cuda.is_available()
        else None
    )
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": platform.processor(),
        "processors": os.cpu_count(),
        "gpu": gpu,
    }


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return JSON values as a reader of the file gets them, without secrets."""
    return json.loads(json.dumps(redact_json(value)))
