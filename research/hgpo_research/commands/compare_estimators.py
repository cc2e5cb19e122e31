"""`hgpo compare-estimators`: compare estimators on a saved run, by gain or with the true advantages of its steps."""

from __future__ import annotations

import math
import sys
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from hgpo_train.advantages.parameters import REWARD_SCALE
from hgpo_train.cli import options  # noqa: TC001 - cyclopts reads the annotations

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from hgpo_research.comparison import Comparison
    from hgpo_train.advantages.variants import Variant

SHOWN: Final = ("correlation", "sign", "error", "slope")
"""The measures that are printed, which fit into 80 columns with their intervals; the files contain all."""


def compare_estimators(
    run: Path,
    /,
    *,
    estimators: Annotated[list[str], Parameter(alias="-e")],
    truth: Path | None = None,
    measure: str = "correlation",
    model: str | None = None,
    device: str | None = None,
    reward_scale: float = REWARD_SCALE,
    setting: Annotated[list[str] | None, Parameter("--set")] = None,
    folds: int | None = None,
    kl: float | None = None,
    group_sizes: str | None = None,
    redraws: int | None = None,
    depth: int | None = None,
    resamples: int | None = None,
    permutations: int | None = None,
    seed: int = 0,
    out: Path | None = None,
    overwrite: bool = False,
    allow: options.Allow = None,
) -> None:
    """Compare estimators on a saved run: by gain, or by correlation, bias, variance and sign with true advantages.

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
        folds: Parts of each group, for a gain: one is held out in turn. Default: 4.
        kl: Divergence per step of the update whose gain is shown. Default: 0.01.
        group_sizes: Rollouts per group, separated by commas: 4,8. Smaller groups than the run's are redrawn from its
            rollouts. Default: 4, 8, 16 … and the run's.
        redraws: How often the groups of each size are redrawn. Default: 4.
        depth: Deepest context by which steps are classified. Default: 4.
        resamples: Resamples of the tasks, for intervals. Default: 2000.
        permutations: Permutations of estimates, for what chance gives. Default: 50.
        seed: Seed of redraws, resamples and permutations.
        out: The folder to write. Default: <run>.comparison.
        overwrite: Replace an existing comparison.
        allow: Code that files of the run may name.
    """
    from hgpo_datasets import scan_steps
    from hgpo_envs.errors import InputError, unknown
    from hgpo_research.comparison import compare_estimators as compare
    from hgpo_research.comparison.files import write_comparison
    from hgpo_research.comparison.inputs import truth_rewards
    from hgpo_train.advantages.variants import read_variants
    from hgpo_train.cli.display import terminal

    if device is not None and model is None:
        raise InputError("--device is an option of --model; name a checkpoint with --model")
    if measure not in {"gain", "correlation"}:
        raise InputError(unknown("measure", measure, ["gain", "correlation"]))
    if kl is not None and not 0 < kl < math.inf:
        raise InputError(f"--kl: expected a positive number, received {kl:g}")
    of_correlation: dict[str, Any]
    of_correlation = {"redraws": redraws, "depth": depth, "resamples": resamples, "permutations": permutations}
    if measure == "gain":
        _refuse({**of_correlation, "group-sizes": group_sizes}, "correlation")
        how = {"folds": 4 if folds is None else folds, "kl": kl or 0.01}
        chosen = (estimators, truth, model, device or "auto", reward_scale, setting or [], how)
        _gain(run, *chosen, seed, out, overwrite, allow or [])
        return
    _refuse({"folds": folds, "kl": kl}, "gain")
    if truth is None or model is not None:
        received = f"--measure {measure}" + " without --truth" * (truth is None) + " with --model" * (model is not None)
        raise InputError(f"expected --measure gain, or correlation with a --truth and no --model; received {received}")
    sizes = _integers("--group-sizes", group_sizes)
    rewards = truth_rewards(truth, run)
    variants = read_variants(estimators, {"reward": rewards.reward, "reward_scale": reward_scale}, setting or [])
    steps = _with_scores(run, variants)
    exact = scan_steps(truth, plain=True)
    title, target = _target(run, out, overwrite)
    errors = terminal(stderr=True)
    with errors.status("comparing") as status:
        try:
            found = compare(
                steps,
                exact,
                variants,
                group_sizes=sizes,
                seed=seed,
                rewards=rewards,
                progress=status.update,
                **{name: value for name, value in of_correlation.items() if value is not None},
            )
            sources = {"run": str(run), "truth": str(truth)}
            title = f"Estimators and true advantages: {title}"
            write_comparison(found, target, title=title, sources=sources, overwrite=overwrite)
        except KeyboardInterrupt:
            errors.print(f"Interrupted. {target} is unchanged.", soft_wrap=True)
            sys.exit(130)
    _print(found)
    print(f"\nAll figures and a report with pictures: {target}")


def _refuse(given: dict[str, object], measure: str) -> None:
    """Refuse options of another measure, which would be ignored."""
    from hgpo_envs.errors import InputError

    for name, value in given.items():
        if value is not None:
            raise InputError(f"--{name} is an option of --measure {measure}; leave it out, or change --measure")


