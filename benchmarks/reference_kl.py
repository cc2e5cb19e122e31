"""Measure the KL divergence between the policy and its reference model before training, where it should be 0.

    python benchmarks/reference_kl.py          random Qwen2 of 8 layers, bfloat16, 64 to 4,096 tokens; some minutes

The policy has float32 weights under autocast. The references: a copy cast as a whole (`model.to(torch.bfloat16)`, as in
version 0.1), the same with the rotary embeddings' frequencies in float32, and `hgpo_train.models.reference`. The
divergence is the exact one over the vocabulary, averaged over the last positions. Results:
benchmarks/results/reference_kl.json.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from record import make_parser, print_table, store
from transformers import Qwen2Config, Qwen2ForCausalLM

from hgpo_train.models.reference import frozen_copy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from hgpo_train.models.hf import Model

LENGTHS = (64, 1024, 4096)
POSITIONS = 64
"""The last positions of each sequence, at which the divergence is measured."""


def random_model(seed: int = 0) -> Model:
    """Create a model with the head size, rotary base and biases of Qwen2.5, and weights of a bfloat16 checkpoint.

    Queries and keys are twice as large as with the usual initial weights. Attention scores then have a standard
    deviation of about 4: attention selects few positions, as in trained models, instead of averaging over all.
    """
    config = Qwen2Config(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=8,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32_768,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
    )
    generator = torch.Generator().manual_seed(seed)
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            vector = parameter.dim() == 1
            size = 0.1 if vector else parameter.shape[-1] ** -0.5
            size *= 2 if "q_proj" in name or "k_proj" in name else 1
            noise = torch.randn(parameter.shape, generator=generator) * size
            parameter.copy_((noise + (1.0 if "norm" in name else 0.0)).bfloat16().float())
    return model.eval()


def cast_with_frequencies(model: Model) -> Model:
    """Return a copy of which all parameters are cast, but no buffers."""
    copied = copy.deepcopy(model)
    for parameter in copied.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return copied


REFERENCES: dict[str, Callable[[Model], Model]] = {
    "cast as a whole (before)": lambda model: copy.deepcopy(model).to(torch.bfloat16),
    "cast, float32 frequencies": cast_with_frequencies,
    "frozen_copy (now)": lambda model: frozen_copy(model, torch.bfloat16),
}


def log_distributions(model: Model, ids: Tensor) -> Tensor:
    """Return log softmax of the logits at the last positions, float64 of shape (rows, positions, vocabulary)."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[:, -POSITIONS:]
        logits = model.get_output_embeddings()(hidden)
    return torch.log_softmax(logits.double(), -1)


def main() -> None:
    """Measure all references at all lengths."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=2, help="sequences of each length")
    given = parser.parse_args()
    model = random_model()
    references = {name: make(model) for name, make in REFERENCES.items()}
    found: list[dict[str, Any]] = []
    for length in LENGTHS:
        ids = torch.randint(0, 2048, (given.rows, length), generator=torch.Generator().manual_seed(length))
        policy = log_distributions(model, ids)
        for name, reference in references.items():
            other = log_distributions(reference, ids)
            divergence = (policy.exp() * (policy - other)).sum(-1).mean().item()
            identical = torch.equal(policy, other)
            found.append({"tokens": length, "reference": name, "kl": divergence, "identical": identical})
    columns = {"tokens": "{tokens:,}", "reference": "{reference}", "KL, nats a token": "{kl:.2e}"}
    print_table(found, {**columns, "identical bits": "{identical}"}, "policy and reference at the start")
    print(store("reference_kl", {"positions": POSITIONS, "rows": given.rows, "kl": found}, keep=given.keep))


if __name__ == "__main__":
    main()
