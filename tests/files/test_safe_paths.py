"""Untrusted names: inside the folder on every system, or refused."""

from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from hgpo_envs.errors import InputError
from hgpo_envs.files.untrusted_files import path_inside

HOSTILE = [
    *(
        "",
        ".",
        "/",
        "..",
        "../x",
        "a/..",
        "a/../../x",
        "/etc/passwd",
        "//host/share",
        "./..",
        None,
        3,
        b"a",
        ["a"],
    ),
    *(
        "C:",
        "C:/x",
        "c:x",
        "a/C:x",
        "x:stream",
        "a\\b",
        "..\\x",
        "\\\\host\\share",
        "\\x",
    ),
    *("a\0b", "a\nb", "a\x7f", "\ud800", "a/\udfff"),
    *(
        "con",
        "CON",
        "a/nul",
        "NUL.txt",
        "com1",
        "COM1.x.y",
        "lpt9",
        "com\u00b9",
        "aux .txt",
        "conin$",
        "prn/x",
    ),
    *("a.", "a ", "a./b", "...", "a/ ", "a<b", "a|b", "a?", "a*", 'a"b'),
    *("x" * 256, "é" * 128, "/".join(["x" * 100] * 11)),
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_in_one_line(name):
    with refused("leads out of the folder, or is not a portable file name") as caught:
        path_inside(Path("folder"), name)
    assert len(str(caught.value)) < 200
    str(caught.value).encode()  # it can be printed


def test_plain_names():
    task = "train/pick_and_place_simple-Mug-None-Shelf-1/trial_T20190907_1"
    assert path_inside(Path("f"), task) == Path("f", *task.split("/"))
    assert path_inside(Path("f"), "./a//b/") == Path("f/a/b")
    assert path_inside(Path("f"), ".hidden/..x/é b") == Path("f/.hidden/..x/é b")


PARTS = st.one_of(
    st.sampled_from(["..", ".", "", "C:", "nul", "a", "con.x", "~", "b.", " "]),
    st.text(max_size=6),
)


@given(st.lists(PARTS, max_size=5).map("/".join))
def test_accepted_names_stay_inside_on_every_system(name):
    try:
        made = path_inside(PurePosixPath("/srv/folder"), name)
    except InputError:
        return
    below = made.relative_to("/srv/folder")
    assert below.parts
    assert ".." not in below.parts
    windows = PureWindowsPath("D:/folder") / str(below)
    assert windows.is_relative_to("D:/folder")
    assert not any(PureWindowsPath(part).is_reserved() for part in windows.parts[1:])
    assert str(below).encode().decode() == str(below)
