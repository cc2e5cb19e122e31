"""Reading of game files: names, goals, wordings, and the errors for unsupported files."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.alfworld.engine.game import compile_game, display_names, read_file
from hgpo_envs.alfworld.engine.goals import parse_goal
from hgpo_envs.alfworld.engine.grammar import (
    HELP,
    MOVE,
    PUT,
    convert,
    join_task,
    recognise,
    split_task,
)
from hgpo_envs.alfworld.engine.grammar_parts import domain_parts, grammar_parts
from hgpo_envs.alfworld.engine.state import Trait
from hgpo_envs.errors import InputError

SOURCE = ALFWorldSource()
TASK = SOURCE.ids("train")[0]


@pytest.fixture
def file():
    """Return a game file to modify."""
    return SOURCE.read(TASK)


def test_the_first_identifier_gets_the_highest_number():
    names = display_names(
        [
            "mug_bar_3",
            "mug_bar_1",
            "mug_bar_2",
            "sink_bar_1",
            "sink_bar_1_bar_sinkbasin",
            "agent1",
        ]
    )
    mugs = {"mug_bar_1": "mug 3", "mug_bar_2": "mug 2", "mug_bar_3": "mug 1"}
    sinks = {"sink_bar_1": "sink 1", "sink_bar_1_bar_sinkbasin": "sinkbasin 1"}
    assert names == {**mugs, **sinks, "agent1": "agent1 "}


def test_wordings_and_their_conversion(file):
    domain = file["pddl_domain"]
    (wording, task) = split_task(file["grammar"])
    assert recognise(domain, wording) == MOVE
    older = convert(file, "put")
    assert recognise(older["pddl_domain"], split_task(older["grammar"])[0]) == PUT
    assert split_task(older["grammar"])[1] == task
    assert not any(command.startswith("move ") for command in older["walkthrough"])
    newer = convert(older, "move")
    assert newer["walkthrough"] == file["walkthrough"]
    assert recognise(newer["pddl_domain"], split_task(newer["grammar"])[0]) == MOVE
    assert domain_parts(newer["pddl_domain"]) == domain_parts(domain)
    assert grammar_parts(newer["grammar"]) == grammar_parts(file["grammar"])
    assert {k: newer[k] for k in ("pddl_problem", "solvable")} == {
        k: file[k] for k in ("pddl_problem", "solvable")
    }
    for words in (older, newer):
        engine = ALFWorldEngine()
        assert ("help" in engine.play(compile_game(words)).actions) == (words is newer)
        assert [engine.act(command).won for command in words["walkthrough"]][-1]
    assert (
        compile_game(file | {"grammar": join_task(wording, "look at the moon.")}).task
        == "look at the moon."
    )


def test_help_in_the_action_is_the_same_help(file):
    """This is the form that alfworld's patch of older games writes."""
    older = convert(file, "put")
    domain = convert(file, "move")["pddl_domain"]
    grammar = convert(file, "move")["grammar"]
    start = grammar.index("action help")
    patched = f'{grammar[:start]}action help {{\n    template :: "help";\n    feedback :: "\n{HELP}";\n}}\n'
    assert older["grammar"] != patched
    assert recognise(domain, split_task(patched)[0]) == MOVE


@given(st.data())
def test_any_change_of_a_relevant_letter_is_refused(data):
    file = SOURCE.read(TASK)
    domain = file["pddl_domain"]
    wording = split_task(file["grammar"])[0]
    text = data.draw(st.sampled_from([domain, wording]))
    at = data.draw(
        st.integers(0, len(text) - 1).filter(lambda place: text[place].isalpha())
    )
    changed = text[:at] + data.draw(st.sampled_from("qQ")) + text[at + 1 :]
    texts = (changed, wording) if text is domain else (domain, changed)
    take_apart = domain_parts if text is domain else grammar_parts
    try:
        after = take_apart(changed)
        recognise(*texts)
    except InputError as error:
        assert re.search("not as in alfworld 0.2 to 0.5|is not JSON", str(error))  # noqa: PT017 - or it is accepted
        return
    before = take_apart(text)
    lost = [name for name, part in before.items() if after.get(name) != part]
    if text is domain:
        assert set(lost) <= {"requirements", "predicates", "functions", "domain alfred"}
    else:
        assert all(
            re.search(
                r"ReceptacleObject|overview_|overview\(o, r\)|notImplemented", name
            )
            for name in lost
        )


