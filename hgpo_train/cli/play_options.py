"""The options that `hgpo rollout` and `hgpo eval` share: the environment, the policy's options, and how it is run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

Data = Annotated[Path | None, typer.Option(help="Official folder, pack or catalogue. Default: the bundled data.")]
HistoryLength = Annotated[int, typer.Option(help="K, the number of past steps in the prompt.")]
MaxSteps = Annotated[int | None, typer.Option(help="Step limit. Default: the environment's.")]
ActionFormat = Annotated[
    str | None,
    typer.Option(
        help="Format of actions: response (with tags), command or number. Default: command for a function of your own, "
        "otherwise response."
    ),
]
EnvOption = Annotated[
    list[str] | None, typer.Option(help="A keyword argument of the environment, name=value; may be repeated.")
]
PolicyOption = Annotated[list[str] | None, typer.Option(help="An option of the policy, name=value; may be repeated.")]
Slots = Annotated[
    int | None,
    typer.Option(
        help="Number of concurrent environments; affects only the speed. Default: 256, or one per processor with "
        "--workers."
    ),
]
Workers = Annotated[
    bool,
    typer.Option(
        "--workers",
        help="Run each environment in its own process, for slow or fragile ones; --workers N runs N at a time.",
    ),
]


def environment_options(
    split: str,
    data: Path | None,
    history_length: int,
    max_steps: int | None,
    action_format: str,
    env_option: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the keyword arguments of the environment.

    Raises:
        InputError: One of `env_option` is not of the form ``name=value``.
    """
    from hgpo_train.assignments import read_assignments

    return {
        "split": split,
        "history_length": history_length,
        "action_format": action_format,
        **({} if data is None else {"data": str(data)}),
        **({} if max_steps is None else {"max_steps": max_steps}),
        **read_assignments("--env-option", env_option or (), {}),
    }
