"""Parse the prompts and responses of verl-agent's ALFWorld and WebShop environments.

Source: verl-agent, agent_system/environments/prompts/{alfworld,webshop}.py, agent_system/memory/memory.py, and the
projections that `hgpo_envs.responses` follows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from hgpo_envs.environment_spec import spec_named
from hgpo_envs.responses import parse

_BENCHMARKS: Final = {
    "ALFWorld": "You are an expert agent operating in the ALFRED Embodied Environment.",
    "WebShop": "You are an expert autonomous agent operating in the WebShop",
}
_TAKEN: Final = re.compile(r"you have already taken (\d+) step\(s\)")
_STATE: Final = re.compile(r"our current observation is: (.*?)\nYour admissible actions of the current", re.DOTALL)
_ACTIONS: Final = re.compile(
    r"actions of the current situation are:\s*\[\n?(.*?)\n?\]\.\n\nNow it's your turn", re.DOTALL
)
_TASK: Final = re.compile(r"Your task is to: (.*?)\n")


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    """Contents of a prompt.

    Attributes:
        benchmark: ALFWorld or WebShop.
        task: The instruction; None if the prompt does not contain it.
        step: Number of earlier steps.
        state: The current observation.
        actions: The admissible actions.
    """

    benchmark: str
    task: str | None
    step: int
    state: str
    actions: tuple[str, ...]


def read_prompt(prompt: str) -> ParsedPrompt | None:
    """Parse a prompt, with or without a chat template around it.

    Returns:
        The contents; None if the prompt is truncated or of another template.
    """
    benchmark = next((name for name, opening in _BENCHMARKS.items() if opening in prompt), None)
    state, actions, taken = _STATE.search(prompt), _ACTIONS.search(prompt), _TAKEN.search(prompt)
    if benchmark is None or state is None or actions is None:
        return None
    dot = "." if benchmark == "WebShop" else ""  # its template adds one after the task and the observation
    task = _TASK.search(prompt)
    return ParsedPrompt(
        benchmark=benchmark,
        task=task[1].strip().removesuffix(dot) if task else None,
        step=int(taken[1]) if taken else 0,
        state=state[1].removesuffix(dot),
        actions=tuple(re.split(r"',?\n\s?'", actions[1].strip().removesuffix(",")[1:-1])) if actions[1] else (),
    )


def read_response(response: str, benchmark: str | None) -> tuple[str, bool]:
    """Return the action in a response, and whether the response has the form that verl-agent calls valid."""
    spec = None if benchmark is None else spec_named(benchmark)
    found = parse(response, lowercase=True) if spec is None else spec.parse_response(response)
    return found.action, found.valid
