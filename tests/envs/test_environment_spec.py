"""Benchmarks of other packages: by entry point, as module:object, in the process; broken ones harm no others."""

import dataclasses
import functools
import pickle
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import gymnasium
import pytest
from command import environment, python
from distribution import write_distribution
from doors import DoorsSource, solution
from refusals import refused, refused_saying
from unusual import boxed, in_box

from hgpo_envs import environment_spec
from hgpo_envs.environment_spec import EnvironmentSpec, environment_ids, make_player
from hgpo_envs.prompts import load_template
from hgpo_envs.registration import register, resolve_id
from hgpo_envs.responses import Response, ToolCall
from hgpo_train.policies.scripted import format_action
from hgpo_train.rollout import RolloutError, collect

HOUSE = """
from doors import DoorsSource, solution
from hgpo_envs.environment_spec import EnvironmentSpec


class Expert:
    def reset(self, task, state, engine=None):
        self.left = solution(task.id)

    def act(self, state):
        return self.left.pop(0)


HOUSE = EnvironmentSpec(
    id="Mine/Doors-v0", source="doors:DoorsSource", max_steps=9, template="Go: {{ task }}", players={"expert": Expert}
)
"""
BROKEN = {
    "absent": (
        "",
        "absent_module:SPEC",
        "ModuleNotFoundError: No module named 'absent_module'",
    ),
    "raising": (
        "raise RuntimeError('first\\nsecond')",
        "raising:SPEC",
        "RuntimeError: first second",
    ),
    "leaving": ("raise SystemExit(3)", "leaving:SPEC", "SystemExit: 3"),
    "other": ("SPEC = 7", "other:SPEC", "expected an EnvironmentSpec, received int"),
    "misnamed": (
        HOUSE.replace("Mine/", "Theirs/"),
        "misnamed:HOUSE",
        "received the id 'Theirs/Doors-v0'",
    ),
}


@pytest.fixture
def nothing_added(monkeypatch):
    """Leaves no benchmark registered after the test."""
    monkeypatch.setattr(environment_spec, "_added", {})
    before = set(gymnasium.registry)
    yield
    for env_id in set(gymnasium.registry) - before:
        del gymnasium.registry[env_id]