def _target(run: Path, out: Path | None, overwrite: bool) -> tuple[str, Path]:
    """Return the name of the run and the folder to write, which is checked before anything is computed."""
    from hgpo_datasets.sources import run_with_steps
    from hgpo_envs.errors import InputError
    from hgpo_research.comparison.files import is_comparison
    from hgpo_train.advantages.advantage_tables import refuse_own_input
    from hgpo_train.cli.common import check_output_path

    owner = run_with_steps(run.resolve()) or run.resolve()
    name = owner.stem if owner.is_file() else owner.name
    target = out or owner.parent / f"{name}.comparison"
    refuse_own_input(run, target / "report.html")
    check_output_path(target)
    if target.exists() and any(target.iterdir()) and not (overwrite and is_comparison(target)):
        how = "replace it with --overwrite" if is_comparison(target) else "it is not a comparison"
        raise InputError(f"{target} exists already; {how}, or use another --out")
    return name, target


def _gain(
    run: Path,
    estimators: list[str],
    truth: Path | None,
    model: str | None,
    device: str,
    reward_scale: float,
    settings: list[str],
    how: dict[str, Any],
    seed: int,
    out: Path | None,
    overwrite: bool,
    allow: list[str],
) -> None:
    """Print the gains of estimators and which differences are significant, and write them."""
    import polars as pl

    from hgpo_datasets import scan_steps
    from hgpo_envs.errors import InputError
    from hgpo_research.commands.names import folded
    from hgpo_research.comparison.files import write_gains
    from hgpo_research.comparison.gain import cross_validated_gain, ranking, table_gradients
    from hgpo_research.comparison.inputs import descriptions, truth_rewards
    from hgpo_research.comparison.open_gradients import open_gradients
    from hgpo_train.advantages.variants import read_variants
    from hgpo_train.cli.display import print_table, terminal

    variants = read_variants(estimators, {"reward": "success", "reward_scale": reward_scale}, settings)
    steps = _with_scores(run, variants)
    exact = None
    if truth is not None:
        rewards = truth_rewards(truth, run)
        if (rewards.reward, rewards.gamma) != ("success", 1.0):
            wanted = "hgpo truth --reward success --gamma 1"
            raise InputError(
                f"expected a truth of {wanted}, received one of --reward {rewards.reward} --gamma {rewards.gamma:g}"
            )
        exact = scan_steps(truth, plain=True).with_columns(pl.col("advantage") / rewards.reward_scale)
    _, target = _target(run, out, overwrite)
    errors = terminal(stderr=True)
    with errors.status("comparing") as status:
        if model is not None:

            def show(stage: str, done: int, total: int) -> None:
                status.update(f"{stage} of the model: {done:,} of {total:,}")

            with open_gradients(run, model, device=device, seed=seed, allow=allow, show=show) as opened:
                gradients = opened.of(steps)
        elif exact is not None:
            gradients = table_gradients(exact)
        else:
            raise InputError("a gain needs the policy's gradients: name the policy with --model, or give a --truth")
        found = cross_validated_gain(steps, variants, gradients, truth=exact, progress=status.update, **how)
    sources = {"run": str(run), "truth": None if truth is None else str(truth), "model": model}
    details = {"measure": "gain", **sources, **how, "seed": seed, "estimators": descriptions(variants)}
    write_gains(found, target, details=details, overwrite=overwrite)
    print_table(
        ["estimator", "gain", "95% interval"],
        [
            [folded(name), f"{100 * gain:.2f}", "" if low is None else f"{100 * low:.2f} to {100 * high:.2f}"]
            for name, gain, low, high in found.gains.iter_rows()
        ],
        title=f"Gain in points of success, KL {found.kl:g}",
    )
    for sentence in ranking(found):
        print(f"• {sentence}")
    print(f"\nThe tables: {target}")


def _with_scores(run: Path, variants: Sequence[Variant]) -> pl.LazyFrame:
    """Return the steps of a run, with the scores that estimators read."""
    from hgpo_train.advantages.tables import step_table

    return step_table(run, [score for variant in variants for score in variant.estimator.scores])


def _integers(option: str, text: str | None) -> list[int] | None:
    from hgpo_envs.errors import InputError

    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option}: expected integers separated by commas, received {text!r}") from None


def _print(found: Comparison) -> None:
    from hgpo_research.commands.names import folded
    from hgpo_research.comparison.report import LABELS, main_size, number, rows_of, sentences
    from hgpo_train.cli.display import print_table, terminal

    for sentence in sentences(found):
        terminal().print(f"• {sentence}", highlight=False, markup=False)
    for size in found.details["group_sizes"]:
        rows = []
        for row in rows_of(found, size):
            measures = [row[measure] for measure in SHOWN]
            rows.append([folded(row["estimator"]), *(number(each["value"]) for each in measures)])
            ends = ["" if each["low"] is None else f"{each['low']:.2f} to {each['high']:.2f}" for each in measures]
            if size == main_size(found) and any(ends):
                rows.append(["  95% interval", *ends])
        print_table(["estimator", *(LABELS[measure] for measure in SHOWN)], rows, title=f"Groups of {size}")
