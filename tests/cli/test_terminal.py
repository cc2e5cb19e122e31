"""Escape sequences in texts of servers, tables and tasks do not reach the terminal, whichever command prints them."""

import io
import os
import pty
import shlex
import subprocess
import sys

import pytest
from chat_server import Api
from command import DOORS, MAIN, environment

from hgpo_datasets import StepWriter
from hgpo_train.cli.redaction import RedactedStream

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[1A\x9b31mred\u202eder\r"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose texts contain escape sequences in every column that is printed."""
    folder = tmp_path_factory.mktemp("evil") / "run"
    with StepWriter(folder, run="run", config={}) as writer:
        for group in range(2):
            texts = {
                "task_id": f"t{EVIL}",
                "state": f"s{EVIL}",
                "action": f"a{EVIL}",
                "task_type": f"kind{EVIL}",
            }
            texts |= {"env_id": f"env{EVIL}", "split": f"train{EVIL}"}
            ends = [
                {"trajectory": f"{group}{n}{EVIL}", "reward": float(n), "won": bool(n)}
                for n in range(2)
            ]
            writer.add_group(
                [
                    texts | {"group": group, "step": 0, "terminated": True} | end
                    for end in ends
                ]
            )
    return folder


def on_a_terminal(*arguments, typed=""):
    """Run a command whose standard streams are a terminal, and return what it wrote there."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", MAIN, *map(str, arguments)]
    env = environment(TERM="xterm")
    del env["COLUMNS"]  # as wide as the terminal
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    written = b""
    try:
        while part := os.read(ours, 1 << 16):
            written += part
    except OSError:  # the other end is closed
        pass
    process.wait(60)
    os.close(ours)
    return written


def check(written):
    assert b"owned" in written, written
    for sequence in (b"\x1b]", b"\x07", b"\x1b[2J", "\x9b".encode(), "\u202e".encode()):
        assert sequence not in written, (sequence, written)


@pytest.mark.slow
def test_on_a_terminal(run, tmp_path):
    check(on_a_terminal("stats", run, "--by", "task_type"))
    check(on_a_terminal("data", "show", run))
    check(on_a_terminal("rollout", "--policy", f"no{EVIL}", "--out", tmp_path / "x"))
    with Api() as api:
        api.answer = lambda *_: (400, {"error": {"message": f"no{EVIL}"}}, {})
        options = [
            "--policy-option",
            f"base_url={api.url}",
            "--policy-option",
            "retries=0",
        ]
        check(
            on_a_terminal(
                *DOORS, "--policy", "openai:tiny", *options, "--out", tmp_path / "run"
            )
        )
    template = tmp_path / "evil.j2"
    template.write_text(f"prompt {EVIL}")
    play = ["play", DOORS[2], "--env-option", f"prompt_template={template}"]
    check(on_a_terminal(*play, typed="p\nq\n"))


@pytest.mark.slow
def test_in_pipes(run, hgpo):
    stats = ("stats", run)
    for command in (
        stats,
        (*stats, "--by", "task_type"),
        ("data", "show", run, "--json"),
        ("verify", run),
    ):
        printed = "".join(map(str, hgpo(*command)))
        assert all(letter == "\n" or letter.isprintable() for letter in printed), (
            command
        )


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_what_a_stream_cannot_encode_is_replaced(run, encoding):
    for command in (
        ("stats", run),
        ("data", "show", run),
        ("--help",),
        ("stats", "/no—run"),
    ):
        line = [sys.executable, "-c", MAIN, *map(str, command)]
        env = environment(PYTHONIOENCODING=encoding)
        done = subprocess.run(line, env=env, capture_output=True, check=False)
        assert done.returncode == (2 if "/no—run" in command else 0), done
        assert b"Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "code"),
    [
        (">&-", 0),
        ("2>&-", 0),
        (">&- 2>&-", 0),
        ("> /dev/full", 1),
        ("2> /dev/full", 0),
        ("> /dev/full 2> /dev/full", 1),
        ("| head -c 1; exit ${PIPESTATUS[0]}", None),
    ],
)
def test_streams_that_are_closed_or_full(run, streams, code):
    """With `head`, the exit status depends on which of both is faster."""
    line = f"{shlex.quote(sys.executable)} -c {shlex.quote(MAIN)} data show {shlex.quote(str(run))} {streams}"
    done = subprocess.run(
        ["bash", "-c", line],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in ((0, 1) if code is None else (code,)), done
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1


def test_progress_bars_of_other_libraries_are_kept_and_their_texts_are_not():
    stream = io.StringIO()
    for text in (
        "\r 50%|#####     |",
        "\n\x1b[A",
        "\x1b[A\x1b[A",
        "\r a\x1b[2J",
        "tab\tline\n",
        "\ud800",
    ):
        RedactedStream(stream).write(text)
    assert (
        stream.getvalue() == "\r 50%|#####     |\n\x1b[A\x1b[A\x1b[A� a�[2Jtab\tline\n�"
    )


@pytest.mark.slow
def test_a_reader_of_a_pipe_receives_each_line_at_once_and_may_end_early(run):
    """Of a viewer, which waits for Ctrl-C: its address comes first."""
    buffered = {
        name: value
        for name, value in environment().items()
        if name != "PYTHONUNBUFFERED"
    }
    command = [sys.executable, "-c", MAIN, "view", str(run), "--no-browser"]
    with subprocess.Popen(
        command, env=buffered, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as viewer:
        assert "http://127.0.0.1:" in viewer.stdout.readline()
        viewer.terminate()
    listing = [sys.executable, "-c", MAIN, "advantages", "--list"]
    with subprocess.Popen(
        listing, env=buffered, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as ended:
        ended.stdout.close()
        assert ended.stderr.read() == ""
    assert ended.returncode == 1
