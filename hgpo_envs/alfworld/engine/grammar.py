"""Recognition of the rules and the wording in a game file.

A game file contains its complete planning domain and text grammar. All published versions (alfworld 0.2 to 0.5) differ
in a few parts only. Both texts are therefore split into parts (`grammar_parts.py`), and each part is compared with that
of the bundled files, which the engine implements. The parts that may differ are the game's wording: the command that
puts an object down, the name of the place on arrival, and whether there is `help`. Other differences raise an error
that names the part. The result is cached, because many games share the same texts.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.alfworld.engine.grammar_parts import bundled, domain_parts, grammar_parts
from hgpo_envs.errors import InputError, check_known
from hgpo_envs.task_wordings import Wording

if TYPE_CHECKING:
    from collections.abc import Mapping

HELP: Final = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The wording of a game.

    Attributes:
        name: `move` or `put`, after the command that puts an object down.
        put: The format of this command, with the fields `object` and `receptacle`.
        puts: The format of the observation after it, with the same fields.
        arrives_at_location: Whether the observation on arrival names the location ("loc 12") instead of the receptacle.
        help: The observation of `help`, or None if there is no such command.
    """

    name: str
    put: str
    puts: str
    arrives_at_location: bool
    help: str | None

    @property
    def words(self) -> str:
        """What commands call this wording: the command that puts an object down, and the versions that have it.

        >>> MOVE.words, PUT.words
        ('move … to … (alfworld 0.4 and later)', 'put … in/on … (alfworld 0.3 and before)')
        """
        command = self.put.format(object="…", receptacle="…")
        return f"{command} ({_RELEASES[self.name]})"


_RELEASES: Final = {"move": "alfworld 0.4 and later", "put": "alfworld 0.3 and before"}
"""The versions of alfworld that install a wording and download games with it (read in 0.2.2 to 0.4.2)."""

MOVE: Final = Grammar(
    "move",
    "move {object} to {receptacle}",
    "You move the {object} to the {receptacle}.",
    False,
    HELP,
)
"""The wording of alfworld 0.4 and later."""
PUT: Final = Grammar(
    "put",
    "put {object} in/on {receptacle}",
    "You put the {object} in/on the {receptacle}.",
    True,
    None,
)
"""The wording of alfworld 0.3 and before (json_2.1.1)."""
GRAMMARS: Final = {grammar.name: grammar for grammar in (MOVE, PUT)}

_NAMES: Final = (
    r"[{(\[<]+[^{}()\[\]<>\n]{1,40}[})\]>]+",  # {obj}, (object), [object], <object>
    r"(?:the )?[a-z]+ \d+",  # mug 1, the mug 1
    r"obj(?:ect)?|recep(?:tacle)?|\b[a-z]\b",  # object, X
    r"…|\.\.\.|__+",
)
"""Objects and places in prompts that explain commands or show examples of them."""
_PHRASES: Final = {
    "move": r"\bmove (?:{0}) to (?:{0})".format("|".join(_NAMES)),
    "put": r"\bput\b[^.\n]{1,60}?\bin ?/ ?on\b",
}
"""What prompts for a wording say. Everyday English does not: "move to the next step", "put the action in tags"."""
WORDINGS: Final = {
    f"grammar={name}": Wording(each.words, _PHRASES[name])
    for name, each in GRAMMARS.items()
}
"""The wordings for `hgpo_envs.environment_spec.EnvironmentSpec`."""

_TASK = re.compile(r'("rhs"\s*:\s*"Your task is to: )([^";|<>\[\]#{}\\\n\t]*)(")')


def split_task(grammar: str) -> tuple[str, str]:
    """Remove the task sentence from a grammar text.

    Returns:
        The text with an empty task, and the task: the text after "Your task is to: ", including the full stop.

    Raises:
        InputError: If the grammar contains no task.

    >>> split_task('{"rhs": "Your task is to: put a mug in shelf."}')
    ('{"rhs": "Your task is to: "}', 'put a mug in shelf.')
    """
    match = _TASK.search(grammar)
    if match is None:
        raise InputError(
            'no task in the grammar: expected a rule "Your task is to: …" with plain text'
        )
    return grammar[: match.start(2)] + grammar[match.end(2) :], match[2]


def join_task(grammar: str, task: str) -> str:
    """Insert a task into a grammar text with an empty task. This is the inverse of `split_task`."""
    match = _TASK.search(grammar)
    if match is None:
        raise InputError(
            'no place for a task in the grammar: expected a rule "Your task is to: …"'
        )
    return grammar[: match.start(2)] + task + grammar[match.end(2) :]


_PUT_COMMANDS: Final = {
    "move {o} to {r}": MOVE.put,
    "put {o} in/on {r}": PUT.put,
}
_PUT_FEEDBACK: Final = {
    "You move the {o.name} to the {r.name}.": MOVE.puts,
    "You put the {o.name} in/on the {r.name}.": PUT.puts,
}
_ARRIVALS: Final = {
    "You arrive at {r.name}. #examineReceptacle.feedback#": False,
    "You arrive at {lend.name}. #examineReceptacle.feedback#": True,
}


_WORDING: Final = frozenset(
    {
        "action PutObject template",
        "PutObject.feedback",
        "GotoLocation.feedback",
        "action help template",
        "action help feedback",
        "help.feedback",
    }
)
"""The parts of a grammar that determine its wording."""
_UNUSED: Final = re.compile(
    r"ReceptacleObject|overview_|overview\(o, r\)|notImplemented"
)
"""The parts of a grammar for actions that no domain contains, and rules that no other part uses."""


