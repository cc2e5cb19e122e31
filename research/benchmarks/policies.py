"""Measure policies whose action probabilities are known.

    python -m research.benchmarks.policies                    # all parts, some minutes
    python -m research.benchmarks.policies --only settings    # one part: settings, speed, scoring

settings   settings of `softmax`: success, validity, entropy, and how often steps share a context at each depth
speed      CPU time per step of `softmax` beside that of the engine, with few and with many rollouts of a task
scoring    states scored per second by a model of about a million parameters, with and without sharing the prompt

The third part compares with forward passes over each prompt and response, in batches of one prompt and all of its
responses.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from record import add_keep, store
from rich.console import Console
from rich.table import Table

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.episode import Episode
from hgpo_research.policies.softmax import SoftmaxPolicy
from hgpo_train.analysis.statistics import statistics
from hgpo_train.models.tiny import make_model, train_tokenizer
from hgpo_train.policies.base import BatchPolicy, Reply, Request
from hgpo_train.policies.generation import GenerationOptions, encode_prompts
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.policies.transformers import TransformersPolicy
from hgpo_train.rollout.env_handle import EnvHandle, open_env
from hgpo_train.rollout.run import RolloutSpec, collect_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hgpo_train.models.hf import Model

ALFWORLD, WEBSHOP = "HGPO/ALFWorld-v0", "HGPO/WebShop-v0"
SETTINGS: Final = {
    ALFWORLD: [
        ({"skill": 0.3}, 2),
        ({"skill": 0.4}, 2),
        ({"skill": 0.5}, 2),
        ({"skill": 0.7}, 2),
        ({"skill": 1.0}, 2),
        ({"skill": 2.0}, 2),
        ({"skill": 0.5, "temperature": 0.3}, 2),
        ({"skill": 0.5, "temperature": 0.1}, 2),
        ({"skill": 0.2, "temperature": 0.1}, 2),
        ({"skill": 0.5}, 50),
    ],
    WEBSHOP: [
        ({"skill": 0.5}, 2),
        ({"skill": 0.7}, 2),
        ({"skill": 1.0}, 2),
        ({"skill": 2.0}, 2),
        ({"skill": 0.5, "temperature": 0.3}, 2),
        ({"skill": 0.5, "temperature": 0.1}, 2),
        ({"skill": 0.3, "temperature": 0.1}, 2),
        ({"skill": 2.0}, 15),
    ],
}
"""Options of the policy and the history length K of the prompt."""
LEVELS: Final = ("0", "1", "2", "4")
CONSOLE = Console(width=160)


@dataclass
class Entropies(BatchPolicy):
    """A policy that notes the entropy of its distributions, in nats."""

    policy: SoftmaxPolicy
    values: list[float] = field(default_factory=list)
    name, reproducible = "softmax", True

    def __post_init__(self) -> None:
        super().__init__()

    def respond(self, requests: Sequence[Request]) -> Sequence[Any]:
        for distribution in self.policy.distributions(requests):
            positive = distribution.probabilities[distribution.probabilities > 0]
            self.values.append(float(-(positive * np.log(positive)).sum()))
        return self.policy.respond(requests)


def softmax(handle: EnvHandle, **options: Any) -> SoftmaxPolicy:
    made = make_policy("softmax", PolicyContext(handle.shared.source.name, handle.settings.action_format, options))
    assert isinstance(made, SoftmaxPolicy)
    return made


def settings() -> list[dict[str, Any]]:
    rows = []
    shown = [f"k={level}" for level in LEVELS]
    table = Table(
        "environment", "options", "K", "success", "score", "length", "invalid", "entropy", *shown, title="softmax"
    )
    for env_id, listed in SETTINGS.items():
        for options, history_length in listed:
            handle = open_env(env_id, split="all", action_format="response", history_length=history_length)
            policy = Entropies(softmax(handle, **options))
            with tempfile.TemporaryDirectory() as folder:
                with StepWriter(Path(folder) / "run", run="run") as writer:
                    tally = collect_groups(handle, policy, writer, RolloutSpec(tasks=40, group_size=8, seed=1))
                found = statistics(scan_steps(Path(folder) / "run"), history_length=4)
            summary = found.summary.row(0, named=True)
            shared = dict(found.levels.select("level", "shared").iter_rows())
            row = {
                "env": env_id,
                "options": options,
                "history_length": history_length,
                "success": tally.success,
                "score": tally.score / tally.trajectories,
                "length": summary["mean_length"],
                "invalid": summary["invalid"],
                "entropy": float(np.mean(policy.values)),
                "shared": {level: shared[level] for level in LEVELS},
            }
            rows.append(row)
            named = ", ".join(f"{name}={value:g}" for name, value in options.items())
            table.add_row(
                *(env_id, named, str(history_length), f"{row['success']:.0%}", f"{row['score']:.2f}"),
                *(f"{row['length']:.1f}", f"{row['invalid']:.1%}", f"{row['entropy']:.2f}"),
                *(f"{row['shared'][level]:.0%}" for level in LEVELS),
            )
    CONSOLE.print(table)
    return rows


def speed() -> list[dict[str, Any]]:
    """Measure CPU time of the policy's calls and of the engine's, in the same loop."""
    rows = []
    table = Table("environment", "skill", "rollouts a task", "steps", "softmax, µs", "engine, µs", "both, steps/s")
    for env_id, skill, rollouts in ((ALFWORLD, 0.4, 8), (ALFWORLD, 0.4, 64), (ALFWORLD, 1.0, 64), (WEBSHOP, 1.0, 64)):
        handle = open_env(env_id, split="all", action_format="command")
        policy, steps, spent = softmax(handle, skill=skill), 0, {"policy": 0.0, "engine": 0.0}
        episode = Episode(handle.shared, handle.settings)
        for task in list(handle.tasks)[:16]:
            for _ in range(rollouts):
                episode.start(task)
                while not episode.done:
                    began = time.thread_time()
                    (reply,) = policy.respond([request(episode, seed=steps)])
                    assert isinstance(reply, Reply)
                    asked = time.thread_time()
                    episode.act(reply.response)
                    spent["policy"] += asked - began
                    spent["engine"] += time.thread_time() - asked
                    steps += 1
        each = {name: 1e6 * seconds / steps for name, seconds in spent.items()}
        rows.append({"env": env_id, "skill": skill, "rollouts": rollouts, "steps": steps, **each})
        both = 1e6 / sum(each.values())
        table.add_row(
            env_id, f"{skill}", f"{rollouts}", f"{steps:,}", *(f"{v:.1f}" for v in each.values()), f"{both:,.0f}"
        )
    CONSOLE.print(table)
    return rows


def request(episode: Episode, *, seed: int = 0, prompt: str = "") -> Request:
    step = episode.steps_taken
    return Request(seed, prompt, seed, 0, step, episode.task, episode.state, None, episode.prompt, episode.history)


def states(env_id: str, action_format: str, count: int) -> Iterator[Request]:
    """Yield states of a softmax policy's episodes with their prompts, without open queries."""
    handle = open_env(env_id, split="all", action_format=action_format)
    policy, number = softmax(handle, skill=0.5), 0
    for task in handle.tasks:
        episode = Episode(handle.shared, handle.settings)
        episode.start(task)
        while not episode.done:
            asked = request(episode, seed=number, prompt=episode.prompt())
            if not any("<your query>" in action for action in episode.state.actions):
                number += 1
                yield asked
            if number == count:
                return
            (reply,) = policy.respond([asked])
            assert isinstance(reply, Reply)
            episode.act(reply.response)


