"""Simulate synchronous HGPO training on 1 to 1,000 GPUs: seconds by phase, bytes moved, the first bottleneck.

    python benchmarks/scaling.py               about two minutes on one core

**Nothing here ran on a GPU.** The rollout phase is an event simulation, the rest are formulas, and every assumption has
its source (`scaling_simulation.Assumptions`). Three parts are measured in the same run, on this CPU: the lengths of
episodes in the bundled ALFWorld games, the writer of the step table with rows of that many tokens, and the sampling and
the rollouts of a small language model, whose CPU seconds the simulation predicts from uniform batches.

fixed tasks     16 tasks x 8 rollouts, as in the papers, on more and more GPUs
growing tasks   4 tasks for each GPU (7B; 8 with 1.5B), mini-batches grow with them

Results: benchmarks/results/scaling.json and scaling.svg; docs/scaling.md explains them.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import altair as alt
import numpy as np
import polars as pl
import torch
from readme import figures as kept_figures
from record import add_keep, results_folder, store
from rich.console import Console
from rich.table import Table
from sampling import OPTIONS, make_model, requests
from scaling_simulation import (
    SMALL,
    Assumptions,
    Engine,
    Hosts,
    Iteration,
    described,
    fits,
    iterate,
    losses,
    play,
)

import hgpo_train as hgpo
from hgpo_datasets import StepWriter, scan_steps, schema
from hgpo_train.models.tiny import save_tiny
from hgpo_train.policies.token_sampling import sample_responses

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

GPUS: Final = (1, 8, 64, 256, 1000)
PLAYER: Final = "mixture:explorer=0.3,random=0.7"
ROUNDS: Final = 6
MODELS: Final[dict[str, dict[str, Any]]] = {"7B": {}, "1.5B": SMALL}
CHANGES: Final[dict[str, dict[str, Any]]] = {
    "as assumed": {},
    "a writer on each machine": {"table_writers": 0},
    "a writer on each machine, driver 10 × faster": {"table_writers": 0, "driver_bandwidth": 1e10},
    "the same, weights divided within machines": {"table_writers": 0, "driver_bandwidth": 1e10, "sharded_over": 8},
    "network 10 × slower": {"network_bandwidth": 3.5e9},
    "network 10 × slower, weights divided within machines": {"network_bandwidth": 3.5e9, "sharded_over": 8},
    "responses twice as long": {"response_tokens": 400.0, "longest_response": 1024},
    "prompts twice as long": {"prompt_tokens": 3000.0},
    "half of each prompt from the prefix cache": {"prefix_cached": 0.5},
    "decoding overhead 3 × larger": {"step_overhead_s": 0.009},
    "training at 20% of the peak": {"train_mfu": 0.2},
    "environment: WebShop": {"environment_s": "webshop"},
    "environment: AppWorld, 1 process a GPU": {"environment_s": "appworld"},
    "environment: the original ALFWorld, 1 process a GPU": {"environment_s": "original"},
    "environment: the original ALFWorld, 24 processes a GPU": {"environment_s": "original", "hosts_per_gpu": 24.0},
    "8 host processes in all": {"hosts_per_gpu": "8 in all"},
    "all episodes equally long": {"lengths": "equal"},
}
"""Assumptions that are changed for the table of sensitivities."""


# --- Measured in this run ---------------------------------------------------------------------------------------------


def played(folder: Path) -> pl.DataFrame:
    """Play the bundled ALFWorld games and return the steps, with the prompts of language models."""
    return hgpo.collect(
        "HGPO/ALFWorld-v0", PLAYER, folder / "played", tasks=32, group_size=8, max_steps=50, progress=False
    ).steps.collect()


def episode_lengths(steps: pl.DataFrame) -> NDArray[np.int64]:
    """Return the steps of each episode, int64 of shape (tasks, group size)."""
    by_trajectory = steps.group_by("task_id", "group", "trajectory", maintain_order=True).len()
    return by_trajectory["len"].to_numpy().astype(np.int64).reshape(-1, 8)


def writer_speed(steps: pl.DataFrame, folder: Path, a: Assumptions) -> dict[str, float]:
    """Return CPU seconds and bytes a row of the writer, for rows with texts and as many tokens as assumed."""
    rng = np.random.default_rng(0)
    derived = {column.name for column in schema.columns() if column.derived}
    some = steps.filter(pl.col("group") == 0).head(2000)
    some = some.filter(pl.col("trajectory").is_in(some["trajectory"].unique(maintain_order=True)[:-1].implode()))
    some = some.drop("run", *(derived & set(some.columns)))
    # Token ids that are as frequent as words: most of a prompt is text that recurs.
    words = np.minimum(rng.zipf(1.3, 4000), 150_000).astype(np.int32)
    prompt, response = int(a.prompt_tokens), int(a.response_tokens)

    def texts(length: int, count: int) -> list[list[int]]:
        return [words[begin : begin + length].tolist() for begin in rng.integers(0, len(words) - length, count)]

    some = some.with_columns(
        prompt_token_ids=pl.Series(texts(prompt, len(some)), dtype=schema.TOKENS),
        response_token_ids=pl.Series(texts(response, len(some)), dtype=schema.TOKENS),
        response_logprobs=pl.Series(-rng.exponential(0.25, (len(some), response)), dtype=pl.List(pl.Float32)),
    )
    rows = some.to_dicts()
    seconds = float("inf")
    for repetition in range(3):
        began = time.process_time()
        with StepWriter(folder / f"written {repetition}") as writer:
            writer.add_group(rows)
        seconds = min(seconds, time.process_time() - began)
    size = sum(file.stat().st_size for file in (folder / "written 0").rglob("*") if file.is_file())
    return {"rows": len(rows), "table_row_s": seconds / len(rows), "table_row_bytes": size / len(rows)}


class Measured:
    """CPU seconds of calls, measured several times in turn; the least counts, because others share the machine."""

    def __init__(self, calls: list[Callable[[], Any]]) -> None:
        self.seconds = np.full(len(calls), np.inf)
        for _ in range(ROUNDS):
            for place, call in enumerate(calls):
                began = time.process_time()
                call()
                self.seconds[place] = min(self.seconds[place], time.process_time() - began)


def validation(steps: pl.DataFrame, folder: Path) -> list[dict[str, Any]]:
    """Predict CPU seconds of a small language model on this machine, and measure them.

    The engine's speeds are fitted to calls of the in-process sampler whose requests all have equal lengths. Predicted
    are calls with requests of mixed lengths, which wait for each other's memory, and rollouts.
    """
    torch.set_num_threads(1)
    model, rng = make_model(), np.random.default_rng(1)
    shapes = [(1, 100, 4), (1, 100, 16), (8, 100, 16), (30, 100, 4), (30, 100, 16), (30, 50, 16), (60, 50, 16)]
    uniform = [rng.integers(3, 800, (count, prompt)).tolist() for count, prompt, _ in shapes]
    longest = [dataclasses.replace(OPTIONS, stop=(), max_new_tokens=response) for _, _, response in shapes]
    mixed = requests()[1:]  # in the first call, groups share prompts, which the simulation does not know
    calls = [
        partial(sample_responses, model, prompts, list(range(len(prompts))), options)
        for prompts, options in [*zip(uniform, longest, strict=True), *((prompts, OPTIONS) for prompts in mixed)]
    ]
    roll, rows = small_rollouts(steps, folder)
    least = Measured([*calls, roll]).seconds
    # seconds = steps · (fixed + n · sequence) + n · prompt · prefill, fitted to relative errors
    equations = np.array([[r, n * r, n * p] for n, p, r in shapes], dtype=float) / least[: len(shapes), None]
    fixed, sequence, prefill = np.linalg.lstsq(equations, np.ones(len(shapes)), rcond=None)[0]
    engine = Engine(fixed_s=fixed, sequence_s=sequence, prefill_s=prefill)
    found: list[dict[str, Any]] = []
    for prompts, call, real in zip(mixed, calls[len(shapes) :], least[len(shapes) :].tolist(), strict=False):
        order = np.argsort([-len(prompt) for prompt in prompts])  # the sampler begins with the longest
        lengths = [float(len(one.tokens)) for one in call()]
        most = int(OPTIONS.max_batch_tokens / (np.mean([len(prompt) for prompt in prompts]) + OPTIONS.max_new_tokens))
        limited = dataclasses.replace(engine, most=most)
        end = float(play(limited, Hosts(), [len(prompts[i]) for i in order], [[lengths[i]] for i in order]).max())
        found.append({"what": f"{len(prompts)} requests of mixed lengths", "predicted_s": end, "measured_s": real})
    by_trajectory = rows.group_by("trajectory", maintain_order=True).agg(
        pl.col("prompt_token_ids").list.len().mean(), pl.col("response_token_ids").list.len()
    )
    ends = play(
        engine, Hosts(), by_trajectory["prompt_token_ids"].to_list(), by_trajectory["response_token_ids"].to_list()
    )
    what = f"{len(by_trajectory)} rollouts of {len(rows) / len(by_trajectory):.0f} steps in ALFWorld"
    found.append({"what": what, "predicted_s": float(ends.max()), "measured_s": float(least[-1])})
    return [{**one, "ratio": one["predicted_s"] / one["measured_s"]} for one in found]


def small_rollouts(steps: pl.DataFrame, folder: Path) -> tuple[Callable[[], None], pl.DataFrame]:
    """Return a function that plays rollouts with a small language model of random weights, and the rows it plays."""
    texts = steps.head(1000).select(pl.format("{}\n{}", "prompt", "action")).to_series().to_list()
    name = f"transformers:{save_tiny(folder / 'model', texts)}"
    options = {"max_response_tokens": 16, "device": "cpu"}
    numbers = itertools.count()

    def roll() -> None:
        hgpo.collect(
            "HGPO/ALFWorld-v0",
            name,
            folder / f"rolled {next(numbers)}",
            tasks=4,
            max_steps=10,
            prompt_template="compact",
            action_format="command",
            policy_options=options,
            progress=False,
        )

    roll()
    return roll, scan_steps(folder / "rolled 0").collect()


# --- Simulated --------------------------------------------------------------------------------------------------------


def scaled(a: Assumptions, lengths: NDArray[np.int64], *, growing: bool) -> list[dict[str, Any]]:
    """Simulate all numbers of GPUs. The first that the model fits on is what efficiency and losses refer to."""
    found: list[dict[str, Any]] = []
    base: Iteration | None = None
    for gpus in GPUS:
        if not fits(a, gpus):
            continue
        one = iterate(a, gpus, round(a.tasks_per_gpu * gpus) if growing else 16, lengths)
        base = base or one
        found.append(summary(a, base, one))
    return found


def summary(a: Assumptions, base: Iteration, one: Iteration) -> dict[str, Any]:
    """Return an iteration as JSON values, with its efficiency and its greatest loss."""
    lost = losses(base, one)
    worst = max(lost, key=lambda phase: lost[phase])
    return {
        "gpus": one.gpus,
        "rollouts": one.rollouts,
        "rows": one.rows,
        "seconds": one.seconds,
        "total_s": one.total,
        "efficiency": one.rate / base.rate,
        "bottleneck": worst if lost[worst] > 0.02 * one.total else None,
        "lost_share": lost[worst] / one.total,
        "moved": one.moved,
        "gpu_hours_of_160": 160 * one.total * one.gpus / 3600,
        "dollars_of_160": 160 * one.total * one.gpus / 3600 * a.dollars_per_hour,
    }


def sensitivities(a: Assumptions, lengths: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Change one assumption at a time, at 256 GPUs with growing tasks and at 64 with 16 tasks, both from 8 GPUs."""
    environments = {
        "webshop": kept_figures("environments")["HGPO/WebShop-v0"]["gym.make"] * 1e-6,
        "appworld": kept_figures("appworld")["worlds"]["64"]["step, one API call, ms"] * 1e-3,
        "original": kept_figures("alfworld")["against"]["original_step_s"],
    }
    found = []
    for name, changes in CHANGES.items():
        changed = dict(changes)
        mine = np.full_like(lengths, round(lengths.mean())) if changed.pop("lengths", None) else lengths
        if "environment_s" in changed:
            changed["environment_s"] = environments[changed["environment_s"]]
        row: dict[str, Any] = {"change": name}
        for title, gpus, growing in (("growing", 256, True), ("fixed", 64, False)):
            pair = []
            for number in (8, gpus):
                here = (
                    {**changed, "hosts_per_gpu": 8 / number} if changed.get("hosts_per_gpu") == "8 in all" else changed
                )
                one = dataclasses.replace(a, **here)
                one = dataclasses.replace(one, table_row_s=a.table_row_s * one.row_tokens / a.row_tokens)
                pair.append(iterate(one, number, round(a.tasks_per_gpu * number) if growing else 16, mine))
            row[title] = summary(a, *pair)
        found.append(row)
    return found


