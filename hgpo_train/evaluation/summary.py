"""The summary of an evaluation, `RUN/summary.json`: results, failures, tokens and duration, for other programs.

docs/rollouts.md documents the keys. The file is replaced atomically at the end of every session, also of one that
failed or was interrupted; `complete` is then false.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets import manifest, scan_steps
from hgpo_datasets.wordings import wordings_of
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import write_file
from hgpo_envs.files.sealed import seal
from hgpo_envs.files.secrets import redact_json
from hgpo_train.evaluation.report import episode_table, evaluation_reports
from hgpo_train.rollout.failures import failures_of
from hgpo_train.rollout.outcomes import rollout_table
from hgpo_train.rollout.sessions import Session, read_sessions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


NAME: Final = "summary.json"
FORMAT: Final = "hgpo summary 2"
INTERVALS: Final = {
    "success": "95%, Wilson's with tasks as trials, also of scores of 0 and 1",
    "others": "95%, jackknife over tasks",
}


def write_summary(run: Path) -> None:
    """Write the summary of a run to `RUN/summary.json` atomically; nothing if the run has no rows.

    Raises:
        OSError: The disk cannot be written. An existing summary is unchanged.
    """
    try:
        header = manifest.read(run).header
        episodes = episode_table(scan_steps(run))
    except InputError:
        return
    config = {} if header is None else dict(header.config)
    failures = failures_of(rollout_table(scan_steps(run)).collect())
    sessions = read_sessions(run)

    summary = {
        "format": FORMAT,
        "run": run.resolve().name if header is None else header.run,
        "complete": bool(sessions) and sessions[-1].ended == "complete",
        "policy": config.get("policy"),
        "environment": config.get("env"),
        "wordings": wordings_of(scan_steps(run)),
        "panel": config.get("panel"),
        "seeds": [config["seed"]]
        if "seed" in config
        else episodes["seed"].unique().sort().to_list(),
        "episodes": {
            "played": len(episodes),
            "solved": episodes.filter(pl.col("won") & ~pl.col("aborted")).height,
            "failed": failures.failed,
        },
        "failures": [
            {"reason": reason, "episodes": times} for reason, times in failures.reasons
        ],
        "results": [asdict(report) for report in evaluation_reports(episodes)],
        "intervals": INTERVALS,
        **expense(sessions),
        "versions": sessions[-1].versions if sessions else {},
    }
    text = json.dumps(
        redact_json(summary), indent=1, ensure_ascii=False, allow_nan=False
    )
    write_file(run / NAME, seal(text.encode()))


def expense(sessions: Sequence[Session]) -> dict[str, Any]:
    """Return the tokens of prompts and responses, the seconds, and the number of sessions.

    Sums are None unless sessions were recorded from the run's first rollout on, and every one counted.
    """
    recorded = bool(sessions) and not sessions[0].groups_before
    tokens = {}
    for name in ("prompt", "response"):
        counts = [getattr(session, f"{name}_tokens") for session in sessions]
        tokens[name] = sum(counts) if recorded and None not in counts else None
    seconds = (
        round(sum(session.seconds for session in sessions), 3) if recorded else None
    )
    return {"tokens": tokens, "wall_s": seconds, "sessions": len(sessions)}
