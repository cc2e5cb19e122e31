"""`hgpo data` with invalid inputs and unwritable outputs always prints one line and exits with 2."""

import pytest

from hgpo_envs.alfworld.data.pack import write_pack
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.webshop.generation import synthetic
from hgpo_envs.webshop.generation.synthetic import FILES


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Return a pack of two games and the raw files of a shop."""
    folder = tmp_path_factory.mktemp("good")
    source = ALFWorldSource()
    ids = source.ids("train")[:2]
    write_pack(folder / "two.pack", ((task, source.read(task), source.trajectory(task)) for task in ids))
    synthetic.write_synthetic(folder / "raw", 30, 1)
    return folder


def assert_refused(hgpo, command):
    code, _, errors = hgpo(*command)
    assert (code, sum(line.startswith("error: ") for line in errors.splitlines())) == (2, 1), (command, errors)
    assert "Traceback" not in errors


def named(items, attributes, human, nouns):
    return "--items", items, "--attributes", attributes, "--human", human, "--nouns", nouns


def writing(good, out):
    """Return every command that writes data."""
    yield "data", "build", "webshop", *named(*(good / "raw" / name for name in FILES), "stand-in"), "--out", out
    yield "data", "build", "alfworld", good / "two.pack", "--out", out
    yield "data", "synth", "webshop", "--products", "200", "--out", out
    yield "data", "synth", "alfworld", "--games", "36", "--out", out
    yield "data", "synth", "alfworld", "--games", "36", "--out", f"{out}.pack"
    yield "data", "fetch", "webshop", "--from", good / "raw", "--out", out
    yield "data", "fetch", "alfworld", "--url", "http://127.0.0.1:9/x.zip", "--out", out


@pytest.mark.parametrize("place", ["/proc/hgpo/out", "file/out", "file/deeper/out"])
def test_unwritable_outputs(hgpo, good, tmp_path, place):
    (tmp_path / "file").write_text("precious")
    for command in writing(good, tmp_path / place):
        assert_refused(hgpo, command)
    assert (tmp_path / "file").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
