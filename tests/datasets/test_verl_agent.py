"""Rollouts as verl-agent dumps them become step tables."""

import json
import random
from contextlib import nullcontext
from typing import Any

import polars as pl
import pytest
from refusals import refused

from hgpo_datasets import scan_steps, verify
from hgpo_datasets.interchange.rollouts import import_rollouts
from hgpo_datasets.reader import StepTableWarning
from hgpo_envs import hashing

OPENINGS = {
    "ALFWorld": "You are an expert agent operating in the ALFRED Embodied Environment.",
    "WebShop": "You are an expert autonomous agent operating in the WebShop e-commerce environment.",
}
PAIRS = {"task": "task", "action": "action", "response": "response", "won": "won"}
PAIRS |= {"admissible_actions": "actions", "action_valid": "valid"}
LENGTH = 2
"""The history length of the prompts."""
Episode = list[dict[str, Any]]


def prompt(benchmark, task, past, state, actions):
    """The marks of verl-agent's prompts around the values, between what a chat template leaves."""
    shop = benchmark == "WebShop"
    dot = "." if shop else ""
    quoted = [f"'{action}'" for action in actions]
    listed = (
        "\n[\n" + "".join(f"{one},\n" for one in quoted) + "]"
        if shop
        else f"[{chr(10).join(quoted)}]"
    )
    listed = listed if shop else listed.replace("\n", "\n ")
    told = f" Your task is to: {task}{dot}\n" if shop or past else "\n"
    pairs = [
        f"[Observation {number}: '{observation}', Action {number}: '{action}']"
        for number, (observation, action) in enumerate(past, 1)
    ][-LENGTH:]
    history = "\n".join(pairs)
    later = (
        f"Prior to this step, you have already taken {len(past)} step(s). Below are the most recent "
        f"{len(pairs)} observations and the corresponding actions you took: {history}\n"
        f"You are now at step {len(past) + 1} and your current observation is: {state}{dot}\n"
    )
    now = later if past else f"Your current observation is: {state}{dot}\n"
    actions = f"Your admissible actions of the current situation are: {listed}.\n\n"
    shown = f"{actions}Now it's your turn to take an action.\n"
    return (
        f"system\nAnswer.\nuser\n\n{OPENINGS[benchmark]}{told}{now}{shown}\nassistant\n"
    )


def dumped(benchmark, episodes, groups):
    records = []
    for number, (steps, group) in enumerate(zip(episodes, groups, strict=True)):
        past: list[tuple[str, str]] = []
        won = steps[-1]["won"]
        for step in steps:
            record = {
                "input": prompt(
                    benchmark, step["task"], past, step["state"], step["actions"]
                ),
                "step": 7,
            }
            record |= {
                "output": step["response"],
                "traj_uid": f"t{number}",
                "uid": group,
                "anchor_obs": step["state"],
            }
            record |= {
                "score": (10.0 if won else 0.0) - (0.0 if step["valid"] else 0.1)
            }
            record |= {
                "rewards": 10.0 if step["won"] else 0.0,
                "is_action_valid": step["valid"],
            }
            records.append(record)
            past.append((step["state"], step["action"]))
    return records


def episode(number, length, won, benchmark="ALFWorld", task="put a mug on a desk"):
    """Its first state is its task's, the others are its own."""
    begin = (
        f"You are in a room.\n\nYour task is to: {task}"
        if benchmark == "ALFWorld"
        else "'Search'"
    )
    steps = []
    for t in range(length):
        action = f"go to shelf {number}"
        valid = (number + t) % 5 > 0
        if benchmark == "WebShop" and t == length - 1:
            action = "click[buy now]"
        tags = f"<think>{number} {t}</think>" if valid else ""
        step = {
            "task": task,
            "state": f"Shelf {number}.{t} it's [empty], 'so'." if t else begin,
            "valid": valid,
        }
        step |= {
            "actions": [f"go to shelf {n}" for n in range(3)] + ["look at 'it'"],
            "action": action,
        }
        steps.append(
            step
            | {
                "response": f"{tags}<action>{action}</action>",
                "won": won and t == length - 1,
            }
        )
    return steps


