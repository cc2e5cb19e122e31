"""Run by a Python with verl: evaluate verl's own functions on given cases.

    python verl_reference.py CASES.npz RESULTS.npz

The cases are those of `test_verl.py`; arrays are padded to (cases, responses, tokens). pytest imports this file without
verl and torch, so functions import them.
"""

import sys

import numpy as np


def losses(case, given):
    import torch
    from verl.trainer.ppo.core_algos import (
        agg_loss,
        compute_policy_loss_gspo,
        compute_policy_loss_vanilla,
        kl_penalty,
    )
    from verl.trainer.ppo.rollout_corr_helper import (
        compute_rollout_correction_and_rejection_mask,
    )
    from verl.workers.config import FSDPActorConfig

    config = FSDPActorConfig(
        clip_ratio=0.2,
        clip_ratio_low=float(given["clip_low"][case]),
        clip_ratio_high=float(given["clip_high"][case]),
        clip_ratio_c=3.0,
        ppo_micro_batch_size_per_gpu=1,
        rollout_n=1,
    )
    names = ("old", "reference", "advantage", "entropy", "mask", "rollout")
    old, reference, advantage, entropy, mask, rollout = (
        torch.from_numpy(given[name][case]) for name in names
    )
    advantage = advantage[:, None].expand_as(old)
    found = {}
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"):
        for level in ("none", "token", "sequence"):
            weight = None
            if level != "none":
                proto, _, metrics = compute_rollout_correction_and_rejection_mask(
                    old.double(),
                    rollout.double(),
                    mask,
                    rollout_is=level,
                    rollout_is_threshold=2.0,
                )
                weight = proto.batch["rollout_is_weights"].float()
                found[f"weight {level}"] = weight.numpy()
                found |= {f"{level} {name}": value for name, value in metrics.items()}
            logprob = torch.from_numpy(given["logprob"][case]).requires_grad_()
            policy, clips = compute_policy_loss_vanilla(
                old, logprob, advantage, mask, mode, config, weight
            )
            divergence = agg_loss(
                kl_penalty(logprob, reference, "low_var_kl"), mask, mode
            )
            loss = policy - 0.001 * agg_loss(entropy, mask, mode) + 0.01 * divergence
            loss.backward()
            found |= {
                f"loss {mode} {level}": loss.item(),
                f"gradient {mode} {level}": logprob.grad.numpy(),
            }
            found |= {
                name: clips[f"actor/{name}"]
                for name in ("pg_clipfrac", "pg_clipfrac_lower")
            }
    logprob = torch.from_numpy(given["logprob"][case]).requires_grad_()
    loss, _ = compute_policy_loss_gspo(
        old, logprob, advantage, mask, "seq-mean-token-mean", config
    )
    loss.backward()
    found |= {"loss GSPO": loss.item(), "gradient GSPO": logprob.grad.numpy()}
    for level, statistic in (("token", "token_k1"), ("sequence", "seq_sum_k1")):
        bounds = {
            "rollout_is_threshold": 2.0,
            "rollout_rs": statistic,
            "rollout_rs_threshold": "0.5_2.0",
        }
        proto, kept, _ = compute_rollout_correction_and_rejection_mask(
            old.double(), rollout.double(), mask, rollout_is=level, **bounds
        )
        found[f"weight {level}_mask"] = (
            proto.batch["rollout_is_weights"] * kept
        ).numpy()
    return found


def main():
    given = dict(np.load(sys.argv[1]))
    results = [losses(case, given) for case in range(len(given["old"]))]
    stacked = {
        name: np.stack([np.asarray(result[name]) for result in results])
        for name in results[0]
    }
    np.savez(sys.argv[2], **stacked)


if __name__ == "__main__":
    main()
