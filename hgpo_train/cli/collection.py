"""The common parts of `hgpo rollout` and `hgpo eval`: options, warnings, Ctrl-C, and the report."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_train.evaluation.summary import Prices
    from hgpo_train.rollout.collection import CollectedRun

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
    action_format: str | None,
    env_option: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the keyword arguments of the environment, without those that were not given.

    Raises:
        InputError: One of `env_option` is not of the form ``name=value``.
    """
    from hgpo_train.assignments import read_assignments

    options = {
        "split": split,
        "history_length": history_length,
        "action_format": action_format,
        "data": None if data is None else str(data),
        "max_steps": max_steps,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return {**given, **read_assignments("--env-option", env_option or (), {})}


def play_and_report(
    out: Path,
    play: Callable[[], CollectedRun],
    report: Callable[[CollectedRun], None],
    *,
    prices: Prices | None = None,
    noun: str = "rollouts",
) -> None:
    """Play a run and report it, also if too many rollouts failed; write `RUN/summary.json`, also after an error.

    Warnings are printed in one line each. Ctrl-C exits with 130.

    Args:
        out: The run's folder.
        play: Plays the run, or resumes it.
        report: Prints its results.
        prices: Prices of tokens, for the summary.
        noun: What the rollouts are called, in the plural.

    Raises:
        RolloutError: Too many rollouts failed.
    """
    from hgpo_envs.errors import InputError
    from hgpo_train.evaluation.summary import write_summary
    from hgpo_train.rollout.failures import RolloutError

    run: CollectedRun | None = None
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: typer.echo(message, err=True)
            run = play()
    except KeyboardInterrupt:
        write_summary(out, prices)
        typer.echo("Interrupted. Finished groups are committed; run the same command again to resume.", err=True)
        raise typer.Exit(130) from None
    except InputError:
        raise
    except BaseException as error:
        write_summary(out, prices)
        if isinstance(error, RolloutError) and error.run is not None:
            report(error.run)
        raise
    write_summary(out, prices)
    report(run)
    if run.failures.failed:
        typer.echo(f"{run.failures.describe(noun)}. Run the same command again to retry them.", err=True)
