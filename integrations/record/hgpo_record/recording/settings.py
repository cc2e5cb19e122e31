"""The options of `hgpo record`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations

from cyclopts import Parameter
from cyclopts.types import PositiveInt  # noqa: TC002


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a recording."""

    upstream: str
    """Address of the server, up to /v1."""
    out: Path
    """The run's folder. Rollouts are added to a run in it."""
    task: str | None = None
    """Task of calls that name none. Default: the program's name."""
    repeat: PositiveInt = 1
    """Number of times that the program runs, each of which is a rollout of the task."""
    state_key: str | None = None
    """A function of the messages that returns the state, as module:function. Default: the last tool result or user
    message."""
    reward_file: Path | None = None
    """File in which the program writes its reward."""
    token_ids: bool = False
    """Ask vLLM for token ids and log-probabilities. This changes requests."""
    port: int = 0
    """Port of the gateway; 0 for a free one."""
    max_open: PositiveInt = 4096
    """The most rollouts that are open at the same time."""
    max_body_mb: PositiveInt = 64
    """The largest request, in MB."""
