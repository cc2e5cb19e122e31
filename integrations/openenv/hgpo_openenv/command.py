"""`hgpo serve`: environments for trainers in other processes or on other machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hgpo_train.cli import common  # typer reads the annotations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hgpo_openenv.environments import ServedEnvironment
    from hgpo_openenv.run import Ended, Ready


def serve(
    env: Annotated[
        list[str] | None,
        typer.Option(
            help="Gymnasium id of an environment, or module:EnvironmentSpec; may be repeated. Default: ALFWorld."
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the tasks; 'all' includes every split.")] = "train",
    order: Annotated[
        str, typer.Option(help="Order of the tasks that resets draw: random, shuffled, sweep or verl-agent.")
    ] = "random",
    data: common.Data = None,
    history_length: common.HistoryLength = 2,
    max_steps: common.MaxSteps = None,
    action_format: Annotated[
        str, typer.Option(help="Format of actions: command, response (with tags) or number.")
    ] = "command",
    env_option: common.EnvOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on. Default: only this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for a free one.")] = 0,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name by which clients call this machine, beside its own; may be repeated."),
    ] = None,
    max_sessions: Annotated[int, typer.Option(help="The most sessions at the same time.")] = 4096,
    idle_timeout: Annotated[
        float, typer.Option(help="Seconds after which a session without messages is closed.")
    ] = 600.0,
    call_timeout: Annotated[
        float, typer.Option(help="Seconds that one call of an environment with processes of its own may take.")
    ] = 300.0,
    max_message_kb: Annotated[float, typer.Option(help="The largest message of a client, in KiB.")] = 256.0,
) -> None:
    """Serve environments to trainers in other processes: a session per WebSocket connection, in OpenEnv's protocol."""
    from hgpo_envs.errors import InputError
    from hgpo_openenv.environments import open_environments
    from hgpo_openenv.run import run_server
    from hgpo_openenv.server import Limits

    env_ids = env or ["HGPO/ALFWorld-v0"]
    if data is not None and len(env_ids) > 1:
        raise InputError("--data: expected one --env, received several; start a server for each data set")
    for name, value in (
        ("--max-sessions", max_sessions),
        ("--idle-timeout", idle_timeout),
        ("--call-timeout", call_timeout),
        ("--max-message-kb", max_message_kb),
    ):
        if not 0 < value < float("inf"):
            raise InputError(f"{name}: expected a positive number, received {value:g}")
    limits = Limits(max_sessions, idle_timeout, max(1, int(max_message_kb * 1024)), call_timeout)
    options = common.environment_options(
        env_option,
        split=split,
        data=data,
        history_length=history_length,
        max_steps=max_steps,
        action_format=action_format,
    )
    environments = open_environments(env_ids, options, order)
    ended = run_server(
        environments,
        host=host,
        port=port,
        hosts=allow_host or (),
        limits=limits,
        ready=lambda ready: _announce(ready, environments),
        log=lambda line: typer.echo(f"an environment failed: {line}", err=True),
    )
    _report(ended)
    if ended.interrupted:
        raise typer.Exit(130)


def _announce(ready: Ready, environments: Mapping[str, ServedEnvironment]) -> None:
    from hgpo_envs.wording import counted
    from hgpo_openenv.access import TOKEN_VARIABLE

    typer.echo(f"Serving at {ready.address}")
    for name, served in environments.items():
        about = served.metadata()
        typer.echo(
            f"  {served.env_id}: {ready.address}/{name}  ({counted(about['tasks'], 'task')} of {about['split']})"
        )
    if ready.own_token:
        typer.echo("Only someone with this address can open sessions. Press Ctrl-C to stop.")
    else:
        typer.echo(f"Clients need the token in {TOKEN_VARIABLE}. Press Ctrl-C to stop.")


def _report(ended: Ended) -> None:
    from hgpo_envs.wording import counted

    counts = ended.counts
    line = f"Stopped: {counted(counts['sessions'], 'session')}, {counted(counts['Step'], 'step')}"
    if ended.closed:
        line += f"; {counted(ended.closed, 'session was', 'sessions were')} open, and their episodes are lost"
    typer.echo(f"{line}. The same command serves again; clients must connect again.", err=True)
