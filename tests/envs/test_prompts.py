"""History and prompt templates: the package's, users', and those of a checkout of verl-agent, never executed."""

import pickle

import gymnasium
import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

import hgpo_envs
from hgpo_datasets import manifest, scan_steps
from hgpo_envs.episode import ACTION_FORMATS
from hgpo_envs.memory import Pair
from hgpo_envs.plugins import check_code_in_file
from hgpo_envs.prompts import PromptTemplate, bundled_templates, load_template
from hgpo_envs.registration import code_of
from hgpo_train.rollout import collect
from hgpo_train.rollout.env_handle import open_env


def render(template, pairs=(), **changes):
    fields = {
        "task": "cool the mug.",
        "observation": "You see a fridge 1.",
        "max_steps": 50,
        "pairs": list(pairs),
    }
    fields |= {"admissible_actions": ["go to fridge 1", "help", "look"]}
    fields |= {"steps_taken": len(pairs), "action_format": "response"}
    return template.render(**{**fields, **changes})


@pytest.mark.parametrize("benchmark", ["ALFWorld", "WebShop", "SomethingElse"])
def test_the_packages_templates_show_every_field(benchmark):
    pairs = [Pair(1, "A door.", "open door 1"), Pair(2, "A room.", "look")]
    template = load_template(None, benchmark)
    prompt = render(template, pairs)
    for part in (
        "cool the mug.",
        "You see a fridge 1.",
        "'go to fridge 1'",
        "[Observation 1: 'A door.', Action 1: 'open door 1']",
        "[Observation 2: 'A room.', Action 2: 'look']",
        "Step 3",
        "<think>",
    ):
        assert part in prompt
    # verl-agent leaves ALFWorld's help out
    assert ("'help'" in prompt) == (benchmark != "ALFWorld")
    assert "<action>" not in render(template, pairs, action_format="command")
    numbered = render(template, pairs, action_format="number")
    # the number in the benchmark's list, whatever is left out of the prompt
    assert "\n3. look\n" in numbered
    assert ("2. help\n" in numbered) == (benchmark != "ALFWorld")
    first = render(template, observation="Welcome. Your task is to: cool the mug.")
    assert "Observation 1" not in first
    # the observation says it already
    assert benchmark != "ALFWorld" or first.count("cool the mug.") == 1


TEXT = st.one_of(
    st.sampled_from(["look", "help", "", "{{ task }}", "a\nb"]), st.text(max_size=12)
)


def plain_jinja(template, fields):
    """Render a template with plain Jinja and an independent implementation of the documented filters."""

    def listed(actions, *left_out):
        return ",\n ".join(
            f"'{action}'" for action in actions if action not in left_out
        )

    def numbered(actions, *left_out):
        return "\n".join(
            f"{n}. {action}"
            for n, action in enumerate(actions, 1)
            if action not in left_out
        )

    pairs = fields["pairs"]
    steps = fields["steps_taken"]
    derived = {
        "history": "\n".join(
            f"[Observation {pair.number}: '{pair.observation}', Action {pair.number}: '{pair.action}']"
            for pair in pairs
        ),
        "history_length": len(pairs),
        "step": steps + 1,
    }
    derived |= template.answer._asdict()
    jinja = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    jinja.filters |= {"listed": listed, "numbered": numbered}
    return jinja.from_string(template.text).render(fields | derived).strip()


@given(st.data())
def test_the_packages_templates_agree_with_plain_jinja(data):
    template = load_template(
        None, data.draw(st.sampled_from(["ALFWorld", "WebShop", "SomethingElse"]))
    )
    texts = data.draw(st.lists(st.tuples(TEXT, TEXT), max_size=3))
    task = data.draw(TEXT)
    fields = {
        "task": task,
        "observation": data.draw(
            st.one_of(TEXT, TEXT.map(lambda text: f"{text}{task}."))
        ),
        "admissible_actions": data.draw(st.lists(TEXT, max_size=5)),
        "pairs": [Pair(number, *text) for number, text in enumerate(texts, 1)],
        "steps_taken": len(texts),
        "max_steps": 50,
        "action_format": data.draw(st.sampled_from(ACTION_FORMATS)),
    }
    assert template.render(**fields) == plain_jinja(template, fields)


