"""A small Qwen-style model made on the spot: for tests, quick starts and learning curves on a CPU. No download.

The tokenizer is Qwen's kind (byte-level BPE, digits apart, ChatML) trained on texts of the environments, so that a word
such as " countertop" is one token. The model is Transformers' own Qwen3 with random weights. The same texts and seed
give the same bytes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import tokenizers
import torch
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from hgpo_train.models.hf import no_progress_bars

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hgpo_train.models.hf import Model, Tokenizer

SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

ROLES: Final = ("system", "user", "assistant")

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML, as Qwen uses it, with no default system message."""

_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where byte-pair merges may not cross: Qwen2's pattern."""


@dataclass(frozen=True, slots=True)
class TinyShape:
    """The model's sizes. head_dim is at least 32: vLLM has no kernels for less.

    The defaults make about 1.1 million parameters with a vocabulary of 1,024.

    Attributes:
        vocabulary: Most tokens that are trained.
        initial: Standard deviation of the random weights. Qwen's 0.02 is small for so narrow a model: it learns to copy
            several times faster from about 1 / sqrt(width).
    """

    vocabulary: int = 1024
    initial: float = 0.02
    width: int = 128
    layers: int = 4
    heads: int = 4
    key_value_heads: int = 2
    head_dim: int = 32
    intermediate: int = 512
    positions: int = 4096


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Trains a byte-level BPE tokenizer with ChatML's special tokens and chat template.

    Args:
        texts: Any texts of the environments; all 256 bytes are in the alphabet, so every text can be encoded.
        vocabulary: Most tokens, special ones included.

    Returns:
        A Transformers fast tokenizer; `<|im_end|>` ends a turn, `<|endoftext|>` pads.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(itertools.chain(texts, ROLES * 100), trainer)
    fast: Tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token=SPECIAL[0], eos_token=SPECIAL[2], clean_up_tokenization_spaces=False
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(tokenizer: Tokenizer, shape: TinyShape | None = None, seed: int = 0) -> Model:
    """A Qwen3 causal language model with random float32 weights for a tokenizer.

    Global random state is left as it was.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = shape or TinyShape()
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=shape.initial,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def save_tiny(folder: Path, texts: Iterable[str], shape: TinyShape | None = None, seed: int = 0) -> Path:
    """Trains a tokenizer on texts, makes a model and saves both to a folder that any Transformers program loads.

    Returns:
        The folder.
    """
    shape = shape or TinyShape()
    tokenizer = train_tokenizer(texts, shape.vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    with no_progress_bars():
        make_model(tokenizer, shape, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
