"""Wrong inputs of every command and of the public Python functions: one line each, and nothing is left behind.

Each case names what the line must contain: the value or name that was received, and usually what was expected.
"""

import dataclasses
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import gymnasium
import polars as pl
import pytest

import hgpo_train as hgpo
from hgpo_datasets import StepWriter, scan_steps, verify
from hgpo_train import settings
from hgpo_train.cli import main
from hgpo_train.rollout import collect
from hgpo_train.training.config import Config, load_config

DOORS = "doors_env:HGPO-Test/Doors-v0"
ALFWORLD, WEBSHOP = "HGPO/ALFWorld-v0", "HGPO/WebShop-v0"

ROLLOUT = f"rollout --out x --env {DOORS}"
EVAL = f"eval --out x --env {DOORS} --split train"

COMMANDS = {
    "rolout": "No such command 'rolout'; did you mean 'rollout'",
    "rollout": "Missing option '--out'; see hgpo rollout --help",
    "rollout --out x --tasks many": "--tasks: expected an integer, received 'many'",
    "rollout --out ''": "--out: expected a path, received an empty text",
    f"{ROLLOUT} --tasks 0": "tasks: expected at least 1, received 0",
    f"{ROLLOUT} --env-option nonsense": "--env-option: expected name=value, received 'nonsense'",
    f"{ROLLOUT} --policy randm": "unknown policy 'randm'; did you mean 'random'?",
    f"{ROLLOUT} --policy bug:policy": "received 'bug:policy': ModuleNotFoundError: No module named 'nothing_there'",
    f"{ROLLOUT} --policy mine:number": "mine:number: expected a PolicySpec, a function of one request",
    f"{ROLLOUT} --policy openai:m --policy-option temprature=1": "did you mean 'temperature'?",
    f"{ROLLOUT} --without promt": "unknown column or family 'promt'; did you mean 'prompt'?",
    f"rollout --env {DOORS} --out file": "--out file: expected a folder, received a file",
    f"rollout --env {DOORS} --out run --max-steps 5 --seed 5": "was written with",
    "rollout --out x --env HGPO/ALFWrld-v0": "unknown environment 'HGPO/ALFWrld-v0'",
    "rollout --out x --env CartPole-v1": "CartPole-v1: expected observations of text, received Box",
    "rollout --out x --data /no/pack": "no ALFWorld data at /no/pack",
    f"{EVAL} --seeds 1,1": "expected distinct integers from 0 to 2147483647, received [1, 1]",
    "advantages": "Missing argument 'run'",
    "advantages /no/run": "/no/run: no such",
    "advantages plain.parquet": "the table has no `task_id`",
    "advantages run -e mine:positional": "the estimator 'positional': expected keyword-only parameters",
    "advantages run --gamma 2": "parameter gamma: expected float <= 1.0, received 2.0",
    "advantages run --set alfa=1": "unknown parameter 'alfa'; did you mean 'alpha'?",
    "advantages run --out empty": "expected an output file, received the folder empty",
    "data export delta plain.parquet --out x": "plain.parquet: expected the folder of one run",
    "stats run --state-key mask": "Known: mask-numbers, sort-lines, alfworld-nodes, module:function",
    "stats run --by kind": "unknown column to split by 'kind'",
    "stats run --plot x.gif": "--plot x.gif: expected a file that ends in .html, .svg, .png, .json",
    "verify empty": "empty is not a run",
    "play --tasks 0": "--tasks: expected at least 1, received 0",
    "train": "expected a configuration",
    "train bad.toml": "bad.toml is not TOML",
    "train unknown.toml": "unknown setting 'updat'; did you mean 'update'?",
    "train tiny-alfworld --set update.epochs=0": "setting update.epochs: expected int >= 1, received 0",
    "train tiny-alfworld --out file": "file",
    "sft run": "Missing option '--out'",
    "sft run --out x --model /no/model": "/no/model",
    "quickstart --tasks 0 --out x": "tasks: expected at least 1, received 0",
    "quickstart --out file": "file",
    "data fetch alfworld --out file": "file already exists",
    "data build alfworld /no/folder --out x": "no ALFWorld data at /no/folder",
    "data build webshop --out x": "Missing option '--items'",
    "data show /no/run": "/no/run: no such",
    "data import verl-agent file --out x": "file, line 1: JSON is malformed",
}


@dataclasses.dataclass
class Required:
    level: int


def look(request: hgpo.Request) -> str:
    return "look"


def play(**arguments: object) -> object:
    small = {"env": DOORS, "policy": look, "out": "x", "tasks": 1, "group_size": 1, "max_steps": 2, "progress": False}
    return collect(**{**small, **arguments})


def add(rows: object) -> None:
    with StepWriter("existing") as writer:
        writer.add_group(rows)


def steps() -> pl.LazyFrame:
    return scan_steps("run")


