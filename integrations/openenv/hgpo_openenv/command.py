"""`hgpo serve`: environments for trainers in other processes or on other machines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hgpo_train.cli import options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hgpo_openenv.environments import ServedEnvironment
    from hgpo_openenv.run import Ended, Ready


def serve(
    *,
    env: list[str] | None = None,
    order: str = "random",
    environment: options.EnvironmentOptions = options.EnvironmentOptions(),
    action_format: str = "command",
    host: str = "127.0.0.1",
    port: int = 0,
    allow_host: list[str] | None = None,
    max_sessions: int = 4096,
    idle_timeout: float = 600.0,
    call_timeout: float = 300.0,
    max_message_kb: float = 256.0,
) -> None:
    """Serve environments to trainers in other processes: a session per WebSocket connection, in OpenEnv's protocol.

    Args:
        env: Gymnasium id of an environment, or module:EnvironmentSpec; may be repeated. Default: ALFWorld.
        order: Order of the tasks that resets draw: random, shuffled, sweep or verl-agent.
        environment: The options of the environments.
        action_format: Format of actions: command, response (with tags) or number.
        host: Address to listen on. Default: only this machine.
        port: Port to listen on; 0 for a free one.
        allow_host: A name by which clients call this machine, beside its own; may be repeated.
        max_sessions: The most sessions at the same time.
        idle_timeout: Seconds after which a session without messages is closed.
        call_timeout: Seconds that one call of an environment with processes of its own may take.
        max_message_kb: The largest message of a client, in KiB.
    """
    from hgpo_envs.errors import InputError
    from hgpo_openenv.environments import open_environments
    from hgpo_openenv.run import run_server
    from hgpo_openenv.server import Limits

    env_ids = env or ["HGPO/ALFWorld-v0"]
    if environment.data is not None and len(env_ids) > 1:
        raise InputError(
            "--data: expected one --env, received several; start a server for each data set"
        )
    for name, value in (
        ("--max-sessions", max_sessions),
        ("--idle-timeout", idle_timeout),
        ("--call-timeout", call_timeout),
        ("--max-message-kb", max_message_kb),
    ):
        if not 0 < value < float("inf"):
            raise InputError(f"{name}: expected a positive number, received {value:g}")
    limits = Limits(
        max_sessions, idle_timeout, max(1, int(max_message_kb * 1024)), call_timeout
    )
    arguments = environment.arguments(
        split=environment.split or "train", action_format=action_format
    )
    environments = open_environments(env_ids, arguments, order)
    ended = run_server(
        environments,
        host=host,
        port=port,
        hosts=allow_host or (),
        limits=limits,
        ready=lambda ready: _announce(ready, environments),
        log=lambda line: print(f"an environment failed: {line}", file=sys.stderr),
    )
    _report(ended)
    if ended.interrupted:
        sys.exit(130)


def _announce(ready: Ready, environments: Mapping[str, ServedEnvironment]) -> None:
    from hgpo_envs.wording import counted
    from hgpo_openenv.access import TOKEN_VARIABLE

    print(f"Serving at {ready.address}")
    for name, served in environments.items():
        about = served.metadata()
        print(
            f"  {served.env_id}: {ready.address}/{name}  ({counted(about['tasks'], 'task')} of {about['split']})"
        )
    if ready.own_token:
        print("Only someone with this address can open sessions. Press Ctrl-C to stop.")
    else:
        print(f"Clients need the token in {TOKEN_VARIABLE}. Press Ctrl-C to stop.")


def _report(ended: Ended) -> None:
    from hgpo_envs.wording import counted

    counts = ended.counts
    line = f"Stopped: {counted(counts['sessions'], 'session')}, {counted(counts['Step'], 'step')}"
    if ended.closed:
        line += f"; {counted(ended.closed, 'session was', 'sessions were')} open, and their episodes are lost"
    print(
        f"{line}. The same command serves again; clients must connect again.",
        file=sys.stderr,
    )
