"""Supervised training on the rows of a step table, with the batches and the learner of the policy update.

The loss is the negative log-likelihood of each row's response, including its end-of-turn token, given its prompt.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_datasets import manifest, scan_steps
from hgpo_datasets.branches import roots
from hgpo_datasets.sources import is_run, parts_of
from hgpo_envs.environment_spec import environment_ids, environment_spec
from hgpo_envs.errors import InputError
from hgpo_train.models.chat_format import (
    end_of_turn,
    opened_thought,
    without_opened_thought,
)
from hgpo_train.models.checkpoint_files import list_checkpoints, stored_model
from hgpo_train.models.loading import load_model, load_tokenizer
from hgpo_train.policies.conversation import (
    Turn,
    chat_messages,
    encode_chats,
    encode_conversation,
)
from hgpo_train.rollout.collection import removed_if_unused
from hgpo_train.training.checkpoint import resume_checkpoint, save_checkpoint
from hgpo_train.training.config import CheckpointConfig
from hgpo_train.training.run_folder import CHECKPOINTS, CONFIG, open_run, write_config
from hgpo_train.training.tracking import Trackers
from hgpo_train.training.update.batches import (
    Samples,
    check_rows,
    mini_batches,
    samples_from_steps,
)
from hgpo_train.training.update.learner import Learner, LossInputs
from hgpo_train.training.update.optimiser import learning_rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hgpo_train.models.hf import Tokenizer
    from hgpo_train.training.config import SftConfig
    from hgpo_train.training.display import Display

_NEWEST: Final = CheckpointConfig(keep=1)


def demonstrations(source: str | Path, config: SftConfig) -> pl.DataFrame:
    """Return the rows of the trajectories to imitate, sorted by trajectory and step.

    The columns are `trajectory`, `step`, `prompt`, `response`, `finish_reason` and `imitated`. The response of a row
    without one is its action, for policies that choose actions directly. Aborted trajectories and branches are left
    out. With `rows = "won"`, so are trajectories that did not solve their task, and rows with invalid actions are not
    imitated.

    Raises:
        InputError: The table stores no prompts, or fewer than two trajectories remain.
    """
    table = roots(scan_steps(source))
    response = pl.coalesce("response", "action").alias("response")
    # of several runs, which may have the same ids
    names = pl.format("{}/{}", "run", "trajectory").alias("trajectory")
    rows = table.select(
        *(names, "step", "prompt", response, "finish_reason"),
        *("action_valid", "won", "aborted"),
    ).collect()
    if rows["prompt"].is_null().all():
        raise InputError(
            f"{source} stores no prompts; collect it without --without prompt"
        )

    # Rows with invalid actions stay in the table: in a conversation they are part of the prompts of later ones.
    kept = ~pl.col("aborted").any().over("trajectory")
    imitated = pl.lit(value=True)
    if config.rows == "won":
        kept &= pl.col("won").any().over("trajectory")
        imitated = pl.col("action_valid")
    rows = (
        rows.filter(kept).drop_nulls(["prompt", "response"]).sort("trajectory", "step")
    )
    kept_columns = ("trajectory", "step", "prompt", "response", "finish_reason")
    rows = rows.select(*kept_columns, imitated=imitated)
    number = rows.filter("imitated")["trajectory"].n_unique()
    if number < 2:
        raise InputError(
            f"expected at least 2 trajectories to imitate in {source} (rows = {config.rows!r}), received "
            f'{number}; collect more with --policy explorer, or set rows = "all"'
        )
    return rows


def tokenise(
    rows: pl.DataFrame,
    tokenizer: Tokenizer,
    max_prompt_tokens: int,
    environment: Mapping[str, Any],
    chat_template_options: Mapping[str, Any] | None = None,
) -> pl.DataFrame:
    """Add token columns: `prompt_token_ids`, `response_token_ids`, and `context_tokens`, those of past turns.

    Responses end as the chat template ends a turn, unless the limit of tokens has cut them. They begin after a thought
    that the template opens.

    Args:
        rows: Rows of trajectories, sorted by trajectory and step. `finish_reason` is optional.
        tokenizer: The model's tokenizer.
        max_prompt_tokens: Maximum prompt length; longer prompts lose their beginning.
        environment: The environment's options as the run stores them; ``id``, ``prompt_style``, ``system_prompt`` and
            ``tools``, the schemas, are used.
        chat_template_options: Further arguments of the chat template.
    """
    system_prompt = environment.get("system_prompt", "")
    tools: Sequence[Any] = environment.get("tools", ())
    if not tools and environment.get("id") in environment_ids():
        tools = environment_spec(environment["id"]).tools

    # 1. Responses. A thought that the template opens is part of the prompt already.
    (shortest,) = encode_chats(
        tokenizer, [chat_messages("", (), "?")], chat_template_options
    )
    opened = opened_thought(tokenizer, shortest)
    texts = [without_opened_thought(text, opened) for text in rows["response"]]
    end = end_of_turn(tokenizer)
    unknown = pl.repeat(None, len(rows), dtype=pl.String, eager=True)
    reasons = rows.get_column("finish_reason", default=unknown)
    responses = [
        tokens if reason == "length" else [*tokens, end]
        for tokens, reason in zip(
            tokenizer(texts, add_special_tokens=False)["input_ids"],
            reasons,
            strict=True,
        )
    ]

    # 2. Prompts. In a conversation each contains the tokens of the step before, prompt and response.
    prompts: list[Sequence[int] | NDArray[np.int32]] = []
    context = []
    if environment.get("prompt_style") != "chat":
        chats = [chat_messages(system_prompt, (), prompt) for prompt in rows["prompt"]]
        prompts += encode_chats(tokenizer, chats, chat_template_options, tools)
        context = [1] * len(rows)
    else:
        past: list[Turn] = []
        past_tokens = 0
        before = None
        for trajectory, prompt, response, tokens in zip(
            *rows["trajectory", "prompt", "response"], responses, strict=True
        ):
            if trajectory != before:
                past = []
                past_tokens = 0
            before = trajectory
            encoded = encode_conversation(
                tokenizer, system_prompt, past, prompt, chat_template_options, tools
            )
            # a conversation's tokens are stored for each of its steps
            prompts.append(np.array(encoded, np.int32))
            context.append(past_tokens)
            past = [Turn(prompt, response, encoded, tokens)]
            past_tokens = len(encoded) + len(tokens)

    # 3. Prompts that are too long lose their beginning, which past turns are part of.
    ids = pl.List(pl.Int32)
    rows = rows.with_columns(
        pl.Series(
            "prompt_token_ids",
            [tokens[-max_prompt_tokens:] for tokens in prompts],
            dtype=ids,
        ),
        pl.Series("response_token_ids", responses, dtype=ids),
    )
    cut = (
        pl.Series([len(tokens) for tokens in prompts], dtype=pl.Int64)
        - rows["prompt_token_ids"].list.len()
    )
    past_left = pl.Series(context, dtype=pl.Int64) - cut
    return rows.with_columns(context_tokens=past_left.clip(1))


def _environment(source: str | Path) -> dict[str, Any]:
    """Return the environment's options and tools as runs store them; empty for other tables.

    Raises:
        InputError: Several runs have other conversations, of which a model is taught one kind.
    """
    found = []
    kinds = set()
    for part in parts_of([source]):
        header = manifest.read(Path(part.path)).header if part.kind == "run" else None
        if header is None:
            continue
        tools = header.config.get("tools", ())
        options = {**header.section("env"), "tools": tools}
        is_chat = options.get("prompt_style") == "chat"
        told = options.get("system_prompt", "")
        found.append(options)
        kinds.add((is_chat, told, str(tools)))
    if len(kinds) > 1:
        raise InputError(
            f"{source}: expected runs with the same prompt_style, system_prompt and tools, received {len(kinds)}; "
            "imitate them one after the other"
        )
    return found[0] if found else {}


def split_held_out(
    rows: pl.DataFrame,
    share: float,
    seed: int,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split rows by trajectory into those to train on and those held out, each of at least one trajectory."""
    names = rows["trajectory"].unique(maintain_order=True)
    order = np.random.default_rng([seed, 1]).permutation(len(names))
    number = max(1, min(round(share * len(names)), len(names) - 1))
    is_held_out = pl.col("trajectory").is_in(names[order[:number]].to_list())
    return rows.filter(~is_held_out), rows.filter(is_held_out)


