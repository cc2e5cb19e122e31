"""Every reader of untrusted bytes accepts any input or refuses it in one line: some inputs by default, many nightly."""

import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from nightly import sample_or_all

from tests.fuzz import files, tables, texts
from tests.fuzz.mutations import mutations, read

TARGETS = (*texts.TARGETS, *tables.TARGETS, *files.TARGETS)
CORPUS = Path(__file__).with_name("corpus")
FAILED_ONCE = sorted(path for path in CORPUS.rglob("*") if path.is_file())
MEMORY = 8 << 30
"""Limit of bytes that this process may allocate in addition, used or not; beyond it MemoryError is raised."""


@pytest.fixture
def limited_memory():
    status = Path("/proc/self/status").read_text().splitlines()
    used = next(int(line.split()[1]) for line in status if "VmData" in line) * 1024
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


def fuzz(target, folder):
    (folder / "seeds").mkdir()
    seeds = target.seeds(folder / "seeds")
    for number, seed in enumerate(seeds):
        (folder / f"{number}").mkdir()
        target.run(seed, folder / f"{number}")

    @settings(max_examples=target.inputs * sample_or_all(1, 50))
    @given(mutations(target, seeds))
    def each_input(data: bytes) -> None:
        read(target, data, folder / "input")

    each_input()


@pytest.mark.slow
@pytest.mark.usefixtures("limited_memory")
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.filterwarnings("ignore")
def test_any_input_is_read_or_refused_in_one_line(tmp_path, target):
    fuzz(target, tmp_path)


@pytest.mark.parametrize("path", FAILED_ONCE, ids=lambda path: path.parent.name)
def test_what_failed_once(tmp_path, path):
    (target,) = (
        target
        for target in TARGETS
        if target.name.replace(" ", "-") == path.parent.name
    )
    read(target, path.read_bytes(), tmp_path / "input")
