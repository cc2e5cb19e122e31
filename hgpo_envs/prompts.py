"""Prompts: the input of a policy, rendered from a Jinja template that a user can replace.

A template may use only these fields:

| field | type | meaning |
|---|---|---|
| task | str | the instruction, in the benchmark's words |
| observation | str | the state text |
| admissible_actions | list[str] | in the benchmark's order |
| history | str | the last pairs, one line ``[Observation n: '…', Action n: '…']`` each, or the memory's text |
| pairs | list of (number, observation, action) | the same pairs, for other formats; none with a memory |
| history_length | int | the number of these pairs |
| steps_taken | int | the number of actions so far |
| step | int | the number of this step, from 1 |
| max_steps | int | the step limit |
| action_format | str | ``response`` (with tags), ``command`` (the action alone) or ``number`` (its number) |
| info | dict | the state's further fields (`State.info`), such as counters that are shown but not compared |
| prompt_style | str | ``memory`` or ``chat`` (see below) |
| tools | str | the names of the tools that an action calls, separated by commas; empty without tools |
| action_tag | str | the tag of the action in a response (`EnvironmentSpec.action_tag`); empty if there is none |
| response_form | str | how `EnvironmentSpec.format_response` writes ``your action``; empty without it |

With ``prompt_style="chat"``, the first message of a conversation is this template without pairs. The messages after it
show the new state and the admissible actions (``turn.j2``), unless the template uses the field `prompt_style`: then it
renders all messages, and ``steps_taken`` is 0 in the first.

Templates are rendered in Jinja's sandbox, which keeps them from Python's internals. Two filters are added:
``{{ admissible_actions | listed("help") }}`` quotes the actions, one per line, without the named ones; ``numbered``
writes each action's number before it, as ``action_format="number"`` requires.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jinja2
import jinja2.meta
import xxhash
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hgpo_envs.environment_spec import spec_named
from hgpo_envs.errors import InputError, one_line, unknown
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hgpo_envs.memory import Pair

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
    "info",
    "prompt_style",
    "tools",
    "action_tag",
    "response_form",
)
"""The fields that a template may use."""

PLACEHOLDER: Final = "your action"
"""What stands for the action in the form of a response."""

VERL_AGENT: Final = "verl-agent:"
"""The prefix of a template's name, before the path of a checkout of verl-agent."""

LARGEST_TEMPLATE: Final = 1 << 19
"""The maximum size of a template's file in bytes."""

