"""The small model and its tokenizer."""

import dataclasses

import torch
from transformers import AutoModelForCausalLM

from hgpo_train.tiny import TinyShape, identifiers, save_tiny
from hgpo_train.update.model import load_tokenizer

TEXTS = ["a ladder shelf $111 b0z67ashyq", "click[b0z67ashyq] or click[b0so7jps91], 64x48, california"] * 5
SHAPE = TinyShape(vocabulary=320, width=32, layers=1, heads=2, key_value_heads=1, intermediate=32)


def test_product_numbers_are_long_words_of_letters_and_digits():
    assert identifiers(TEXTS) == ["b0so7jps91", "b0z67ashyq"]
    assert identifiers(["12345678 abcdefgh 64x48 iphone12"]) == ["iphone12"]
    assert identifiers(["xb0z67ashyq_", "b0z67ashyq-b"]) == ["b0z67ashyq"]


def test_product_numbers_are_one_token_each_wherever_they_stand(tmp_path):
    folder = save_tiny(tmp_path / "with", TEXTS, dataclasses.replace(SHAPE, identifiers=True))
    tokenizer, model = load_tokenizer(folder), AutoModelForCausalLM.from_pretrained(folder)
    for text in TEXTS[:2]:
        tokens = tokenizer(text)["input_ids"]
        assert tokenizer.decode(tokens) == text
        assert [token for token in tokenizer.convert_ids_to_tokens(tokens) if "b0" in token] == [
            word.strip(",").removeprefix("click[").removesuffix("]") for word in text.split() if "b0" in word
        ]
    assert model(torch.tensor([tokens])).logits.shape[-1] >= len(tokenizer)

    plain = load_tokenizer(save_tiny(tmp_path / "without", TEXTS, SHAPE))
    assert len(plain) < len(tokenizer)


def test_weights_have_the_spread_that_is_asked_for(tmp_path):
    for spread in (0.02, 0.07):
        folder = save_tiny(tmp_path / str(spread), TEXTS, dataclasses.replace(SHAPE, initial=spread))
        weights = AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings().weight.detach()
        assert abs(float(weights[3:].std()) / spread - 1) < 0.05
