"""A recording: the gateway, the user's program in front of it, and the run that is written."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from yarl import URL

from hgpo_datasets import StepWriter
from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import redact, register_url
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_envs.plugins import import_object
from hgpo_record.recording.calls import last_input
from hgpo_record.recording.gateway import Gateway
from hgpo_record.recording.rollouts import BRANCHES, Recording, RefusedError, Reward
from hgpo_train.cli.common import check_output_path
from hgpo_train.local_server import address_of, bound_socket
from hgpo_train.rollout.collection import removed_if_unused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from socket import socket

    from hgpo_record.recording.settings import Settings

HOST: Final = "127.0.0.1"
_MOST_REWARDS: Final = 64 << 20
_COLLECTED_AFTER: Final = 50_000
"""New objects after which cycles are looked for; by default 700, which are those of ten calls."""
_REWARDS: Final = msgspec.json.Decoder(float | Reward)


def run_program(
    command: Sequence[str], settings: Settings, say: Callable[[str], object]
) -> tuple[int, Recording]:
    """Run a program, and record its calls. Return its exit status (after Ctrl-C 130) and the recording.

    Args:
        command: The program and its arguments.
        settings: The options.
        say: Called with a line that tells where the gateway is.

    Raises:
        InputError: An option or the program cannot be used.
        OSError: The run cannot be written.
    """
    out = settings.out
    check_output_path(out)
    upstream = server_address(settings.upstream)
    key = settings.state_key
    state_key: Any = import_object(key, "a function") if key else last_input
    with (
        removed_if_unused(out, BRANCHES),
        StepWriter(
            out, config={"recorded": {"state_key": key or last_input.__name__}}
        ) as writer,
        bound_socket(HOST, settings.port) as listener,
    ):
        recording = Recording(
            writer,
            task=settings.task or task_of(command),
            state_key=state_key,
            most_open=settings.max_open,
        )
        gateway = Gateway(
            upstream,
            recording,
            most_body=settings.max_body_mb << 20,
            token_ids=settings.token_ids,
        )
        address = f"{address_of(HOST, listener)}/v1"
        say(f"Recording calls at {address} to {out}.")
        session = _Session(command, settings, gateway, recording, address)
        # What is loaded so far stays: the collector need not look at it again and again.
        gc.freeze()
        gc.set_threshold(_COLLECTED_AFTER)
        return asyncio.run(session.run(listener)), recording


def server_address(text: str) -> URL:
    """Return the address of a server, up to /v1, and register the secrets in it.

    Raises:
        InputError: It is no HTTP address.
    """
    register_url(text)
    try:
        url = URL(text)
        is_address = (
            url.scheme in ("http", "https")
            and bool(url.host)
            and not (url.fragment or url.user)
        )
    except ValueError:
        is_address = False
    if not is_address:
        raise InputError(
            f"--upstream: expected an address such as http://localhost:8000/v1, received {redact(text)!r}"
        )
    return url.joinpath("v1") if url.path == "/" else url


def task_of(command: Sequence[str]) -> str:
    """Return the name of a program: of its script, if an interpreter runs it.

    >>> task_of(["python3", "-u", "agents/solve.py", "--fast"]), task_of(["./solve", "x.py"])
    ('solve.py', 'solve')
    """
    name = Path(command[0]).name
    scripts = [Path(word).name for word in command[1:] if word.endswith(".py")]
    return scripts[0] if name.startswith("python") and scripts else name


@dataclass
class _Session:
    """One recording, in an event loop."""

    command: Sequence[str]
    settings: Settings
    gateway: Gateway
    recording: Recording
    address: str

    async def run(self, listener: socket) -> int:
        """Run the program as often as wanted, and commit its rollouts. Return the exit status."""
        loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[int] = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):  # Windows: Ctrl-C ends both programs
                loop.add_signal_handler(number, self._stop, number)
        commits = asyncio.create_task(self.recording.commit())
        status = 0
        try:
            async with self.gateway.serving(listener):
                for _ in range(self.settings.repeat):
                    status = await self._program() or status
                    if self._stopped.done():
                        status = 128 + self._stopped.result()
                        break
        finally:
            self.recording.close()
            await commits
        return status

    def _stop(self, number: int) -> None:
        if not self._stopped.done():
            self._stopped.set_result(number)

    async def _program(self) -> int:
        """Run the program once, and end its rollouts. Return its exit status as a shell does."""
        path = self.settings.reward_file
        before = _written_at(path)
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command, env=_environment(self.address)
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"cannot start {self.command[0]!r:.200}: {reason}"
            ) from None
        ended = asyncio.create_task(process.wait())
        await asyncio.wait([ended, self._stopped], return_when=asyncio.FIRST_COMPLETED)
        if self._stopped.done():
            await self._end(process, ended)
            return 0
        status = process.returncode or 0
        if path is not None:
            self._read_rewards(path, changed=_written_at(path) != before)
        failure = f"the program ended with the exit status {status}" if status else ""
        for rollout in list(self.recording.open):
            self.recording.end(rollout, "" if rollout.rewarded else failure)
        return 128 - status if status < 0 else status

    async def _end(
        self, process: asyncio.subprocess.Process, ended: asyncio.Task[int]
    ) -> None:
        """End the program. After Ctrl-C in a terminal it has the signal already, and may end by itself."""
        for end, seconds in ((process.terminate, 2.0), (process.kill, 5.0)):
            done, _ = await asyncio.wait([ended], timeout=seconds)
            if done:
                return
            with suppress(ProcessLookupError):
                end()
        await ended

    def _read_rewards(self, path: Path, *, changed: bool) -> None:
        """Read rewards that the program wrote: a number for its rollout, or a line of JSON for each."""
        notes = self.recording.notes
        try:
            lines = (
                read_bytes(path, _MOST_REWARDS, "file of rewards").splitlines()
                if changed
                else []
            )
        except (InputError, OSError) as error:
            notes.append(f"no rewards: {error}")
            return
        if not lines:
            notes.append(f"the program wrote no rewards to {path}")
        for number, line in enumerate(lines, 1):
            try:
                value = _REWARDS.decode(line)
                self.recording.reward(
                    value if isinstance(value, Reward) else Reward(value)
                )
            except (msgspec.DecodeError, InputError, RefusedError) as error:
                notes.append(f"{path}, line {number}: {error}")


def _written_at(path: Path | None) -> int:
    """Return when a file was written, in nanoseconds; 0 if there is none."""
    return path.stat().st_mtime_ns if path is not None and path.exists() else 0


def _environment(address: str) -> dict[str, str]:
    """Return the environment of the program, whose clients find the gateway and use no proxy to it."""
    added = {"OPENAI_BASE_URL": address, "OPENAI_API_BASE": address}
    for name in ("NO_PROXY", "no_proxy"):
        added[name] = ",".join(filter(None, [os.environ.get(name, ""), HOST]))
    return {**os.environ, **added}
