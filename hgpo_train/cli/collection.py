"""The common parts of `hgpo rollout` and `hgpo eval`: options, their checks, and the report of failures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from hgpo_train.rollout.collector import Tally

RETRY: Final = "Run the same command again to retry them."

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


def note(console: Console, line: str) -> None:
    """Print a line of plain text."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def default_slots(slots: int | None, *, workers: bool) -> int:
    """Return the number of slots, with a default for None."""
    from hgpo_train.rollout.run import default_slots as default

    return default(workers=workers) if slots is None else slots


def check_max_failed(max_failed: float) -> None:
    """Check that `--max-failed` is in [0, 1].

    Raises:
        InputError: It is not.
    """
    from hgpo_envs.errors import InputError

    if not 0 <= max_failed <= 1:
        raise InputError(f"--max-failed: expected a share from 0 to 1, received {max_failed}")


def check_failures(console: Console, out: Path, tally: Tally | None, max_failed: float, noun: str = "rollouts") -> None:
    """Print how many rollouts of the run failed, and why; raise if too many failed.

    Args:
        console: The console.
        out: The run's folder.
        tally: Counts of the rollouts that were played now, which are checked separately; None skips this check.
        max_failed: The largest allowed share, in [0, 1].
        noun: What the rollouts are called, in the plural.

    Raises:
        RolloutError: More than `max_failed` of the rollouts failed.
    """
    from hgpo_train.rollout.failures import failures_of_run, failures_of_tally, raise_if_too_many

    stored = failures_of_run(out)
    for failures in (stored, *([] if tally is None else [failures_of_tally(tally)])):
        raise_if_too_many(failures, max_failed, RETRY, noun)
    if stored.failed:
        note(console, f"{stored.describe(noun)}. {RETRY}")
