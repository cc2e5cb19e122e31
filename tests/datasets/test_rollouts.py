"""Rollouts of other programs become step tables: each of samples/ was written by the program itself."""

import json
import math
from pathlib import Path

import polars as pl
import pytest
from conversations import TALK, lines, message
from groups import write_run
from refusals import refused

from hgpo_datasets import scan_steps, verify
from hgpo_datasets.interchange.openai import to_openai
from hgpo_datasets.interchange.rollouts import FORMATS, format_of, import_rollouts
from hgpo_datasets.reader import StepTableWarning
from hgpo_train.advantages import compute

SAMPLES = Path(__file__).parent / "samples"
COUNTS = {
    "inspect/tools.eval": ("inspect", 8, 4, 2),
    "inspect/plain.json": ("inspect", 1, 1, 1),
    "trl": ("trl", 8, 8, 4),
    "verl": ("verl", 8, 8, 4),
    "verl_v1": ("verl", 3, 2, 1),
    "rllm": ("rllm", 4, 2, 1),
    "rllm_eval": ("rllm", 4, 2, 1),
    "skyrl": ("skyrl", 4, 3, 1),
    "verifiers": ("verifiers", 6, 2, 1),
}


def imported(name, out, **options):
    import_rollouts(SAMPLES / name, out / "run", **options)
    assert verify(out / "run").ok
    return scan_steps(out / "run").collect().sort("iteration", "trajectory", "step")


@pytest.mark.parametrize("name", COUNTS)
def test_the_format_is_found_out_and_rollouts_are_counted(tmp_path, name):
    report = import_rollouts(SAMPLES / name, tmp_path / "run")
    assert (report.format, report.steps, report.trajectories, report.groups) == COUNTS[
        name
    ]
    assert verify(tmp_path / "run").ok


def test_inspect_has_a_step_a_call_and_tools_as_states(tmp_path):
    steps = imported("inspect/tools.eval", tmp_path)
    rows = steps.filter(task_id="key", trajectory="key/1").to_dicts()
    assert [row["state"] for row in rows] == [
        "Where is the key?",
        "In the drawer there is a key.",
    ]
    call = (
        '<tool_call>\n{"name": "look", "arguments": {"where": "drawer"}}\n</tool_call>'
    )
    assert [row["action"] for row in rows] == [call, "It is in the drawer"]
    assert [one["role"] for one in json.loads(rows[1]["prompt"])] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert json.loads(rows[0]["message"])["tool_calls"][0]["function"]["name"] == "look"
    assert [row["reward"] for row in rows] == [0.0, 1.0]
    assert json.loads(rows[0]["extra"])["scores"]["match"]["value"] == "C"
    won = (
        steps.group_by("trajectory")
        .agg(pl.col("episode_won").first())
        .sort("trajectory")
    )
    assert won.rows() == [
        ("cup/1", False),
        ("cup/2", True),
        ("key/1", True),
        ("key/2", False),
    ]


def test_the_advantages_of_trl_are_those_that_it_logged(tmp_path):
    """Its `scale_rewards="group"` is GRPO with ddof 1 and epsilon 1e-4."""
    steps = imported("trl", tmp_path, reward={"length": 0.1, "has_e": 1.0})
    logged = [json.loads(extra)["advantage"] for extra in steps["extra"]]
    mine = (
        compute(steps, "grpo", epsilon=1e-4, reward_scale=1, invalid_action_penalty=0)
        .collect()["advantage"]
        .to_list()
    )
    assert mine == pytest.approx(logged, abs=1e-5)
    assert set(steps["iteration"]) == {1, 2}
    assert all(map(any, zip(mine)))


