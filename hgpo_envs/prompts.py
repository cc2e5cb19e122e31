"""Prompts: what a policy reads, rendered from a Jinja template that a user can replace.

A template may use these fields, and no others:

| field | type | meaning |
|---|---|---|
| task | str | the instruction, in the benchmark's words |
| observation | str | the state text |
| admissible_actions | list[str] | in the benchmark's order |
| history | str | the last pairs as text, ``[Observation n: '…', Action n: '…']`` a line; empty when none is shown |
| pairs | list of (number, observation, action) | the same pairs, for another form of history |
| history_length | int | how many pairs are shown |
| steps_taken | int | actions so far |
| step | int | the number of this step, from 1 |
| max_steps | int | the step limit |
| action_format | str | ``response`` when tags are asked for, ``command`` the bare action, ``number`` its number |

Beside Jinja's own filters there is ``listed``: ``{{ admissible_actions | listed("help") }}`` quotes the actions, one a
line, and leaves out those that are named; ``numbered`` does the same with each action's number before it, as
``action_format="number"`` counts.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jinja2
import jinja2.meta
import xxhash

from hgpo_envs.errors import InputError, unknown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hgpo_envs.memory import Memory

FIELDS: Final = (
    "task",
    "observation",
    "admissible_actions",
    "history",
    "pairs",
    "history_length",
    "steps_taken",
    "step",
    "max_steps",
    "action_format",
)
"""The fields that a template may use."""

_JINJA = jinja2.Environment(
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=False,  # noqa: S701 - prompts are plain text: nothing is to be escaped
)


def _listed(actions: Iterable[str], *left_out: str) -> str:
    return ",\n ".join([f"'{action}'" for action in actions if action not in left_out])


def _numbered(actions: Iterable[str], *left_out: str) -> str:
    return "\n".join([f"{number}. {action}" for number, action in enumerate(actions, 1) if action not in left_out])


_JINJA.filters["listed"] = _listed
_JINJA.filters["numbered"] = _numbered


class PromptTemplate:
    """A compiled template.

    Args:
        text: The template itself.
        name: Where it comes from, for error lines.

    Raises:
        InputError: The template is not valid Jinja, or uses a field that does not exist.
    """

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        try:
            used = jinja2.meta.find_undeclared_variables(_JINJA.parse(text))
            self._template = _JINJA.from_string(text)
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            raise InputError(f"prompt template {name} is not valid Jinja (line {line}): {error.message}") from error
        for field in sorted(used - set(FIELDS) - set(_JINJA.globals)):
            raise InputError(f"prompt template {name}: {unknown('field', field, FIELDS)}")

    def __reduce__(self) -> tuple[type[PromptTemplate], tuple[str, str]]:
        return PromptTemplate, (self.text, self.name)

    def __deepcopy__(self, memo: dict[int, Any]) -> PromptTemplate:
        return self

    @property
    def fingerprint(self) -> str:
        """The template's xxh3_64, 16 hexadecimal digits: recorded with results that depend on the wording."""
        return xxhash.xxh3_64_hexdigest(self.text.encode("utf-8", "surrogatepass"))

    def render(
        self,
        *,
        task: str,
        observation: str,
        admissible_actions: list[str],
        memory: Memory,
        max_steps: int,
        action_format: str,
        history_length: int | None = None,
    ) -> str:
        """The prompt of one step.

        Args:
            task: The instruction.
            observation: The state text.
            admissible_actions: In the benchmark's order.
            memory: The episode's memory.
            max_steps: The step limit.
            action_format: ``command``, ``response`` or ``number``.
            history_length: Shows at most this many pairs, for a prompt that must be shorter; None shows all K.
        """
        pairs = memory.pairs(history_length)
        return self._template.render(
            task=task,
            observation=observation,
            admissible_actions=admissible_actions,
            history=memory.text(history_length),
            pairs=pairs,
            history_length=len(pairs),
            steps_taken=memory.steps_taken,
            step=memory.steps_taken + 1,
            max_steps=max_steps,
            action_format=action_format,
        ).strip()


def load_template(path: str | Path | None, benchmark: str) -> PromptTemplate:
    """The user's template, or the package's own for this benchmark.

    Raises:
        InputError: The file cannot be read, or is no template.
    """
    if path is None:
        folder = files("hgpo_envs") / "templates"
        own = folder / f"{benchmark.lower()}.j2"
        own = own if own.is_file() else folder / "text.j2"
        return PromptTemplate(own.read_text(encoding="utf-8"), own.name)
    try:
        return PromptTemplate(Path(path).read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"prompt_template: expected a readable UTF-8 file, got {str(path)!r} ({error})") from error
