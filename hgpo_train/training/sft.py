"""Supervised training on the rows of a step table, with the batches and the learner of the policy update.

The loss is the negative log-likelihood of each row's response, including its end-of-turn token, given its prompt.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.models.checkpoint_files import list_checkpoints
from hgpo_train.models.loading import load_model, load_tokenizer, vocabulary
from hgpo_train.policies.generation import encode_prompts
from hgpo_train.rollout.fingerprints import fingerprint_model, fingerprint_rows
from hgpo_train.training.checkpoint import resume_checkpoint, save_checkpoint
from hgpo_train.training.config import CheckpointConfig
from hgpo_train.training.run_folder import FREE, Origin, RunFolder, contains_run
from hgpo_train.training.tracking import Trackers
from hgpo_train.training.update.batches import Samples, mini_batches, row_faults, samples_from_steps
from hgpo_train.training.update.learner import Learner
from hgpo_train.training.update.optimiser import learning_rate

if TYPE_CHECKING:
    from pathlib import Path

    from hgpo_train.models.hf import Tokenizer
    from hgpo_train.training.config import SftConfig
    from hgpo_train.training.display import Display

_NEWEST: Final = CheckpointConfig(keep=1)


def demonstrations(source: str | Path, config: SftConfig) -> pl.DataFrame:
    """Return the rows to imitate: `trajectory`, `step`, `prompt`, `response`, sorted by trajectory and step.

    The response of a row without one is its action, for policies that choose actions directly. Aborted trajectories are
    left out. With `rows = "won"`, so are trajectories that did not solve their task and rows with invalid actions.

    Args:
        source: A step table.
        config: The configuration; its fields `rows` and `max_trajectories` select the rows.

    Raises:
        InputError: The table stores no prompts, or fewer than two trajectories remain.
    """
    table = scan_steps(source)
    response = pl.coalesce("response", "action").alias("response")
    rows = table.select("trajectory", "step", "prompt", response, "action_valid", "won", "aborted").collect()
    if rows["prompt"].is_null().all():
        raise InputError(f"{source} stores no prompts; collect it without --without prompt")
    kept = ~pl.col("aborted").any().over("trajectory")
    if config.rows == "won":
        kept &= pl.col("won").any().over("trajectory") & pl.col("action_valid")
    rows = rows.filter(kept & pl.col("prompt").is_not_null() & pl.col("response").is_not_null())
    rows = rows.sort("trajectory", "step")
    if config.max_trajectories is not None:
        names = rows["trajectory"].unique(maintain_order=True).head(config.max_trajectories)
        rows = rows.filter(pl.col("trajectory").is_in(names.implode()))
    if (number := rows["trajectory"].n_unique()) < 2:
        raise InputError(
            f"expected at least 2 trajectories to imitate in {source} (rows = {config.rows!r}), received "
            f'{number}; collect more with --policy explorer, or set rows = "all"'
        )
    return rows


def tokenise(rows: pl.DataFrame, tokenizer: Tokenizer, max_prompt_tokens: int) -> pl.DataFrame:
    """Add the columns `prompt_token_ids` and `response_token_ids`; responses end with the end-of-turn token."""
    prompts = [tokens[-max_prompt_tokens:] for tokens in encode_prompts(tokenizer, rows["prompt"].to_list())]
    responses = tokenizer(rows["response"].to_list(), add_special_tokens=False)["input_ids"]
    ended = [[*tokens, tokenizer.eos_token_id] for tokens in responses]
    ids = pl.List(pl.Int32)
    return rows.with_columns(
        pl.Series("prompt_token_ids", prompts, dtype=ids), pl.Series("response_token_ids", ended, dtype=ids)
    )


def split_held_out(rows: pl.DataFrame, share: float, seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split rows by trajectory into those to train on and those held out, of at least one trajectory."""
    names = rows["trajectory"].unique(maintain_order=True).to_list()
    order = np.random.default_rng([seed, 1]).permutation(len(names))
    is_held_out = pl.col("trajectory").is_in([names[i] for i in order[: max(1, round(share * len(names)))]])
    return rows.filter(~is_held_out), rows.filter(is_held_out)