def _check_folder(folder: Path) -> None:
    """Raise `InputError` if a folder is a file, or contains a run of another command."""
    if folder.exists() and not folder.is_dir():
        raise InputError(
            f"--out {folder}: expected a folder, received a file; choose another --out"
        )
    header = manifest.read(folder).header if is_run(folder) else None
    if header is not None and "demonstrations" not in header.config:
        raise InputError(
            f"--out {folder}: it contains a run that is not of hgpo sft; choose another --out"
        )


def run_sft(
    config: SftConfig,
    source: str | Path,
    folder: Path,
    display: Display,
) -> Path:
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
    # 1. The rows, and what must be the same when the run is resumed.
    _check_folder(folder)
    rows = demonstrations(source, config)
    tokenizer = load_tokenizer(config.model.path, config.chat_template)
    inputs = {
        "demonstrations": {"path": str(source), "rows": len(rows)},
        "model": stored_model(config.model.path),
    }
    # its path is a setting; the file behind it must be the same, too
    if config.chat_template:
        inputs["chat_template"] = tokenizer.chat_template
    environment = _environment(source)
    rows = tokenise(
        rows,
        tokenizer,
        config.max_prompt_tokens,
        environment,
        config.chat_template_options,
    )
    rows = rows.filter("imitated")
    checkpoints = folder / CHECKPOINTS
    with removed_if_unused(folder, CONFIG), open_run(folder, config, inputs):
        # 2. The learner. With advantages of 1 and ratios of 1, the policy loss reduces to the negative log-likelihood.
        model = load_model(config.model, config.seed)
        plain = replace(
            config, update=replace(config.update, entropy_weight=0.0, dual_clip=None)
        )
        learner = Learner(model, plain, reference=False)

        # 3. The samples.
        check_rows(rows, learner.vocabulary_size)
        train_rows, held_out_rows = split_held_out(rows, config.held_out, config.seed)
        # what is new in each prompt, but a first token, moves into the response
        if config.prompt_loss:
            prompt = pl.col("prompt_token_ids")
            added = prompt.list.slice("context_tokens")
            train_rows = train_rows.with_columns(
                prompt.list.head("context_tokens"),
                response_token_ids=added.list.concat("response_token_ids"),
            )
        share = config.update.share_prefixes
        train = samples_from_steps(train_rows, share_prefixes=share)
        held_out = samples_from_steps(held_out_rows, share_prefixes=share)

        # 4. Epochs, each with its metrics and a checkpoint.
        state = resume_checkpoint(checkpoints, model, learner.optimiser, _NEWEST)
        write_config(folder, config)
        with Trackers(config, folder, state.iteration + 1) as trackers:
            while state.iteration < config.update.epochs:
                with display.stage("train"):
                    metrics = _epoch(learner, config, train, state.iteration, display)
                metrics["val/loss"] = -float(learner.logprobs(held_out).mean())
                state = replace(state, iteration=state.iteration + 1)
                trackers.log(metrics, state.iteration)
                display.row(state.iteration, metrics)
                save_checkpoint(
                    checkpoints, state, model, tokenizer, learner.optimiser, _NEWEST
                )
        return list_checkpoints(checkpoints)[-1]


def _epoch(
    learner: Learner,
    config: SftConfig,
    samples: Samples,
    epoch: int,
    display: Display,
) -> dict[str, float]:
    """Train for one epoch and return its metrics; the schedule runs over the optimiser steps of all epochs."""
    generator = np.random.default_rng([config.seed, epoch, 2])
    rows = np.flatnonzero(samples.response_length > 0)
    batches = mini_batches(
        rows, config.update.mini_batch_size, generator, samples.sequence
    )
    total = config.update.epochs * len(batches)
    steps = []
    for done, batch in enumerate(batches):
        rate = learning_rate(config.optimiser, epoch * len(batches) + done, total)
        steps.append(learner.step(samples, batch, LossInputs(), rate))
        display.progress(done + 1, len(batches))
    return {
        "train/loss": fmean(step["actor/nll"] for step in steps),
        "train/grad_norm": fmean(step["actor/grad_norm"] for step in steps),
        "train/skipped": fmean(step["actor/skipped"] for step in steps),
        "train/lr": rate,
    }
