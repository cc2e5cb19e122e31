"""`--out` and failed starts: one line, and nothing left behind, for every command."""

import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
from command import ROOT, arguments_of, every_command
from groups import write_run

from hgpo_envs.plugins import install_command
from hgpo_train import collect
from hgpo_train.cli.exit_status import extra_of

WITH_OUT = {
    words: command
    for words, command in every_command().items()
    if any("--out" in argument.names for argument in arguments_of(command))
}


@pytest.fixture
def run(hgpo, monkeypatch, tmp_path):
    """Return a function that runs a command line in an empty folder: exit code and the lines of standard error."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def exit_code_and_errors(*arguments: object) -> tuple[int, list[str]]:
        code, _, errors = hgpo(*arguments)
        return code, errors.strip().splitlines()

    return exit_code_and_errors


def words_for(command, out):
    """Values for all required arguments; `out` for the option `--out`."""
    words = ["--out", out]
    for argument in arguments_of(command):
        if argument.required and argument.name != "--out":
            words += [argument.name] if argument.name.startswith("--") else []
            words.append("environment" if argument.field_info.name == "kind" else "7")
    return words


def tree(folder):
    return sorted(folder.rglob("*"))


@pytest.mark.slow
def test_a_path_that_cannot_be_written_is_one_line_before_any_work(run, monkeypatch):
    Path("file").touch()
    Path("locked").mkdir()
    os.mkfifo("pipe")
    Path("to a device").symlink_to("/dev/null")
    access = os.access  # the superuser, who may run these tests, has every permission
    monkeypatch.setattr(
        os,
        "access",
        lambda path, mode: Path(path).name != "locked" and access(path, mode),
    )
    before = tree(Path())
    assert len(WITH_OUT) > 10
    cases = [
        (words, out)
        for words in WITH_OUT
        for out in ("file/x", "file/x/deep/y", "/proc/x/y")
    ]
    cases += [(("rollout",), out) for out in ("locked/x", "x" * 5000)]
    cases += [
        (words, out)
        for words in (("view",), ("advantages",))
        for out in ("pipe", "to a device")
    ]
    for words, out in cases:
        code, lines = run(*words, *words_for(WITH_OUT[words], out))
        assert (code, len(lines)) == (2, 1), (words, lines)
        assert re.match(r"error: --out .*choose another path", lines[0]), lines
        assert tree(Path()) == before


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / "run"
    collect("HGPO/ALFWorld-v0", "random", folder, tasks=2, group_size=2, progress=False)
    return folder


FAILED_STARTS = [
    ["train", "tiny-alfworld", "--set", "model.path=/absent"],
    ["sft", "RUN", "--set", "model.path=/absent"],
    ["rollout", "--policy", "absent"],
    ["eval", "--policy", "expert", "--against", "absent"],
    ["quickstart", "--group-size", "0"],
    ["advantages", "RUN", "-e", "absent"],
    ["stats", "RUN", "--by", "absent"],
    ["data", "build", "alfworld", "absent"],
    ["data", "fetch", "webshop", "--from", "absent"],
]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", FAILED_STARTS, ids=" ".join)
def test_a_failed_start_leaves_no_folder(run, small_run, arguments):
    code, lines = run(
        *(small_run if word == "RUN" else word for word in arguments),
        "--out",
        "new/folder",
    )
    assert code == 2, lines
    assert "error: " in lines[-1], lines
    assert sum("error: " in line for line in lines) == 1
    assert tree(Path()) == []


@pytest.mark.slow
def test_a_failed_start_keeps_a_folder_that_existed(run):
    """Only a folder without content counts as a failed start."""
    Path("mine").mkdir()
    write_run(Path("started"), config={})
    before = tree(Path())
    for name in ("mine", "started"):
        assert (
            run("train", "tiny-alfworld", "--set", "model.path=/absent", "--out", name)[
                0
            ]
            == 2
        )
        assert tree(Path()) == before


def test_a_minari_dataset_that_cannot_be_written_is_one_line_and_leaves_nothing(
    run, small_run, monkeypatch
):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(Path("minari").absolute()))
    export = ("data", "export", "minari", small_run, "--name")
    for name in ("bad name", "../outside-v0", ""):
        code, lines = run(*export, name)
        assert (code, len(lines)) == (2, 1), lines
        assert (
            "hgpo/alfworld/random-v0" if name else "--name: expected a value"
        ) in lines[0]
        assert tree(Path()) == []
    written = minari.create_dataset_from_buffers

    def partly_written(name: str, episodes: object, **options: object) -> None:
        written(name, episodes, **options)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as faulty:
        faulty.setattr(minari, "create_dataset_from_buffers", partly_written)
        code, lines = run(*export, "hgpo/alfworld/first-v0")
    assert (code, len(lines)) == (1, 1), lines
    assert "No space left" in lines[0]
    assert not Path("minari/hgpo/alfworld/first-v0").exists()
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "minari", None)
        code, lines = run(*export, "hgpo/alfworld/first-v0")
    assert (code, lines) == (
        2,
        [f"error: this needs minari: {install_command('interchange')}"],
    )

    assert run(*export, "hgpo/alfworld/first-v0")[0] == 0
    before = tree(Path())
    code, lines = run(*export, "hgpo/alfworld/first-v0")
    assert (code, len(lines)) == (2, 1), lines
    assert "exists already" in lines[0]
    assert tree(Path()) == before


def test_a_missing_module_names_the_extra_that_installs_it():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    modules = {
        "torch": "train",
        "PIL": "interchange",
        "vl_convert": "notebooks",
        "ray": "ray",
        "textual": "view",
    }
    for module, extra in modules.items():
        assert extra in extras
        assert extra_of(module) == extra
    assert extra_of("nothing_there") is None