def test_a_users_template(tmp_path):
    path = tmp_path / "mine.j2"
    pairs = "{% for n, o, a in pairs %}{{ n }}{{ o }}{{ a }};{% endfor %}"
    path.write_text("{{ step }}/{{ max_steps }} {{ task }}|" + pairs)
    pairs = [Pair(1, "x<&>", "y")]
    template = load_template(str(path), "ALFWorld")
    assert render(template, pairs) == "2/50 cool the mug.|1x<&>y;"  # nothing is escaped
    same = pickle.loads(pickle.dumps(template))
    assert (
        same.fingerprint
        == template.fingerprint
        != load_template(None, "ALFWorld").fingerprint
    )
    assert render(same, pairs) == render(template, pairs)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "{{ admissable_actions }}",
            "unknown field 'admissable_actions'; did you mean 'admissible_actions'?",
        ),
        ("fine\n{% if task %}", "not valid Jinja (line 2)"),
    ],
)
def test_bad_templates_are_refused_before_the_first_episode(tmp_path, text, line):
    with refused("prompt template mine") as caught:
        PromptTemplate(text, "mine")
    assert line in str(caught.value)
    (tmp_path / "t.j2").write_bytes(b"\xff\xfe\xfa")
    with refused("expected a readable UTF-8 file"):
        load_template(str(tmp_path / "t.j2"), "ALFWorld")


def test_what_editors_on_windows_write_is_not_in_the_prompt(tmp_path):
    (tmp_path / "t.j2").write_bytes(
        "{{ task }}\r\n{{ observation }}".encode("utf-8-sig")
    )
    template = load_template(str(tmp_path / "t.j2"), "ALFWorld")
    assert (
        render(template, task="cool an apple") == "cool an apple\nYou see a fridge 1."
    )


def test_further_fields_of_the_state():
    template = PromptTemplate(
        "{{ info.moves }} of {{ info['limit'] }}: {{ observation }}", "counter"
    )
    assert (
        render(template, info={"moves": 3, "limit": 9}) == "3 of 9: You see a fridge 1."
    )
    with refused("has no attribute 'moves'"):
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
    with refused(r"^prompt template [^\n]*$"):
        render(load_template(tmp_path / "mine.j2", "ALFWorld"))


ALFWORLD = '''
raise RuntimeError("this file must not be executed")
ALFWORLD_TEMPLATE_NO_HIS = """
First. {current_observation} Choose: [{admissible_actions}].
"""
ALFWORLD_TEMPLATE = """
Goal {task_description}; {step_count} taken, {history_length} shown: {action_history}
Now {current_step}: {current_observation} Choose: [{admissible_actions}].
"""
OTHER = 3
'''
WEBSHOP = '''
WEBSHOP_TEMPLATE_NO_HIS = """Buy {task_description}. {current_observation}. [
{available_actions}
]"""
WEBSHOP_TEMPLATE = """Buy {task_description}. {action_history} {current_observation}. [
{available_actions}
]"""
'''


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "agent_system" / "environments" / "prompts"
    folder.mkdir(parents=True)
    (folder / "alfworld.py").write_text(ALFWORLD)
    (folder / "webshop.py").write_text(WEBSHOP)
    return tmp_path


