"""`hgpo learn-tabular`: learning curves of tabular policies with several estimators."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hgpo_train.cli import common  # noqa: TC001 - typer reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_research.tabular.policy import TabularPolicy


def learn_tabular(
    estimators: Annotated[
        list[str],
        typer.Option(
            "--estimators", "-e", help="Estimators, as hgpo:history_length=4,grpo; adaptive mixes, oracle is the truth."
        ),
    ],
    out: Annotated[Path, typer.Option(file_okay=False, help="The folder of curves, tables, pictures and graphs.")],
    env: common.Env = "HGPO/WebShop-v0",
    env_option: common.EnvOption = None,
    split: common.Split = "train",
    max_steps: common.MaxSteps = None,
    tasks: Annotated[int, typer.Option(help="Number of tasks of a set, which are drawn from the split.")] = 16,
    tasks_seed: Annotated[int, typer.Option(help="Seed of the draw; that of the first set.")] = 0,
    task_sets: Annotated[int, typer.Option(help="Number of sets; the seeds are divided among them.")] = 1,
    skill: Annotated[float, typer.Option(help="Factor of the first logits' scores, as of the policy softmax.")] = 0.4,
    memory: Annotated[int, typer.Option(help="Number of past steps that the first logits depend on.")] = 1,
    reads: Annotated[int, typer.Option(help="Number of past steps that the learned logits depend on.")] = 0,
    shared: Annotated[
        bool, typer.Option("--shared", help="One logit for each combination of features, which all tasks share.")
    ] = False,
    held_out: Annotated[int, typer.Option(help="Further tasks of each set, which are only evaluated.")] = 0,
    taste: Annotated[float, typer.Option(help="Standard deviation of each seed's noise in the first logits.")] = 1.0,
    group_size: Annotated[int, typer.Option(help="Rollouts per task in an iteration.")] = 8,
    seeds: Annotated[int, typer.Option(help="Number of seeds; those of a set of tasks learn in lock-step.")] = 32,
    first_seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    iterations: Annotated[int, typer.Option(help="Number of updates.")] = 40,
    update: Annotated[str, typer.Option(help="kl (a fixed divergence per update), or adam.")] = "kl",
    kl: Annotated[float, typer.Option(help="The divergence per step of an update of kl.")] = 0.01,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of adam.")] = 0.1,
    evaluation: Annotated[int, typer.Option(help="Rollouts per task after the last update.")] = 32,
    samples: Annotated[int, typer.Option(help="Rollouts of each of the oracle's values.")] = 16,
    gain_at: Annotated[
        list[int] | None, typer.Option(help="Number of updates after which gains are measured; may be repeated.")
    ] = None,
    gain_policies: Annotated[
        int, typer.Option(help="Seeds of a set whose policies, with the first estimator, these are.")
    ] = 4,
    gain_copies: Annotated[int, typer.Option(help="Redrawn batches of each of them.")] = 32,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter of all estimators that have it, name=value.")
    ] = None,
    overwrite: common.Overwrite = False,
) -> None:
    """Let tabular policies learn with several estimators, and compare final success and area, with intervals."""
    import shlex
    import sys
    from importlib.util import find_spec

    import polars as pl
    from rich.markdown import Markdown
    from rich.progress import Progress

    from hgpo_envs.errors import InputError
    from hgpo_research.tabular.gain import GAINS, gains_chart, gains_of, gains_summary
    from hgpo_research.tabular.graphs import TaskSet, compile_tasks
    from hgpo_research.tabular.learning import Learning, curves
    from hgpo_research.tabular.methods import methods
    from hgpo_research.tabular.report import METRICS, NUMBERS, curves_chart, markdown, metrics_summary, summary
    from hgpo_train.cli.display import terminal
    from hgpo_train.settings import read_assignments

    how = Learning(
        seeds=seeds,
        first_seed=first_seed,
        iterations=iterations,
        group_size=group_size,
        taste=taste,
        update=update,  # type: ignore[arg-type]  # checked by the dataclass
        kl=kl,
        learning_rate=learning_rate,
        evaluation=evaluation,
    )
    named = methods(estimators, setting or (), samples)
    if (out / "curves.parquet").exists() and not overwrite:
        raise InputError(f"{out} has curves already; replace them with --overwrite, or use another --out")
    options = read_assignments("--env-option", env_option or (), {}) | {"split": split}
    options |= {} if max_steps is None else {"max_steps": max_steps}
    policy = {"skill": skill, "memory": memory}
    compiled, others = {}, {}
    for number in range(tasks_seed, tasks_seed + task_sets):
        folder = out / f"tasks-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        compiled[folder.name], others[folder.name] = compile_tasks(
            env, options, policy, tasks, number, folder, reads, shared, held_out
        )
    console, measured = terminal(stderr=True), list[pl.DataFrame]()

    def watch(task_set: str, name: str, iteration: int, policies: TabularPolicy) -> None:
        bars.update(bar, advance=1, description=f"{task_set} {name}")
        if name == next(iter(named)) and iteration in (gain_at or ()):
            measured.append(gains_of(policies, gain_policies, named, how, gain_copies, iteration))

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task("learning", total=task_sets * (len(named) + 1) * (iterations + 1))
        found = curves(compiled, named, how, watch, others if held_out else {})
    for name, task_set in compiled.items():
        TaskSet(task_set.graphs + others[name].graphs, task_set.max_steps, task_set.settings).write(out / name)
    tables, result = {"curves": found.success}, summary(found.success)
    text = markdown(result, ["estimator"], NUMBERS)
    charts: dict[str, Callable[[pl.DataFrame], Any]] = {"curves": curves_chart}
    if measured:
        tables["gains"] = pl.concat(measured)
        text += "\n\n" + markdown(gains_summary(tables["gains"]), ["iteration", "estimator"], GAINS)
        charts["gains"] = lambda rows: gains_chart(rows, result)
    if found.metrics.height:
        tables["metrics"] = found.metrics
        text += "\n\n" + markdown(metrics_summary(found.metrics), ["estimator", "updates"], METRICS)
    for name, rows in tables.items():
        rows.write_parquet(out / f"{name}.parquet", metadata={"hgpo.command": shlex.join(["hgpo", *sys.argv[1:]])})
        if name in charts and find_spec("altair") and find_spec("vl_convert"):
            from hgpo_train.analysis.charts import save_chart

            save_chart(charts[name](rows), out / f"{name}.svg")
    (out / "summary.md").write_text(text + "\n", "utf-8")
    terminal().print(Markdown(text))
    nodes = sum(len(graph.state) for task_set in compiled.values() for graph in task_set.graphs)
    count = task_sets * tasks
    console.print(f"{count} tasks, {nodes:,} nodes. Curves, tables and graphs: {out}", soft_wrap=True)
