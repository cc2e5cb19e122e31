"""The summary of an evaluation, `RUN/summary.json`: results, failures, tokens, cost and duration, for other programs.

docs/rollouts.md documents the keys. The file is replaced atomically at the end of every session, also of one that
failed or was interrupted; `complete` is then false.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from hgpo_datasets import manifest, scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import write_file
from hgpo_envs.files.secrets import redact_json
from hgpo_train.evaluation.report import episode_table, evaluation_reports
from hgpo_train.rollout.failures import failures_of_steps
from hgpo_train.rollout.sessions import read_sessions

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "summary.json"
FORMAT: Final = "hgpo summary 2"
INTERVALS: Final = {
    "success": "95%, Wilson's score interval with tasks as trials",
    "others": "95%, percentile bootstrap over tasks",
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


def write_summary(run: Path, prices: Prices | None = None) -> None:
    """Write the summary of a run to `RUN/summary.json` atomically; nothing if the run has no rows.

    Args:
        run: The run's folder.
        prices: Prices of tokens, if they are known.

    Raises:
        OSError: The disk cannot be written. An existing summary is unchanged.
    """
    try:
        header = manifest.read(run).header
        episodes = episode_table(scan_steps(run))
    except InputError:
        return
    config = {} if header is None else dict(header.config)
    failures, sessions, prices = failures_of_steps(scan_steps(run)), read_sessions(run), prices or Prices()
    recorded = bool(sessions) and not sessions[0].groups_before  # from the run's first rollout on
    tokens = {}
    for name, counts in (
        ("prompt", [session.prompt_tokens for session in sessions]),
        ("response", [session.response_tokens for session in sessions]),
    ):
        known = [count for count in counts if count is not None]
        tokens[name] = sum(known) if recorded and len(known) == len(counts) else None
    summary = {
        "format": FORMAT,
        "run": run.resolve().name if header is None else header.run,
        "complete": bool(sessions) and sessions[-1].ended == "complete",
        "policy": config.get("policy"),
        "environment": config.get("env"),
        "seeds": [config["seed"]] if "seed" in config else episodes["seed"].unique().sort().to_list(),
        "episodes": {
            "played": len(episodes),
            "solved": int(episodes["success"].sum()),
            "failed": failures.failed,
        },
        "failures": [{"reason": reason, "episodes": times} for reason, times in failures.reasons],
        "results": [report.as_dict() for report in evaluation_reports(episodes)],
        "intervals": INTERVALS,
        "tokens": tokens,
        "price_per_million_tokens": asdict(prices),
        "cost": prices.cost(tokens["prompt"], tokens["response"]),
        "wall_s": round(sum(session.seconds for session in sessions), 3) if recorded else None,
        "sessions": len(sessions),
        "versions": sessions[-1].versions if sessions else {},
    }
    text = json.dumps(redact_json(summary), indent=1, ensure_ascii=False, allow_nan=False)
    write_file(run / NAME, text.encode() + b"\n")
