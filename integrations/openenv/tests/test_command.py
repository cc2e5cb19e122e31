"""`hgpo serve` as a process: what it prints, and how it ends."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import gymnasium
import pytest

pytest.importorskip("websockets")

from hgpo_envs.errors import InputError
from hgpo_openenv.remote import RemoteEnv, RemoteError
from hgpo_openenv.run import allow_open_files

CODE = "import sys; from hgpo_train.cli import main; sys.argv[0] = 'hgpo'; main()"
TOKEN = "token-of-the-environment"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@contextmanager
def served(*options, **variables):
    """Run the command: the process, its address, and what it has printed."""
    environment = {
        name: value for name, value in os.environ.items() if name != "HGPO_SERVE_TOKEN"
    } | variables
    command = [sys.executable, "-u", "-c", CODE, "serve", *options]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            lines = []  # all of them: `communicate` does not return what was read ahead
            while not lines or (lines[-1] and "Press Ctrl-C to stop." not in lines[-1]):
                lines.append(process.stdout.readline())
            assert lines[0].startswith("Serving at http://127.0.0.1:"), (
                process.stderr.read()
            )
            yield process, lines[0].split()[-1], "".join(lines)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)]
)
def test_signals_close_sessions_and_end_the_command(number, code) -> None:
    with served("--env", "HGPO/ALFWorld-v0", "--max-steps", "7") as (
        process,
        address,
        printed,
    ):
        env = RemoteEnv(f"{address}/ALFWorld")
        observation, _ = env.reset(seed=2)
        assert (
            observation["prompt"]
            == gymnasium.make("HGPO/ALFWorld-v0", max_steps=7).reset(seed=2)[0][
                "prompt"
            ]
        )
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == code
        with pytest.raises(
            RemoteError, match="the server closed the session: the server was stopped"
        ):
            env.step("look")
    assert "HGPO/ALFWorld-v0: " in printed
    assert "(144 tasks of train)" in printed
    assert (
        "Only someone with this address can open sessions. Press Ctrl-C to stop."
        in printed
    )
    expected = (
        "Stopped: 1 session, 0 steps; 1 session was open, and their episodes are lost. "
        "The same command serves again"
    )
    assert expected in errors
    assert "Traceback" not in errors


def test_a_token_of_the_environment_is_not_printed(monkeypatch) -> None:
    monkeypatch.delenv("HGPO_SERVE_TOKEN", raising=False)
    with served(HGPO_SERVE_TOKEN=TOKEN) as (process, address, printed):
        with pytest.raises(InputError, match="401"):
            RemoteEnv(address)
        env = RemoteEnv(address, token=TOKEN)
        env.reset(seed=1)
        env.close()
        process.terminate()
        out, errors = process.communicate(timeout=60)
    assert re.fullmatch(r"http://127.0.0.1:\d+", address)
    assert "Clients need the token in HGPO_SERVE_TOKEN" in printed
    assert TOKEN not in printed + out + errors


def test_a_port_in_use_is_one_line(hgpo) -> None:
    with served() as (_, address, _):
        port = address.split(":")[-1].split("/")[0]
        code, _, errors = hgpo("serve", "--port", port)
    assert code == 2
    assert errors.startswith(
        f"error: cannot listen on '127.0.0.1', port {port}: Address already in use"
    )


def test_open_files_are_allowed_as_far_as_possible() -> None:
    import resource

    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        allow_open_files(soft)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
        resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
        allow_open_files(700)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (700, hard)
        if hard != resource.RLIM_INFINITY:
            with pytest.raises(
                InputError,
                match=r"--max-sessions: expected at most .*raise `ulimit -Hn`",
            ):
                allow_open_files(hard + 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