ROW = {"task_id": "t", "trajectory": "x", "step": 0, "state": "s", "reward": 0.0}

CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "make history_length": (lambda: gymnasium.make(ALFWORLD, history_length="2"), "at least 0, received '2'"),
    "make max_steps": (lambda: gymnasium.make(ALFWORLD, max_steps=0), "expected an integer of at least 1, received 0"),
    "make argument": (lambda: gymnasium.make(ALFWORLD, splt="x"), "unknown argument 'splt'; did you mean 'split'?"),
    "make_vec": (lambda: gymnasium.make_vec(ALFWORLD, num_envs=0), "num_envs: expected at least 1, received 0"),
    "reset task": (lambda: gymnasium.make(ALFWORLD).reset(options={"task": "none"}), "'none'"),
    "writer file": (lambda: StepWriter("file"), "expected a folder, received the file"),
    "writer without": (lambda: StepWriter("x", without=["promt"]), "unknown column or family 'promt'"),
    "rows unknown": (lambda: add([{**ROW, "stat": 1}]), "unknown step table column 'stat'; did you mean 'state'?"),
    "rows type": (lambda: add([{**ROW, "step": "a"}]), "column step: expected Int32, received 'a'"),
    "rows twice": (lambda: add([ROW, ROW]), "expected contiguous steps 0, 1, 2"),
    "scan nothing": (lambda: scan_steps("/no"), "/no: no such"),
    "verify nothing": (lambda: verify("/no"), "/no: no such run or file"),
    "compute parameter": (
        lambda: hgpo.compute(steps(), "hgpo", alfa=1),
        "unknown parameter 'alfa'; did you mean 'alpha'?",
    ),
    "compute gamma": (
        lambda: hgpo.compute(steps(), "hgpo", gamma="x"),
        "parameter gamma: expected float, received 'x'",
    ),
    "compute without": (lambda: hgpo.compute(steps().drop("reward"), "hgpo"), "the table has no `reward`"),
    "compute empty": (lambda: hgpo.compute(steps().head(0), "hgpo").collect(), "the step table has no rows"),
    "statistics by": (lambda: hgpo.statistics(steps(), by="kind"), "unknown column to split by 'kind'"),
    "collect env": (lambda: play(env=3), "env: expected a Gymnasium id such as 'HGPO/ALFWorld-v0', received 3"),
    "collect policy": (lambda: play(policy=None), "policy: expected a PolicySpec, a function"),
    "collect max_failed": (lambda: play(max_failed=2), "max_failed: expected a share from 0 to 1, received 2"),
    "collect other run": (lambda: play(out="run", policy="random", seed=9), "was written with"),
    "build missing": (lambda: settings.build(Required, {}), "setting level: expected a value, received none"),
    "build unknown": (lambda: settings.build(Required, {"level": 1, "b": 1}), "unknown setting 'b'. Known: level"),
    "load_config": (lambda: load_config("nope"), "unknown configuration or missing file 'nope'"),
    "config": (lambda: Config(iterations="x"), "setting iterations: expected int, received 'x'"),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """A folder with sound and damaged inputs."""
    folder = tmp_path_factory.mktemp("inputs")
    collect(DOORS, "random", folder / "run", tasks=2, group_size=2, max_steps=5, progress=False)
    StepWriter(folder / "existing").close()
    (folder / "file").write_text("a list of goods\n")
    (folder / "empty").mkdir()
    (folder / "bad.toml").write_text("a = = 3\n")
    (folder / "unknown.toml").write_text("[updat]\nepochs = 1\n")
    (folder / "bug.py").write_text("import nothing_there\n")
    (folder / "mine.py").write_text("number = 3\ndef three(a, b, c): ...\ndef positional(steps, scale): ...\n")
    pl.DataFrame({"a": [1]}).write_parquet(folder / "plain.parquet")
    return folder


@pytest.fixture
def unchanged(inputs, monkeypatch):
    """The inputs as the working directory, in which a wrong input must leave nothing."""
    monkeypatch.chdir(inputs)
    monkeypatch.syspath_prepend(str(inputs))
    for name in ("mine", "bug"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = listing(inputs)
    yield
    after = listing(inputs)
    for name in after - before:
        shutil.rmtree(inputs / name, ignore_errors=True)
    assert after == before


def listing(folder: Path) -> set[str]:
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    return {name for name in found if "__pycache__" not in name and not name.endswith(".lock")}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("line", COMMANDS)
def test_a_wrong_command_is_one_line(monkeypatch, capsys, line):
    monkeypatch.setattr(sys, "argv", ["hgpo", *shlex.split(line)])
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # restored: the command replaces them by redacted streams
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 2, shown.err
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert COMMANDS[line] in shown.err


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_one_line(name):
    call, expected = CALLS[name]
    with pytest.raises(hgpo.InputError) as caught:
        call()
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
