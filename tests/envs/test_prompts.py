"""History and prompt templates."""

import pickle

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hgpo_envs  # noqa: F401 (registers the environments)
from hgpo_envs.episode import ACTION_FORMATS
from hgpo_envs.errors import InputError
from hgpo_envs.memory import Pair, as_text
from hgpo_envs.prompts import PromptTemplate, load_template


def render(template, pairs=(), **changes):
    fields = {
        "task": "cool the mug.",
        "observation": "You see a fridge 1.",
        "admissible_actions": ["go to fridge 1", "help", "look"],
        "pairs": list(pairs),
        "steps_taken": len(pairs),
        "max_steps": 50,
        "action_format": "response",
    }
    return template.render(**{**fields, **changes})


@pytest.mark.parametrize("benchmark", ["ALFWorld", "WebShop", "SomethingElse"])
def test_the_packages_templates_show_every_field(benchmark):
    pairs = [Pair(1, "A door.", "open door 1"), Pair(2, "A room.", "look")]
    template = load_template(None, benchmark)
    prompt = render(template, pairs)
    for part in ("cool the mug.", "You see a fridge 1.", "'go to fridge 1'", as_text(pairs), "Step 3", "<think>"):
        assert part in prompt
    assert ("'help'" in prompt) == (benchmark != "ALFWorld")  # verl-agent leaves ALFWorld's help out
    assert "<action>" not in render(template, pairs, action_format="command")
    numbered = render(template, pairs, action_format="number")
    assert "\n3. look\n" in numbered  # the number in the benchmark's list, whatever is left out of the prompt
    assert ("2. help\n" in numbered) == (benchmark != "ALFWorld")
    first = render(template, observation="Welcome. Your task is to: cool the mug.")
    assert "Observation 1" not in first
    assert benchmark != "ALFWorld" or first.count("cool the mug.") == 1  # the observation says it already


TEXT = st.one_of(st.sampled_from(["look", "help", "", "{{ task }}", "a\nb"]), st.text(max_size=12))


def plain_jinja(template, fields):
    """Render a template with plain Jinja and an independent implementation of the documented filters."""

    def listed(actions, *left_out):
        return ",\n ".join(f"'{action}'" for action in actions if action not in left_out)

    def numbered(actions, *left_out):
        return "\n".join(f"{n}. {action}" for n, action in enumerate(actions, 1) if action not in left_out)

    pairs, steps = fields["pairs"], fields["steps_taken"]
    derived = {"history": as_text(pairs), "history_length": len(pairs), "step": steps + 1}
    jinja = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= {"listed": listed, "numbered": numbered}
    return jinja.from_string(template.text).render(fields | derived).strip()


@given(st.data())
def test_the_packages_templates_agree_with_plain_jinja(data):
    template = load_template(None, data.draw(st.sampled_from(["ALFWorld", "WebShop", "SomethingElse"])))
    assert template._joined is not None, "it is translated to an expression"
    texts = data.draw(st.lists(st.tuples(TEXT, TEXT), max_size=3))
    task = data.draw(TEXT)
    fields = {
        "task": task,
        "observation": data.draw(st.one_of(TEXT, TEXT.map(lambda text: f"{text}{task}."))),
        "admissible_actions": data.draw(st.lists(TEXT, max_size=5)),
        "pairs": [Pair(number, *text) for number, text in enumerate(texts, 1)],
        "steps_taken": len(texts),
        "max_steps": 50,
        "action_format": data.draw(st.sampled_from(ACTION_FORMATS)),
    }
    assert template.render(**fields) == plain_jinja(template, fields)


def test_a_users_template(tmp_path):
    path = tmp_path / "mine.j2"
    path.write_text(
        "{{ step }}/{{ max_steps }} {{ task }}|{% for n, o, a in pairs %}{{ n }}{{ o }}{{ a }};{% endfor %}"
    )
    pairs = [Pair(1, "x<&>", "y")]
    template = load_template(str(path), "ALFWorld")
    assert render(template, pairs) == "2/50 cool the mug.|1x<&>y;"  # nothing is escaped
    same = pickle.loads(pickle.dumps(template))
    assert same.fingerprint == template.fingerprint != load_template(None, "ALFWorld").fingerprint
    assert render(same, pairs) == render(template, pairs)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{{ admissable_actions }}", "unknown field 'admissable_actions'; did you mean 'admissible_actions'?"),
        ("fine\n{% if task %}", "not valid Jinja (line 2)"),
    ],
)
def test_bad_templates_are_refused_before_the_first_episode(tmp_path, text, line):
    with pytest.raises(InputError, match="prompt template mine") as caught:
        PromptTemplate(text, "mine")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    (tmp_path / "t.j2").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(InputError, match="expected a readable UTF-8 file"):
        load_template(str(tmp_path / "t.j2"), "ALFWorld")


def test_further_fields_of_the_state():
    template = PromptTemplate("{{ info.moves }} of {{ info['limit'] }}: {{ observation }}", "counter")
    assert render(template, info={"moves": 3, "limit": 9}) == "3 of 9: You see a fridge 1."
    with pytest.raises(InputError, match="has no attribute 'moves'"):
        render(template)


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
        render(load_template(tmp_path / "mine.j2", "ALFWorld"))