def test_of_trl_only_reward_functions_are_summed_and_named(tmp_path):
    """What `log_extra` logs comes behind them; the first that is no float shows where."""
    values = {
        "good": [1.0, None],
        "has_e": [0.5, 0.25],
        "words": [7, 9],
        "seconds": [3.0, 4.0],
    }
    talk = {"step": [1, 1], "prompt": ["Go."] * 2, "completion": ["a", "b"]}
    table = pl.DataFrame({**talk, **values, "advantage": [1.0, -1.0]})
    table.write_parquet(tmp_path / "completions_00001.parquet")
    report = import_rollouts(tmp_path, tmp_path / "run")
    assert scan_steps(tmp_path / "run").collect()["reward"].to_list() == [1.5, 0.25]
    assert (
        "weights of good and has_e, whose sum is the reward; give them by --reward"
        in report.missing
    )
    report = import_rollouts(
        tmp_path / "completions_00001.parquet", tmp_path / "b", reward={"words": 1}
    )
    assert scan_steps(tmp_path / "b").collect()["reward"].to_list() == [7, 9]
    assert not any(line.startswith("weights") for line in report.missing)


def test_rollouts_that_trl_writes_again_count_once(tmp_path):
    """Its logs keep the last generation, with which it makes several updates (`num_iterations`)."""
    made = {1: "ab", 2: "ab", 3: "ac", 4: "ac"}
    for step, completions in made.items():
        table = {"step": step, "prompt": "Go.", "completion": list(completions)}
        path = tmp_path / f"completions_{step:05d}.parquet"
        pl.DataFrame({**table, "good": [1.0, 0.0]}).write_parquet(path)
    with pytest.warns(StepTableWarning, match="2 files skipped, whose"):
        import_rollouts(tmp_path, tmp_path / "run")
    steps = scan_steps(tmp_path / "run").collect()
    assert sorted(steps.select("iteration", "response").rows()) == [
        (1, "a"),
        (1, "b"),
        (3, "a"),
        (3, "c"),
    ]


def test_iterations_that_are_texts_or_floats_are_numbers(tmp_path):
    """TRL wrote texts before 2026, and pandas writes floats where a row has none."""
    table = {"step": ["7", "7"], "prompt": "Go.", "completion": ["a", "b"]}
    pl.DataFrame({**table, "good": [1.0, 0.0]}).write_parquet(tmp_path / "a.parquet")
    import_rollouts(tmp_path / "a.parquet", tmp_path / "trl")
    record = {"messages": TALK, "reward": 1, "group": "2"}
    given = [7.0, "7", 7]
    lines(tmp_path / "a.jsonl", *[{**record, "iteration": one} for one in given])
    import_rollouts(tmp_path / "a.jsonl", tmp_path / "openai")
    for name in ("trl", "openai"):
        assert set(scan_steps(tmp_path / name).collect()["iteration"]) == {7}
    assert set(scan_steps(tmp_path / "openai").collect()["group"]) == {2}


def test_texts_of_inspect_are_graded_as_it_grades_them(tmp_path):
    """`value_to_float`: C, P, I and N, yes and no, and numbers. What it does not know has no reward."""
    given = {"C": 1.0, "P": 0.5, "yes": 1.0, "No": 0.0, "0.25": 0.25, "maybe": 0.0}
    samples = [
        {"id": value, "epoch": 1, "messages": TALK, "scores": {"s": {"value": value}}}
        for value in given
    ]
    lines(tmp_path / "a.json", {"eval": {}, "samples": samples})
    report = import_rollouts(tmp_path / "a.json", tmp_path / "run")
    steps = scan_steps(tmp_path / "run").collect()
    assert dict(steps.select("task_id", "reward").rows()) == given
    assert steps.filter("aborted")["task_id"].to_list() == ["maybe"]
    assert report.missing[0].startswith("rewards of 1 rollout, aborted")


@pytest.mark.parametrize(
    ("values", "won"), [([1.0, 0.5], [True, False]), ([1, 85], [None, None])]
)
def test_a_score_of_inspect_on_another_scale_does_not_say_what_is_solved(
    tmp_path, values, won
):
    samples = [
        {"id": number, "messages": TALK, "scores": {"s": {"value": value}}}
        for number, value in enumerate(values)
    ]
    lines(tmp_path / "a.json", {"eval": {}, "samples": samples})
    import_rollouts(tmp_path / "a.json", tmp_path / "run")
    steps = scan_steps(tmp_path / "run").collect().sort("task_id")
    assert steps["reward"].to_list() == values
    assert steps["won"].to_list() == won