def scoring() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    rows = []
    table = Table(
        "environment",
        "format",
        "prompt, tokens",
        "actions",
        "shared, states/s",
        "whole, states/s",
        "ratio",
        "largest difference",
    )
    for env_id, action_format in ((ALFWORLD, "number"), (ALFWORLD, "command"), (WEBSHOP, "number")):
        asked = list(states(env_id, action_format, 64))
        tokenizer = train_tokenizer([one.prompt for one in asked], 1024)
        model = make_model(tokenizer)
        options = GenerationOptions(max_response_tokens=40)
        policy = TransformersPolicy(model, tokenizer, options, action_format=action_format)
        policy.distributions(asked[:8])
        began = time.thread_time()
        found = [one for first in range(0, 64, 16) for one in policy.distributions(asked[first : first + 16])]
        shared_s = time.thread_time() - began
        prompts = encode_prompts(tokenizer, [one.prompt for one in asked])
        began = time.thread_time()
        whole = [
            whole_passes(model, prompt, [tokenizer.encode(text) for text in one.responses[:-1]], tokenizer.eos_token_id)
            for prompt, one in zip(prompts[:16], found, strict=False)
        ]
        whole_s = (time.thread_time() - began) * 64 / 16
        logs = [np.log(one.probabilities[:-1]) - other for one, other in zip(found, whole, strict=False)]
        row = {
            "env": env_id,
            "format": action_format,
            "prompt": float(np.mean([len(prompt) for prompt in prompts])),
            "actions": float(np.mean([len(one.responses) - 1 for one in found])),
            "shared_states_s": 64 / shared_s,
            "whole_states_s": 64 / whole_s,
            "largest_difference": float(max(np.abs(log).max() for log in logs)),
        }
        rows.append(row)
        table.add_row(
            *(env_id, action_format, f"{row['prompt']:.0f}", f"{row['actions']:.0f}", f"{row['shared_states_s']:.1f}"),
            *(f"{row['whole_states_s']:.1f}", f"{whole_s / shared_s:.1f}", f"{row['largest_difference']:.1e} nats"),
        )
    CONSOLE.print(table)
    return rows


def whole_passes(model: Model, prompt: list[int], responses: list[list[int]], end: int) -> np.ndarray:
    """Return log-probabilities of responses, each by a whole forward pass, in one batch."""
    rows = [[*prompt, *response, end] for response in responses]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    with torch.inference_mode():
        logits = model(tokens, logits_to_keep=width - len(prompt) + 1).logits[:, :-1]
        table = torch.log_softmax(logits.double(), -1).gather(2, tokens[:, len(prompt) :, None])[..., 0]
    kept = torch.arange(width - len(prompt)) < torch.tensor([len(row) - len(prompt) for row in rows])[:, None]
    return np.asarray((table * kept).sum(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=("settings", "speed", "scoring"))
    add_keep(parser)
    arguments = parser.parse_args()
    for name, part in (("settings", settings), ("speed", speed), ("scoring", scoring)):
        if arguments.only in (None, name):
            CONSOLE.print(store(f"policies_{name}", {"rows": part()}, keep=arguments.keep))


if __name__ == "__main__":
    main()