@cache
def _known() -> tuple[dict[str, str], dict[str, str]]:
    """Return the parts of a domain and of a grammar that the engine implements and that must not differ."""
    domain, grammar = bundled()
    actions = domain_parts(domain)
    parts = grammar_parts(split_task(grammar)[0])
    return (
        {
            name: part
            for name, part in actions.items()
            if name == "types" or name.startswith("action")
        },
        {
            name: part
            for name, part in parts.items()
            if name not in _WORDING and not _UNUSED.search(name)
        },
    )


@lru_cache(4)  # it is called for every game, but with few distinct texts
def recognise(domain: str, grammar: str) -> Grammar:
    """Return the wording of a game from its domain and its grammar without a task (`split_task`).

    Raises:
        InputError: If a part of either differs from the engine's rules. The message names the part.
    """
    bundled_domain, bundled_grammar = bundled()
    if domain == bundled_domain and grammar == split_task(bundled_grammar)[0]:
        return MOVE  # a fast path for most games
    actions = domain_parts(domain)
    parts = grammar_parts(grammar)
    has_help = "action help" in actions
    known_actions, known_parts = _known()
    _compare(
        "domain",
        actions,
        {k: v for k, v in known_actions.items() if has_help or k != "action help"},
    )
    _compare("grammar", parts, known_parts)
    # the text of `help`, in a rule or in the action itself
    feedback = parts.get("action help feedback", "")
    shown = (
        _plain_rule(parts, "help.feedback")
        if feedback == "#help.feedback#"
        else feedback
    )
    helps = parts.get("action help template") == "help" and shown == f"\n{HELP}"
    choices = (
        (
            "action PutObject template",
            _PUT_COMMANDS.get(parts.get("action PutObject template", "")),
        ),
        (
            "PutObject.feedback",
            _PUT_FEEDBACK.get(_plain_rule(parts, "PutObject.feedback")),
        ),
        (
            "GotoLocation.feedback",
            _ARRIVALS.get(_plain_rule(parts, "GotoLocation.feedback")),
        ),
        ("help", not has_help or helps or None),
    )
    wrong = [name for name, choice in choices if choice is None]
    if wrong:
        raise _unknown("grammar", wrong)
    (_, put), (_, puts), (_, arrives), _ = choices
    return Grammar(
        str(put).split()[0],
        str(put),
        str(puts),
        bool(arrives),
        HELP if has_help else None,
    )


def _plain_rule(parts: Mapping[str, str], name: str) -> str:
    """Return the text of a rule with one unconditional alternative. Empty for other rules."""
    rule = json.loads(parts.get(name, "[]"))
    plain = len(rule) == 1 and set(rule[0]) == {"rhs"}
    return str(rule[0]["rhs"]) if plain else ""


def _compare(kind: str, parts: Mapping[str, str], known: Mapping[str, str]) -> None:
    wrong = [name for name, expected in known.items() if parts.get(name) != expected]
    wrong += [
        name
        for name in parts
        if name.startswith("action") and kind == "domain" and name not in known
    ]
    if wrong:
        raise _unknown(kind, wrong)


def _unknown(kind: str, wrong: list[str]) -> InputError:
    named = ", ".join(repr(name) for name in wrong[:4])
    return InputError(
        f"unknown {kind}: {named}{' and more' if len(wrong) > 4 else ''} not as in alfworld 0.2 to 0.5, which the "
        f"native engine supports; use backend='original' for any other {kind}"
    )


_HELP_ACTION: Final = "(:action help :parameters (?a - agent) :precondition () :effect (and (checked ?a)))"
_HELP_FEEDBACK: Final = json.dumps({"help.feedback": [{"rhs": f"\n{HELP}"}]})
_HELP_TEXT: Final = (
    '\naction help { template :: "help"; feedback :: "#help.feedback#"; '
    f'grammar :: """{_HELP_FEEDBACK}"""; }}\n'
)
_REWORDED: Final = (
    ("move {o} to {r}", "put {o} in/on {r}"),
    (
        "You move the {o.name} to the {r.name}.",
        "You put the {o.name} in/on the {r.name}.",
    ),
    ("You arrive at {r.name}. #", "You arrive at {lend.name}. #"),
)
"""The texts of a grammar that differ between the `move` and the `put` wording."""


def convert(file: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a game file converted to another wording. The game itself is unchanged.

    Args:
        file: The JSON object of a game file.
        name: `move` or `put`.

    Raises:
        InputError: If there is no such wording, or if the file's wording is unknown.
    """
    check_known("grammar", name, GRAMMARS)
    domain = file["pddl_domain"]
    grammar = file["grammar"]
    wording, _ = split_task(grammar)
    if recognise(domain, wording).name != name:
        for move, put in _REWORDED:
            grammar = (
                grammar.replace(put, move)
                if name == "move"
                else grammar.replace(move, put)
            )
        if name == "put":
            domain = re.sub(
                r"\(:action help\b.*?\(checked \?a\)\s*\)\s*\)",
                "",
                domain,
                flags=re.DOTALL,
            )
            grammar = re.sub(
                r"\naction help \{(?:[^\n]+\}|.*?\n\})(?=\s|$)",
                "",
                grammar,
                flags=re.DOTALL,
            )
        elif "action help" not in domain_parts(domain):
            head, _, tail = domain.rpartition(")")
            domain = f"{head}{_HELP_ACTION}){tail}"
            grammar += _HELP_TEXT
    converted = {**file, "pddl_domain": domain, "grammar": grammar}
    if file.get("walkthrough"):
        pattern = r"^put (.+) in/on (.+)$"
        words = r"move \1 to \2"
        if name == "put":
            pattern = r"^move (.+) to (.+)$"
            words = r"put \1 in/on \2"
        converted["walkthrough"] = [
            re.sub(pattern, words, command) for command in file["walkthrough"]
        ]
    return converted
