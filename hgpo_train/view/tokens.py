"""The texts of tokens, where a run names its model and the model's tokenizer is on this machine.

Step tables store token ids, and no tokenizer. Nothing is downloaded, and no code of a model is run: only a file
``tokenizer.json`` is read, from a checkpoint of the run, the folder of the model, or the cache of the Hugging Face hub.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_train.models.checkpoint_files import list_checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tokenizers import Tokenizer

FILE: Final = "tokenizer.json"
_BYTES: Final = 64 << 20
_POLICIES: Final = ("transformers", "vllm", "openai")
_SPACE: Final = "▁"
"""The mark of a space in the tokens of SentencePiece."""


def texts_of(tokenizer: Tokenizer, ids: Sequence[int], response: str | None) -> list[str | None] | None:
    """Return the text of each token, or None if this is not the tokenizer that wrote them.

    Args:
        tokenizer: The tokenizer.
        ids: The ids of the tokens.
        response: What all of them say, which is compared; None if it is unknown.

    Returns:
        The texts; None for an id without a token, which an untrained model can sample.
    """
    added = tokenizer.get_added_tokens_decoder()
    special = {added[number].content for number in ids if number in added and added[number].special}
    try:
        whole = tokenizer.decode(list(ids), skip_special_tokens=True)
    except (OverflowError, TypeError):  # an id that no tokenizer has
        return None
    if response is not None and _plain(whole, special) != _plain(response, special):
        return None
    texts = []
    for number in ids:
        piece: str | None = tokenizer.id_to_token(number)
        if piece is not None and _SPACE not in piece:
            piece = tokenizer.decode([number], skip_special_tokens=False)
        texts.append(piece and piece.replace(_SPACE, " "))
    return texts


def _plain(text: str, special: set[str]) -> str:
    """Return a text without space and special tokens, which stand for the end, and without a tag of the prompt."""
    for content in special | {"<think>"}:
        text = text.replace(content, "")
    return "".join(text.split())


def find_tokenizer(config: Mapping[str, Any], training: Path | None) -> Tokenizer | None:
    """Return the tokenizer of a run, or None if it is unknown or not on this machine.

    It is named by the configuration in the run's manifest, or stored by the training run that wrote the run.
    """
    return next((found for folder in _folders(config, training) if (found := _read(folder / FILE))), None)


def _folders(config: Mapping[str, Any], training: Path | None) -> Iterator[Path]:
    """Yield the folders in which the tokenizer may be: of checkpoints, of models, and of the hub's cache."""
    if training is not None:
        yield from reversed(list_checkpoints(training / "checkpoints"))
    for name in _models(config):
        if name.startswith(("//", "\\\\")):  # another machine, which would be told who looks
            continue
        if Path(name).is_dir():
            yield Path(name)
            yield from reversed(list_checkpoints(Path(name) / "checkpoints"))
        else:
            yield from _in_cache(name)


def _models(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of models in a configuration: of rollouts, and of training."""
    policy, model = config.get("policy"), config.get("model")
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

        return Tokenizer.from_buffer(read_bytes(file, _BYTES, "tokenizer"))
    except (ImportError, ValueError, OSError):  # a file that is not there, or no tokenizer
        return None
