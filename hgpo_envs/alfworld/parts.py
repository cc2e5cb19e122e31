"""Takes planning domains and text grammars apart, and knows the parts that the engine plays, by digest.

A *part* of a domain is one of its forms (an action, its types), comments and layout aside. A part of a grammar is an
action's template or feedback, or a text rule. The digests of `DOMAIN` and `GRAMMAR` are those of `alfred.pddl` and
`alfred.twl2` of alfworld 0.2 to 0.5, which are the same in all of them but for what `grammar.py` tells apart.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DOMAIN: Final = {
    "types": "475498af",
    "action look": "3b7b01ac",
    "action inventory": "e41634b6",
    "action examinereceptacle": "2bcd6ffb",
    "action examineobject": "b09ff3b1",
    "action gotolocation": "e3ba3612",
    "action openobject": "ef233bd4",
    "action closeobject": "7df5e297",
    "action pickupobject": "54b63dba",
    "action putobject": "a496268a",
    "action cleanobject": "d7ea4322",
    "action heatobject": "b4aee7ab",
    "action coolobject": "3760da4f",
    "action toggleobject": "afca4c19",
    "action sliceobject": "5522c5d7",
    "action help": "a9be50b0",
}
GRAMMAR: Final = {
    "intro": "216083ba",
    "task": "4f5c2c7f",
    "OpenObject.feedback": "1af5096c",
    "CloseObject.feedback": "01cf143f",
    "PickupObject.feedback": "4dec34b2",
    "inventory.feedback": "10a90af7",
    "examineReceptacle.feedback": "5c4c29e4",
    "examineObject.feedback": "384fc0bd",
    "action GotoLocation template": "354d7720",
    "action GotoLocation feedback": "629695d4",
    "action OpenObject template": "c709f77d",
    "action OpenObject feedback": "57b92012",
    "action CloseObject template": "f34b6930",
    "action CloseObject feedback": "ec4f5fa1",
    "action PickupObject template": "b345d301",
    "action PickupObject feedback": "cc9dad9f",
    "action PutObject feedback": "59591a36",
    "action inventory template": "b11a85b2",
    "action inventory feedback": "c8855cfe",
    "action examineReceptacle template": "b00d6277",
    "action examineReceptacle feedback": "cf1434a1",
    "action examineObject template": "f06bac88",
    "action examineObject feedback": "9489cebb",
    "action ToggleObject template": "879cced3",
    "action ToggleObject feedback": "769c604e",
    "toggleObject.feedback": "0e3fc274",
    "action HeatObject template": "d953603e",
    "action HeatObject feedback": "79aaac1b",
    "heatObject.feedback": "962b9db4",
    "action CleanObject template": "075db8a1",
    "action CleanObject feedback": "2d44953a",
    "cleanObject.feedback": "bce25485",
    "action CoolObject template": "6dce652a",
    "action CoolObject feedback": "4108e9ff",
    "coolObject.feedback": "ac06d1cd",
    "action SliceObject template": "b03d03ee",
    "action SliceObject feedback": "fdb54729",
    "sliceObject.feedback": "ffa03a31",
    "action look template": "3c01eba1",
    "action look feedback": "f2f7f7ff",
    "look.feedback": "be96fdf3",
    "look-variations": "51d6e0d6",
    "list_objects_on_the_floor": "1debc78e",
    "list_appliances": "0db854d4",
    "overview(o)": "4195965f",
    "overview(r)": "44373d35",
    "list_empty": "d4ca4eae",
    "list_separator": "85e97985",
    "list_last_separator": "2585510d",
}


def digest(text: str) -> str:
    """Eight hexadecimal digits that stand for a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def fingerprint(parts: Mapping[str, str]) -> str:
    """Eight hexadecimal digits that stand for all the parts of a domain or a grammar."""
    return digest("".join(f"{name}={part};" for name, part in sorted(parts.items())))


def domain_parts(domain: str) -> dict[str, str]:
    """The forms of a planning domain by name (`action look`, `types`), without comments and layout.

    >>> domain_parts("(define (domain d) (:action Look :effect (and (seen ?x))))")
    {'domain d': '(domain d)', 'action look': '(:action look :effect(and(seen ?x)))'}
    """
    plain = re.sub(r"\s+", " ", re.sub(r";[^\n]*", "", domain).lower())
    plain = re.sub(r" ?([()]) ?", r"\1", plain)
    return dict(_forms(plain))


def _forms(plain: str) -> Iterator[tuple[str, str]]:
    """The forms one level inside the outermost."""
    depth = start = 0
    for bracket in re.finditer(r"[()]", plain):
        if bracket[0] == "(":
            depth += 1
            start = bracket.start() if depth == 2 else start
        else:
            if depth == 2:
                form = plain[start : bracket.end()]
                head = form.strip("(:)").replace("(", " ").split(" ")
                yield " ".join(head[:2] if head[0] in ("action", "domain") else head[:1]), form
            depth -= 1


_TOKEN = re.compile(r'"""(?P<block>.*?)"""|"(?P<text>[^"]*)"|#[^\n]*|(?P<word>[\w/.-]+|[{}])', re.DOTALL)


def grammar_parts(grammar: str) -> dict[str, str]:
    """The parts of a text grammar by name: `action look template`, `action look feedback`, and rules by their own.

    >>> grammar_parts('action look { template :: "look"; grammar :: \"\"\"{"a": [{"rhs": "b"}]}\"\"\"; }')
    {'action look template': 'look', 'a': '[{"rhs": "b"}]'}
    """
    parts: dict[str, str] = {}
    action = field = ""
    opening = False
    for token in _TOKEN.finditer(grammar):
        if token["block"] is not None:
            parts |= {name: json.dumps(rule, sort_keys=True) for name, rule in _rules(token["block"]).items()}
        elif token["text"] is not None:
            parts[f"action {action} {field}"] = token["text"]
        elif token["word"] == "action":
            opening = True
        elif opening and token["word"]:
            action, opening = token["word"], False
        elif token["word"] in ("template", "feedback"):
            field = token["word"]
    return parts


def _rules(block: str) -> dict[str, Any]:
    """The JSON object in a grammar block; lines that begin with # are comments."""
    lines = [line for line in block.split("\n") if not line.lstrip().startswith("#")]
    try:
        rules = json.loads("\n".join(lines))
    except ValueError as error:
        raise InputError(f"a block of the grammar is not JSON: {error}") from None
    if not isinstance(rules, dict):
        raise InputError("a block of the grammar is no JSON object of rules")
    return rules
