"""The summary of a run, `RUN/summary.json`: results, failures, tokens, cost and duration, for other programs.

docs/rollouts.md documents the keys. The file is replaced atomically at the end of every session, also of one that
failed or was interrupted; `complete` is then false.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets import manifest, scan_steps
from hgpo_datasets.schema import polars_schema
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import write_file
from hgpo_envs.files.secrets import redact_json
from hgpo_train.evaluation.report import episode_table, evaluation_reports
from hgpo_train.rollout.failures import failures_of_run
from hgpo_train.rollout.sessions import read_sessions

if TYPE_CHECKING:
    from pathlib import Path

    from hgpo_train.evaluation.report import EvaluationReport
    from hgpo_train.rollout.sessions import Session

NAME: Final = "summary.json"
FORMAT: Final = "hgpo summary 1"
INTERVALS: Final = {
    "low, high": "95%, percentile bootstrap over tasks",
    "wilson_low, wilson_high": "95%, Wilson's score interval with tasks as trials",
}


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of tokens, in any currency per million tokens.

    Attributes:
        prompt: Price of prompt tokens; None if it is not known.
        response: Price of response tokens; None if it is not known.

    Raises:
        InputError: A price is negative or not finite.
    """

    prompt: float | None = None
    response: float | None = None

    def __post_init__(self) -> None:
        for name, price in (("--price-in", self.prompt), ("--price-out", self.response)):
            if price is not None and not 0 <= price < float("inf"):
                raise InputError(f"{name}: expected a price of at least 0 per million tokens, received {price}")

    def cost(self, prompt_tokens: int | None, response_tokens: int | None) -> float | None:
        """Return the price of tokens; None if a price or a number of tokens is not known.

        >>> Prices(2.0, 10.0).cost(1_500_000, 200_000)
        5.0
        """
        if self.prompt is None or self.response is None or prompt_tokens is None or response_tokens is None:
            return None
        return (self.prompt * prompt_tokens + self.response * response_tokens) / 1e6


def summarize(run: Path, planned: int | None, prices: Prices | None = None) -> dict[str, Any]:
    """Return the summary of a run as JSON values.

    Args:
        run: The run's folder.
        planned: Number of rollouts of the complete run; None if it is not known before, as with dynamic sampling.
        prices: Prices of tokens, if they are known.

    Raises:
        InputError: The run cannot be read.
    """
    header = manifest.read(run).header
    config = {} if header is None else dict(header.config)
    episodes = _episodes(run)
    failures = failures_of_run(run)
    sessions = read_sessions(run)
    return {
        "format": FORMAT,
        "run": run.resolve().name if header is None else header.run,
        "complete": len(episodes) >= planned if planned is not None else _last_is_complete(sessions),
        "policy": config.get("policy"),
        "environment": config.get("env"),
        "seeds": _seeds(config, episodes),
        "episodes": {
            "planned": None if planned is None else max(planned, len(episodes)),
            "played": len(episodes),
            "solved": int(episodes.filter(~pl.col("aborted"))["success"].sum() or 0),
            "failed": failures.failed,
        },
        "failures": [{"reason": reason, "episodes": times} for reason, times in failures.reasons],
        "results": [one.as_dict() for one in _reports(episodes)],
        "intervals": INTERVALS,
        **_expense(sessions, prices or Prices()),
        "sessions": len(sessions),
        "versions": sessions[-1].versions if sessions else {},
    }


def write_summary(run: Path, summary: dict[str, Any]) -> Path:
    """Write a summary to `RUN/summary.json` atomically. Return its path.

    Raises:
        OSError: The disk cannot be written. An existing summary is unchanged.
    """
    path = run / NAME
    write_file(path, json.dumps(redact_json(summary), indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n")
    return path


def _expense(sessions: list[Session], prices: Prices) -> dict[str, Any]:
    """Return tokens, cost and duration of all sessions; None where they are not known for all rollouts of the run."""
    recorded = bool(sessions) and not sessions[0].groups_before
    prompts = [one.prompt_tokens for one in sessions]
    responses = [one.response_tokens for one in sessions]
    tokens = {
        "prompt": sum(n for n in prompts if n is not None) if recorded and None not in prompts else None,
        "response": sum(n for n in responses if n is not None) if recorded and None not in responses else None,
    }
    return {
        "tokens": tokens,
        "price_per_million_tokens": asdict(prices),
        "cost": prices.cost(tokens["prompt"], tokens["response"]),
        "wall_s": round(sum(one.seconds for one in sessions), 3) if recorded else None,
    }


def _last_is_complete(sessions: list[Session]) -> bool:
    return bool(sessions) and sessions[-1].ended == "complete"


def _episodes(run: Path) -> pl.DataFrame:
    try:
        return episode_table(scan_steps(run))
    except InputError:  # the run has no rows yet
        return episode_table(pl.LazyFrame(schema=polars_schema()))


def _reports(episodes: pl.DataFrame) -> list[EvaluationReport]:
    return evaluation_reports(episodes) if len(episodes.filter(~pl.col("aborted"))) else []


def _seeds(config: dict[str, Any], episodes: pl.DataFrame) -> list[int]:
    seeds: list[int] = [config["seed"]] if "seed" in config else episodes["seed"].unique().sort().to_list()
    return seeds
