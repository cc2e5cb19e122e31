"""Prompts of a checkout of verl-agent: parsed, never executed, filled in as verl-agent does.

The templates here are invented; only their fields are verl-agent's.
"""

import pickle
from pathlib import Path

import gymnasium
import pytest

import hgpo_envs  # noqa: F401 (registers the environments)
from hgpo_envs.errors import InputError
from hgpo_envs.memory import Pair
from hgpo_envs.prompts import load_template

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
def checkout(tmp_path) -> Path:
    folder = tmp_path / "agent_system" / "environments" / "prompts"
    folder.mkdir(parents=True)
    (folder / "alfworld.py").write_text(ALFWORLD)
    (folder / "webshop.py").write_text(WEBSHOP)
    return tmp_path


def test_alfworld_prompts_have_every_field(checkout) -> None:
    env = gymnasium.make("HGPO/ALFWorld-v0", prompt_template=f"verl-agent:{checkout}", history_length=1).unwrapped
    observation, info = env.reset(seed=1)
    actions = "\n ".join(f"'{action}'" for action in info["admissible_actions"] if action != "help")
    assert "help" in info["admissible_actions"]
    assert observation["prompt"] == f"\nFirst. {observation['state']} Choose: [{actions}].\n"
    for _ in range(2):
        before = observation["state"]
        observation, _, _, _, info = env.step("look")
    shown = f"[Observation 2: '{before}', Action 2: 'look']"
    assert observation["prompt"].startswith(f"\nGoal {info['task']}; 2 taken, 1 shown: {shown}\nNow 3: ")
    assert env.episode.prompt(0).startswith("\nFirst.")
    assert pickle.loads(pickle.dumps(env)).episode.prompt() == observation["prompt"]


def test_webshop_prompts_quote_actions_and_drop_a_long_history(checkout) -> None:
    env = gymnasium.make("HGPO/WebShop-v0", prompt_template=f"verl-agent:{checkout}", history_length=4)
    observation, info = env.reset(seed=1)
    assert observation["prompt"].startswith(f"Buy {info['task']}. {observation['state']}. [\n'")
    assert observation["prompt"].endswith("',\n]")
    template = load_template(f"verl-agent:{checkout}", "WebShop")
    fields = {"task": "tea", "observation": "page", "admissible_actions": ["a"], "max_steps": 9, "action_format": "x"}
    pairs = [Pair(1, "x" * 12_000, "a")]
    assert "Action 1" in template.render(pairs=pairs, steps_taken=1, **fields)
    pairs.append(Pair(2, "x" * 2_000, "a"))
    assert template.render(pairs=pairs, steps_taken=2, **fields) == "Buy tea. page. [\n'a',\n]"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "expected a checkout of verl-agent with agent_system/environments/prompts/alfworld.py"),
        ("ALFWORLD_TEMPLATE = 'a'", "expected the text ALFWORLD_TEMPLATE_NO_HIS"),
        ("ALFWORLD_TEMPLATE = open('/etc/passwd').read()", "expected the text ALFWORLD_TEMPLATE"),
        ("ALFWORLD_TEMPLATE = '{task_description.__class__}'", "expected the fields"),
        ("ALFWORLD_TEMPLATE = '{current_step:>99999999}'", "expected the fields"),
        ("ALFWORLD_TEMPLATE = '{'", "is not a template"),
        ("ALFWORLD_TEMPLATE = " + "(" * 5000, "expected a checkout of verl-agent"),
    ],
)
def test_other_files_are_rejected(checkout, source, message) -> None:
    path = checkout / "agent_system" / "environments" / "prompts" / "alfworld.py"
    path.unlink() if source is None else path.write_text(source)
    with pytest.raises(InputError, match=message):
        load_template(f"verl-agent:{checkout}", "ALFWorld")
