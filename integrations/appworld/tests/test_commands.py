"""The commands of `hgpo data` for AppWorld; wrong inputs are one line each."""

import pytest

WRONG = {
    "fetch appworld --into file --python /no/python": "file already exists",
    "fetch appworld --into x --python /no/python": "cannot run /no/python",
    "install appworld --into file": "file already exists",
    "install appworld --into x --python /no/python": "cannot run /no/python: No such file or directory; name",
    "synth appworld": "--out is missing: ",
    "synth appworld --out x --tasks 0 --python /no/python": "tasks: expected 1 to 10,000, received 0",
    "synth appworld --out file --python /no/python": "file already exists",
    "synth appworld --out x --python /no/python": "cannot run /no/python",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_command_is_one_line(hgpo, tmp_path, monkeypatch, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    code, _, error = hgpo("data", *words.split())
    assert code == 2
    assert WRONG[words] in error
    assert error.count("\n") == 1