def test_a_score_of_inspect_without_its_first_value_is_unknown(tmp_path):
    """Not the next one's, which is another measure. A NaN becomes null in a log that was read and written again."""
    values = {"both": [0.25, 1.0], "null": [None, 1.0], "nan": [math.nan, 1.0]}
    samples = [
        {
            "id": name,
            "epoch": 1,
            "messages": TALK,
            "scores": {"s": {"value": {"first": first, "second": second}}},
        }
        for name, (first, second) in values.items()
    ]
    lines(tmp_path / "a.json", {"eval": {}, "samples": samples})
    import_rollouts(tmp_path / "a.json", tmp_path / "run")
    steps = scan_steps(tmp_path / "run").collect()
    assert steps.filter(~pl.col("aborted")).select("task_id", "reward").rows() == [
        ("both", 0.25)
    ]


def _called(text: str, reply: str, **fields: object) -> dict:
    """Return an event of Inspect: a call of a model."""
    message = {"role": "assistant", "content": reply}
    choice = {"message": message, "stop_reason": fields.pop("stop_reason", "stop")}
    return {
        "event": "model",
        "input": [{"role": "user", "content": text}],
        "output": {"choices": [choice]},
        **fields,
    }


def _step(action: str, kind: str) -> dict:
    return {"event": "step", "action": action, "type": kind}


@pytest.mark.parametrize(
    "events",
    [
        # Spans: those of a scorer within the list of scorers, and of what a scorer begins.
        [
            {"event": "span_begin", "id": "a", "type": "solver"},
            _called("2 + 2?", "4", span_id="a"),
            {"event": "span_begin", "id": "b", "type": "scorers"},
            {"event": "span_begin", "id": "c", "parent_id": "b", "type": None},
            _called("Grade it.", "GRADE: C", span_id="c"),
            _called("And then?", "5", span_id="a"),
        ],
        # Logs before spans (inspect_ai 0.3.80) have steps.
        [
            _called("2 + 2?", "4"),
            _step("begin", "scorer"),
            _called("Grade it.", "GRADE: C"),
            _step("end", "scorer"),
            _called("And then?", "5"),
        ],
        # A model with a role plays the user.
        [
            _called("2 + 2?", "4"),
            _called("You are a customer.", "And then?", role="user"),
            _called("And then?", "5"),
        ],
    ],
    ids=["spans", "steps", "roles"],
)
def test_calls_of_graders_and_of_other_roles_are_no_steps_of_inspect(tmp_path, events):
    sample = {"id": 1, "epoch": 1, "scores": {"s": {"value": "C"}}, "events": events}
    (tmp_path / "log.json").write_text(json.dumps({"eval": {}, "samples": [sample]}))
    import_rollouts(tmp_path / "log.json", tmp_path / "run")
    steps = scan_steps(tmp_path / "run").sort("step").collect()
    assert steps.select("response", "reward").rows() == [("4", 0.0), ("5", 1.0)]


def test_inspect_has_the_reasons_for_which_a_reply_ended(tmp_path):
    reasons = ["stop", "max_tokens", "model_length", "content_filter", "unknown"]
    events = [_called("2 + 2?", "4", stop_reason=reason) for reason in reasons]
    sample = {"id": 1, "scores": {"s": {"value": "C"}}, "events": events}
    (tmp_path / "log.json").write_text(json.dumps({"eval": {}, "samples": [sample]}))
    import_rollouts(tmp_path / "log.json", tmp_path / "run")
    steps = scan_steps(tmp_path / "run").sort("step").collect()
    expected = ["stop", "length", "length", "content_filter", None]
    assert steps["finish_reason"].to_list() == expected


def test_verl_has_one_step_a_line_or_the_outputs_of_a_rollout(tmp_path):
    steps = imported("verl", tmp_path)
    assert steps.filter(iteration=1)["response"].to_list() == [
        "Open the door.", "Find a mug.", "Open the door.", "Find the mug.",
    ]  # fmt: skip
    assert steps["reward"].to_list() == [1.0, 0.0, 0.0, 1.0] * 2
    other = tmp_path / "v1"
    other.mkdir()
    parts = (
        imported("verl_v1", other)
        .select("task_id", "trajectory", "step", "action", "reward")
        .rows()
    )
    assert parts == [
        ("a", "a_0_0", 0, "look", 0.0),
        ("a", "a_0_0", 1, "open door", 1.0),
        ("a", "a_1_0", 0, "sleep", 0.0),
    ]


