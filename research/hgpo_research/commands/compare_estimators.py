"""`hgpo compare-estimators`: compare estimators with the true advantages of a run's steps."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from hgpo_train.advantages.parameters import REWARD_SCALE

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl
    from rich.console import Console

    from hgpo_research.comparison import Comparison
    from hgpo_research.comparison.row_gradients import RowGradients

SHOWN: Final = ("correlation", "sign", "gradient", "slope")
"""The measures that are printed, which fit into 80 columns with their intervals; the files contain all."""
SHOWN_WITH_MODEL: Final = ("correlation", "sign", "gradient", "model_gradient")


def compare_estimators(
    run: Annotated[Path, typer.Argument(help="A run, or a Parquet file of steps. It is not modified.")],
    truth: Annotated[Path, typer.Option(help="The truth table of the run, written by hgpo truth.")],
    estimators: Annotated[
        list[str],
        typer.Option(
            "--estimators",
            "-e",
            help="Estimators, separated by commas, each with its parameters after colons: "
            "hgpo,hgpo:history_length=4,module:function:name=value. May be repeated.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="Compare the gradients of the parameters of the policy that played the run, too: a checkpoint, a "
            "model's folder or a training run; or softmax, for the weights of its features."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="The torch device of --model. Default: auto.")] = None,
    reward_scale: Annotated[float, typer.Option(help="Factor of rewards; verl-agent trains with 10.")] = REWARD_SCALE,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="A parameter of all estimators that have it, name=value; may be repeated."),
    ] = None,
    group_sizes: Annotated[
        str | None,
        typer.Option(
            help="Rollouts per group, separated by commas: 4,8. Smaller groups than the run's are redrawn from its "
            "rollouts. Default: 4, 8, 16 … and the run's."
        ),
    ] = None,
    redraws: Annotated[int, typer.Option(help="How often the groups of each size are redrawn.")] = 4,
    depth: Annotated[int, typer.Option(help="Deepest context by which steps are classified.")] = 4,
    resamples: Annotated[int, typer.Option(help="Resamples of the tasks, for intervals.")] = 2000,
    permutations: Annotated[int, typer.Option(help="Permutations of estimates, for what chance gives.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of redraws, resamples and permutations.")] = 0,
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="The folder to write. Default: <run>.comparison.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing comparison.")] = False,
) -> None:
    """Compare estimators with true advantages: correlation, bias, variance, sign and gradient, with intervals."""
    from rich.console import Console

    from hgpo_datasets import scan_steps
    from hgpo_datasets.sources import run_with_steps
    from hgpo_envs.errors import InputError
    from hgpo_research.comparison import compare_estimators as compare
    from hgpo_research.comparison.files import is_comparison, write_comparison
    from hgpo_research.comparison.inputs import truth_rewards
    from hgpo_train.advantages.advantage_tables import refuse_own_input
    from hgpo_train.advantages.variants import read_variants

    if device is not None and model is None:
        raise InputError("--device is an option of --model; name a checkpoint with --model")
    sizes = _integers("--group-sizes", group_sizes)
    if not truth.is_file():
        raise InputError(f"--truth {truth}: expected a truth table, received no file; write it with hgpo truth")
    steps, exact = scan_steps(run, plain=True), scan_steps(truth, plain=True)
    rewards = truth_rewards(truth, run)
    variants = read_variants(estimators, {"reward": rewards.reward, "reward_scale": reward_scale}, setting or [])
    owner = run_with_steps(run.resolve()) or run.resolve()
    target = out or owner.parent / f"{owner.stem if owner.is_file() else owner.name}.comparison"
    refuse_own_input(run, target / "report.html")
    if target.exists() and any(target.iterdir()) and not (overwrite and is_comparison(target)):
        how = "replace it with --overwrite" if is_comparison(target) else "it is not a comparison"
        raise InputError(f"{target} exists already; {how}, or use another --out")
    console, errors = Console(), Console(stderr=True)
    with errors.status("comparing") as status:
        try:
            found = compare(
                steps,
                exact,
                variants,
                group_sizes=sizes,
                redraws=redraws,
                depth=depth,
                resamples=resamples,
                permutations=permutations,
                seed=seed,
                rewards=rewards,
                gradients=_gradients(run, steps, model, device or "auto", seed, status.update) if model else None,
                progress=status.update,
            )
            sources = {"run": str(run), "truth": str(truth)}
            title = f"Estimators and true advantages: {owner.stem if owner.is_file() else owner.name}"
            write_comparison(found, target, title=title, sources=sources, overwrite=overwrite)
        except KeyboardInterrupt:
            errors.print(f"Interrupted. {target} is unchanged.", soft_wrap=True)
            raise typer.Exit(130) from None
    _print(console, found)
    console.print(f"\nAll figures and a report with pictures: [bold]{target}[/]", highlight=False, soft_wrap=True)


def _gradients(
    run: Path, steps: pl.LazyFrame, model: str, device: str, seed: int, say: Callable[[str], object]
) -> RowGradients:
    if model == "softmax":
        from hgpo_research.comparison.feature_gradients import feature_gradients
        from hgpo_research.truth import Budget, Rewards, plan_truth
        from hgpo_train.policies.registry import PolicyContext, make_policy
        from hgpo_train.rollout.env_handle import open_env

        plan = plan_truth(run, Rewards(), Budget())
        handle = open_env(plan.env_id, **plan.env_options)
        context = PolicyContext(handle.shared.source.name, handle.settings.action_format, plan.policy_options)
        policy: Any = make_policy("softmax", context)
        return feature_gradients(steps, policy, handle.settings.history_length)
    from hgpo_research.comparison.row_gradients import row_gradients
    from hgpo_train.models.config import ModelConfig
    from hgpo_train.models.loading import choose_device, load_model
    from hgpo_train.models.preflight import check_model_source

    choose_device(device)
    check_model_source(model)
    config = ModelConfig(path=model, device=device, compute_dtype="float32", gradient_checkpointing=False)
    return row_gradients(
        steps,
        load_model(config),
        seed=seed,
        progress=lambda done, total: say(f"gradients of the model: {done:,} of {total:,}"),
    )


def _integers(option: str, text: str | None) -> list[int] | None:
    from hgpo_envs.errors import InputError

    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option}: expected integers separated by commas, received {text!r}") from None


def _print(console: Console, found: Comparison) -> None:
    from rich.table import Table

    from hgpo_research.comparison.report import LABELS, main_size, number, rows_of, sentences

    for sentence in sentences(found):
        console.print(f"• {sentence}", highlight=False)
    shown = SHOWN_WITH_MODEL if "model" in found.details else SHOWN
    for size in found.details["group_sizes"]:
        table = Table(title=f"\nGroups of {size}", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("estimator", overflow="fold")
        for measure in shown:
            table.add_column(LABELS[measure], justify="right", min_width=14)
        for row in rows_of(found, size):
            cells = []
            for measure in shown:
                here = row[measure]
                more = "" if here["low"] is None else f"\n[dim]{here['low']:.2f} to {here['high']:.2f}[/]"
                cells.append(number(here["value"]) + (more if size == main_size(found) else ""))
            table.add_row(row["estimator"], *cells)
        console.print(table)
