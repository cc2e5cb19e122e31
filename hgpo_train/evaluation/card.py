"""What a reader needs to believe a run, as one document: what `hgpo card` shows of every kind of run.

A card is a dictionary of JSON values. Everything in it follows from the files of the run and from what its author gave
(`question`, `iteration`), so that anybody who has the run can compute it again (`hgpo_train.evaluation.card_page`).
What no machine can know is listed under `open`.

Sources: Rollout Cards (arXiv 2605.12131) for the manifest of drops and the reporting rule; the checklist of
arXiv 2604.09459 for variance, GPU hours and equal compute.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets import manifest, scan_steps
from hgpo_datasets.sources import is_run
from hgpo_datasets.wordings import wordings_of
from hgpo_envs.errors import InputError, nearest_path
from hgpo_envs.files.secrets import redact_json
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_train.evaluation.certificate import NAME as CERTIFICATE
from hgpo_train.evaluation.certificate_check import read_certificate
from hgpo_train.evaluation.report import episode_table
from hgpo_train.evaluation.reporting_rules import MEANT, RULES, by_seed, success_by_rule
from hgpo_train.evaluation.summary import expense
from hgpo_train.measures import TASK, measure, measure_by_task
from hgpo_train.rollout.failures import failures_of
from hgpo_train.rollout.outcomes import rollout_table
from hgpo_train.rollout.sessions import read_sessions

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT: Final = "hgpo card 1"

OPEN: Final = {
    "question": "what the run was to find out (--question TEXT)",
    "panel": "a panel that fixes tasks, seeds and limits (hgpo panels)",
    "planned": "how many rollouts were planned",
    "rollouts": "the rollouts that were trained on: they are in another run, which has its own card",
    "evaluation": "success on held-out tasks: the run was not evaluated",
    "seeds": "variance over seeds: one seed was played",
    "training seeds": "variance over training seeds: this is one run",
    "base model": "where the base model comes from: it is a folder of the author",
    "device": "the device, and its GPU hours",
    "GPU": "the type of the GPU",
    "tokens": "the number of tokens: the policy reported none",
}
"""What a card lists as not known, by name."""

ALWAYS: Final = (
    "whether what it is compared with had the same steps, tokens and number of tried settings",
    "how many other runs were made before this one, and why it was chosen",
    "the licenses of data and weights",
)
"""What no file of a run says."""

_MEASURES: Final = ("score", "mean_length", "valid", "admissible")
"""The measures besides success (`hgpo_train.measures`)."""

_SMALL: Final = 1 << 30
"""The largest file in bytes whose checksum is computed; those of shards and weights are stored."""


def read_manifest(run: Path) -> manifest.Manifest:
    """Return the manifest of a run, with its header.

    Raises:
        InputError: The folder contains no run, or its manifest is damaged.
    """
    if not is_run(run):
        expected = (
            "expected the folder (--out) of hgpo train, hgpo eval or hgpo rollout"
        )
        raise InputError(
            f"{run}: {expected}, found no {manifest.NAME} in it{nearest_path(run)}"
        )
    listed = manifest.read(run)
    if listed.problem:
        raise InputError(
            f"{run}: {listed.problem}; restore it from a backup (hgpo verify {run} finds all damage)"
        )
    return listed


def run_card(run: Path, question: str | None = None) -> dict[str, Any]:
    """Return the card of an evaluation or of rollouts.

    Args:
        run: The run's folder.
        question: What the run was to find out.

    Raises:
        InputError: The folder contains no run, a damaged one, or one without rows.
    """
    # 1. The files.
    header = read_manifest(run).header
    assert header is not None
    config = header.config
    episodes = episode_table(scan_steps(run))
    sessions = read_sessions(run)
    spent = expense(sessions)
    path = run / CERTIFICATE
    certificate = read_certificate(path) if path.exists() else None

    # 2. A complete evaluation has played every task for each seed. How many tasks others asked for is not stored.
    is_evaluation = bool(config.get("evaluation"))
    is_complete = bool(sessions) and sessions[-1].ended == "complete"
    seeds = episodes["seed"].unique().sort().to_list()
    count = header.section("tasks").get("count")
    planned = None
    if is_evaluation and is_complete and isinstance(count, int):
        planned = count * len(seeds)
    rollouts = rollout_counts(scan_steps(run), planned)
    for name, tokens in spent["tokens"].items():
        if tokens is not None:  # those of rollouts that were repeated, too
            rollouts[f"{name}_tokens"] = tokens

    # 3. The document.
    kind = "evaluation" if is_evaluation else "rollouts"
    policy = header.section("policy").get("name") or "unknown"
    environment = header.section("env").get("id") or "an unknown environment"
    settings = {
        "environment": config.get("env"),
        "tasks": config.get("tasks"),
        "panel": config.get("panel"),
        "policy": config.get("policy"),
        "the policy's files": certificate and certificate.policy.get("files"),
        "seeds": seeds if is_evaluation else config.get("seed"),
        "seconds": spent["wall_s"],
        "machine": certificate and certificate.machine,
        "sessions": [session.ended for session in sessions],
        "versions": sessions[-1].versions if sessions else None,
    }
    commands = ["verify RUN # find every changed byte of the files"]
    if certificate:
        commands.append(
            f"certificate check RUN/{CERTIFICATE} --run RUN --replay 5 # play episodes again"
        )
    missing = {
        "panel": not settings["panel"],
        "planned": planned is None,
        "seeds": len(seeds) < 2,
        "device": certificate is None,
        "tokens": rollouts["prompt_tokens"] is None,
    }
    return finished(
        missing,
        kind=kind,
        name=header.run,
        title=f"{kind.capitalize()} of the policy {policy} in {environment}.",
        question=question,
        settings=settings,
        config=config,
        rollouts={kind: rollouts},
        files=file_sums(run, manifest.NAME, CERTIFICATE),
        commands=commands,
        **results(episodes, episodes),
    )


def finished(missing: Mapping[str, bool], **parts: Any) -> dict[str, Any]:
    """Return a card as JSON values that are the same on every machine, without secrets.

    Args:
        missing: What is not known, by its name in `OPEN`, besides the question.
        **parts: The entries of the card.
    """
    card = {"format": FORMAT, "iteration": None, "head": {}, "notes": [], **parts}
    names = {"question": card["question"] is None, **missing}
    card["open"] = [OPEN[name] for name, is_missing in names.items() if is_missing]
    card["open"] += ALWAYS
    card["commands"].append(
        "card check README.md --run RUN # compute every figure of this page again from the run"
    )
    return {name: _plain(value) for name, value in redact_json(card).items()}


def results(episodes: pl.DataFrame, evaluations: pl.DataFrame) -> dict[str, Any]:
    """Return success under every reporting rule, its spread over seeds and tasks, other measures, and the task ids.

    Args:
        episodes: Rows of `hgpo_train.evaluation.report.episode_table`.
        evaluations: The episodes of all seeds or evaluations, among which some rules choose.
    """
    rules = success_by_rule(episodes, evaluations)
    of_seeds = pl.Series(
        [found.value for found in by_seed(evaluations).values()], dtype=pl.Float64
    )
    known = episodes.with_columns(success=pl.col("won").cast(pl.Float64))
    of_tasks = measure_by_task(known, "success", TASK)["success"]

    # A benchmark without scores of its own has that of success.
    measures = measure(episodes, _MEASURES)[None]
    score = measures["score"]
    if score is not None and score.value == rules[MEANT].success:
        del measures["score"]
    return {
        "reporting_rule": MEANT,
        "rules": {
            name: {**found._asdict(), "what counts": RULES[name]}
            for name, found in rules.items()
        },
        "spread": {"seeds": _spread(of_seeds), "tasks": _spread(of_tasks)},
        "by_seed": points(evaluations),
        "measures": {
            name: found._asdict()
            for name, found in measures.items()
            if found is not None
        },
        "tasks": evaluations["task_id"].unique().sort().to_list(),
    }


def points(evaluations: pl.DataFrame) -> dict[str, Any]:
    """Return the success of each seed or evaluation with its interval, by its number as a text."""
    found = by_seed(evaluations)
    return {
        str(number): {
            "success": estimate.value,
            "low": estimate.low,
            "high": estimate.high,
        }
        for number, estimate in found.items()
    }


def _spread(values: pl.Series) -> dict[str, Any]:
    """Return how many shares of success there are, and how far they are apart; None if too few are known."""
    return {
        "number": len(values),
        "lowest": values.min(),
        "highest": values.max(),
        "standard deviation": values.std(),
    }


def rollout_counts(steps: pl.LazyFrame, planned: int | None) -> dict[str, Any]:
    """Return how many rollouts of a step table were planned, stored and dropped, and why, with steps and tokens.

    Tokens, and responses that the limit cut, are None unless they are known of every reply.

    Args:
        steps: A step table.
        planned: The number of rollouts that were asked for; None if it is not known.
    """
    rollouts = rollout_table(steps).collect()
    failures = failures_of(rollouts)
    whole = rollouts.filter(~pl.col("aborted"))
    # A sum over some of the steps would pass for that of all. A step that failed has no reply.
    replied = ~pl.col("aborted")
    known = {
        "prompt": pl.col("prompt_token_ids").list.len(),
        "response": pl.col("response_token_ids").list.len(),
        "cut": pl.col("finish_reason") == "length",
    }
    sums = steps.select(
        pl.len().alias("steps"),
        *(
            pl.when((value.is_not_null() | ~replied).all())
            .then(value.sum())
            .alias(name)
            for name, value in known.items()
        ),
    )
    tokens = sums.collect(engine="streaming").row(0, named=True)
    return {
        "wording": ", ".join(wordings_of(steps)) or None,
        "planned": planned,
        "stored": len(rollouts),
        "failed": failures.failed,
        "reasons": dict(failures.reasons),
        "at_step_limit": rollouts["truncated"].sum(),
        "result_unknown": whole["won"].null_count(),
        "environment_steps": tokens["steps"],
        "responses_cut": tokens["cut"],
        "prompt_tokens": tokens["prompt"],
        "response_tokens": tokens["response"],
    }


def file_sums(run: Path, *names: str) -> dict[str, str]:
    """Return the SHA-256 of small files of a run, of those that exist; manifests have those of the shards."""
    paths = {name: run / name for name in names if (run / name).exists()}
    return {
        name: hashlib.sha256(read_bytes(path, _SMALL)).hexdigest()
        for name, path in paths.items()
    }


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a value as JSON; of a path on this machine its name."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if value.bit_length() < 64 else None  # what readers of JSON know
    if value is None:
        return None
    text = str(value)
    return Path(text).name if Path(text).is_absolute() else text
