"""Rollouts of other programs that cannot be read: one line says what is wrong, and where; nothing is left out."""

import math
import struct
import zipfile
from pathlib import Path

import pytest
from conversations import TALK, lines, message
from refusals import refused

from hgpo_datasets import scan_steps
from hgpo_datasets.interchange.rollouts import import_rollouts
from hgpo_envs.errors import InputError

SAMPLES = Path(__file__).parent / "samples"
_TRACE = {"nodes": [{"sampled": True, "message": message("assistant", "a")}]}


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("openai", lambda reward: {"messages": TALK, "reward": reward}),
        ("openai", lambda reward: {"messages": TALK, "rewards": [reward]}),
        ("verl", lambda reward: {"input": "q", "output": "a", "score": reward}),
        ("skyrl", lambda reward: {"input_prompt": "q", "output_response": "a", "score": [reward]}),
        ("verifiers", lambda reward: {"traces": [{**_TRACE, "rewards": {"r": {"score": reward}}}]}),
        ("rllm", lambda reward: {"trajectories": [{"steps": [{"model_response": "a"}], "reward": reward}]}),
    ],
)  # fmt: skip
def test_a_reward_that_is_a_text_is_read_or_refused(tmp_path, name, record):
    path = lines(tmp_path / "a.json", record("0.5"))
    import_rollouts(path, tmp_path / "run", format=name)
    assert scan_steps(tmp_path / "run").collect()["reward"].to_list() == [0.5]
    path = lines(tmp_path / "b.json", record("good"))
    with refused(r"b\.json.*: expected a number as reward, received 'good'"):
        import_rollouts(path, tmp_path / "other", format=name)
    # Infinity is also what becomes of 1e999.
    for bad in (math.nan, math.inf):
        path = lines(tmp_path / "b.json", record(bad))
        with refused(rf"b\.json.*: expected a number as reward, received {bad}"):
            import_rollouts(path, tmp_path / "other", format=name)


def test_the_line_of_a_wrong_value_is_named(tmp_path):
    good = {"messages": TALK, "won": True}
    path = lines(tmp_path / "a.jsonl", good, good, good | {"won": "yes"}, good)
    with refused(r"a\.jsonl, line 3: .*column won: expected Boolean, received 'yes'"):
        import_rollouts(path, tmp_path / "run")


def bomb(path):
    """An archive whose entry says that it is 1 TB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples/a.json", b"0" * 1000)
    data = path.read_bytes()
    at = data.rindex(b"PK\x01\x02") + 24
    size = struct.pack("<I", (1 << 32) - 2)
    path.write_bytes(data[:at] + size + data[at + len(size) :])
    return path


@pytest.mark.parametrize(
    ("name", "record", "line"),
    [
        (
            "openai",
            {"messages": "x"},
            "line 1, messages: expected a list of JSON objects",
        ),
        (
            "openai",
            {"messages": [message("assistant", "a")], "rewards": [1, 2]},
            r"a\.jsonl, line 1: expected one reward for each of 1 step, received 2",
        ),
        ("openai", [], "line 1: expected a JSON object, received list"),
        (
            "verifiers",
            {"traces": [{"nodes": [{"parent": 0, "sampled": True}]}]},
            "expected an earlier message",
        ),
        ("verl", {"output": "x"}, "a.jsonl, line 1: expected the field input"),
        (
            "openai",
            {"messages": TALK, "rewards": 1},
            "line 1: expected a list as rewards, one a step, received 1;",
        ),
        (
            "verifiers",
            {"traces": [{**_TRACE, "rewards": 1}]},
            "line 1: expected an object with a score for each name as rewards, received 1",
        ),
        (
            "verifiers",
            {"traces": [{**_TRACE, "rewards": {"r": 1}}]},
            "line 1: expected an object with a score for each name as rewards",
        ),
        (
            "openai",
            {"messages": TALK, "steps": [{}, {}]},
            "line 1, steps: expected at most one object for each of 1 step, received 2",
        ),
        (
            "verifiers",
            {"traces": [{**_TRACE, "info": {"hgpo_steps": [{}, {}]}}]},
            "line 1, hgpo_steps: expected at most one object for each of 1 step",
        ),
        (
            "openai",
            {"messages": [*TALK, message("asistant", "b")]},
            "line 1, messages: unknown role 'asistant'; did you mean 'assistant'.* Known: system, developer, user,",
        ),
        (
            "openai",
            {"messages": [{"content": "Go."}]},
            r"line 1, messages: expected a role in each message \(system, .*\), received none",
        ),
        ("openai", {"messages": TALK, "won": "yes"}, "a.jsonl, line 1: .*column won"),
        (
            "verl-agent",
            {"traj_uid": "t", "uid": "u", "anchor_obs": "s", "rewards": math.nan},
            "a.jsonl, line 1: expected a number as reward, received nan",
        ),
        (
            "verl-agent",
            {
                "traj_uid": "t",
                "uid": "u",
                "anchor_obs": "s",
                "rewards": 1,
                "step": 1 << 40,
            },
            "a.jsonl, line 1: .*iteration",
        ),
        (
            "verl",
            {"input": "q", "output": "a", "score": 1, "step": 1 << 40},
            "a.jsonl, line 1: .*iteration",
        ),
    ],
)
def test_wrong_files_are_one_line(tmp_path, name, record, line):
    path = lines(tmp_path / "a.jsonl", record)
    with refused(line):
        import_rollouts(path, tmp_path / "run", format=name)
    assert not (tmp_path / "run").exists()


def test_hostile_files_are_refused(tmp_path):
    deep = tmp_path / "deep.jsonl"
    deep.write_text('{"messages": ' + "[" * 100_000 + "\n")
    for path, name in (
        (bomb(tmp_path / "a.eval"), "inspect"),
        (deep, "openai"),
        (deep, "verifiers"),
    ):
        with pytest.raises(InputError):
            import_rollouts(path, tmp_path / "run", format=name)
    # its list of files, which is read in one piece, has more than 16 MB
    with zipfile.ZipFile(tmp_path / "names.eval", "w") as archive:
        for number in range(300):
            entry = zipfile.ZipInfo(f"samples/{number:060000}.json")
            archive.writestr(entry, b"{}")
    with refused("a list of files of at most 16,777,216") as it:
        import_rollouts(tmp_path / "names.eval", tmp_path / "run")
    assert len(str(it.value)) < 500
    cut = tmp_path / "cut.eval"
    cut.write_bytes((SAMPLES / "inspect/tools.eval").read_bytes()[:9000])
    with refused("expected a log of Inspect"):
        import_rollouts(cut, tmp_path / "run")
    flipped = bytearray((SAMPLES / "inspect/tools.eval").read_bytes())
    flipped[3000] ^= 255
    cut.write_bytes(flipped)
    with refused("cannot be read"):
        import_rollouts(cut, tmp_path / "run")