@pytest.mark.parametrize("name", ["rllm", "rllm_eval"])
def test_rllm_has_what_its_steps_have(tmp_path, name):
    steps = imported(name, tmp_path)
    assert steps["state"].to_list() == ["You are in a hall.", "There is a door."] * 2
    assert steps["action"].to_list() == ["look", "open door", "look", "sleep"]
    assert steps["reward"].to_list() == [0.0, 1.0, 0.0, 0.0]
    if name == "rllm_eval":
        assert steps["response_logprobs"].to_list()[:2] == [[-0.5], [-0.25, -0.75]]


def test_skyrl_steps_that_continue_a_line_are_of_its_rollout(tmp_path):
    steps = imported("skyrl", tmp_path)
    assert steps["step"].to_list() == [0, 0, 0, 1]
    assert steps["reward"].to_list() == [1.0, 0.0, 0.0, 1.0]
    later = "\n<|im_start|>user\nThere is a door.<|im_end|>\n<|im_start|>assistant\n"
    assert steps["state"][3] == later
    assert set(steps["iteration"]) == {5}


def test_skyrl_has_the_reasons_for_which_a_reply_ended(tmp_path):
    record = {"input_prompt": "2 + 2?", "output_response": "4", "score": 1.0}
    reasons = ["stop", "length", "abort", None]
    lines(tmp_path / "a.jsonl", *[{**record, "stop_reason": one} for one in reasons])
    import_rollouts(tmp_path / "a.jsonl", tmp_path / "run", format="skyrl")
    steps = scan_steps(tmp_path / "run").collect().sort("trajectory")
    assert steps["finish_reason"].to_list() == reasons


def test_diverging_prompts_of_verifiers_are_steps_of_one_rollout(tmp_path):
    steps = imported("verifiers", tmp_path)
    assert steps["step"].to_list() == [0, 1, 2] * 2
    assert [json.loads(extra)["parent"] for extra in steps["extra"]][:3] == [0, 2, 4]
    assert steps["state"].to_list()[:3] == ["Moves: 0", "Moves: 1", "Moves: 2"]
    # of a key without numbers, which the environment left in the trace
    assert steps["state_hash"].n_unique() == 1
    assert steps["truncated"].to_list() == [False, False, True] * 2


def test_conversations_keep_what_is_no_column(tmp_path):
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "look", "arguments": "{}"},
    }
    talk = [
        message("user", "Go."),
        message("assistant", None, tool_calls=[call]),
        message("tool", "A door."),
    ]
    talk.append(message("assistant", "open door"))
    path = lines(
        tmp_path / "a.jsonl",
        {"messages": talk, "task_id": 7, "reward": 1, "model": "m"},
        {"messages": talk[:2], "task_id": 7, "reward": None},
        {
            "messages": talk,
            "task_id": 7,
            "rewards": [0.5, 0.25],
            "trajectory": "x",
            "split": "test",
        },
    )
    steps = imported(path, tmp_path)
    assert steps.select("task_id", "trajectory", "reward", "aborted").rows() == [
        ("7", "0", 0.0, False), ("7", "0", 1.0, False), ("7", "1", 0.0, True),
        ("7", "x", 0.5, False), ("7", "x", 0.25, False),
    ]  # fmt: skip
    assert json.loads(steps["extra"][0]) == {"model": "m", "rewards": {"reward": 1.0}}
    assert steps["split"].to_list() == [None] * 3 + ["test"] * 2


