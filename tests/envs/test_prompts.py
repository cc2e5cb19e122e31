"""Memory and prompt templates."""

import copy
import pickle

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.episode import ACTION_FORMATS
from hgpo_envs.errors import InputError
from hgpo_envs.memory import Memory, as_text
from hgpo_envs.prompts import FIELDS, PromptTemplate, load_template

PAIRS = st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), max_size=12)


def test_text_form():
    memory = Memory(2)
    for n in range(1, 4):
        memory.store(f"o{n}", f"a{n}")
    assert as_text(memory.pairs()) == "[Observation 2: 'o2', Action 2: 'a2']\n[Observation 3: 'o3', Action 3: 'a3']"
    assert as_text(memory.pairs(1)) == "[Observation 3: 'o3', Action 3: 'a3']"
    assert as_text(memory.pairs(0)) == ""
    assert memory.steps_taken == 3


@given(PAIRS, st.integers(0, 6), st.one_of(st.none(), st.integers(0, 8)))
def test_the_last_k_pairs_numbered_over_the_whole_episode(pairs, length, shown):
    memory = Memory(length)
    for observation, action in pairs:
        memory.store(observation, action)
    kept = min(length, len(pairs), len(pairs) if shown is None else shown)
    expected = list(enumerate(pairs, start=1))[len(pairs) - kept :]
    assert [(p.number, (p.observation, p.action)) for p in memory.pairs(shown)] == expected
    assert memory.steps_taken == len(pairs)
    memory.clear()
    assert (memory.pairs(), as_text(memory.pairs()), memory.steps_taken) == ([], "", 0)


def render(template, memory, **changes):
    fields = {
        "task": "cool the mug.",
        "observation": "You see a fridge 1.",
        "admissible_actions": ["go to fridge 1", "help", "look"],
        "memory": memory,
        "max_steps": 50,
        "action_format": "response",
    }
    return template.render(**{**fields, **changes})


@pytest.mark.parametrize("benchmark", ["ALFWorld", "WebShop", "SomethingElse"])
def test_the_packages_templates_show_every_field(benchmark):
    memory = Memory(2)
    memory.store("A door.", "open door 1")
    memory.store("A room.", "look")
    template = load_template(None, benchmark)
    prompt = render(template, memory)
    assert "cool the mug." in prompt
    assert "You see a fridge 1." in prompt
    assert "'go to fridge 1'" in prompt
    assert ("'help'" in prompt) == (benchmark != "ALFWorld")  # verl-agent leaves ALFWorld's help out
    assert as_text(memory.pairs()) in prompt
    assert "Step 3" in prompt
    assert "<think>" in prompt
    assert "<action>" in prompt
    bare = render(template, memory, action_format="command")
    assert "<action>" not in bare
    numbered = render(template, memory, action_format="number")
    assert "1. go to fridge 1\n" in numbered
    assert "\n3. look\n" in numbered  # the number in the benchmark's list, whatever is left out of the prompt
    assert ("2. help\n" in numbered) == (benchmark != "ALFWorld")
    assert "'go to fridge 1'" not in numbered
    assert "number" in numbered
    shorter = render(template, memory, history_length=1)
    assert as_text(memory.pairs(1)) in shorter
    assert "A door." not in shorter


TEXT = st.one_of(st.sampled_from(["look", "help", "", "{{ task }}", "a\nb"]), st.text(max_size=12))


def plain_jinja(template, fields):
    """Render a template with plain Jinja and an independent implementation of the documented filters."""

    def listed(actions, *left_out):
        return ",\n ".join(f"'{action}'" for action in actions if action not in left_out)

    def numbered(actions, *left_out):
        return "\n".join(f"{n}. {action}" for n, action in enumerate(actions, 1) if action not in left_out)

    jinja = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= {"listed": listed, "numbered": numbered}
    return jinja.from_string(template.text).render(fields).strip()


