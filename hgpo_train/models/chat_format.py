"""What a chat template writes around a response: the token that ends a turn, and a thought that the prompt opens."""

from __future__ import annotations

import re
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_envs.hashing import text_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_train.models.hf import Model, Tokenizer

RESPONSE: Final = "\N{SYMBOL FOR RECORD SEPARATOR}"
"""A response that chat templates render as it is, to find what they write after one."""

THOUGHT: Final = "<think>"
"""The tag that opens a thought."""
_OPENED: Final = re.compile(rf"{THOUGHT}\s*\Z")
_TAIL: Final = 16
"""Number of a prompt's last tokens that contain an opened thought, also if each of its letters is a token."""


def end_of_turn(tokenizer: Tokenizer) -> int:
    """Return the id of the token with which the chat template ends a response; `eos_token` if it writes none.

    It is the first token outside the text's vocabulary that the template writes after a response, if that is the same
    at the end of a conversation and within one. Otherwise it begins the next message.
    """
    from jinja2 import TemplateError

    question = {"role": "user", "content": "?"}
    answer = {"role": "assistant", "content": RESPONSE}
    added = tokenizer.added_tokens_decoder
    found = []
    for chat in ([question, answer], [question, answer, question]):
        try:
            text = tokenizer.apply_chat_template(chat, tokenize=False)
        except TemplateError:  # raised by templates that refuse a conversation
            continue
        (tokens,) = tokenizer([text.partition(RESPONSE)[2]], add_special_tokens=False)[
            "input_ids"
        ]
        found.append(next((token for token in tokens if token in added), None))
    if len({*found}) == 1 and found[0] is not None:
        end: int = found[0]
        return end
    eos: int = tokenizer.eos_token_id
    return eos


def end_of_message(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the tokens that the chat template writes after the text of a user's message.

    A response follows them or not: some templates end a conversation that no response follows with `eos_token`.
    """
    ends = []
    for follows in (True, False):
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": RESPONSE}],
            add_generation_prompt=follows,
            tokenize=False,
        )
        ends.append(text.partition(RESPONSE)[2])
    followed, alone = tokenizer(ends, add_special_tokens=False)["input_ids"]
    shared = []
    for token, other in zip(followed, alone, strict=False):
        if token != other:
            break
        shared.append(token)
    return shared


def end_tokens(tokenizer: Tokenizer, model: Model | None = None) -> tuple[int, ...]:
    """Return the ids of the tokens that end a response: of the tokenizer, its chat template and the model's settings.

    Args:
        tokenizer: A tokenizer with a chat template.
        model: The model, if its generation settings are known.
    """
    configured: Any = getattr(
        getattr(model, "generation_config", None), "eos_token_id", None
    )
    tokens = configured if isinstance(configured, list) else [configured]
    tokens = [tokenizer.eos_token_id, end_of_turn(tokenizer), *tokens]
    return tuple(dict.fromkeys(token for token in tokens if token is not None))


def use_chat_template(tokenizer: Tokenizer, path: str) -> None:
    """Replace the chat template of a tokenizer by that of a Jinja file.

    Transformers renders chat templates in Jinja's sandbox, so a stranger's file is text and not code.

    Raises:
        InputError: The file cannot be read, or does not render a message.
    """
    text = read_bytes(Path(path), 1 << 20, "chat template")
    try:
        tokenizer.chat_template = text.decode()
        tokenizer.apply_chat_template(
            [{"role": "user", "content": "?"}],
            add_generation_prompt=True,
            tokenize=False,
        )
    except Exception as error:  # a template can raise any exception
        raise InputError(
            f"chat template {path}: expected a Jinja file in UTF-8 that renders a message, received one that fails "
            f"({type(error).__name__}: {one_line(error, 200)})"
        ) from error


def chat_template_hash(tokenizer: Tokenizer) -> str:
    """Return a fingerprint of a tokenizer's chat template."""
    return f"{text_hash(str(tokenizer.chat_template)) % (1 << 64):016x}"


def stop_length(
    tokenizer: Tokenizer,
    tokens: Sequence[int],
    stop: Sequence[str],
) -> int | None:
    """Return the number of a response's tokens up to the first stop text; None if it has none.

    A stop text can begin and end inside of a token. Tokens are sampled whole, so the one that completes the stop text
    is the last one, with all of its text.
    """

    def contains_stop(count: int) -> bool:
        text = tokenizer.decode(tokens[:count], skip_special_tokens=False)
        return any(each in text for each in stop)

    if not contains_stop(len(tokens)):
        return None
    return bisect_left(range(len(tokens)), True, key=contains_stop)


def opened_thought(tokenizer: Tokenizer, prompt: Sequence[int]) -> str:
    """Return the ``<think>`` that ends a prompt of token ids, with the space after it; empty if there is none."""
    found = _OPENED.search(tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False))
    return found[0] if found else ""


def without_opened_thought(response: str, opened: str) -> str:
    """Return a response without its first ``<think>``, if the prompt has opened the thought already."""
    text = response.lstrip()
    return (
        text.removeprefix(THOUGHT).lstrip()
        if opened and text.startswith(THOUGHT)
        else response
    )
