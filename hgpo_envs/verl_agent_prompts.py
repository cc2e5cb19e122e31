"""verl-agent's own prompts, read from a checkout that the user names.

The templates are constants of `agent_system/environments/prompts/<benchmark>.py`. The file is parsed, never executed,
and nothing of it is part of this package. A prompt is filled in as `agent_system/environments/env_manager.py` does: the
template without history at the first step or if the history length is 0; actions in quotes; for WebShop the template
without history again if the prompt has more than 13,000 characters.
"""

from __future__ import annotations

import ast
import string
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_envs.memory import as_text
from hgpo_envs.prompts import PromptTemplate
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_envs.memory import Pair

_FOLDER: Final = Path("agent_system/environments/prompts")
_LONGEST_FILE: Final = 1 << 20
_LONGEST_WEBSHOP: Final = 13_000
"""Characters of a WebShop prompt above which verl-agent leaves out the history."""

_FIELD_NAMES: Final = """
    task_description step_count history_length action_history current_step current_observation admissible_actions
    available_actions
"""
_FIELDS: Final = frozenset(_FIELD_NAMES.split())


class VerlAgentTemplate(PromptTemplate):
    """The prompts of a benchmark in a checkout of verl-agent.

    Args:
        texts: The templates with and without history (`read_constants`).
        benchmark: ALFWorld or WebShop.
        name: Where they come from, for error lines.
    """

    def __init__(self, texts: tuple[str, str], benchmark: str, name: str) -> None:
        self.text = "".join(texts)
        self.name = name
        self.trusted = False
        self.renders_turns = False
        self._texts = texts
        self._benchmark = benchmark

    def __reduce__(self) -> tuple[Callable[..., PromptTemplate], tuple[Any, ...]]:
        return VerlAgentTemplate, (self._texts, self._benchmark, self.name)

    def render(
        self,
        *,
        admissible_actions: Sequence[str],
        pairs: list[Pair],
        steps_taken: int,
        past: str | None = None,
        **others: Any,
    ) -> str:
        """See `PromptTemplate.render`. Line breaks at the start and at the end remain, as in verl-agent."""
        webshop = self._benchmark == "WebShop"
        if webshop:
            actions = "\n".join(f"'{action}'," for action in admissible_actions)
        else:
            actions = "\n ".join(
                f"'{action}'" for action in admissible_actions if action != "help"
            )
        history = as_text(pairs) if past is None else past
        values = {
            "task_description": others["task"],
            "step_count": steps_taken,
            # a memory's text stands for all steps
            "history_length": len(pairs) or steps_taken,
            "action_history": history,
            "current_step": steps_taken + 1,
            "current_observation": others["observation"],
            "admissible_actions": actions,
            "available_actions": actions,
        }
        with_history, without = self._texts
        prompt = (with_history if history else without).format(**values)
        if webshop and len(prompt) > _LONGEST_WEBSHOP:
            prompt = without.format(**values)
        return clean_text(prompt)


def read_constants(checkout: Path, benchmark: str) -> tuple[str, str]:
    """Return the two templates of a benchmark: with history, and without.

    Args:
        checkout: The folder of a checkout of verl-agent.
        benchmark: ALFWorld or WebShop.

    Raises:
        InputError: The file is missing or not Python, or a constant is missing, is no text, or has other fields.
    """
    path = checkout / _FOLDER / f"{benchmark.lower()}.py"
    try:
        source = read_bytes(path, _LONGEST_FILE, "prompt file of verl-agent").decode(
            "utf-8-sig"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in the other constants
            tree = ast.parse(source)
    except (InputError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(
            f"expected a checkout of verl-agent with {_FOLDER / path.name} at {str(checkout)!r} "
            f"({one_line(error, 200)})"
        ) from error
    texts: dict[str, str] = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))
            ):
                texts[name] = text
    templates = []
    for name in (
        f"{benchmark.upper()}_TEMPLATE",
        f"{benchmark.upper()}_TEMPLATE_NO_HIS",
    ):
        if name not in texts:
            raise InputError(
                f"{path}: expected the text {name}, a constant; it is missing"
            )
        _check_fields(texts[name], f"{name} in {path}")
        templates.append(texts[name])
    return templates[0], templates[1]


def _check_fields(template: str, name: str) -> None:
    """Raise unless the template contains only plain fields, without attributes, indices, conversions or formats."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"{name} is not a template: {error}") from error
    for _, field, form, conversion in parts:
        if field is not None and (field not in _FIELDS or form or conversion):
            raise InputError(
                f"{name}: expected the fields {', '.join(sorted(_FIELDS))}, received {one_line(field)!r}"
            )
