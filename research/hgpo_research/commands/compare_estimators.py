"""`hgpo compare-estimators`: compare estimators on a saved run, by gain or with the true advantages of its steps."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt  # noqa: TC002 - cyclopts reads the annotations

from hgpo_train.advantages.parameters import REWARD_SCALE
from hgpo_train.cli import common, options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from hgpo_research.comparison.logit_table import Gradients


def compare_estimators(
    run: Path,
    /,
    *,
    estimators: Annotated[list[str], Parameter(alias="-e")],
    truth: Path | None = None,
    measure: Literal["correlation", "gain"] = "correlation",
    model: str | None = None,
    device: str | None = None,
    reward_scale: float = REWARD_SCALE,
    setting: Annotated[list[str] | None, Parameter("--set")] = None,
    folds: int = 4,
    kl: float = 0.01,
    seed: NonNegativeInt = 0,
    out: Path | None = None,
    overwrite: options.Overwrite = False,
    allow: options.Allow = None,
) -> None:
    """Compare estimators on a saved run: by gain, or by correlation with its true advantages.

    Args:
        run: A run, or a Parquet file of steps. It is not modified.
        estimators: Estimators, separated by commas, each with its parameters after colons:
            hgpo,hgpo:history_length=4,module:function:name=value. May be repeated.
        truth: The truth table of the run, written by hgpo truth. A gain needs none.
        measure: correlation with the truth, or gain: what an update along the gradient improves.
        model: The policy that played the run, for gradients of its parameters: a checkpoint, a model's folder or a
            training run; or softmax, for the weights of its features.
        device: The torch device of --model. Default: auto.
        reward_scale: Factor of rewards; verl-agent trains with 10.
        setting: A parameter of all estimators that have it, name=value; may be repeated.
        folds: Parts of each group, for a gain: one is held out in turn.
        kl: Divergence per step of the update whose gain is shown.
        seed: Seed of a language model's sketches, and of the resamples of tasks.
        out: The folder to write. Default: <run>.comparison.
        overwrite: Whether to replace an existing comparison.
        allow: Code that files of the run may name.
    """
    from hgpo_envs.errors import InputError
    from hgpo_research.comparison.correlation import correlations
    from hgpo_research.comparison.files import write_comparison
    from hgpo_research.comparison.gain import (
        cross_validated_gain,
        ranking,
        table_gradients,
    )
    from hgpo_research.comparison.open_gradients import open_gradients
    from hgpo_train.advantages.tables import step_table
    from hgpo_train.advantages.variants import read_variants
    from hgpo_train.cli.display import ProgressBars

    # 1. What is asked for, before anything is computed.
    is_gain = measure == "gain"
    if device is not None and model is None:
        raise InputError(
            "--device is an option of --model; name a checkpoint with --model"
        )
    if not 0 < kl <= 1:
        raise InputError(
            f"--kl: expected a number above 0 and at most 1, received {kl:g}"
        )
    if truth is None and not is_gain:
        raise InputError(
            "expected a --truth for --measure correlation, received none; or use --measure gain"
        )
    if model is not None and not is_gain:
        raise InputError(
            "--model is an option of --measure gain; leave it out, or change --measure"
        )
    exact = None
    reward = "success"
    if truth is not None:
        exact, reward = _true_advantages(truth, run, is_gain=is_gain)
    variants = read_variants(
        estimators, {"reward": reward, "reward_scale": reward_scale}, setting or []
    )
    steps = step_table(
        run, [score for variant in variants for score in variant.estimator.scores]
    )
    target = _target(run, out, overwrite)

    # 2. The comparison.
    described = {
        variant.name: {
            "estimator": variant.estimator.name,
            "parameters": asdict(variant.estimator.parameters),
        }
        for variant in variants
    }
    details: dict[str, object] = {
        "measure": measure,
        "run": str(run),
        "truth": None if truth is None else str(truth),
        "model": model,
        "seed": seed,
        "estimators": described,
    }
    lines: list[str] = []
    with common.resumable(f"{target} is unchanged."), ProgressBars() as bars:
        if not is_gain:
            assert exact is not None
            tables = {"correlations": correlations(steps, exact, variants, seed=seed)}
        else:
            if exact is not None and model is None:
                gradients: Gradients = table_gradients(exact)
            else:
                with open_gradients(
                    run,
                    model,
                    device=device or "auto",
                    seed=seed,
                    allow=allow or (),
                    show=bars.show,
                ) as opened:
                    gradients = opened.of(steps)
            found = cross_validated_gain(
                steps, variants, gradients, truth=exact, folds=folds, kl=kl
            )
            tables = {"gains": found.gains, "differences": found.differences}
            details |= {
                "folds": folds,
                "kl": kl,
                "batches": found.batches,
                "groups": found.groups,
            }
            lines = ranking(found)
        write_comparison(tables, target, details=details, overwrite=overwrite)

    # 3. What it says.
    if is_gain:
        _print(tables["gains"], f"Gain in points of success, KL {kl:g}", ["gain"], 100)
    else:
        _print(
            tables["correlations"],
            "Agreement with true advantages",
            ["correlation", "sign"],
            1,
        )
    for line in lines:
        print(f"• {line}")
    print(f"\nThe tables: {target}")


def _true_advantages(
    truth: Path, run: Path, *, is_gain: bool
) -> tuple[pl.LazyFrame, str]:
    """Return the truth table of a run, its advantages in the unit of rewards, and the name of its reward."""
    import polars as pl

    from hgpo_datasets import scan_steps
    from hgpo_envs.errors import InputError
    from hgpo_research.truth.table import truth_rewards

    rewards = truth_rewards(truth, run)
    if is_gain and (rewards.reward, rewards.gamma) != ("success", 1.0):
        raise InputError(
            "expected a truth of hgpo truth --reward success --gamma 1, received one of "
            f"--reward {rewards.reward} --gamma {rewards.gamma:g}"
        )
    table = scan_steps(truth, plain=True).with_columns(
        pl.col("^advantage.*$") / rewards.reward_scale
    )
    # an error is a width, also where rewards have a negative scale
    return table.with_columns(pl.col("^advantage_error$").abs()), rewards.reward


def _target(run: Path, out: Path | None, overwrite: bool) -> Path:
    """Return the folder to write, which is checked before anything is computed."""
    from hgpo_datasets.sources import run_with_steps
    from hgpo_envs.errors import InputError
    from hgpo_research.comparison.files import is_comparison
    from hgpo_train.advantages.advantage_tables import refuse_own_input

    owner = run_with_steps(run.resolve()) or run.resolve()
    name = owner.stem if owner.is_file() else owner.name
    target = out or owner.parent / f"{name}.comparison"
    refuse_own_input(run, target / "comparison.json")
    common.check_output_path(target)
    if (
        target.exists()
        and any(target.iterdir())
        and not (overwrite and is_comparison(target))
    ):
        how = (
            "replace it with --overwrite"
            if is_comparison(target)
            else "it is not a comparison"
        )
        raise InputError(f"{target} exists already; {how}, or use another --out")
    return target


def _print(
    table: pl.DataFrame, title: str, measures: Sequence[str], factor: float
) -> None:
    """Print a table of estimators: each measure, and its interval, which follows it in the table."""
    from hgpo_research.commands.names import folded
    from hgpo_train.cli.display import print_table

    rows = []
    for estimator, *values in table.iter_rows():
        cells = [folded(estimator)]
        for place in range(0, 3 * len(measures), 3):
            shown = [
                "" if value is None else f"{factor * value:.2f}"
                for value in values[place : place + 3]
            ]
            cells += [shown[0], " to ".join(shown[1:]) if shown[1] else ""]
        rows.append(cells)
    columns = [column for measure in measures for column in (measure, "95% interval")]
    print_table(["estimator", *columns], rows, title=title)
