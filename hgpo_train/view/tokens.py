"""The texts of tokens, where a run names its model and the model's tokenizer is on this machine.

Step tables store token ids, and no tokenizer. Nothing is downloaded, and no code of a model is run: only a file
``tokenizer.json`` is read, from a checkpoint of the run, the folder of the model, or the cache of the Hugging Face hub.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from hgpo_envs.files.untrusted_files import parse_json, read_bytes
from hgpo_train.models.checkpoint_files import list_checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tokenizers import Tokenizer

_NAME: Final = 255
FILE: Final = "tokenizer.json"
_BYTES: Final = 64 << 20
_POLICIES: Final = ("transformers", "vllm", "openai")
_OF_TEXTS: Final = (
    "normalizer",
    "pre_tokenizer",
    "post_processor",
    "truncation",
    "padding",
)
"""What only the encoding of texts needs, and may contain patterns."""
_BYTE_LEVEL: Final = {
    "type": "ByteLevel",
    "add_prefix_space": True,
    "trim_offsets": True,
    "use_regex": True,
}
_SENTENCE_PIECE: Final = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ],
}
_CHARACTERS: Final = 16 << 20
"""The most characters in the tokens of one response."""


def texts_of(
    tokenizer: Tokenizer, ids: Sequence[int], response: str | None
) -> list[str | None] | None:
    """Return the text of each token, or None if this is not the tokenizer that wrote them.

    Args:
        tokenizer: The tokenizer.
        ids: The ids of the tokens.
        response: What all of them say, which is compared; None if it is unknown.

    Returns:
        The texts; None for an id without a token, which an untrained model can sample.
    """
    added = tokenizer.get_added_tokens_decoder()
    special = {
        added[number].content
        for number in ids
        if number in added and added[number].special
    }
    try:
        pieces = [tokenizer.id_to_token(number) for number in ids]
        if sum(len(piece or "") for piece in pieces) > _CHARACTERS:
            return None
        whole = tokenizer.decode(list(ids), skip_special_tokens=True)
    except (OverflowError, TypeError):  # an id that no tokenizer has
        return None
    if response is not None and _plain(whole, special) != _plain(response, special):
        return None
    return [
        None if piece is None else tokenizer.decode([number], skip_special_tokens=False)
        for number, piece in zip(ids, pieces, strict=True)
    ]


def _plain(text: str, special: set[str]) -> str:
    """Return a text without space and special tokens, which stand for the end, and without a tag of the prompt."""
    for content in special | {"<think>"}:
        text = text.replace(content, "")
    return "".join(text.split())


def find_tokenizer(
    config: Mapping[str, Any], training: Path | None
) -> Tokenizer | None:
    """Return the tokenizer of a run, or None if it is unknown or not on this machine.

    It is named by the configuration in the run's manifest, or stored by the training run that wrote the run.
    """
    return next(
        (
            found
            for folder in _folders(config, training)
            if (found := _read(folder / FILE))
        ),
        None,
    )


def _folders(config: Mapping[str, Any], training: Path | None) -> Iterator[Path]:
    """Yield the folders in which the tokenizer may be: of checkpoints, of models, and of the hub's cache."""
    if training is not None:
        yield from reversed(list_checkpoints(training / "checkpoints"))
    for name in models_of(config):
        # another machine, which would be told who looks
        is_remote = name.startswith(("//", "\\\\"))
        if is_remote or "\0" in name or len(name) > _NAME:
            continue
        if Path(name).is_dir():
            yield Path(name)
            yield from reversed(list_checkpoints(Path(name) / "checkpoints"))
        else:
            yield from _in_cache(name)


def models_of(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of models in a configuration: of rollouts, and of training."""
    policy = config.get("policy")
    model = config.get("model")
    name = policy.get("name") if isinstance(policy, dict) else policy
    if isinstance(name, str) and name.partition(":")[0] in _POLICIES:
        yield name.partition(":")[2]
    if isinstance(model, dict) and isinstance(model.get("path"), str):
        yield model["path"]


def _in_cache(name: str) -> Iterator[Path]:
    """Yield the folder of a model in the cache of the Hugging Face hub, without a request."""
    try:
        from huggingface_hub import try_to_load_from_cache

        file = try_to_load_from_cache(name, FILE)
    except (ImportError, ValueError):  # no hub, or no name of a model
        return
    if isinstance(file, str):
        yield Path(file).parent


@lru_cache(8)
def _read(file: Path) -> Tokenizer | None:
    try:
        from tokenizers import Tokenizer

        content = parse_json(read_bytes(file, _BYTES, "tokenizer"))
        # A stranger's decoder can lengthen a text in each of its steps, or search it in exponential time. One of these
        # two decodes nearly all published models, and a response that it does not decode is shown without texts.
        is_byte_level = b"ByteLevel" in orjson.dumps(content.get("decoder"))
        decoder = _BYTE_LEVEL if is_byte_level else _SENTENCE_PIECE
        return Tokenizer.from_buffer(
            orjson.dumps(
                {
                    **content,
                    **dict.fromkeys(_OF_TEXTS),
                    "decoder": decoder,
                }
            )
        )
    except (ImportError, ValueError, OSError, AttributeError, TypeError):
        # A file that is not there, or no tokenizer.
        return None
