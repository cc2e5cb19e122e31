"""The score `hindsight`: the log-probability of a response for someone who knows how the episode ends.

HCAPO (arXiv 2603.08754) compares the steps of a trajectory by it: an action that leads to the end that was reached is
more likely in hindsight. The response is not generated again, but teacher-forced after another prompt.

The text of the paper's prompt is not known here; `NOTE` is a text of our own. It is added at the end of the prompt's
last message, in tokens: all other tokens are those that the policy read, also in conversations, with tools, and where
the prompt was shortened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_train.models.chat_format import end_of_message
from hgpo_train.scores.registry import score

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_train.scores.rows import ScoredRows

NOTE: Final = "\n\nIt is known how this episode ends. Its last state is:\n{state}"
"""What is added to a prompt. The last state is the one after the last step, or before it if that is not stored."""
MOST: Final = 1024
"""The largest number of tokens of a note; what is longer is cut at its end."""


@score("hindsight", columns={"hindsight": pl.Float64()})
def hindsight(rows: ScoredRows) -> dict[str, pl.Series]:
    """Score each response by its mean log-probability after a prompt that also shows the trajectory's last state."""
    scored = rows.with_prompts(hindsight_prompts(rows))
    logprobs = scored.per_token(scored.policy.logprobs)
    return {"hindsight": logprobs.cast(pl.List(pl.Float64)).list.mean()}


def hindsight_prompts(rows: ScoredRows) -> pl.Series:
    """Return the token ids of each row's prompt with the note, lists of int32.

    A sequence that would be longer than the model's context loses the start of its prompt.

    Raises:
        InputError: A prompt does not contain what the tokenizer's chat template writes after a message.
    """
    # 1. The note of each trajectory, tokenized once.
    states = rows.trajectories.select(
        "trajectory",
        "step",
        state=pl.coalesce("next_state", "state"),
    )
    ends = states.sort("step").group_by("trajectory").last()
    notes = [NOTE.format(state=state) for state in ends["state"]]
    encoded: list[list[int]] = []
    if notes:
        # A state with the text of a special token is text: it must not end the message.
        encoded = rows.tokenizer(
            notes, add_special_tokens=False, split_special_tokens=True
        )["input_ids"]
    note_of = dict(zip(ends["trajectory"], encoded, strict=True))

    # 2. Each prompt with its note.
    end = np.asarray(end_of_message(rows.tokenizer), np.int32)
    steps = rows.steps.select(
        "trajectory",
        "prompt_token_ids",
        pl.col("response_token_ids").list.len(),
    )
    longest = rows.scorer.context_length
    prompts = []
    for trajectory, tokens, length in steps.iter_rows():
        prompt = np.asarray(tokens, np.int32)
        place = _last_place(prompt, end)
        note = np.asarray(note_of[trajectory][:MOST], np.int32)
        whole = np.concatenate([prompt[:place], note, prompt[place:]])
        excess = 0
        if longest is not None:
            excess = max(0, len(whole) + length - longest)
        prompts.append(whole[excess:])
    return pl.Series(prompts, dtype=pl.List(pl.Int32))


def _last_place(tokens: NDArray[np.int32], part: NDArray[np.int32]) -> int:
    """Return where a part occurs last in tokens; their number for an empty part."""
    if not len(part):
        return len(tokens)
    places = np.empty(0, np.int64)
    if len(tokens) >= len(part):
        windows = np.lib.stride_tricks.sliding_window_view(tokens, len(part))
        places = np.flatnonzero((windows == part).all(axis=1))
    if not len(places):
        raise InputError(
            f"hindsight: expected prompts with the tokens {part.tolist()}, which the model's chat template writes "
            "after a message, received one without; name the model that played the run (--model)"
        )
    return int(places[-1])
