"""Run by a Python with TRL: evaluate the loss of TRL's GRPOTrainer on given cases.

    python trl_reference.py CASES.npz RESULTS.npz

The cases are those of `test_verl.py`; arrays are padded to (cases, responses, tokens). pytest imports this file without
TRL and torch, so functions import them.
"""

import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np

# name → level of the ratio, loss, weight of the KL divergence, whether it is unbiased
SETTINGS = {
    "GSPO": ("sequence", "grpo", 0.0, False),
    "GSPO, token mean": ("sequence", "bnpo", 0.0, False),
    "KL": ("token", "bnpo", 0.05, False),
    "unbiased KL": ("token", "bnpo", 0.05, True),
}


def losses(given, case, name):
    import torch
    from trl import GRPOTrainer

    level, kind, beta, unbiased = SETTINGS[name]
    arrays = ("logprob", "old", "reference", "mask", "entropy", "advantage")
    logprob, old, reference, mask, entropy, advantage = (
        torch.from_numpy(given[key][case]).double() for key in arrays
    )
    logprob.requires_grad_()
    settings = {
        "importance_sampling_level": level,
        "loss_type": kind,
        "beta": beta,
        "epsilon_low": float(given["clip_low"][case]),
        "epsilon_high": float(given["clip_high"][case]),
        "args": SimpleNamespace(use_bias_correction_kl=unbiased, delta=None),
        "off_policy_mask_threshold": None,
        "top_entropy_quantile": 1.0,
        "use_vllm": False,
        "aux_loss_enabled": False,
        "_entropy_bonus_enabled": False,
        "current_gradient_accumulation_steps": 1,
        "_get_per_token_logps_and_entropies": lambda *_, **__: (logprob, entropy, None),
    }
    trainer = MagicMock(**settings)
    trainer.accelerator.gather.side_effect = lambda value: value
    inputs = {
        "prompt_ids": mask.long(),
        "prompt_mask": mask,
        "completion_ids": mask.long(),
        "completion_mask": mask,
    }
    inputs |= {
        "advantages": advantage,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return {f"loss {name}": loss.item(), f"gradient {name}": logprob.grad.numpy()}


def main():
    given = dict(np.load(sys.argv[1]))
    found = {}
    for name in SETTINGS:
        results = [losses(given, case, name) for case in range(len(given["old"]))]
        found |= {
            key: np.stack([np.asarray(result[key]) for result in results])
            for key in results[0]
        }
    np.savez(sys.argv[2], **found)


if __name__ == "__main__":
    main()