def test_alfworld_prompts_have_every_field(checkout):
    env = gymnasium.make(
        "HGPO/ALFWorld-v0", prompt_template=f"verl-agent:{checkout}", history_length=1
    ).unwrapped
    observation, info = env.reset(seed=1)
    actions = "\n ".join(
        f"'{action}'" for action in info["admissible_actions"] if action != "help"
    )
    assert "help" in info["admissible_actions"]
    assert (
        observation["prompt"]
        == f"\nFirst. {observation['state']} Choose: [{actions}].\n"
    )
    for _ in range(2):
        before = observation["state"]
        observation, _, _, _, info = env.step("look")
    shown = f"[Observation 2: '{before}', Action 2: 'look']"
    assert observation["prompt"].startswith(
        f"\nGoal {info['task']}; 2 taken, 1 shown: {shown}\nNow 3: "
    )
    assert env.episode.prompt(0).startswith("\nFirst.")
    # a run of these prompts is described by the template's hash
    handle = open_env("HGPO/ALFWorld-v0", prompt_template=f"verl-agent:{checkout}")
    template = load_template(f"verl-agent:{checkout}", "ALFWorld")
    assert handle.identity({})["prompt_template"] == template.fingerprint
    assert pickle.loads(pickle.dumps(env)).episode.prompt() == observation["prompt"]


def test_webshop_prompts_quote_actions_and_drop_a_long_history(checkout):
    env = gymnasium.make(
        "HGPO/WebShop-v0", prompt_template=f"verl-agent:{checkout}", history_length=4
    )
    observation, info = env.reset(seed=1)
    assert observation["prompt"].startswith(
        f"Buy {info['task']}. {observation['state']}. [\n'"
    )
    assert observation["prompt"].endswith("',\n]")
    template = load_template(f"verl-agent:{checkout}", "WebShop")
    fields = {
        "task": "tea",
        "observation": "page",
        "admissible_actions": ["a"],
        "max_steps": 9,
        "action_format": "x",
    }
    pairs = [Pair(1, "x" * 12_000, "a")]
    assert "Action 1" in template.render(pairs=pairs, steps_taken=1, **fields)
    pairs.append(Pair(2, "x" * 2_000, "a"))
    assert (
        template.render(pairs=pairs, steps_taken=2, **fields)
        == "Buy tea. page. [\n'a',\n]"
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            None,
            "expected a checkout of verl-agent with agent_system/environments/prompts/alfworld.py",
        ),
        ("ALFWORLD_TEMPLATE = 'a'", "expected the text ALFWORLD_TEMPLATE_NO_HIS"),
        (
            "ALFWORLD_TEMPLATE = open('/etc/passwd').read()",
            "expected the text ALFWORLD_TEMPLATE",
        ),
        ("ALFWORLD_TEMPLATE = '{task_description.__class__}'", "expected the fields"),
        ("ALFWORLD_TEMPLATE = '{current_step:>99999999}'", "expected the fields"),
        ("ALFWORLD_TEMPLATE = '{'", "is not a template"),
        ("ALFWORLD_TEMPLATE = " + "(" * 5000, "expected a checkout of verl-agent"),
    ],
)
def test_other_files_are_rejected(checkout, source, message):
    path = checkout / "agent_system" / "environments" / "prompts" / "alfworld.py"
    path.unlink() if source is None else path.write_text(source)
    with refused(message):
        load_template(f"verl-agent:{checkout}", "ALFWorld")


gymnasium.register_envs(hgpo_envs)
DOORS = "doors_env:HGPO-Test/Doors-v0"
GUESS = "foreign:Foreign/Guess-v0"
BAD = {
    "not there": "{{ admissible_actions[999] }}",
    "fails after a step": "{% if steps_taken %}{{ pairs[7].action }}{% endif %}",
}


