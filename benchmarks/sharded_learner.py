"""Shard the learner over several processes with torch's `fully_shard`, and compare gradients and weights.

    python benchmarks/sharded_learner.py       1, 2 and 4 processes on this CPU, gloo; about six minutes

The rows are played in the bundled ALFWorld games. Every case takes ten optimiser steps of `Learner.update` (old and
reference log-probabilities, KL term, entropy, gradient accumulation, gradient clipping, recomputation, AdamW): once
with the learner as it is, and under `torchrun` with 1, 2 and 4 processes, each of which holds a part of the weights,
the gradients, the moments and the reference model, and computes a part of the micro-batches. Another case saves after
five steps on two processes and goes on with four. Results: benchmarks/results/sharded_learner.json. docs/scaling.md
says why `hgpo train` does not offer this.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
import torch
import torch.distributed as dist
from record import add_keep, store
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

import hgpo_train as hgpo
from hgpo_train.models.hf import unwrap_peft
from hgpo_train.models.loading import load_model, load_tokenizer
from hgpo_train.models.tiny import TinyShape, save_tiny
from hgpo_train.training.config import Config, replace
from hgpo_train.training.sft import tokenise
from hgpo_train.training.update.batches import MicroBatch, samples_from_steps
from hgpo_train.training.update.learner import Learner
from hgpo_train.training.update.logprobs import ResponseScorer
from hgpo_train.training.update.optimiser import make_optimiser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from hgpo_train.models.hf import Model
    from hgpo_train.training.update.batches import Samples

MINI_BATCHES: Final = 5
UPDATES: Final = (0, 1)
"""The seeds of the updates: two of five optimiser steps each."""
PROCESSES: Final = (1, 2, 4)
ROWS: Final = 160
SHAPE: Final = TinyShape(vocabulary=512, width=64, layers=3, heads=2, key_value_heads=1, intermediate=128)
CASES: Final[dict[str, dict[str, Any]]] = {
    "all weights": {},
    "all weights, bfloat16": {"compute_dtype": "bfloat16"},
    "adapters": {"lora": {"rank": 4}},
    "adapters, bfloat16": {"lora": {"rank": 4}, "compute_dtype": "bfloat16"},
}
"""Settings of the section `model`."""


# --- The learner, sharded: everything that differs from `Learner` -----------------------------------------------------


class ShardedLearner(Learner):
    """A learner whose weights, gradients, moments and reference are divided among the processes of the default group.

    All processes call the same methods with the same samples and an equal random generator, and receive equal values.
    """

    def __init__(self, model: Model, config: Config) -> None:
        super().__init__(model, config)
        self.reference_scorer = self.scorer
        if self.reference is not None and not hasattr(model, "disable_adapter"):
            with self.reference.active() as frozen:
                self.reference_scorer = ResponseScorer(frozen, chunk=config.update.logit_chunk)
            shard(self.reference_scorer)
        shard(self.scorer)
        self.optimiser = make_optimiser(model, config.optimiser)  # over the parts of the weights

    def _micro_batches(self, samples: Samples, rows: NDArray[np.int64]) -> Iterator[MicroBatch]:
        found = list(super()._micro_batches(samples, rows))
        rank, processes = dist.get_rank(), dist.get_world_size()
        for place in range(rank, -(-len(found) // processes) * processes, processes):
            yield found[place] if place < len(found) else _EMPTY  # every process takes part in every gathering

    def accumulate(self, *arguments: Any, **options: Any) -> dict[str, float]:
        """See `Learner`."""
        parts = super().accumulate(*arguments, **options)
        total = torch.tensor(list(parts.values()), dtype=torch.float64)
        dist.all_reduce(total)
        return dict(zip(parts, total.tolist(), strict=True))

    def _all_logprobs(self, samples: Samples) -> NDArray[np.float32]:
        values = torch.from_numpy(super()._all_logprobs(samples))  # 0 for the tokens of other processes
        dist.all_reduce(values)
        return values.numpy()

    def reference_logprobs(self, samples: Samples) -> NDArray[np.float32]:
        """See `Learner`."""
        policy, self.scorer = self.scorer, self.reference_scorer
        try:
            return super().reference_logprobs(samples)
        finally:
            self.scorer = policy


_EMPTY: Final = MicroBatch(
    torch.zeros(1, 1, dtype=torch.int64),
    torch.zeros(1, 1, dtype=torch.int64),
    *torch.zeros(2, 0, dtype=torch.int64),
    *np.zeros((2, 0), np.int64),
)


def shard(scorer: ResponseScorer) -> None:
    """Divide the weights among the processes: those of each layer, and all others. Gradients are summed."""
    for layer in unwrap_peft(scorer.model).get_decoder().layers:
        fully_shard(layer)
    fully_shard(scorer)  # the module that is called; with the language model as root, its forward would be bypassed
    for module in scorer.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale within a reduction


# --- One process ------------------------------------------------------------------------------------------------------


def train(folder: Path, case: str, name: str, *, resume: str, updates: list[int]) -> None:
    """Update the policy and store the first gradient, the weights and the state; in every process.

    Args:
        folder: The folder of the model and the rows, and for the results.
        case: One of `CASES`.
        name: Name of the results.
        resume: Name of the results to go on from.
        updates: The seeds of the updates, of five optimiser steps each.
    """
    torch.set_num_threads(1)
    processes = int(os.environ.get("WORLD_SIZE", "0"))  # set by torchrun
    if processes:
        dist.init_process_group("gloo")
    config = settings(folder, case)
    model = load_model(config.model)
    learner = ShardedLearner(model, config) if processes else Learner(model, config)
    first: dict[str, Tensor] = {}

    def keep_first(*_: object) -> None:
        if not first:
            first.update(gradients(model))

    learner.optimiser.register_step_pre_hook(keep_first)
    if resume:
        restore(model, learner.optimiser, torch.load(folder / f"{resume}.state", weights_only=True))
    samples = samples_from_steps(pl.read_parquet(folder / "rows.parquet"))
    samples = dataclasses.replace(samples, rollout_logprob=np.full(samples.response_tokens, -1.0, np.float32))
    metrics = [learner.update(samples, np.random.default_rng(seed)) for seed in updates]
    stored = {f"gradient.{key}": value for key, value in first.items()}
    stored |= {f"weight.{key}": whole(value).clone() for key, value in model.named_parameters()}
    state = full_state(model, learner.optimiser)
    if not processes or dist.get_rank() == 0:
        save_file(stored, folder / f"{name}.safetensors")
        torch.save(state, folder / f"{name}.state")
        (folder / f"{name}.json").write_text(json.dumps(metrics))
    if processes:
        dist.destroy_process_group()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients, complete in every process."""
    return {name: whole(p.grad).clone() for name, p in model.named_parameters() if p.grad is not None}


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor's value; a part of one is gathered, for which every process calls this."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def full_state(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the complete weights and moments, by name, in the first process."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return {
        "model": get_model_state_dict(model, options=options),
        "optimiser": get_optimizer_state_dict(model, optimiser, options=options),
    }


