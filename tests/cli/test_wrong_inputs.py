"""Wrong inputs of every command: one line each, and nothing is left behind.

Each case names what the line must contain: the value or name that was received, and usually what was expected.
"""

import errno
import shlex
import shutil
import sys

import polars as pl
import pytest

from hgpo_train.cli.exit_status import exit_with_error
from hgpo_train.rollout import collect

DOORS = "doors_env:HGPO-Test/Doors-v0"

ROLLOUT = f"rollout --out x --env {DOORS}"
EVAL = f"eval --out x --env {DOORS} --split train"

COMMANDS = {
    "rolout": 'Unknown command "rolout". Did you mean "rollout"? See hgpo --help',
    "rollout": "--out is missing: The run's folder. A run in it is resumed; for example --out runs/rollout; see",
    "rollout --out": "parameter --out requires an argument; see hgpo rollout --help",
    "eval --tasks 3 --out x": "Unknown option: --tasks. Did you mean --split? See hgpo eval --help",
    "rollout --taks 3": "Unknown option: --taks. Did you mean --tasks? See hgpo rollout --help",
    "rollout --taks=3": "Unknown option: --taks. Did you mean --tasks?",
    "rollout --taks 3 --out x": "Did you mean --tasks? See hgpo rollout --help",
    "rollout --out x --tasks many": 'Invalid value for --tasks: unable to convert "many" into int',
    "rollout --out /proc/x/y": "--out /proc/x/y: /proc: No such file or directory; choose another path",
    "rollout --out x --tasks 1.5": 'Invalid value for --tasks: unable to convert "1.5" into int',
    "rollout --out x --workers 1.5": 'Invalid value for --workers: unable to convert "1.5" into int',
    "rollout --out ''": "--out: expected a value, received an empty text",
    "rollout --out=": "--out: expected a value, received an empty text",
    "verify ''": "arguments: expected a value, received an empty text",
    f"{ROLLOUT} --order sorted": "unknown task order 'sorted'",
    f"{ROLLOUT} --dynamic 3": "dynamic: expected at least 16 wanted groups, received 3",
    f"{ROLLOUT} --max-failed nan": "--max-failed: expected a share from 0 to 1, received nan",
    f"{ROLLOUT} --env-option prompt_template=bad.j2": "prompt template bad.j2 fails",
    f"{ROLLOUT} --policy randm": "unknown policy 'randm'; did you mean 'random'?",
    f"{ROLLOUT} --policy nothing:here": "; your own is module:object",
    f"{ROLLOUT} --policy mine.py:number": "named without .py, such as mine:number",
    f"{ROLLOUT} --policy bug:policy": "received 'bug:policy': ModuleNotFoundError: No module named 'nothing_there'",
    f"{ROLLOUT} --policy mine:number": "mine:number: expected a PolicySpec, a function of one request",
    f"{ROLLOUT} --policy openai:m --policy-option temprature=1": "did you mean 'temperature'?",
    f"rollout --env {DOORS} --out file": "expected a folder, received the file",
    f"rollout --env {DOORS} --out run --max-steps 5 --seed 5": "was written with",
    "rollout --out x --data /no/pack": "no ALFWorld data at /no/pack",
    f"{EVAL} --seeds 1,1": "expected distinct integers from 0 to 2147483647, received [1, 1]",
    "advantages": "expected a run: its folder",
    "advantages /no/run": "/no/run: no such",
    "advantages rum": "rum: no such file or run; did you mean run?",
    "verify empyt/run": "no such run or file on this machine; did you mean empty?",
    "advantages run -e hgpo:K=2": "unknown parameter 'K'; did you mean 'history_length'?",
    "advantages plain.parquet": "the table has no `task`",
    "advantages run -e mine": "more; your own is module:function",
    "advantages run -e mine:positional": "the estimator 'positional': expected keyword-only parameters",
    "advantages run -e hgpo:alpha=1e6 --out x": "hgpo: a parameter is too large",
    "advantages run --out x.csv": "--out: expected the path of a table",
    "advantages run --gamma 2": "--gamma: expected float <= 1.0, received 2.0",
    "advantages run --out empty": "expected an output file, received the folder empty",
    "data export delta plain.parquet --out x": "plain.parquet: expected the folder of one run",
    "stats run run": "unexpected argument 'run'; see hgpo stats --help",
    "stats run --state-key mask": "Known: mask-numbers, sort-lines, alfworld-nodes, module:function",
    "stats run --processes 0": 'Invalid value "0" for --processes. Must be > 0',
    "stats run --by kind": "unknown column to split by 'kind'",
    "stats run --plot x.gif": "--plot x.gif: expected a file that ends in .html, .svg, .png, .json",
    "rollout --env-option tasks=3 --out x": "--env-option tasks: expected an argument of the environment",
    "rollout --env-option system_prompt=3 --out x": "system_prompt: expected a text, received 3",
    "rollout --env-option split=train --out x": "--env-option split: use --split",
    "rollout --env-option sampling=sweep --out x": "--env-option sampling: expected an argument of the environment",
    "rollout --env HGPO/WebShop-v0 --env-option show_attributes=no --out x": "unknown show_attributes 'no'",
    "rollout --without hashes --out x": "without: hashes is always stored",
    "rollout --env HGPO/AlfWorld-v0 --out x": "did you mean 'HGPO/ALFWorld-v0'?",
    "rollout --env mine --out x": "; your own is module:object",
    "eval --env Nope --out x": "unknown environment 'Nope'",
    "eval --env HGPO/WebShop-v0 --against run --out x": "--against run: it has no task of HGPO/WebShop-v0",
    "view run --task x": "--task selects the tasks of a page; name one with --out",
    "play --tasks 0": 'Invalid value "0" for --tasks. Must be > 0',
    "train": "expected a configuration",
    "train tiny-alfworld --set iterations=0": "setting iterations: expected int >= 1, received 0",
    "train tiny-alfworld --set advantage.parameters.gama=1": "advantage.parameters of hgpo: unknown parameter 'gama'",
    "train --resume --out /no/run": "no run to resume in /no/run: expected the --out of an earlier hgpo train",
    "card /no/run -o x": "/no/run: expected the folder (--out) of hgpo train, hgpo eval or hgpo rollout",
    "train bad.toml": "bad.toml is not TOML",
    "train unknown.toml": "unknown setting 'updat'; did you mean 'update'?",
    "train tiny-alfworld --set update.epochs=0": "setting update.epochs: expected int >= 1, received 0",
    "sft run --out x --model /no/model --set rows=all": "/no/model",
    "sft run --out run --model /no/model": "--out run: it contains a run that is not of hgpo sft",
    "quickstart --tasks 0 --out x": "--tasks: expected int >= 1, received 0",
    "data fetch alfworld --out file": "file already exists",
    "data fetch alfworld --out x --sha256 abc": "--sha256: expected 64 hexadecimal digits, received 'abc'",
    "data fetch webshop --out x --size medium": "--size: expected 'small' or 'full', received 'medium'",
    "data build alfworld games.pack --out file": "file already exists and is not a pack",
    "data build alfworld games.pack --out empty": "--out empty: expected a file, received a folder",
    "data compare games.pack games.pack --env-option data=x": "--env-option data: use the arguments A and B",
    "data import void --out x": "error: void: expected rollouts",
    "data export delta run --out file": "file: expected a folder, received a file",
    "data build alfworld /no/folder --out x": "no ALFWorld data at /no/folder",
    "data build webshop --out x": "--items is missing: items_shuffle.json or",
    "data import file --format verl-agent --out x": "file, line 1: expected JSON (",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with sound and damaged inputs."""
    folder = tmp_path_factory.mktemp("inputs")
    collect(
        DOORS,
        "random",
        folder / "run",
        tasks=2,
        group_size=2,
        max_steps=5,
        progress=False,
    )
    (folder / "file").write_text("a list of goods\n")
    (folder / "empty").mkdir()
    (folder / "void").touch()
    (folder / "bad.toml").write_text("a = = 3\n")
    (folder / "bad.j2").write_text("{{ admissible_actions[999] }}")
    (folder / "unknown.toml").write_text("[updat]\nepochs = 1\n")
    (folder / "bug.py").write_text("import nothing_there\n")
    (folder / "mine.py").write_text(
        "number = 3\ndef three(a, b, c): ...\ndef positional(steps, scale): ...\n"
    )
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


def listing(folder):
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    return {
        name
        for name in found
        if "__pycache__" not in name and not name.endswith(".lock")
    }


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(errno.EXDEV, "x", "there/a"),
            "there/a: Invalid cross-device link; its folder is on another file system",
        ),
        (
            RuntimeError("can't start new thread"),
            "the system refused a thread; use fewer --slots",
        ),
        (MemoryError("2 GB"), "the system refused memory; use fewer --slots"),
        (BlockingIOError(errno.EAGAIN, "x"), "use fewer --slots or --processes"),
        (OSError(errno.ENOMEM, "x"), "use fewer --slots or --processes"),
    ],
)
def test_what_the_system_refuses_is_one_line(capsys, error, line):
    with pytest.raises(SystemExit) as end:
        exit_with_error(error)
    shown = capsys.readouterr().err
    assert (end.value.code, shown.count("\n")) == (1, 1)
    assert line in shown


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("line", COMMANDS)
def test_a_wrong_command_is_one_line(monkeypatch, hgpo, line):
    # restored: the command replaces them by redacted streams
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    code, out, error = hgpo(*shlex.split(line))
    assert (code, out, error.count("\n")) == (2, "", 1), error
    assert error.startswith("error: ")
    assert COMMANDS[line] in error