_SANDBOX: Final = ImmutableSandboxedEnvironment(
    autoescape=False,  # prompts are plain text
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def _listed(actions: Sequence[str], *left_out: str) -> str:
    shown = list(actions)
    for action in left_out:
        for _ in range(shown.count(action)):
            shown.remove(action)
    return "'" + "',\n '".join(shown) + "'" if shown else ""


def _numbered(actions: Iterable[str], *left_out: str) -> str:
    return "\n".join(
        [
            f"{number}. {action}"
            for number, action in enumerate(actions, 1)
            if action not in left_out
        ]
    )


_SANDBOX.filters |= {"listed": _listed, "numbered": _numbered}


class Answer(NamedTuple):
    """What a benchmark expects of a response: the template's fields of these names."""

    tools: str = ""
    action_tag: str = "action"
    response_form: str = ""


_TAGGED: Final = Answer()


class PromptTemplate:
    """A compiled template.

    Args:
        text: The template.
        name: Its origin, for error messages.
        trusted: Whether it is one of this package or of an installed benchmark, which need no test before the first
            episode.
        answer: What the benchmark expects of a response.
        stripped: Whether prompts have no white space at their ends.

    Attributes:
        fingerprint: The xxh3_64 hash of the template, 16 hexadecimal digits, which is stored with results.

    Raises:
        InputError: The template is not valid Jinja, or uses a field that does not exist.
    """

    def __init__(
        self,
        text: str,
        name: str,
        trusted: bool = False,
        answer: Answer = _TAGGED,
        stripped: bool = True,
    ) -> None:
        self._arguments = (text, name, trusted, answer, stripped)
        self.text = text
        self.name = name
        self.trusted = trusted
        self.answer = answer
        self._stripped = stripped
        self.fingerprint = xxhash.xxh3_64_hexdigest(
            text.encode("utf-8", "surrogatepass")
        )
        try:
            used = jinja2.meta.find_undeclared_variables(_SANDBOX.parse(text))
            # A macro has the fields as its arguments, which takes half of the time of a context. The line break ends a
            # brace at the template's end, and is no part of the prompt.
            macro = f"{{% macro prompt({', '.join(FIELDS)}) %}}{text}\n{{% endmacro %}}"
            self._template = _SANDBOX.from_string(macro)
            self._prompt: Callable[..., str] = self._template.module.prompt  # type: ignore[attr-defined]
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            reason = one_line(error.message or type(error).__name__, 300)
            raise InputError(
                f"prompt template {name} is not valid Jinja (line {line}): {reason}"
            ) from error
        except Exception as error:
            # not checked by Jinja's parser: nesting, numbers of thousands of digits
            raise InputError(
                f"prompt template {name} cannot be compiled: {one_line(error, 300)}"
            ) from error
        self.renders_turns = "prompt_style" in used
        for field in sorted(used - set(FIELDS) - set(_SANDBOX.globals)):
            raise InputError(
                f"prompt template {name}: {unknown('field', field, FIELDS)}"
            )

    def __reduce__(self) -> tuple[Callable[..., PromptTemplate], tuple[object, ...]]:
        return PromptTemplate, self._arguments

    def __deepcopy__(self, memo: dict[int, Any]) -> PromptTemplate:
        return self

    def render(
        self,
        *,
        admissible_actions: Sequence[str],
        pairs: list[Pair],
        steps_taken: int,
        past: str | None = None,
        task: str,
        observation: str,
        max_steps: int,
        action_format: str,
        info: Mapping[str, Any] = {},
        prompt_style: str = "memory",
    ) -> str:
        """Render the prompt of one step.

        The arguments are fields of the template (see the module), from which others are derived.

        Args:
            admissible_actions: A field.
            pairs: A field.
            steps_taken: A field.
            past: The text of a memory, which stands for the pairs.
            task: A field.
            observation: A field.
            max_steps: A field.
            action_format: A field.
            info: A field.
            prompt_style: A field.

        Raises:
            InputError: The template fails, or the actions are no list.
        """
        actions: object = admissible_actions
        # the test of an abstract class takes longer than a list of the actions
        if type(actions) is not tuple and not isinstance(actions, Sequence):
            raise InputError(
                f"actions: expected a list of texts, received {type(actions).__name__}"
            )
        if past is None:
            # as in verl-agent's agent_system/memory
            past = "\n".join(
                [
                    f"[Observation {number}: '{observed}', Action {number}: '{action}']"
                    for number, observed, action in pairs
                ]
            )
        fields = (  # in the order of `FIELDS`
            task,
            observation,
            list(admissible_actions),
            past,
            pairs,
            len(pairs),
            steps_taken,
            steps_taken + 1,
            max_steps,
            action_format,
            info,
            prompt_style,
            *self.answer,
        )
        try:
            prompt = self._prompt(*fields)
            if self._stripped:
                prompt = prompt.strip()
            return clean_text(prompt)
        except Exception as error:  # a template can raise any exception
            frames = traceback.walk_tb(error.__traceback__)
            lines = [
                line
                for frame, line in frames
                if frame.f_code.co_filename == "<template>"
            ]
            where = (
                f" at line {self._template.get_corresponding_lineno(lines[-1])}"
                if lines
                else ""
            )
            reason = one_line(error, 300) or type(error).__name__
            raise InputError(
                f"prompt template {self.name} fails{where}: {reason}"
            ) from error


_compiled = lru_cache(maxsize=64)(PromptTemplate)
"""A cache: templates are immutable, and compiling one takes most of the time of a second `gymnasium.make`."""


def turn_template(template: PromptTemplate) -> PromptTemplate:
    """Return the template of the messages after the first one in a conversation that begins with a template."""
    if template.renders_turns:
        return template
    return _compiled(
        (files("hgpo_envs") / "turn.j2").read_text(encoding="utf-8"),
        "turn.j2",
        trusted=True,
    )


@cache
def bundled_templates() -> dict[str, Path]:
    """Return the files of the templates in this package by name, besides those of the benchmarks."""
    folder = Path(str(files("hgpo_envs") / "templates")).resolve()
    return {path.stem: path for path in sorted(folder.glob("*.j2"))}


def load_template(path: str | Path | None, benchmark: str) -> PromptTemplate:
    """Load a template.

    A path of the form ``verl-agent:FOLDER`` means the prompts of a checkout of verl-agent in that folder.

    Args:
        path: A file, or the name of a bundled template if there is no such file; None loads the benchmark's template,
            or the general one if it has none.
        benchmark: The benchmark's name.

    Raises:
        InputError: There is no such file or name, the file cannot be read, or it is not a valid template.
    """
    spec = spec_named(benchmark)
    answer = _TAGGED
    if spec is not None:
        tools = [tool["function"]["name"] for tool in spec.tools]
        answer = Answer(
            ", ".join(tools) if spec.takes_calls else "",
            spec.action_tag,
            spec.respond(PLACEHOLDER) if spec.format_response else "",
        )
    if path is None:
        if spec is not None and spec.template is not None:
            return _compiled(
                spec.template, f"of {benchmark}", trusted=True, answer=answer
            )
        text = (files("hgpo_envs") / "prompt.j2").read_text(encoding="utf-8")
        return _compiled(text, "prompt.j2", trusted=True, answer=answer)
    if isinstance(path, str) and path.startswith(VERL_AGENT):
        from hgpo_envs.verl_agent_prompts import read_template

        checkout = Path(path.removeprefix(VERL_AGENT))
        return PromptTemplate(read_template(checkout, benchmark), path, stripped=False)
    if not isinstance(path, str | Path):
        raise InputError(
            f"prompt_template: expected the path of a file, received {path!r}"
        )
    known = bundled_templates()
    file = Path(path)
    if str(path) in known and not file.is_file():
        file = known[str(path)]
    elif not os.path.lexists(path):
        raise InputError(
            f"prompt_template: {unknown('template or missing file', str(path), known)}"
        )
    try:
        text = read_bytes(file, LARGEST_TEMPLATE, "prompt template").decode("utf-8-sig")
    except (InputError, UnicodeDecodeError) as error:
        raise InputError(
            f"prompt_template: expected a readable UTF-8 file, received {str(file)!r} ({error})"
        ) from error
    bundled = file.resolve() in known.values()
    return _compiled(
        text.replace("\r\n", "\n"), str(file), trusted=bundled, answer=answer
    )
