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
from typing import TYPE_CHECKING, Final

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDER: Final = Path("agent_system/environments/prompts")
_LONGEST_FILE: Final = 1 << 20
_LONGEST: Final = {"ALFWorld": 1 << 30, "WebShop": 13_000}
"""Characters of a prompt above which verl-agent leaves out the history."""

_FIELDS: Final = {
    "task_description": "{{ task }}",
    "step_count": "{{ steps_taken }}",
    # a memory's text stands for all steps
    "history_length": "{{ history_length or steps_taken }}",
    "action_history": "{{ history }}",
    "current_step": "{{ step }}",
    "current_observation": "{{ observation }}",
    "admissible_actions": "{% for action in admissible_actions if action != 'help' %}"
    "{{ '' if loop.first else '\\n ' }}'{{ action }}'{% endfor %}",
    "available_actions": "{% for action in admissible_actions %}"
    "{{ '' if loop.first else '\\n' }}'{{ action }}',{% endfor %}",
}
"""verl-agent's fields, and what stands for them in a template of this package."""


def read_template(checkout: Path, benchmark: str) -> str:
    """Return the prompts of a benchmark as the text of a Jinja template.

    Args:
        checkout: The folder of a checkout of verl-agent.
        benchmark: ALFWorld or WebShop.

    Raises:
        InputError: The file is missing or not Python, or a constant is missing, is no text, or has other fields.
    """
    with_history, without = _read_constants(checkout, benchmark)
    return (
        f"{{% set whole %}}{with_history}{{% endset %}}"
        f"{{% if history and whole | length <= {_LONGEST[benchmark]} %}}{{{{ whole }}}}"
        f"{{% else %}}{without}{{% endif %}}"
    )


def _read_constants(checkout: Path, benchmark: str) -> list[str]:
    """Return the two templates of a benchmark: with history, and without."""
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
        templates.append("".join(_as_jinja(texts[name], f"{name} in {path}")))
    return templates


def _as_jinja(template: str, name: str) -> Iterator[str]:
    """Yield the parts of a template in Jinja. Its fields must be plain, without attributes, conversions or formats."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"{name} is not a template: {error}") from error
    for literal, field, form, conversion in parts:
        # as a text of Jinja, so that nothing in it is a tag, and no line break is trimmed
        yield f"{{{{ {literal!r} }}}}"
        if field is None:
            continue
        if field not in _FIELDS or form or conversion:
            raise InputError(
                f"{name}: expected the fields {', '.join(sorted(_FIELDS))}, received {one_line(field)!r}"
            )
        yield _FIELDS[field]
