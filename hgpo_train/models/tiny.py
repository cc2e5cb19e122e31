"""Small Qwen3 models with random weights, for tests, quick starts and learning curves on a CPU. No download.

The tokenizer has the design of Qwen's (byte-level BPE, single digits, ChatML). It is trained on texts of the
environments, so a word such as " countertop" is one token. The model is Transformers' Qwen3. The same texts and seed
give the same bytes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from hgpo_train.models.hf import Model, Tokenizer, no_progress_bars

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

ROLES: Final = ("system", "user", "assistant")

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen's ChatML template, without a default system message."""

_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+| ?\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen2's pattern for splitting text before byte-pair encoding; merges do not cross its matches."""


@dataclass(frozen=True, slots=True)
class TinyShape:
    """The sizes of a small model.

    The defaults give about 1.1 million parameters with a vocabulary of 1,024.

    Attributes:
        vocabulary: Maximum size of the vocabulary, in tokens.
        initial: Standard deviation of the random weights. Qwen's 0.02 is small for a narrow model: with about
            1 / sqrt(width) the model learns to copy several times faster.
        width: Size of the hidden states.
        layers: Number of layers.
        heads: Number of attention heads.
        key_value_heads: Number of key-value heads.
        head_dim: Size of an attention head, at least 32: vLLM has no kernels for smaller ones.
        intermediate: Width of the feed-forward layers.
        positions: Maximum length of a sequence, in tokens.
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
    """Train a byte-level BPE tokenizer with ChatML's special tokens and chat template.

    The alphabet contains all 256 bytes, so any text can be encoded. `<|im_end|>` ends a turn, `<|endoftext|>` pads.

    Args:
        texts: Texts of the environments.
        vocabulary: Maximum number of tokens, special tokens included.
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
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(
    tokenizer: Tokenizer,
    shape: TinyShape | None = None,
    seed: int = 0,
) -> Model:
    """Create a Qwen3 model with random float32 weights for a tokenizer; global random state is unchanged."""
    import torch
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


def save_tiny(
    folder: Path,
    texts: Iterable[str],
    shape: TinyShape | None = None,
    seed: int = 0,
) -> Path:
    """Train a tokenizer on texts, create a model, and save both to a folder, which is returned."""
    shape = shape or TinyShape()
    tokenizer = train_tokenizer(texts, shape.vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    with no_progress_bars():
        make_model(tokenizer, shape, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