def run_sft(config: SftConfig, source: str | Path, folder: Path, display: Display) -> Path:
    """Train a model on demonstrations; an interrupted run is resumed after its last complete epoch.

    Args:
        config: The run's configuration.
        source: A step table.
        folder: The run's folder; it is locked against other training processes.
        display: Shows the progress.

    Returns:
        The folder of the last checkpoint.

    Raises:
        InputError: The demonstrations or the model cannot be used, another process trains in the folder, or the folder
            contains a run with another configuration, other demonstrations or another model.
    """
    contains_run(folder, resume=True)  # refused before anything is loaded
    tokenizer = load_tokenizer(config.model.path)
    rows = demonstrations(source, config)
    origins = {
        "set of demonstrations": Origin(f"the step table {str(source)!r}", fingerprint_rows(rows)),
        "model": Origin(f"model.path = {config.model.path!r}", fingerprint_model(config.model.path)),
    }
    rows = tokenise(rows, tokenizer, config.max_prompt_tokens)
    # With a schedule that falls to 0, every epoch's learning rate depends on the number of epochs.
    free = FREE | {"update.epochs"} if config.optimiser.schedule == "constant" else FREE
    checkpoints = folder / "checkpoints"
    with RunFolder(folder, config, origins, free, resume=True) as run:
        model = load_model(config.model, config.seed)
        faults = row_faults(rows, vocabulary(model)).drop_nulls()
        if len(faults):
            raise InputError(f"{faults[0]} ({len(faults)} rows of {source} cannot be used)")
        train_rows, held_out_rows = split_held_out(rows, config.held_out, config.seed)
        if config.prompt_loss:  # all but the first token of each prompt move into the response, which the loss covers
            prompt, response = pl.col("prompt_token_ids"), pl.col("response_token_ids")
            longer = prompt.list.slice(1).list.concat(response).alias("response_token_ids")
            train_rows = train_rows.with_columns(prompt.list.head(1), longer)
        train, held_out = samples_from_steps(train_rows), samples_from_steps(held_out_rows)
        # With advantages of 1 and ratios of 1, the policy loss reduces to the negative log-likelihood.
        plain = replace(config, update=replace(config.update, entropy_weight=0.0, dual_clip=None))
        learner = Learner(model, plain, reference=False)
        state = resume_checkpoint(checkpoints, run.id, model, learner.optimiser, _NEWEST)
        with closing(Trackers(config, folder, state.iteration + 1)) as trackers:
            while state.iteration < config.update.epochs:
                with display.stage("train"):
                    metrics = _epoch(learner, config, train, state.iteration, display)
                metrics["val/loss"] = -float(learner.logprobs(held_out).mean())
                state = replace(state, iteration=state.iteration + 1)
                trackers.log(metrics, state.iteration)
                display.row(state.iteration, metrics)
                save_checkpoint(checkpoints, state, model, tokenizer, learner.optimiser, _NEWEST)
        return list_checkpoints(checkpoints)[-1]


def _epoch(learner: Learner, config: SftConfig, samples: Samples, epoch: int, display: Display) -> dict[str, float]:
    """Train for one epoch and return its metrics; the schedule runs over the optimiser steps of all epochs."""
    generator = np.random.default_rng([config.seed, epoch, 2])
    batches = mini_batches(np.flatnonzero(samples.response_length > 0), config.update.mini_batch_size, generator)
    steps = []
    for done, batch in enumerate(batches):
        rate = learning_rate(config.optimiser, epoch * len(batches) + done, config.update.epochs * len(batches))
        learner.set_learning_rate(rate)
        steps.append(learner.step(samples, batch, None, None))
        display.progress(done + 1, len(batches))
    names = {"actor/nll": "train/loss", "actor/grad_norm": "train/grad_norm", "actor/skipped": "train/skipped"}
    means = {label: float(np.mean([step[name] for step in steps])) for name, label in names.items()}
    return {**means, "train/lr": rate}
