"""Models of many architectures: right, or refused when they are loaded, as the table of docs/training.md says."""

import re
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from architectures import ARCHITECTURES, SIZES
from refusals import refused

from hgpo_envs.errors import InputError
from hgpo_train.models.config import ModelConfig

PAGE = (Path(__file__).parents[2] / "docs/training.md").read_text("utf-8")
TABLE = PAGE.partition("### Architectures\n")[2].partition("\n#")[0]
CELLS = [line.split("|")[1:3] for line in TABLE.splitlines() if line.startswith("|")]
ROWS = {title.strip(): re.findall(r"`([\w-]+)`", kinds) for title, kinds in CELLS[2:]}
DROPOUT = "dropout is set to 0"
EAGER = ("bloom", "falcon_mamba", "gemma2", "gpt_oss", "gptj", "mamba2", "vaultgemma")
"""Transformers has no other attention for these."""


def outcome(kind):
    """The title of the table's row that has an architecture."""
    (found,) = [
        title for title, kinds in ROWS.items() if kind in kinds and title != DROPOUT
    ]
    return found


def test_the_table_has_every_architecture_once():
    named = [
        kind for title, kinds in ROWS.items() if title != DROPOUT for kind in kinds
    ]
    assert sorted(named) == sorted(ARCHITECTURES)


def saved(kind, folder):
    """Save a model with random weights, larger than usual so that errors show."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    attention = "eager" if kind in EAGER else "sdpa"
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SIZES, **ARCHITECTURES[kind]})
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 2:
                weights.mul_(3)
    model.save_pretrained(folder)
    return ModelConfig(
        path=str(folder), device="cpu", compute_dtype="float32", attention=attention
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_model_is_right_or_refused(kind, tmp_path):
    import torch

    from hgpo_train.models.loading import load_model
    from hgpo_train.policies.token_sampling import check_sampling
    from hgpo_train.training.config import Config, replace
    from hgpo_train.training.update.batches import samples_from_steps
    from hgpo_train.training.update.learner import Learner

    expected = outcome(kind)
    settings = saved(kind, tmp_path)
    if expected == "refused":
        with pytest.raises(InputError):
            load_model(settings)
        return
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        model = load_model(settings)
    assert (kind in ROWS[DROPOUT]) == any(
        "dropout" in str(warning.message) for warning in noted
    )

    # What the model's own forward pass gives, one sequence at a time.
    rng = np.random.default_rng(0)
    rows = [rng.integers(3, 90, size=length).tolist() for length in (30, 9, 17)]
    steps = pl.DataFrame(
        {
            "prompt_token_ids": [row[:5] for row in rows],
            "response_token_ids": [row[5:] for row in rows],
        }
    )
    own = []
    with torch.no_grad():
        for row in rows:
            logprobs = (
                model.eval()(torch.tensor([row]))
                .logits.float()
                .log_softmax(-1)[0, 4:-1]
            )
            own.append(logprobs.gather(1, torch.tensor(row[5:])[:, None])[:, 0])

    def learned(layout: str) -> np.ndarray:
        config = replace(
            Config(), model={"compute_dtype": "float32"}, update={"layout": layout}
        )
        return Learner(model, config).logprobs(samples_from_steps(steps))

    assert np.abs(learned("padded") - torch.cat(own).numpy()).max() < 1e-4
    if expected.startswith("packed"):
        assert np.abs(learned("packed") - torch.cat(own).numpy()).max() < 1e-4
    else:
        with refused(r"see one another when they are packed; set update\.layout"):
            learned("packed")
    if expected.endswith("with vLLM alone"):
        with refused("in-process sampling does not support"):
            check_sampling(model)
    else:
        check_sampling(model)