def test_a_message_of_weight_0_is_an_example_in_the_prompt(tmp_path):
    """OpenAI's files for fine-tuning leave such messages out of the loss."""
    shown = [message("user", "2 + 2?"), message("assistant", "4", weight=0)]
    asked = [*shown, message("user", "3 + 3?"), message("assistant", "6", weight=1)]
    path = lines(tmp_path / "a.jsonl", {"messages": asked, "reward": 1})
    import_rollouts(path, tmp_path / "run")
    steps = scan_steps(tmp_path / "run").collect()
    assert steps.select("response", "state").rows() == [("6", "3 + 3?")]
    assert json.loads(steps["prompt"][0])[:2] == shown


def test_rewards_of_the_objects_of_steps_are_read(tmp_path):
    talk = [*TALK, *TALK]
    path = lines(
        tmp_path / "a.jsonl",
        {"messages": talk, "steps": [{"reward": 0.5}, {"reward": 0.25}]},
        {"messages": talk, "reward": 1, "steps": [{"state_value": 1}]},
    )
    steps = imported(path, tmp_path)
    assert steps["reward"].to_list() == [0.5, 0.25, 0.0, 1.0]


def test_a_reply_without_anything_is_still_a_step(tmp_path):
    path = lines(
        tmp_path / "a.jsonl",
        {"messages": [*TALK, {"role": "assistant", "content": None}], "reward": 1},
    )
    assert imported(path, tmp_path)["response"].to_list() == ["no", ""]