def restore(model: nn.Module, optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load complete weights and moments into a model, sharded over any number of processes or not at all."""
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, state["model"], options=options)
    set_optimizer_state_dict(model, optimiser, state["optimiser"], options=options)


# --- All processes ----------------------------------------------------------------------------------------------------


def settings(folder: Path, case: str) -> Config:
    """Return a configuration with five mini-batches of several micro-batches each."""
    model = {"path": str(folder / "model"), "device": "cpu", "compute_dtype": "float32"}
    model |= {"gradient_checkpointing": True} | CASES[case]
    update = {
        "mini_batch_size": ROWS // MINI_BATCHES,
        "micro_batch_tokens": 1024,
        "kl_weight": 0.05,
        "entropy_weight": 0.01,
    }
    return replace(
        Config(),
        model=model,
        update=update,
        optimiser={"learning_rate": 1e-3, "gradient_clip": 0.5, "schedule": "constant"},
    )


def prepare(folder: Path) -> None:
    """Play the bundled games, compute advantages, and create a tokenizer and a model."""
    run = hgpo.collect(
        "HGPO/ALFWorld-v0",
        "mixture:explorer=0.6,outdated=0.4",
        folder / "run",
        tasks=4,
        group_size=8,
        max_steps=20,
        prompt_template="compact",
        action_format="command",
        progress=False,
    )
    rows = hgpo.compute(run.path, "hgpo", history_length=2).collect()
    texts = rows.select(pl.format("{}\n{}", "prompt", "action")).to_series().to_list()
    save_tiny(folder / "model", texts, SHAPE, seed=1)
    tokenizer = load_tokenizer(str(folder / "model"))
    chosen = rows.filter(pl.col("advantage").is_not_null()).sample(ROWS, seed=0)
    tokenise(chosen, tokenizer, 512).select("prompt_token_ids", "response_token_ids", "advantage").write_parquet(
        folder / "rows.parquet"
    )


def launch(
    folder: Path, case: str, name: str, processes: int, *, resume: str = "", updates: tuple[int, ...] = UPDATES
) -> None:
    """Run `train` in this many processes of torchrun, or without it if the number is 0."""
    command = [sys.executable]
    if processes:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += [__file__, "--folder", str(folder), "--case", case, "--name", name, "--resume", resume]
    command += ["--updates", *map(str, updates)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{case}, {processes} processes: {done.stderr[-3000:]}")


def compare(folder: Path, first: str, second: str, *, gradient: bool = True) -> dict[str, Any]:
    """Return the largest differences of two runs: of the first gradient, of the weights, and of the last metrics."""
    a, b = (load_file(folder / f"{name}.safetensors") for name in (first, second))
    assert a.keys() == b.keys()
    kinds = ("gradient", "weight") if gradient else ("weight",)
    found = {kind: max(float((a[key] - b[key]).abs().max()) for key in a if key.startswith(kind)) for kind in kinds}
    one, two = (json.loads((folder / f"{name}.json").read_text())[-1] for name in (first, second))
    return found | {name: abs(one[name] - two[name]) for name in ("actor/loss", "actor/kl_loss", "actor/grad_norm")}


def measure(folder: Path, cases: list[str], processes: list[int]) -> Iterator[dict[str, Any]]:
    """Run cases and yield their differences from the learner in one process without sharding."""
    for case in cases:
        launch(folder, case, f"{case} 0", 0)
        for number in processes:
            launch(folder, case, f"{case} {number}", number)
            yield {"case": case, "processes": str(number), **compare(folder, f"{case} 0", f"{case} {number}")}
    first, last = processes[len(processes) // 2], processes[-1]
    launch(folder, cases[0], "first half", first, updates=UPDATES[:1])
    launch(folder, cases[0], "second half", last, resume="first half", updates=UPDATES[1:])
    resumed = compare(folder, f"{cases[0]} 0", "second half", gradient=False)
    yield {"case": f"{cases[0]}, resumed after five steps", "processes": f"{first}, then {last}", **resumed}


def lines() -> int:
    """Return the lines of code of the sharded learner: those of this file between two comments, without empty ones."""
    part = Path(__file__).read_text("utf-8").split("# --- ")[1]
    return sum(bool(line.strip()) for line in part.splitlines()[1:])


def main() -> None:
    """Run the cases, or one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--processes", nargs="+", type=int, default=list(PROCESSES))
    for name in ("folder", "case", "name", "resume"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--updates", nargs="+", type=int, help=argparse.SUPPRESS)
    add_keep(parser)
    given = parser.parse_args()
    if given.folder:
        train(Path(given.folder), given.case, given.name, resume=given.resume, updates=given.updates)
        return
    found = []
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        for row in measure(Path(name), given.cases, given.processes):
            found.append(row)
            print(json.dumps(row), flush=True)
    table = Table(title="largest differences from the learner without sharding", caption=f"{lines()} lines of code")
    for column in found[0]:
        table.add_column(column.removeprefix("actor/"))
    for row in found:
        table.add_row(*(f"{row[key]:.1e}" if isinstance(row.get(key), float) else row.get(key, "") for key in found[0]))
    console = Console()
    console.print(table)
    console.print(store("sharded_learner", {"cases": found, "lines": lines()}, keep=given.keep))


if __name__ == "__main__":
    main()