@given(st.data())
def test_the_packages_templates_agree_with_plain_jinja(data):
    template = load_template(None, data.draw(st.sampled_from(["ALFWorld", "WebShop", "SomethingElse"])))
    memory = Memory(data.draw(st.integers(0, 3)))
    for observation, action in data.draw(st.lists(st.tuples(TEXT, TEXT), max_size=5)):
        memory.store(observation, action)
    shown = data.draw(st.one_of(st.none(), st.integers(0, 4)))
    task = data.draw(TEXT)
    given_fields = {
        "task": task,
        "observation": data.draw(st.one_of(TEXT, TEXT.map(lambda text: f"{text}{task}."))),
        "admissible_actions": data.draw(st.lists(TEXT, max_size=5)),
        "max_steps": 50,
        "action_format": data.draw(st.sampled_from(ACTION_FORMATS)),
    }
    derived_fields = {
        "history": as_text(memory.pairs(shown)),
        "pairs": memory.pairs(shown),
        "history_length": len(memory.pairs(shown)),
        "steps_taken": memory.steps_taken,
        "step": memory.steps_taken + 1,
    }
    expected = plain_jinja(template, given_fields | derived_fields)
    assert template.render(**given_fields, memory=memory, history_length=shown) == expected


def test_a_trusted_template_may_use_jinjas_functions():
    template = PromptTemplate("{% for n in range(step) %}{{ n }}{% endfor %}", "own", trusted=True)
    assert render(template, Memory(0)) == "0"


def test_first_step_shows_the_raw_observation_and_no_history():
    first = "Welcome. Your task is to: cool the mug."
    prompt = render(load_template(None, "ALFWorld"), Memory(2), observation=first)
    assert first in prompt
    assert prompt.count("cool the mug.") == 1  # the observation says it already
    assert "Observation 1" not in prompt


def test_a_users_template(tmp_path):
    path = tmp_path / "mine.j2"
    path.write_text(
        "{{ step }}/{{ max_steps }} {{ task }}|{% for n, o, a in pairs %}{{ n }}{{ o }}{{ a }};{% endfor %}"
    )
    memory = Memory(5)
    memory.store("x<&>", "y")
    template = load_template(str(path), "ALFWorld")
    assert render(template, memory) == "2/50 cool the mug.|1x<&>y;"  # nothing is escaped
    for same in (copy.deepcopy(template), pickle.loads(pickle.dumps(template))):
        assert same.fingerprint == template.fingerprint
        assert render(same, memory) == render(template, memory)
    assert template.fingerprint != load_template(None, "ALFWorld").fingerprint


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{{ admissable_actions }}", "unknown field 'admissable_actions'; did you mean 'admissible_actions'?"),
        ("fine\n{% if task %}", "not valid Jinja (line 2)"),
        ("{{ task | nofilter }}", "not valid Jinja"),
    ],
)
def test_bad_templates_are_refused_before_the_first_episode(text, line):
    with pytest.raises(InputError, match="prompt template mine") as caught:
        PromptTemplate(text, "mine")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "line"),
    [(None, "unknown template or missing file"), (b"\xff\xfe\xfa", "expected a readable UTF-8 file")],
)
def test_unreadable_template_files(tmp_path, content, line):
    path = tmp_path / "t.j2"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=line):
        load_template(str(path), "ALFWorld")


def test_every_documented_field_is_available():
    template = PromptTemplate("".join(f"[{{{{ {field} }}}}]" for field in FIELDS), "all")
    assert render(template, Memory(0)).count("[") >= len(FIELDS)


@pytest.mark.parametrize(
    "text",
    [
        "{{ task.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.format.__globals__ }}",
        "{{ '{0.__class__.__mro__}'.format(task) }}",
        "{{ admissible_actions.append('x') }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_users_template_reaches_nothing_of_python(tmp_path, text):
    (tmp_path / "mine.j2").write_text(text)
    with pytest.raises(InputError, match=r"^prompt template [^\n]*$"):
        render(load_template(tmp_path / "mine.j2", "ALFWorld"), Memory(2))
