"""The scores of a saved run, by any model: the stage `score` alone (`hgpo score`)."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets import manifest, scan_steps
from hgpo_datasets.row_tables import KEYS, path_of, read_metadata
from hgpo_datasets.sources import run_at
from hgpo_envs.errors import InputError, one_line
from hgpo_train.models.checkpoint_files import stored_model
from hgpo_train.models.loading import load_model, load_tokenizer
from hgpo_train.models.preflight import check_model_source
from hgpo_train.models.reference import frozen_copy
from hgpo_train.policies.generation import GenerationOptions
from hgpo_train.scores import tables
from hgpo_train.training.config import replace
from hgpo_train.training.update.scorer import TokenScorer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hgpo_datasets.manifest import Header
    from hgpo_train.models.hf import Tokenizer
    from hgpo_train.training.config import Config

ROWS: Final = 4096
"""The number of steps that are scored at a time, of whole trajectories."""


def score_run(
    run: Path,
    scores: Sequence[str],
    config: Config,
    *,
    temperature: float | None = None,
    reference: str | None = None,
    overwrite: bool = False,
    progress: Callable[[int], object] = lambda _: None,
) -> int:
    """Score the steps of a saved run that have token ids, and store the scores in its folder.

    Iterations whose steps all have these scores already, of the same model and temperature, are left as they are.

    Args:
        run: The run's folder.
        scores: The names of scores.
        config: The settings, of which the sections `model` and `update` and the chat template are used.
        temperature: The temperature of the scored distribution; by default that at which the run was sampled.
        reference: The path of the reference model; none by default.
        overwrite: Whether to replace scores of another model or temperature.
        progress: Called with a number of finished steps.

    Returns:
        The number of scored steps.

    Raises:
        InputError: `run` is no run or has no token ids, a score is unknown or there with another model, or the model
            cannot score the rows.
    """
    # 1. The run, and what its scores are computed with.
    folder = run_at(run)
    header = None if folder is None else manifest.read(folder).header
    if folder is None or header is None:
        raise InputError(
            f"{run}: expected the folder of a run, to which scores can be added"
        )
    if temperature is None:
        temperature = sampling_temperature(header)
    model = stored_model(config.model.path)
    other = None if reference is None else stored_model(reference)
    about = tables.description(
        scores, model=model, temperature=temperature, reference=other
    )

    # 2. The iterations that have no such scores.
    steps = scan_steps(folder)
    _check(run, steps, temperature)
    iterations = (
        steps.select(pl.col("iteration").unique().sort())
        .collect()
        .to_series()
        .to_list()
    )
    paths = {
        number: path_of(folder, tables.FOLDER, number + 1) for number in iterations
    }
    wanted = []
    for number, path in paths.items():
        known = steps.filter(pl.col("iteration") == number).select(
            *KEYS, "response_token_ids", "aborted"
        )
        if _is_wanted(path, known, about, overwrite):
            wanted.append(number)
    if not wanted:
        return 0

    # 3. Their scores, in parts of a bounded number of rows; an iteration is stored when it is complete.
    scorer = _scorer(config, reference, temperature)

    @cache
    def tokenizer() -> Tokenizer:
        return load_tokenizer(config.model.path, config.rollout.chat_template)

    total = 0
    for iteration in wanted:
        rows = (
            steps.filter(pl.col("iteration") == iteration)
            .sort("trajectory", "step")
            .collect()
        )
        # A trajectory is in the part of its first row.
        part = pl.int_range(pl.len()).first().over("trajectory") // ROWS
        scored = []
        for steps_of_part in rows.with_columns(part.alias("(part)")).partition_by(
            "(part)", maintain_order=True
        ):
            scored.append(
                tables.score_table(steps_of_part, scores, scorer, tokenizer)[0]
            )
            progress(steps_of_part.height)
        table = pl.concat(scored)
        tables.store_scores(paths[iteration], table, about)
        total += table.height
    return total


def _check(run: Path, steps: pl.LazyFrame, temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise InputError(
            f"--temperature: expected a positive number, received {temperature:g}"
        )
    if (
        not steps.select(pl.col("response_token_ids").is_not_null().any())
        .collect()
        .item()
    ):
        raise InputError(
            f"{run} has no token ids, which scores need; collect it with transformers:MODEL"
        )


def sampling_temperature(header: Header) -> float:
    """Return the temperature at which a run was sampled; the default of policies if it is not stored."""
    stored = header.section("training").get(
        "rollout.temperature", header.section("policy").get("temperature")
    )
    if not isinstance(stored, float | int | None):
        raise InputError(
            f"{manifest.NAME}: expected a number as temperature, received {one_line(repr(stored), 60)}"
        )
    return GenerationOptions().temperature if stored is None else float(stored)


def _scorer(config: Config, reference: str | None, temperature: float) -> TokenScorer:
    for path in filter(None, (config.model.path, reference)):
        check_model_source(path)
    model = load_model(config.model, config.seed)
    scorer = TokenScorer(model, config, temperature=temperature)
    if reference is not None:
        other = load_model(
            replace(config, model={"path": reference}).model, config.seed
        )
        scorer.reference = frozen_copy(other, scorer.dtype)
    return scorer


def _is_wanted(
    path: Path,
    steps: pl.LazyFrame,
    about: dict[str, dict[str, object]],
    overwrite: bool,
) -> bool:
    """Return whether an iteration is to be scored: scores of some steps are missing, or are to be replaced."""
    if not path.exists():
        return True
    stored: dict[str, Any] = read_metadata(path, tables.METADATA) or {}
    known = {column: stored[column] for column in about if column in stored}
    others = {
        column: value for column, value in known.items() if value != about[column]
    }
    if others and not overwrite:
        column, value = next(iter(others.items()))
        other = f"{column} of {value['model']} at temperature {value['temperature']}"
        raise InputError(f"{path} has {other}; replace it with --overwrite")
    return tables.stored_scores(path, steps.collect(), about) is None
