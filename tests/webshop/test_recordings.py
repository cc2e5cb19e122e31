"""Comparison with the original's recordings: pages, available actions, rewards and their parts, goals, prices."""

import json

import pytest

from hgpo_envs.webshop.data.source import WebShopSource
from hgpo_envs.webshop.engine import pages

RECORDINGS = {
    "text_human": {"goals": "human"},
    "text_synth": {"goals": "synthetic"},
    "rich_human_attrs": {
        "goals": "human",
        "observation_mode": "text_rich",
        "show_attributes": True,
    },
    "edge_scripted": {"goals": "human"},
}


def lines_of(golden, name):
    return [
        json.loads(line)
        for line in (golden / f"{name}.jsonl").read_text("utf-8").split("\n")
        if line
    ]


def differences(line, state, task_id):
    """Return the differences between a state and its recording."""
    session = line.get("session", task_id)
    expected = {
        "page": line["observation"] if not line.get("error") else state.info["page"],
        "available_actions": line["available_actions"],
        "reward": line.get("reward", 0.0),
        "done": line.get("done", False),
        "error": line.get("error"),
        "url": line["url"].replace(f"/{session}", f"/{task_id}"),
        **((line.get("verbose_info") or {}) if line.get("done") else {}),
    }
    found = {**state.info, "reward": state.reward, "done": state.terminated}
    return {
        name: (found.get(name), value)
        for name, value in expected.items()
        if found.get(name) != value
    }


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_recorded_line(golden, recorded, name):
    source = WebShopSource(recorded, **RECORDINGS[name])
    engine = source.engine()
    task_id = ""
    purchases = 0
    by_text = {
        f"Instruction: {source.task(task).instruction}": task
        for task in source.ids("all")
    }
    for number, line in enumerate(lines_of(golden, name)):
        if line["step"] == 0:
            drawn = line["goal_idx"] is None  # the original drew the goal by weight
            task_id = (
                by_text[line["instruction_text"]] if drawn else str(line["goal_idx"])
            )
            state = engine.start(task_id)
            if "instruction_text" in line:
                assert (
                    line["instruction_text"]
                    == f"Instruction: {source.task(task_id).instruction}"
                )
        else:
            state = engine.act(line["action"])
        assert not differences(line, state, task_id), (
            f"line {number}: {line['action']!r}"
        )
        purchases += bool(line.get("verbose_info"))
    assert purchases or name == "edge_scripted"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in RECORDINGS if name != "edge_scripted"]
)
def test_goals_and_prices_in_order(golden, recorded, name):
    expected = json.loads((golden / f"{name}.goals.json").read_text("utf-8"))
    seed = expected["config"]["python_random_seed_before_init"]
    shop = WebShopSource(
        recorded, goals=RECORDINGS[name]["goals"], price_seed=seed
    ).shop
    goals = shop.goals
    catalogue = shop.catalogue
    found = [
        {
            name: getattr(goal.product, name)
            for name in ("asin", "category", "query", "product_category")
        }
        | {
            "name": goal.product.title,
            "instruction_text": goal.instruction,
            "attributes": list(goal.attributes),
        }
        | {"price_upper": goal.price_upper}
        | {
            "goal_options": list(goal.options)
            if isinstance(goal.options, tuple)
            else dict(goal.options)
        }
        for goal in map(goals.goal, range(len(goals)))
    ]
    assert found == [
        {name: goal[name] for name in goal if name != "weight"}
        for goal in expected["goals"]
    ]
    assert {p.asin: shop.price(p.index) for p in catalogue} == expected[
        "product_prices"
    ]


def test_state_texts_equal_verl_agents_anchors(golden, recorded):
    """An independent implementation of its steps: split at the separator, find the task, quote the rest."""
    engine = WebShopSource(recorded, goals="human").engine()
    for line in lines_of(golden, "text_human"):
        if line["goal_idx"] is None and line["step"] == 0:
            state = None
        elif line["step"] == 0:
            state = engine.start(line["goal_idx"])
            task = line["observation"].split(" [SEP] ")[2]
        elif state:
            state = engine.act(line["action"])
        if state:
            parts = line["observation"].split(" [SEP] ")
            rest = parts[parts.index(task) + 1 :] if task in parts else None
            anchor = (
                line["observation"]
                if rest is None
                else " [SEP] ".join(f"'{part}'" for part in rest)
            )
            assert state.text == anchor
            listed = [
                f"click[{name}]" for name in line["available_actions"]["clickables"]
            ]
            bar = (
                [pages.QUERY_ACTION]
                if line["available_actions"]["has_search_bar"]
                else []
            )
            assert list(state.actions) == bar + listed