def test_goals_are_parsed_with_any_layout():
    text = "(and(exists (?r - Receptacle)\n(exists (?o - object) (and (inReceptacle ?o ?r) (objectType ?o MugType)"
    goal = parse_goal(f"{text}\t(receptacleType ?r  ShelfType ) ) ) ) ) ) )")
    assert (goal.task_type, goal.object_type, goal.receptacle_type) == (
        "pick_and_place_simple",
        "mug",
        "shelf",
    )


def test_initial_facts(file):
    """Objects and receptacles that are hot, open or sliced in the initial facts are so in the initial state."""
    game = compile_game(file)
    thing = game.object_ids[0]
    receptacle = next(
        name
        for name, opens in zip(game.receptacle_ids, game.openable, strict=True)
        if opens
    )
    facts = f"(:init (isHot {thing}) (isSliced {thing}) (opened {receptacle})"
    started = compile_game(
        file | {"pddl_problem": file["pddl_problem"].replace("(:init", facts)}
    )
    assert started.start.traits[0] == Trait.HOT | Trait.SLICED
    assert started.start.opened[game.receptacle_ids.index(receptacle)]


def test_truncated_file(file, tmp_path):
    path = tmp_path / "game.tw-pddl"
    text = json.dumps(file)
    path.write_text(text[: len(text) // 2], "utf-8")
    with refused(r"game.tw-pddl: not valid JSON .*; copy or fetch the game again"):
        read_file(path)
    path.write_text("[]", "utf-8")
    with refused(
        "not a game: expected a JSON object with the texts pddl_domain, grammar, pdd"
    ):
        read_file(path)
    with refused("no game at"):
        read_file(tmp_path / "none")


def test_errors_name_what_is_unknown(file):
    domain = file["pddl_domain"]
    last = file["pddl_domain"].rstrip()[:-1]
    assert domain.count("(isHot ?o)\n                (not (isCool ?o))") == 1
    jump = f"{last}(:action jump :parameters (?a - agent) :precondition () :effect (and (checked ?a))))"
    init = "(:init"
    for field, old, new, part in (
        (
            "pddl_domain",
            "(isHot ?o)\n                (not (isCool ?o))",
            "(isHot ?o)",
            "'action heatobject' not as",
        ),
        ("pddl_domain", domain, jump, "unknown domain: 'action jump' not as"),
        (
            "grammar",
            "You arrive at {r.name}.",
            "You walk to {r.name}.",
            "unknown grammar: 'GotoLocation.feedback'",
        ),
        (
            "grammar",
            "move {o} to {r}",
            "place {o} on {r}",
            "'action PutObject template'",
        ),
        ("grammar", "check your current inventory", "look into your pockets", "'help'"),
        ("pddl_problem", "(:goal", "(:wish", ":goal"),
        ("pddl_problem", init, "(:init (isGold agent1)", "isgold"),
        ("pddl_problem", init, "(:init (not (isHot x))", "negation"),
        ("pddl_problem", init, "(:init (openable nix)", "without declaring it"),
        (
            "pddl_problem",
            "(exists",
            "(forall",
            "expected a goal of one of ALFWorld's six task types",
        ),
    ):
        assert old in file[field]
        with refused(r"^game: [^\n]+$") as error:
            compile_game(file | {field: file[field].replace(old, new)}, "game")
        assert part in str(error.value)
    commented = domain.replace(
        "(:action look", "; a comment (:action jump)\n\n (:action  LOOK"
    )
    assert (
        compile_game(file | {"pddl_domain": commented}).grammar
        == compile_game(file).grammar
        == MOVE
    )
