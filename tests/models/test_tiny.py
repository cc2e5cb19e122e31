"""The small model and its tokenizer."""

import dataclasses

from lazily import Lazy

from hgpo_train.models.tiny import TinyShape, save_tiny

AutoModelForCausalLM = Lazy("transformers:AutoModelForCausalLM")


TEXTS = ["a ladder shelf $111 b0z67ashyq", "click[b0z67ashyq] or click[b0so7jps91], 64x48, california"] * 5
SHAPE = TinyShape(vocabulary=320, width=32, layers=1, heads=2, key_value_heads=1, intermediate=32)


def test_weights_have_the_spread_that_is_asked_for(tmp_path):
    for spread in (0.02, 0.07):
        folder = save_tiny(tmp_path / str(spread), TEXTS, dataclasses.replace(SHAPE, initial=spread))
        weights = AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings().weight.detach()
        assert abs(float(weights[3:].std()) / spread - 1) < 0.05