def test_files_of_one_task_are_groups_of_their_own(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    for number in (2, 10):
        talk = [message("user", "Go."), message("assistant", str(number))]
        lines(folder / f"{number}.jsonl", *[{"messages": talk, "reward": 1}] * 2)
    (folder / "notes.json").write_text("[]")
    report = import_rollouts(folder, tmp_path / "run")
    assert (report.groups, report.skipped) == (2, [str(folder / "notes.json")])
    steps = scan_steps(tmp_path / "run").collect()
    assert steps.select("group", "trajectory", "response").rows() == [
        (0, "0", "2"),
        (0, "1", "2"),
        (1, "1/0", "10"),
        (1, "1/1", "10"),
    ]


def test_what_estimators_miss_is_named(tmp_path):
    turn = [message("user", "Go."), message("assistant", "no")]
    path = lines(tmp_path / "a.jsonl", {"messages": turn})
    missing = " ".join(import_rollouts(path, tmp_path / "run").missing)
    assert all(
        word in missing
        for word in (
            "rewards",
            "second rollout",
            "hgpo and gigpo compare what grpo compares",
            "token ids",
        )
    )
    # Where no rollout has a reward, none is left out for it.
    path = lines(
        tmp_path / "b.jsonl",
        {"messages": turn * 2},
        {"messages": turn * 2, "reward": None},
    )
    missing = import_rollouts(path, tmp_path / "more").missing
    assert [words.split()[0] for words in missing] == ["rewards", "token"]
    assert not scan_steps(tmp_path / "more").collect()["aborted"].any()
    path = lines(tmp_path / "c.jsonl", {"messages": turn, "reward": None, "score": 0.5})
    assert imported(path, tmp_path / "c")["reward"].to_list() == [0.5]


def test_a_file_of_no_known_format_says_what_is_in_it(tmp_path):
    path = lines(tmp_path / "a.jsonl", {"conversation": [], "reward": 1})
    with refused("received the fields conversation, reward;"):
        import_rollouts(path, tmp_path / "run")
    path.write_text('{"messages": [')
    with refused("line 1: expected JSON"):
        import_rollouts(path, tmp_path / "run")


def test_outputs_of_verl_are_in_the_order_of_their_numbers(tmp_path):
    uids = ["a_0_1", "a_1_0", "a_0_0", "a_0_10", "a_0_2"]
    records = [
        {
            "input": "q",
            "output": uid,
            "score": float(uid[2] == "0"),
            "step": 3,
            "uid": uid,
        }
        for uid in uids
    ]
    steps = imported(lines(tmp_path / "3.jsonl", *records), tmp_path, format="verl")
    assert steps["action"].to_list() == ["a_0_0", "a_0_1", "a_0_2", "a_0_10", "a_1_0"]
    assert steps["reward"].to_list() == [0, 0, 0, 1, 0]
    twice = lines(tmp_path / "twice.jsonl", *records, records[0])
    with refused("line 6: expected each uid once, received 'a_0_1' again"):
        import_rollouts(twice, tmp_path / "twice", format="verl")


def test_formats_differ(tmp_path):
    assert {format_of(SAMPLES / "trl/completions/completions_00001.parquet")} == {"trl"}
    with refused(
        r"expected files of one format, received several \(.*\); use --format"
    ):
        import_rollouts([SAMPLES / "verl", SAMPLES / "skyrl"], tmp_path / "run")
    with refused("unknown format 'openia'; did you mean 'openai'"):
        import_rollouts(SAMPLES / "verl", tmp_path / "run", format="openia")
    with refused("unknown reward 'acc1'; did you mean 'acc'"):
        import_rollouts(SAMPLES / "verl", tmp_path / "run", reward={"acc1": 1.0})
    assert set(FORMATS) >= {name for name, *_ in COUNTS.values()}


def test_a_conversation_without_a_reply_is_skipped_and_counted(tmp_path):
    asked = message("user", "Where is the lamp?")
    answered = [asked, message("assistant", "on the desk")]
    path = lines(
        tmp_path / "mine.jsonl",
        {"messages": [asked], "reward": 1},
        {"messages": answered, "reward": 1},
    )
    with pytest.warns(StepTableWarning, match="1 conversation skipped"):
        report = import_rollouts(path, tmp_path / "run")
    assert report.steps == 1


@pytest.mark.parametrize("style", ["memory", "chat"])
def test_exported_conversations_are_read_back(tmp_path, style):
    """A fresh prompt each step is a line of its own; a conversation is one line with all messages."""
    call = {
        "tool_calls": [
            {
                "id": "c",
                "type": "function",
                "function": {"name": "look", "arguments": "{}"},
            }
        ]
    }
    row = {
        "task_id": "t",
        "task": "Go.",
        "terminated": False,
        "won": False,
        "reward": 0.25,
    }
    rows = [
        {
            **row,
            "step": 0,
            "state": "A hall.",
            "prompt": "Go. A hall.",
            "response": "x",
            "message": json.dumps(call),
        },
        {
            **row,
            "step": 1,
            "state": "A door.",
            "prompt": "Go. A door.",
            "response": "open",
            "action_valid": False,
        },
        {
            **row,
            "step": 2,
            "state": "Out.",
            "prompt": "Go. Out.",
            "response": "stop",
            "truncated": True,
        },
    ]
    config = {"env": {"id": "E-v0", "prompt_style": style}}
    more = {"system_prompt": "Be brief.", "prompt_style": {"memory": "chat"}.get(style)}
    configs = {
        "run": config,
        "other": {"env": {**config["env"], **more}, "tools": [{"type": "function"}]},
    }
    for name, stored in configs.items():
        write_run(
            tmp_path / name,
            [{**row, "trajectory": name} for name in ("a", "b") for row in rows],
            config=stored,
        )
    count = to_openai(tmp_path / "run", tmp_path / "out.jsonl")
    assert count == {"memory": 6, "chat": 2}[style]
    # of several runs, each has its own prompts; the model has read the system's message and the tools
    assert to_openai(tmp_path, tmp_path / "both.jsonl") == 8
    lines = [
        json.loads(line) for line in (tmp_path / "both.jsonl").read_text().splitlines()
    ]
    assert (
        sum(
            line["messages"][0] == {"role": "system", "content": "Be brief."}
            for line in lines
        )
        == 8 - count
    )
    assert sum("tools" in line for line in lines) == 8 - count
    first = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["messages"]
    if style == "chat":
        assert [one["role"] for one in first] == [
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
            "assistant",
        ]
        assert first[2] == {
            "role": "tool",
            "tool_call_id": "c",
            "content": "Go. A door.",
        }
    import_rollouts(tmp_path / "out.jsonl", tmp_path / "back")
    names = [
        "trajectory",
        "step",
        "task_id",
        "task",
        "state",
        "action_valid",
        "truncated",
        "won",
        "reward",
    ]
    ours, theirs = (
        scan_steps(tmp_path / run).select(names).collect() for run in ("run", "back")
    )
    assert theirs.equals(ours)
