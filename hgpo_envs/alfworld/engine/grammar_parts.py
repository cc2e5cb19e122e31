"""Splitting of planning domains and text grammars into parts.

A *part* of a domain is one of its forms (an action, its types) without comments and layout. A part of a grammar is an
action's template or feedback, or a text rule.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


@cache
def bundled() -> tuple[str, str]:
    """Return the planning domain and text grammar of alfworld 0.4 (`alfred.pddl`, `alfred.twl2`; MIT, NOTICE)."""
    folder = files("hgpo_envs.alfworld").joinpath("bundled")
    return folder.joinpath("alfred.pddl").read_text("utf-8"), folder.joinpath(
        "alfred.twl2"
    ).read_text("utf-8")


def domain_parts(domain: str) -> dict[str, str]:
    """Return the forms of a planning domain by name (`action look`, `types`), without comments and layout.

    >>> domain_parts("(define (domain d) (:action Look :effect (and (seen ?x))))")
    {'domain d': '(domain d)', 'action look': '(:action look :effect(and(seen ?x)))'}
    """
    plain = re.sub(r"\s+", " ", re.sub(r";[^\n]*", "", domain).lower())
    plain = re.sub(r" ?([()]) ?", r"\1", plain)
    return dict(_forms(plain))


def _forms(plain: str) -> Iterator[tuple[str, str]]:
    """Yield the forms one level inside the outermost form, with their names."""
    depth = start = 0
    for bracket in re.finditer(r"[()]", plain):
        if bracket[0] == "(":
            depth += 1
            start = bracket.start() if depth == 2 else start
        else:
            if depth == 2:
                form = plain[start : bracket.end()]
                head = form.strip("(:)").replace("(", " ").split(" ")
                yield (
                    " ".join(head[:2] if head[0] in ("action", "domain") else head[:1]),
                    form,
                )
            depth -= 1


_TOKEN = re.compile(
    r'"""(?P<block>.*?)"""|"(?P<text>[^"]*)"|#[^\n]*|(?P<word>[\w/.-]+|[{}])', re.DOTALL
)


def grammar_parts(grammar: str) -> dict[str, str]:
    """Return the parts of a text grammar by name: `action look template`, `action look feedback`, and rules' names.

    >>> grammar_parts('action look { template :: "look"; grammar :: \"\"\"{"a": [{"rhs": "b"}]}\"\"\"; }')
    {'action look template': 'look', 'a': '[{"rhs": "b"}]'}
    """
    parts: dict[str, str] = {}
    action = field = ""
    opening = False
    for token in _TOKEN.finditer(grammar):
        if token["block"] is not None:
            parts |= {
                name: json.dumps(rule, sort_keys=True)
                for name, rule in _rules(token["block"]).items()
            }
        elif token["text"] is not None:
            parts[f"action {action} {field}"] = token["text"]
        elif token["word"] == "action":
            opening = True
        elif opening and token["word"]:
            action = token["word"]
            opening = False
        elif token["word"] in ("template", "feedback"):
            field = token["word"]
    return parts


def _rules(block: str) -> dict[str, Any]:
    """Return the JSON object in a grammar block, where lines that start with # are comments."""
    lines = [line for line in block.split("\n") if not line.lstrip().startswith("#")]
    try:
        rules = json.loads("\n".join(lines))
    except ValueError as error:
        raise InputError(f"a block of the grammar is not JSON: {error}") from None
    if not isinstance(rules, dict):
        raise InputError("a block of the grammar is not a JSON object of rules")
    return rules