@pytest.mark.slow
def test_broken_packages_and_equal_names_break_no_others(tmp_path):
    for name, (source, value, _) in BROKEN.items():
        modules = {name: source} if source else {}
        write_distribution(
            tmp_path,
            f"the-{name}-one",
            modules,
            {"hgpo.environments": {f"Broken/{name}-v0": value}},
        )
    write_distribution(
        tmp_path,
        "nameless",
        {},
        {"hgpo.environments": {"what is this?": "nameless:SPEC"}},
    )
    write_distribution(
        tmp_path,
        "my-house",
        {"house": HOUSE},
        {"hgpo.environments": {"Mine/Doors-v0": "house:HOUSE"}},
    )
    twin = {"hgpo.environments": {"Mine/Doors-v0": "house2:HOUSE"}}
    write_distribution(tmp_path / "second", "my-second-house", {"house2": HOUSE}, twin)
    tried = [f"Broken/{name}-v0" for name in BROKEN]
    script = f"""
import gymnasium, hgpo_envs
from hgpo_envs.errors import InputError
for env_id in {tried}:
    try:
        gymnasium.make(env_id)
    except InputError as error:
        print(error)
for env_id in ("Mine/Doors-v0", "HGPO/ALFWorld-v0"):
    gymnasium.make(env_id).reset(seed=1)
"""
    done = python(
        script, env=environment(tmp_path, tmp_path / "second", PYTHONWARNINGS="default")
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(BROKEN)
    for line, (name, (_, _, reason)) in zip(lines, BROKEN.items(), strict=True):
        assert reason in line
        assert f"of the distribution the-{name}-one" in line
    assert (
        "hgpo.environments of the distribution nameless: expected a Gymnasium id"
        in done.stderr
    )
    assert (
        "'Mine/Doors-v0' is declared by my-house and by my-second-house; my-house is used"
        in done.stderr
    )


def test_a_module_in_the_working_directory(tmp_path, monkeypatch, nothing_added):
    (tmp_path / "house_here.py").write_text(HOUSE.replace("Doors-v0", "Doors-v3"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert resolve_id("house_here:HOUSE") == "Mine/Doors-v3"
    env = gymnasium.make("Mine/Doors-v3")
    env.reset(seed=1)
    assert (
        pickle.loads(pickle.dumps(env.unwrapped)).episode.state
        == env.unwrapped.episode.state
    )
    assert resolve_id("house_here:HOUSE") == "Mine/Doors-v3"  # again changes nothing
    for text, line in (
        (
            "house_here:NONE",
            "expected an EnvironmentSpec as module:object, received 'house_here:NONE': AttributeError",
        ),
        ("no_such_house:HOUSE", "No module named 'no_such_house'"),
        ("house_here:solution", "expected an EnvironmentSpec, received function"),
    ):
        with refused(line):
            resolve_id(text)
    # Gymnasium's own form
    assert resolve_id("doors_env:HGPO-Test/Doors-v0") == "doors_env:HGPO-Test/Doors-v0"


def shout(text):
    return Response(
        text.strip("!"),
        text.endswith("!"),
        "" if text.endswith("!") else "not loud enough",
    )


def doors_source(count):
    return DoorsSource(count)


def test_response_rules_and_arguments(nothing_added):
    register(
        EnvironmentSpec(id="Mine/Doors-v0", source=doors_source, parse_response=shout)
    )
    env = gymnasium.make("Mine/Doors-v0", count=5, action_format="response").unwrapped
    env.reset(options={"task": "train-0"})
    *_, info = env.step("open door!")
    assert (info["action"], info["action_valid"]) == ("open door", True)
    *_, info = env.step("go on")
    assert (info["action"], info["action_valid"], info["action_admissible"]) == (
        "go on",
        False,
        True,
    )
    again = pickle.loads(pickle.dumps(env))
    assert again.step(solution("train-0")[-1] + "!")[4]["won"]
    with refused("Mine/Doors-v0: missing a required argument: 'count'"):
        gymnasium.make("Mine/Doors-v0")


@pytest.mark.parametrize("parser", [len, str.index])
def test_a_parser_that_fails_is_named(nothing_added, tmp_path, parser):
    register(
        EnvironmentSpec(id="Mine/Doors-v0", source=DoorsSource, parse_response=parser)
    )
    arguments = {"tasks": 1, "group_size": 1, "action_format": "response"}
    with pytest.raises(
        RolloutError,
        match=r"EnvironmentFailed: InputError: parse_response: expected .*, which r",
    ):
        collect("Mine/Doors-v0", lambda request: "x", tmp_path / "run", **arguments)


def spec_of(env_id, source=DoorsSource, **fields):
    return EnvironmentSpec(id=env_id, source=source, **fields)


def test_what_is_no_benchmark(nothing_added):
    for attempt, reason in (
        (
            lambda: spec_of("my house"),
            "expected a Gymnasium id such as Mine/House-v0, received 'my house'",
        ),
        (
            lambda: spec_of("A/B-v0", players={"exprt": 1}),
            "unknown player 'exprt'; did you mean 'expert'",
        ),
        (
            lambda: spec_of("A/House-v0").open_source(),
            "with the name 'House', as in the id; received 'Doors'",
        ),
        (
            lambda: spec_of("A/Doors-v0", lambda: 1).open_source(),
            "expected a class or function at the top of a mod",
        ),
        (
            lambda: register(spec_of("Mine/ALFWorld-v0")),
            "'Mine/ALFWorld-v0' has the same name as 'HGPO/ALFWorld-v0'",
        ),
        (lambda: register(spec_of("Mine/Doors-v0")), None),
        (
            lambda: register(spec_of("Mine/Doors-v0", max_steps=3)),
            "another environment 'Mine/Doors-v0' is registered",
        ),
        (
            lambda: make_player("expert", "Doors"),
            r"unknown Doors player 'expert'\. Known: none",
        ),
    ):
        with refused(reason) if reason else nullcontext():
            attempt()
    register(spec_of("Mine/Doors-v0", max_steps=50))  # again
    assert environment_ids()[:3] == [
        "HGPO/ALFWorld-v0",
        "HGPO/WebShop-v0",
        "HGPO/AppWorld-v0",
    ]


FIND = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find.",
        "parameters": {"type": "object"},
    },
}


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        (
            [FIND["function"]],
            'tools[0], \'find\': expected the form {"type": "function"',
        ),
        (
            [{"name": "find", "inputSchema": {}}],
            "and rename 'inputSchema' to 'parameters'",
        ),
        ([FIND, "find"], "tools[1]: expected a function or a schema"),
        ("find", "tools: expected a list, received 'find'"),
        (FIND, "tools: expected a list, received {'type'"),
        (
            [{"function": FIND["function"]}],
            'tools[0], \'find\': expected "type": "function"',
        ),
        (
            [{"type": "function", "function": "find"}],
            "tools[0]: expected a function with a name",
        ),
        (
            [{"type": "function", "function": {"name": "f", "x": {1}}}],
            "tools[0], 'f': expected JSON values alone",
        ),
        ([functools.partial(int)], "tools[0]: expected a function or a schema"),
    ],
)
def test_a_tool_of_another_form_is_named_with_its_repair(tools, message):
    with refused_saying(message):
        spec_of("Mine/Doors-v0", tools=tools)


@pytest.mark.parametrize(
    ("fields", "asked", "action"),
    [
        ({}, "inside <action> </action> tags", "open red"),
        ({"action_tag": "answer"}, "inside <answer> </answer> tags", "open red"),
        (
            {"parse_response": boxed, "format_response": in_box},
            r"in this form: \boxed{your action}",
            "open red",
        ),
        (
            {"tools": [FIND]},
            "Then call one of the tools: find.",
            ToolCall("find", {}).text(),
        ),
    ],
)
@pytest.mark.usefixtures("nothing_added")
def test_prompt_parser_and_players_follow_the_specification(fields, asked, action):
    spec = EnvironmentSpec(id="Mine/Doors-v0", source=DoorsSource, **fields)
    register(spec)
    shown = {
        "task": "Go.",
        "observation": "A door.",
        "max_steps": 9,
        "action_format": "response",
    }
    prompt = load_template(None, "Doors").render(
        admissible_actions=["open red"], pairs=[], steps_taken=0, **shown
    )
    assert asked in prompt
    assert ("<action>" in prompt) == (not fields)
    assert spec.parser(spec.respond(action)) == Response(action, True, "")
    assert format_action(action, "response", [], spec) == spec.respond(action)


def test_every_field_of_a_specification_is_documented():
    page = (Path(__file__).parents[2] / "docs/environments.md").read_text("utf-8")
    table = page[page.index("| field | meaning |") :].split("\n\n")[0]
    named = {
        name
        for line in table.split("\n")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert named == {
        field.name for field in dataclasses.fields(EnvironmentSpec) if field.init
    }
