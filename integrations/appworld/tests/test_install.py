"""Installing AppWorld and fetching its data, with interpreters that fail in known ways."""

import os
import stat
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from hgpo_appworld.data.commands import reason
from hgpo_appworld.data.install import VERSION, default_folder, default_python, install
from hgpo_appworld.data.official import fetch
from hgpo_envs.errors import InputError

RESOLVE = (
    "NameResolutionError(\"HTTPSConnection(host='s3.us-west-2.amazonaws.com', \n"
    "port=443): Failed to resolve 's3.x.com'"
)


@pytest.fixture
def script(tmp_path: Path):
    """Return a function that writes an executable shell script."""

    def write(body: str, name: str = "python") -> str:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return write


def told() -> tuple[list[str], object]:
    lines: list[str] = []
    return lines, lines.append


# -------------------------------------------------------------------------------------------------- the interpreter


def test_the_interpreter_is_the_named_one_or_the_installed_one(
    monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("HGPO_APPWORLD_PYTHON", "/some/python")
    assert default_python() == Path("/some/python")
    monkeypatch.delenv("HGPO_APPWORLD_PYTHON")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(
        InputError, match="run hgpo data install appworld, or name the interpreter"
    ):
        default_python()
    (tmp_path / "hgpo/appworld/bin").mkdir(parents=True)
    (tmp_path / "hgpo/appworld/bin/python").touch()
    assert default_python() == tmp_path / "hgpo/appworld/bin/python"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_folder() == Path.home() / ".local/share/hgpo/appworld"


# ------------------------------------------------------------------------------------------------------ installation

VENV = """
case "$2" in
    venv) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; printf '#!%s/bin/python\\n' "$3" > "$3/bin/appworld" ;;
    pip) echo "$@" >> "$LOG" ;;
    appworld.cli) echo "$3 $APPWORLD_CACHE" >> "$LOG"; mkdir -p "$APPWORLD_CACHE/tests" ;;
    *) [ "$1" = -c ] && echo 3 12 ;;
esac
"""


@pytest.mark.skipif(os.name == "nt", reason="shell scripts")
def test_an_installation_is_in_one_folder_and_its_scripts_work_there(
    script, tmp_path, monkeypatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("LOG", str(log))
    lines, tell = told()
    python = install(tmp_path / "made", script(VENV), tell)
    assert python == tmp_path / "made/bin/python"
    assert python.exists()
    assert (
        tmp_path / "made/bin/appworld"
    ).read_text() == f"#!{tmp_path}/made/bin/python\n"
    # and not in the home folder
    assert (tmp_path / "made/appworld/cache/tests").is_dir()
    pip, unpacked = log.read_text().splitlines()
    assert pip.endswith(f"appworld=={VERSION}")
    assert unpacked.startswith("install ")
    assert "Apache-2.0" in lines[0]
    assert "only encrypted" in lines[0]


@pytest.mark.skipif(os.name == "nt", reason="shell scripts")
@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            ("echo 3 12", "echo 3 14"),
            "expected Python 3.11 to 3.13, which AppWorld's packages support; .* is 3.14",
        ),
        (
            ("mkdir -p", "echo 'ensurepip is not available' >&2; exit 1; mkdir"),
            "python3-venv",
        ),
        (
            (
                'echo "$@"',
                "echo 'ERROR: Could not find a version that satisfies the requirement a'; exit 1; echo",
            ),
            "index",
        ),
        (
            (
                'echo "$@"',
                "echo \"error: command 'gcc' failed: No such file\" >&2; exit 1; echo",
            ),
            "needs a compiler",
        ),
        (
            (
                'echo "$@"',
                "echo 'OSError: [Errno 28] No space left on device' >&2; exit 1; echo",
            ),
            "300 MB",
        ),
        (
            (
                'echo "$3 $APP',
                "echo 'FileNotFoundError: Apps bundle' >&2; exit 1; echo \"$3 $APP",
            ),
            "Apps bundle",
        ),
    ],
)
def test_a_failed_installation_is_one_line_and_leaves_nothing(
    script, tmp_path, monkeypatch, change, line
) -> None:
    monkeypatch.setenv("LOG", os.devnull)
    assert change[0] in VENV
    with pytest.raises(InputError, match=line) as caught:
        install(tmp_path / "made", script(VENV.replace(*change)), lambda line: None)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


@pytest.mark.slow
def test_a_package_index_without_appworld_is_one_line(tmp_path, monkeypatch) -> None:
    """With the real venv and pip."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        InputError,
        match=r"pip install appworld==\S+ failed: Could not find a version .*PIP_INDEX_URL",
    ):
        install(tmp_path / "made", sys.executable, lambda line: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="symbolic links")
def test_an_environment_that_was_moved_still_works(tmp_path) -> None:
    """Environments are made beside their final place and then renamed."""
    venv.create(tmp_path / "one", with_pip=True, symlinks=True)
    (tmp_path / "one").rename(tmp_path / "two")
    ask = [str(tmp_path / "two/bin/python"), "-m", "pip", "--version"]
    assert (
        str(tmp_path / "two")
        in subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    )


# -------------------------------------------------------------------------------------------------------------- data


@pytest.mark.skipif(os.name == "nt", reason="shell scripts")
def test_fetched_data_is_whole(script, tmp_path) -> None:
    lists = '"$APPWORLD_ROOT/data/datasets"'
    python = script(
        f'[ "$1" = -c ] || {{ mkdir -p {lists}; echo a_1 > {lists}/dev.txt; }}'
    )
    lines, tell = told()
    assert fetch(tmp_path / "root", python, tell) == {"dev": 1}
    assert (tmp_path / "root/data/datasets/dev.txt").read_text() == "a_1\n"
    assert "only encrypted" in lines[0]
    assert "do not publish" in lines[1]


@pytest.mark.skipif(os.name == "nt", reason="shell scripts")
@pytest.mark.parametrize(
    ("body", "line"),
    [
        (
            '[ "$1" = -c ] && echo "ModuleNotFoundError: No module named appworld" >&2 && exit 1',
            "No module named appworld",
        ),
        (
            '[ "$1" = -c ] || echo "Failed to download file. Status code: 403"',
            "Status code: 403. It needs s3",
        ),
        (
            f'[ "$1" = -c ] || {{ cat >&2 <<END\n{RESOLVE}\nEND\nexit 1; }}',
            "Failed to resolve 's3.x.com'; check the network",
        ),
        ('[ "$1" = -c ] || kill -9 $$', "it gave no reason"),
    ],
)
def test_a_failed_download_is_one_line_and_leaves_nothing(
    script, tmp_path, body, line
) -> None:
    with pytest.raises(InputError) as caught:
        fetch(tmp_path / "root", script(body), lambda line: None)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_reasons_hide_secrets() -> None:
    assert "hunter2" not in reason(
        "cannot reach https://user:hunter2@example.com/simple"
    )