def write(folder, records, name="7.jsonl", encoding="utf-8"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(
        "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records),
        encoding,
    )
    return folder


@pytest.mark.parametrize("benchmark", ["ALFWorld", "WebShop"])
@pytest.mark.parametrize("copies", [0, 5])
def test_mixed_and_padded_batches_come_back_in_order(tmp_path, benchmark, copies):
    lengths = [6, 3, 6, 2, 6, 4]
    tasks = ["put a mug on a desk", "cool an apple"]
    episodes = [
        episode(n, length, length < 6, benchmark, tasks[n % 2])
        for n, length in enumerate(lengths)
    ]
    records = dumped(benchmark, episodes, [f"g{n % 2}" for n in range(len(lengths))])
    draw = random.Random(copies)
    records += draw.sample(records, copies)
    draw.shuffle(records)
    told = (
        pytest.warns(StepTableWarning, match="5 records skipped")
        if copies
        else nullcontext()
    )
    with told:
        found = import_rollouts(write(tmp_path / "dump", records), tmp_path / "run")
    assert (found.steps, found.trajectories, found.groups) == (sum(lengths), 6, 2)
    assert verify(tmp_path / "run").ok
    steps = scan_steps(tmp_path / "run").collect()
    assert steps["iteration"].unique().to_list() == [7]
    for number, wanted in enumerate(episodes):
        rows = steps.filter(pl.col("trajectory") == f"t{number}")
        assert rows["state"].to_list() == [step["state"] for step in wanted]
        for ours, theirs in PAIRS.items():
            assert rows[ours].to_list() == [step[theirs] for step in wanted], ours
        won = wanted[-1]["won"]
        assert rows["reward"].to_list() == [0.0] * (len(wanted) - 1) + [float(won)]
        assert rows["episode_return"][0] == float(won)
        assert rows["state_hash"].to_list() == [
            hashing.text_hash(step["state"]) for step in wanted
        ]
        assert (rows["terminated"][-1], rows["truncated"][-1]) == (won, not won)


def test_a_cut_prompt_where_the_order_is_mixed(tmp_path):
    """Its step is not known. In a trajectory that is in order otherwise it stands where it belongs."""
    records = dumped("ALFWorld", [episode(0, 4, True)], ["g"])
    records[2]["input"] = records[2]["input"][500:]
    assert (
        import_rollouts(write(tmp_path / "dump", records), tmp_path / "run").steps == 4
    )
    records[0], records[1] = records[1], records[0]
    with refused(
        r"line 3: expected a complete prompt, because the steps .* are out of order"
    ):
        import_rollouts(write(tmp_path / "mixed", records), tmp_path / "other")


def test_records_without_whole_prompts_are_in_the_order_of_the_file(tmp_path):
    records = dumped(
        "ALFWorld", [episode(0, 3, True), episode(1, 2, False)], ["g", "g"]
    )
    for record in records:
        record["input"] = "cut"
        del record["step"]
    mixed = [records[i] for i in (0, 3, 1, 4, 2)]
    imported = import_rollouts(
        write(tmp_path / "dump", mixed, "12.jsonl", "utf-8-sig"), tmp_path / "run"
    )
    assert (imported.steps, imported.trajectories, imported.groups) == (5, 2, 1)
    steps = scan_steps(tmp_path / "run").collect()
    assert steps["trajectory"].to_list() == ["t0"] * 3 + ["t1"] * 2
    assert steps["won"].to_list() == [False, False, True, False, False]
    assert steps["state"].to_list() == [record["anchor_obs"] for record in records]
    assert steps["iteration"].unique().to_list() == [12]


def test_what_cannot_be_imported_is_one_line(tmp_path):
    for text, line in (
        ("not JSON\n", "line 1: expected JSON"),
        (
            '{"input": "x", "score": 0}\n',
            "line 1: Object missing required field `traj_uid`",
        ),
        (
            '{"traj_uid": "a", "uid": "b", "rewards": "x"}\n',
            "line 1: Expected `float`, got `str`",
        ),
    ):
        (tmp_path / "1.jsonl").write_text(text)
        with refused(line):
            import_rollouts(tmp_path / "1.jsonl", tmp_path / "run", format="verl-agent")
        assert [path.name for path in tmp_path.iterdir()] == ["1.jsonl"]
    with refused("expected a file with rollouts, or a folder of them"):
        import_rollouts(tmp_path / "nothing", tmp_path / "other")
