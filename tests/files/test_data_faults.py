"""`hgpo data` with invalid inputs and unwritable outputs always prints one line and exits with 2."""

import os
import subprocess
import sys

import pytest

from hgpo_envs.alfworld.data.pack import write_pack
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.webshop.generation import synthetic
from hgpo_envs.webshop.generation.synthetic import FILES


@pytest.fixture
def run(hgpo):
    def exit_code_and_errors(*arguments):
        code, _, errors = hgpo(*arguments)
        return code, errors

    return exit_code_and_errors


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Return a pack of two games and the raw files of a shop."""
    folder = tmp_path_factory.mktemp("good")
    source = ALFWorldSource()
    ids = source.ids("train")[:2]
    write_pack(folder / "two.pack", ((task, source.read(task), source.trajectory(task)) for task in ids))
    synthetic.write_synthetic(folder / "raw", 30, 1)
    return folder


KINDS = ["absent", "fifo", "zero", "garbage", "empty folder"]


def make(kind, path):
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "empty folder":
        path.mkdir()
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "garbage":
        path.write_bytes(os.urandom(3000))
    return path


def commands(bad, good, out):
    """Return every command that reads data, with each of its inputs replaced by an invalid one."""
    raw = [good / "raw" / name for name in FILES]
    options = ("--items", "--attributes", "--human")
    for at in range(3):
        files = [bad if number == at else path for number, path in enumerate(raw)]
        named = [part for pair in zip(options, files, strict=True) for part in pair]
        yield "data", "build", "webshop", *named, "--nouns", "stand-in", "--out", out
    named = [part for pair in zip(options, raw, strict=True) for part in pair]
    yield "data", "build", "webshop", *named, "--nouns", bad, "--out", out
    yield "data", "build", "alfworld", bad, "--out", out
    yield "data", "fetch", "alfworld", "--from", bad, "--out", out
    yield "data", "fetch", "webshop", "--from", bad, "--out", out
    yield "data", "show", "webshop", bad
    yield "data", "show", "webshop", bad, "--verify"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_invalid_inputs(run, good, tmp_path, kind):
    bad, out = make(kind, tmp_path / "bad"), tmp_path / "made" / "out"
    for command in commands(bad, good, out):
        code, shown = run(*command)
        lines = [line for line in shown.splitlines() if line.startswith("error: ")]
        assert (code, len(lines)) == (2, 1), (command, shown)
        assert "Traceback" not in shown
        assert not out.parent.exists()


def writing(good, out):
    """Return every command that writes data."""
    raw = [good / "raw" / name for name in FILES]
    named = [part for pair in zip(("--items", "--attributes", "--human"), raw, strict=True) for part in pair]
    yield "data", "build", "webshop", *named, "--nouns", "stand-in", "--out", out
    yield "data", "build", "alfworld", good / "two.pack", "--out", out
    yield "data", "synth", "webshop", "--products", "200", "--out", out
    yield "data", "synth", "alfworld", "--games", "36", "--out", out
    yield "data", "synth", "alfworld", "--games", "36", "--out", f"{out}.pack"
    yield "data", "fetch", "webshop", "--from", good / "raw", "--out", out
    yield "data", "fetch", "alfworld", "--url", "http://127.0.0.1:9/x.zip", "--out", out


@pytest.mark.parametrize("place", ["/proc/hgpo/out", "file/out", "file/deeper/out"])
def test_unwritable_outputs(run, good, tmp_path, place):
    (tmp_path / "file").write_text("precious")
    for command in writing(good, tmp_path / place):
        code, shown = run(*command)
        lines = [line for line in shown.splitlines() if line.startswith("error: ")]
        assert (code, len(lines)) == (2, 1), (command, shown)
        assert "Traceback" not in shown
    assert (tmp_path / "file").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


FULL = """
import resource, signal, sys
from hgpo_train import cli
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
cli.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("limit", [1000])
def test_full_disks(good, tmp_path, number, limit):
    command = list(writing(good, tmp_path / "made" / "out"))[number]
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(limit), *map(str, command)], check=False, capture_output=True, text=True
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (done.returncode, len(lines)) == (2, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_data_show_of_a_damaged_catalogue(run, good, tmp_path):
    """`hgpo data show webshop` of a damaged catalogue, with and without a search."""
    raw = [good / "raw" / name for name in FILES]
    named = [part for pair in zip(("--items", "--attributes", "--human"), raw, strict=True) for part in pair]
    assert run("data", "build", "webshop", *named, "--nouns", "stand-in", "--out", tmp_path / "[/shop]")[0] == 0
    shop = tmp_path / "[/shop]"
    assert run("data", "show", "webshop", shop)[0] == 0
    for path in sorted(path for path in shop.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if content:
            at = len(content) // 2
            path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
            code, shown = run("data", "show", "webshop", shop, "--search", "red shoes")
            assert code in (0, 2)
            assert "Traceback" not in shown
            code, shown = run("data", "show", "webshop", shop, "--verify")
            assert "Traceback" not in shown
            assert code == 2 or path.name == "catalogue.json"
            path.write_bytes(content)