def written(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", BAD)
def test_opening_an_environment_refuses_them(tmp_path, name):
    bad = written(tmp_path / "bad.j2", BAD[name])
    for env_id, make in (
        (DOORS, open_env),
        (GUESS, open_env),
        (DOORS, gymnasium.make),
        (DOORS, gymnasium.make_vec),
    ):
        with refused(rf"^prompt template {bad} fails"):
            make(env_id, prompt_template=str(bad))


def test_a_template_that_fails_later_aborts_the_rollouts_that_reach_the_failure(
    tmp_path, hgpo
):
    template = written(
        tmp_path / "late.j2",
        "{{ task }}{% if step > 2 %}{{ admissible_actions[999] }}{% endif %}",
    )
    sizes = ["--tasks", "4", "--group-size", "2", "--out", tmp_path / "run"]
    hgpo(
        "rollout", "--env", DOORS, "--env-option", f"prompt_template={template}", *sizes
    )
    steps = scan_steps(tmp_path / "run").collect()
    failed = steps.filter("aborted")
    assert failed.height
    assert all(
        "prompt template" in error and "late.j2 fails" in error
        for error in failed["error"]
    )
    assert steps["step"].max() == 1, "no prompt was made for the third step"


def test_every_way_of_naming_a_template_accepts_the_same_names(tmp_path, monkeypatch):
    def prompt_of(template: str | None) -> str:
        return gymnasium.make("HGPO/ALFWorld-v0", prompt_template=template).reset(
            seed=0
        )[0]["prompt"]

    monkeypatch.chdir(tmp_path)
    expected = prompt_of(str(bundled_templates()["compact"]))
    assert expected != prompt_of(None)
    assert prompt_of("compact") == expected
    (tmp_path / "compact").mkdir()
    assert prompt_of("compact") == expected, "a folder is no template"
    (tmp_path / "compact").rmdir()
    written(tmp_path / "compact", "mine: {{ task }}")
    assert prompt_of("compact").startswith("mine: ")


def places(past, state):
    """A memory: the actions so far, and how many can follow."""
    return (
        f"Done: {', '.join(pair.action for pair in past)}. Open: {len(state.actions)}."
    )


def broken(past, state):
    return len(past)


MEMORY = f"{__name__}:places"


@pytest.mark.parametrize("style", ["memory", "chat"])
@pytest.mark.parametrize("env_id", ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"])
def test_a_memory_stands_for_the_past_in_the_prompt_and_nowhere_else(env_id, style):
    usual, remembering = (
        gymnasium.make(env_id, history_length=1, prompt_style=style, **more)
        for more in ({}, {"memory": places if style == "chat" else MEMORY})
    )
    first, info = usual.reset(seed=3)
    assert remembering.reset(seed=3)[0]["prompt"] == first["prompt"]
    taken = []
    for _ in range(3):
        taken.append(info["admissible_actions"][0].replace("<your query>", "shoes"))
        expected, _, _, _, info = usual.step(taken[-1])
        observation = remembering.step(taken[-1])[0]
        assert observation["state"] == expected["state"]
        assert (observation["history_hash"] == expected["history_hash"]).all()
        summary = f"Done: {', '.join(taken)}. Open: {len(info['admissible_actions'])}."
        assert summary in observation["prompt"]
        assert "Action 1" not in observation["prompt"]
        assert "of them, oldest first" not in observation["prompt"]
    assert (
        pickle.loads(pickle.dumps(remembering.unwrapped)).episode.prompt()
        == observation["prompt"]
    )
    assert "Done: ." in remembering.unwrapped.episode.prompt(0), (
        "a shortened prompt has fewer pairs"
    )
    usual.close()


@pytest.mark.parametrize("given", [places, MEMORY])
def test_a_memory_is_stored_by_its_name_which_a_file_may_not_start(given, tmp_path):
    run = collect(
        "HGPO/ALFWorld-v0",
        "random",
        tmp_path,
        tasks=1,
        group_size=1,
        memory=given,
        progress=False,
    )
    env = manifest.read(run.path).header.config["env"]
    assert env["memory"] == MEMORY
    with refused(r"names the memory .* add --allow"):
        check_code_in_file(code_of(env["id"], env), tmp_path, ())
    check_code_in_file(code_of(env["id"], env), tmp_path, [MEMORY])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (broken, "memory: expected a function that returns text, which returned 1"),
        (3, "memory: expected a function"),
    ],
)
def test_a_memory_that_is_wrong_is_named(given, message):
    with refused(message):
        play_a_step(given)


def play_a_step(memory):
    env = gymnasium.make("HGPO/ALFWorld-v0", memory=memory)
    env.reset(seed=1)
    env.step("look")
