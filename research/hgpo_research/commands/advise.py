"""`hgpo advise`: which estimator to train with, from a saved run."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hgpo_train.cli import common, options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from hgpo_research.advice.advice import Advice
    from hgpo_train.advantages.variants import Variant


def advise(
    run: Path,
    /,
    *,
    estimators: Annotated[list[str] | None, Parameter(alias="-e")] = None,
    model: str | None = None,
    device: str | None = None,
    iteration: int | None = None,
    setting: Annotated[list[str] | None, Parameter("--set")] = None,
    kl: float = 0.01,
    seed: int = 0,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    json: options.Json = False,
    allow: options.Allow = None,
) -> None:
    """Advise which estimator to train with: a ranking by gain on a saved run, or that nothing separates them.

    Args:
        run: A run, whose policy is known: random, softmax, a mixture, or a language model. It is not modified.
        estimators: Estimators, as hgpo,hgpo:history_length=4,module:function; may be repeated. Default: all
            registered ones of rollouts that need a table only, and whose columns the run has.
        model: Gradients of these parameters instead of one logit for each state and action: the language model that
            played the run (a checkpoint, a model's folder or a training run), or softmax, the weights of its features.
        device: The torch device of --model. Default: auto.
        iteration: The iteration of a training run that is read, as all others have other weights. Default: all.
        setting: A parameter of all estimators that have it, name=value; may be repeated.
        kl: Divergence per step of the update whose gain is measured.
        seed: Seed of the controls, and of a language model's sketches.
        out: A picture or page of the ranking: .svg, .png, .html, or .json (Vega-Lite).
        json: Print JSON.
        allow: Code that files of the run may name.
    """
    import shlex
    from functools import partial

    from hgpo_envs.errors import InputError
    from hgpo_research.advice import report
    from hgpo_research.advice.advice import advise as measure
    from hgpo_research.comparison.open_gradients import open_gradients
    from hgpo_train.cli.display import ProgressBars, print_json

    # 1. What is asked for, before anything is computed.
    if not 0 < kl <= 1:
        raise InputError(
            f"--kl: expected a number above 0 and at most 1, received {kl:g}"
        )
    if not 0 <= seed < 1 << 32:
        raise InputError(
            f"--seed: expected an integer from 0 to {(1 << 32) - 1}, received {seed}"
        )
    if device is not None and model is None:
        raise InputError(
            "--device is an option of --model; name a checkpoint with --model"
        )
    if out is not None:
        _check_picture(run, out)
    steps = _steps(run, iteration)
    variants, unable = _variants(estimators, setting or (), steps)

    # 2. The ranking.
    with common.resumable("Nothing was written."), ProgressBars() as bars:
        batches = partial(bars.show, "batches")
        opened = open_gradients(
            run,
            model,
            device=device or "auto",
            seed=seed,
            allow=allow or (),
            show=bars.show,
        )
        with opened as gradients:
            found = measure(
                steps, variants, gradients.of, kl=kl, seed=seed, progress=batches
            )

    # 3. The advice.
    by_name = {variant.name: variant for variant in variants}
    command = None
    if found.best:
        words = report.setting(by_name[found.best[0]], setting or ())
        command = f"{common.program()} train CONFIG {shlex.join(words)}"
    if out is not None:
        from hgpo_train.analysis.charts import save_chart

        save_chart(report.picture(found, f"Gain on {run.name}: {gradients.title}"), out)
    if json:
        about = {
            "run": str(run),
            "gradients": gradients.title,
            "left_out": unable,
            "command": command,
        }
        print_json(about | report.document(found))
        return
    _print(found, gradients.title, unable)
    if out is not None:
        print(f"The picture is {out}.")
    if command is not None:
        # one of several that nothing separates is for those who train with none of them
        is_alone = len(found.best) == 1
        print(f"{'Next' if is_alone else 'If it is none of these'}: {command}")


def _check_picture(run: Path, out: Path) -> None:
    from hgpo_train.advantages.advantage_tables import refuse_own_input
    from hgpo_train.analysis.charts import check_chart_file

    check_chart_file("--out", out)
    refuse_own_input(run, out)
    common.check_output_path(out)


def _steps(run: Path, iteration: int | None) -> pl.LazyFrame:
    """Return the steps of a run's rollouts, or of those of one of its iterations."""
    import polars as pl

    from hgpo_datasets.branches import roots
    from hgpo_envs.errors import InputError
    from hgpo_train.advantages.tables import step_table

    # Branches are no independent rollouts: where a run branched, its outcomes would count more than elsewhere.
    steps = roots(step_table(run))
    if iteration is None:
        return steps
    if "iteration" not in steps.collect_schema():
        raise InputError(
            f"--iteration: expected a run with the column iteration, {run} has none"
        )
    known = (
        steps.select(pl.col("iteration").unique().sort())
        .collect()
        .to_series()
        .to_list()
    )
    if iteration not in known:
        ends = " to ".join(map(str, dict.fromkeys([known[0], known[-1]])))
        raise InputError(
            f"--iteration: expected {ends}, which {run} has, received {iteration}"
        )
    return steps.filter(iteration=iteration)


def _variants(
    estimators: list[str] | None, settings: Sequence[str], steps: pl.LazyFrame
) -> tuple[list[Variant], list[str]]:
    """Return the estimators, and the names of those whose columns the run has not."""
    from hgpo_envs.errors import InputError
    from hgpo_train.advantages.registry import names
    from hgpo_train.advantages.variants import read_variants

    if estimators is not None:
        found = read_variants(estimators, settings=settings)
        if scored := [each.name for each in found if each.estimator.scores]:
            raise InputError(
                f"expected estimators that read no scores, received {scored[0]}"
            )
        if len(found) < 2:
            raise InputError(
                f"-e: expected at least two estimators, received {found[0].name}"
            )
        return found, []
    schema = steps.collect_schema()
    able = []
    unable = []
    for variant in read_variants(names(), settings=settings):
        # Without branches, an estimator over trees repeats one of rollouts.
        if variant.estimator.branches:
            continue
        try:
            variant.estimator.columns(schema)
        except InputError:
            unable.append(variant.name)
        else:
            able.append(variant)
    if len(able) < 2:
        raise InputError(
            f"expected a step table that estimators can read; {len(unable)} of them lack a column"
        )
    return able, unable


def _print(found: Advice, gradients: str, unable: Sequence[str]) -> None:
    from hgpo_research.advice import report
    from hgpo_research.commands.names import folded
    from hgpo_train.cli.display import print_table, terminal

    print_table(
        ["estimator", "ranks", "gain", "95% interval", "from the first"],
        [[folded(name), *cells] for name, *cells in report.rows(found)],
        title=f"Gain in points of success, KL {found.gains.kl:g}; {gradients}",
    )
    lines = ["", report.verdict(found)]
    lines += [f"• {line}" for line in report.notes(found)]
    if unable:
        lines.append(f"• Left out, as the run lacks columns: {', '.join(unable)}.")
    console = terminal(highlight=False, markup=False)
    for line in lines:
        console.print(line)
