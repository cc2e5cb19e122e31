"""AppWorld, described for Gymnasium, the command line and training."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from hgpo_appworld.engine.process import Limits
from hgpo_appworld.engine.source import (
    SPLITS,
    AppWorldSource,
    Isolation,
    Observation,
    RewardScale,
    Rules,
)
from hgpo_appworld.responses import parse_code
from hgpo_envs.environment_spec import EnvironmentSpec
from hgpo_envs.errors import InputError, unknown

if TYPE_CHECKING:
    from hgpo_envs.engine import TaskSource

_LIMITS: Final = Limits()


def open_source(
    *,
    data: str | None = None,
    python: str | None = None,
    observation: str = "output",
    reward_scale: str = "success",
    refuse: bool = False,
    max_difficulty: int = 3,
    max_output: int = _LIMITS.longest,
    program_seconds: int = _LIMITS.seconds,
    memory_mb: int = _LIMITS.memory_mb,
    isolation: str = "auto",
    concurrent: int = 64,
    max_steps: int = 50,
) -> TaskSource:
    """Open AppWorld's data.

    Args:
        data: AppWorld's root, of `hgpo data fetch appworld` or `hgpo data synth appworld`. None uses the folder in
            the environment variable ``APPWORLD_ROOT``.
        python: The interpreter in which `appworld` is installed. None uses that of `hgpo data install appworld`.
        observation: The state text: ``output`` (what the last program printed) or ``calls`` (also the calls of APIs
            so far, so that steps with the same output can be told apart).
        reward_scale: ``success`` (1 if all tests pass, else 0) or ``score`` (the share of tests that pass), given
            when the task ends or at the step limit.
        refuse: Whether programs that contain ``...`` or ``except`` are refused, as in G2PO.
        max_difficulty: The greatest difficulty of tasks, 1 to 3 (G2PO: 2).
        max_output: The maximum length of an output in characters. The middle of longer ones is left out.
        program_seconds: The maximum duration of one program in seconds.
        memory_mb: The maximum memory of a world in MB, beyond what it has at its start.
        isolation: ``auto`` (what the kernel offers), ``bwrap`` (in bubblewrap, too) or ``none``.
        concurrent: The maximum number of worlds that rollouts play at the same time.
        max_steps: The step limit, at which the state is evaluated.

    Raises:
        InputError: If an argument is invalid, or there is no such interpreter or data.
    """
    for name, value, known in (
        ("observation", observation, get_args(Observation)),
        ("reward_scale", reward_scale, get_args(RewardScale)),
        ("isolation", isolation, get_args(Isolation)),
        ("max_difficulty", max_difficulty, (1, 2, 3)),
        ("refuse", refuse, (True, False)),
    ):
        if value not in known:
            raise InputError(unknown(name, value, map(str, known)))
    if python is not None and not isinstance(python, str):
        raise InputError(f"python: expected a path, received {python!r}")
    numbers: dict[str, Any] = {
        "max_output": max_output,
        "program_seconds": program_seconds,
        "memory_mb": memory_mb,
        "concurrent": concurrent,
        "max_steps": max_steps,
    }
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InputError(
                f"{name}: expected an integer of at least 1, received {number!r}"
            )
    root = os.environ.get("APPWORLD_ROOT") if data is None else data
    if not root:
        raise InputError(
            "data: expected AppWorld's root; get the official tasks with hgpo data fetch appworld, or make tasks with "
            "hgpo data synth appworld --out FOLDER (integrations/appworld/README.md)"
        )
    rules = Rules(
        cast("Any", observation), cast("Any", reward_scale), refuse, max_steps
    )
    limits = Limits(program_seconds, memory_mb, max_output)
    interpreter = _default_python() if python is None else python
    return AppWorldSource(
        root,
        interpreter,
        rules,
        limits,
        cast("Any", isolation),
        max_difficulty,
        concurrent,
    )


def data_places() -> list[Path]:
    """Return where AppWorld's data usually is: ``$APPWORLD_ROOT``, and ``appworld`` in the working directory."""
    root = os.environ.get("APPWORLD_ROOT")
    return [*([Path(root)] if root else []), Path("appworld")]


def scenario(task_id: str) -> str:
    """Return the scenario of a task.

    >>> scenario("82e2fac_3")
    '82e2fac'
    """
    return task_id.rpartition("_")[0]


def _default_python() -> str:
    """Return the interpreter of `hgpo data install appworld`."""
    from hgpo_appworld.data.install import default_python

    return str(default_python())


APPWORLD: Final = EnvironmentSpec(
    id="HGPO/AppWorld-v0",
    source=open_source,
    max_steps=50,
    template=(files("hgpo_appworld") / "prompt.j2").read_text(encoding="utf-8"),
    parse_response=parse_code,
    action_tag="code",
    players={
        "expert": "hgpo_appworld.players.expert:ExpertPlayer",
        "explorer": "hgpo_appworld.players.explorer:ExplorerPlayer",
    },
    admissible_actions=False,
    scenario=scenario,
    evaluation_split="dev",
    splits=SPLITS,
    data_places=data_places,
    needs_data=True,
    data_command="hgpo data install appworld && hgpo data fetch appworld",
)
