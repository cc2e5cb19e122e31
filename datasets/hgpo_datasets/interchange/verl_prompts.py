"""What verl-agent's ALFWorld and WebShop prompts say of a step.

Source: verl-agent, agent_system/environments/prompts/{alfworld,webshop}.py, agent_system/memory/memory.py, and the
projections that `hgpo_envs.responses` follows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from hgpo_envs.responses import DEFAULT_FALLBACK_CHARACTERS, FALLBACK_CHARACTERS, parse

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
    """What a prompt shows.

    Attributes:
        benchmark: ALFWorld or WebShop.
        task: The instruction; None where it is not shown.
        step: Steps taken before this one.
        state: The current observation.
        actions: The admissible actions.
    """

    benchmark: str
    task: str | None
    step: int
    state: str
    actions: tuple[str, ...]


def read_prompt(prompt: str) -> ParsedPrompt | None:
    """What a prompt shows; None when it is not of these templates, or was cut.

    Chat templates may stand around it.
    """
    benchmark = next((name for name, opening in _BENCHMARKS.items() if opening in prompt), None)
    state, actions, taken = _STATE.search(prompt), _ACTIONS.search(prompt), _TAKEN.search(prompt)
    if benchmark is None or state is None or actions is None:
        return None
    dot = "." if benchmark == "WebShop" else ""  # its template puts one after task and observation
    task = _TASK.search(prompt)
    return ParsedPrompt(
        benchmark=benchmark,
        task=task[1].strip().removesuffix(dot) if task else None,
        step=int(taken[1]) if taken else 0,
        state=state[1].removesuffix(dot),
        actions=tuple(re.split(r"',?\n\s?'", actions[1].strip().removesuffix(",")[1:-1])) if actions[1] else (),
    )


def read_response(response: str, benchmark: str | None) -> tuple[str, bool]:
    """The action in a response, and whether the response keeps the form: what verl-agent calls valid."""
    found = parse(response, FALLBACK_CHARACTERS.get(benchmark or "", DEFAULT_FALLBACK_CHARACTERS))
    return found.action, found.valid