def one_engine(a: Assumptions, lengths: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Simulate 16 tasks of which one card plays all: adapters on one card, and a learner sharded over 8 cards.

    With adapters, the frozen weights need no gradient (6 operations a weight and token in the update instead of 8), and
    the shipped configurations have no reference model (2 in scoring instead of 4).
    """
    found = []
    for model, changes in MODELS.items():
        one = dataclasses.replace(a, **changes)
        alone, beside = iterate(one, 1, 16, lengths), iterate(one, 8, 16, lengths)
        played_s = alone.seconds["rollout"] + alone.seconds["tail"]
        adapters_s = alone.seconds["scoring"] / 2 + alone.seconds["update"] * 6 / 8
        sharded_s = beside.seconds["scoring"] + beside.seconds["update"]
        found.append(
            {
                "model": model,
                "rollout_s": played_s,
                "adapters_s": adapters_s,
                "adapters_gpu_hours_of_160": 160 * (played_s + adapters_s) / 3600,
                "sharded_8_s": sharded_s,
                "total_8_s": played_s + sharded_s,
                "verl_8_s": beside.total,
            }
        )
    return found


def draw(found: dict[str, Any], target: Path) -> None:
    """Draw the seconds of an iteration by phase, for fixed and growing tasks."""
    phases = list(found["fixed tasks"]["7B"][0]["seconds"])
    charts = []
    for title in ("fixed tasks", "growing tasks"):
        rows = [
            {"GPUs": row["gpus"], "phase": phase, "seconds": row["seconds"][phase], "order": phases.index(phase)}
            for row in found[title]["7B"]
            for phase in phases
        ]
        charts.append(
            alt.Chart(alt.InlineData(values=rows), title=f"7B, {title}")
            .mark_bar()
            .encode(
                alt.X("GPUs:O", axis=alt.Axis(labelAngle=0)),
                alt.Y("seconds:Q", title="seconds an iteration (simulated)"),
                alt.Color("phase:N", sort=phases, scale=alt.Scale(domain=phases, range=COLOURS)),
                alt.Order("order:Q"),
            )
            .properties(width=300, height=240)
        )
    alt.hconcat(*charts).configure(background="white").save(str(target))


COLOURS: Final = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#cc79a7", "#9a9a9a", "#d55e00", "#000000")


def show(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    """Print a table of numbers of GPUs."""
    table = Table(title=title)
    for name in ("GPUs", "rollouts", *rows[0]["seconds"], "total, s", "efficiency", "lost most by"):
        table.add_column(name, justify="right")
    for row in rows:
        seconds = (f"{value:,.0f}" for value in row["seconds"].values())
        shares = (f"{row['total_s']:,.0f}", f"{row['efficiency']:.0%}", row["bottleneck"] or "")
        table.add_row(str(row["gpus"]), f"{row['rollouts']:,}", *seconds, *shares)
    console.print(table)


def main() -> None:
    """Measure, simulate, print and store."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_keep(parser)
    given = parser.parse_args()
    console = Console(width=160)
    with tempfile.TemporaryDirectory() as name:
        steps = played(Path(name))
        lengths = episode_lengths(steps)
        measured = writer_speed(steps, Path(name), Assumptions())
        validated = validation(steps, Path(name))
    a = Assumptions(table_row_s=measured["table_row_s"], table_row_bytes=measured["table_row_bytes"])
    found: dict[str, Any] = {
        "measured": {
            **measured,
            "player": PLAYER,
            "episodes": int(lengths.size),
            "mean_steps": float(lengths.mean()),
            "at_the_limit": float((lengths == 50).mean()),
        },
        "validation": validated,
        "assumptions": described(),
    }
    for title, growing in (("fixed tasks", False), ("growing tasks", True)):
        found[title] = {
            model: scaled(dataclasses.replace(a, **changes), lengths, growing=growing)
            for model, changes in MODELS.items()
        }
        for model, rows in found[title].items():
            show(console, f"{model}, {title}", rows)
    found["one engine"] = one_engine(a, lengths)
    console.print(found["one engine"])
    found["sensitivity"] = sensitivities(a, lengths)
    for row in found["sensitivity"]:
        console.print(
            row["change"],
            *(
                f"{t}: {row[t]['total_s']:.0f} s {row[t]['efficiency']:.0%} {row[t]['bottleneck']}"
                for t in ("growing", "fixed")
            ),
        )
    for one in found["validation"]:
        console.print(f"{one['what']}: {one['predicted_s']:.2f} s predicted, {one['measured_s']:.2f} s measured")
    draw(found, results_folder(keep=given.keep) / "scaling.svg")
    console.print(store("scaling", found, keep=given.keep))


if __name__ == "__main__":
    main()
