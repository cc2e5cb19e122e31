"""`hgpo learn-tabular`: learning curves of tabular policies with several estimators."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt, PositiveInt  # noqa: TC002 - cyclopts reads the annotations
from cyclopts.validators import Number

from hgpo_research.tabular.learning import Learning
from hgpo_train.cli import options  # noqa: TC001 - cyclopts reads the annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import polars as pl

    from hgpo_research.tabular.policy import TabularPolicy

RESULTS: Final = (
    "curves.parquet",
    "gains.parquet",
    "metrics.parquet",
    "curves.svg",
    "gains.svg",
    "summary.md",
)
"""The files that are written beside the graphs."""
_LEARNING: Final = Learning()


def learn_tabular(
    *,
    estimators: Annotated[list[str], Parameter(alias="-e")],
    out: Path,
    env: options.Env = "HGPO/WebShop-v0",
    env_option: options.EnvOption = None,
    split: options.Split = "train",
    max_steps: options.MaxSteps = None,
    tasks: PositiveInt = 16,
    tasks_seed: NonNegativeInt = 0,
    task_sets: PositiveInt = 1,
    skill: float = 0.4,
    memory: int = 1,
    reads: NonNegativeInt = 0,
    shared: bool = False,
    held_out: NonNegativeInt = 0,
    how: Annotated[Learning, Parameter(name="*")] = _LEARNING,
    samples: PositiveInt = 16,
    gain_at: list[int] | None = None,
    gain_policies: PositiveInt = 4,
    gain_copies: Annotated[int, Parameter(validator=Number(gte=4))] = 32,
    setting: Annotated[list[str] | None, Parameter("--set")] = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Let tabular policies learn with several estimators, and compare final success and area, with intervals.

    Args:
        estimators: Estimators, as hgpo:history_length=4,grpo; adaptive mixes, oracle is the truth.
        out: The folder of curves, tables, pictures and graphs.
        env: The environment.
        env_option: Arguments of the environment.
        split: The split.
        max_steps: The step limit.
        tasks: Number of tasks of a set, which are drawn from the split.
        tasks_seed: Seed of the draw; that of the first set.
        task_sets: Number of sets; the seeds are divided among them.
        skill: Factor of the first logits' scores, as of the policy softmax.
        memory: Number of past steps that the first logits depend on.
        reads: Number of past steps that the learned logits depend on.
        shared: One logit for each combination of features, which all tasks share.
        held_out: Further tasks of each set, which are only evaluated.
        how: How they learn.
        samples: Rollouts of each of the oracle's values.
        gain_at: Number of updates after which gains are measured; may be repeated.
        gain_policies: Seeds of a set whose policies, with the first estimator, these are.
        gain_copies: Redrawn batches of each of them, at least 4.
        setting: A parameter of all estimators that have it, name=value.
        overwrite: Whether to replace results.
    """
    import polars as pl
    from rich.progress import Progress

    from hgpo_envs.errors import InputError
    from hgpo_envs.files.atomic import refuse_link
    from hgpo_envs.wording import counted
    from hgpo_research.tabular.gain import gains_of
    from hgpo_research.tabular.graphs import TaskSet, compile_tasks
    from hgpo_research.tabular.learning import curves
    from hgpo_research.tabular.methods import ADAPTIVE, methods
    from hgpo_train.cli.display import terminal
    from hgpo_train.settings import read_assignments

    named = methods(estimators, setting or (), samples)
    # A gain needs rollouts to hold out.
    if how.group_size < 2 and (
        gain_at or any(name.startswith(ADAPTIVE) for name in named)
    ):
        raise InputError(
            f"--group-size: expected an integer of at least 2, received {how.group_size}"
        )
    if wrong := [each for each in gain_at or () if not 0 <= each <= how.iterations]:
        raise InputError(
            f"--gain-at: expected 0 to {how.iterations}, the number of updates, received {wrong[0]}"
        )
    if any((out / name).exists() for name in RESULTS) and not overwrite:
        raise InputError(
            f"{out} has results already; replace them with --overwrite, or use another --out"
        )
    options = read_assignments("--env-option", env_option or (), {}) | {"split": split}
    options |= {} if max_steps is None else {"max_steps": max_steps}
    policy = {"skill": skill, "memory": memory}
    compiled = {}
    others = {}
    for number in range(tasks_seed, tasks_seed + task_sets):
        name = f"tasks-{number}"
        compiled[name], others[name] = compile_tasks(
            env, options, policy, tasks, number, out / name, reads, shared, held_out
        )
    console = terminal(stderr=True)
    measured = list[pl.DataFrame]()

    def watch(
        task_set: str, name: str, iteration: int, policies: TabularPolicy
    ) -> None:
        bars.update(bar, advance=1, description=f"{task_set} {name}")
        if name == next(iter(named)) and iteration in (gain_at or ()):
            measured.append(
                gains_of(policies, gain_policies, named, how, gain_copies, iteration)
            )

    with Progress(
        console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        bar = bars.add_task(
            "learning", total=task_sets * (len(named) + 1) * (how.iterations + 1)
        )
        found = curves(compiled, named, how, watch, others if held_out else {})
    if overwrite:
        _remove_results(out, compiled)
    for name, task_set in compiled.items():
        refuse_link(out / name)
        (out / name).mkdir(parents=True, exist_ok=True)
        TaskSet(
            task_set.graphs + others[name].graphs, task_set.max_steps, task_set.settings
        ).write(out / name)
    tables = {"curves": found.success} | (
        {"gains": pl.concat(measured)} if measured else {}
    )
    _report(tables | ({"metrics": found.metrics} if found.metrics.height else {}), out)
    nodes = sum(
        len(graph.state) for task_set in compiled.values() for graph in task_set.graphs
    )
    line = f"{counted(task_sets * tasks, 'task')}, {counted(nodes, 'node')}. Curves, tables and graphs: {out}"
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def _remove_results(out: Path, kept: Collection[str]) -> None:
    """Remove what an earlier call wrote, but the graphs of the sets of tasks `kept`, from which this call continued."""
    for name in RESULTS:
        (out / name).unlink(missing_ok=True)
    for folder in out.glob("tasks-*"):
        if (
            folder.name not in kept
            and folder.name[6:].isdecimal()
            and folder.is_dir()
            and not folder.is_symlink()
        ):
            for name in ("nodes", "edges"):
                (folder / f"{name}.parquet").unlink(missing_ok=True)
            if not any(folder.iterdir()):
                folder.rmdir()


def _report(tables: Mapping[str, pl.DataFrame], out: Path) -> None:
    """Write tables, pictures and their summaries, and print these."""
    import shlex
    import sys
    from importlib.util import find_spec

    from hgpo_envs.wording import counted
    from hgpo_research.commands.names import folded
    from hgpo_research.tabular.gain import GAINS, gains_chart, gains_summary
    from hgpo_research.tabular.report import (
        NUMBERS,
        curves_chart,
        markdown,
        metrics_of,
        metrics_summary,
        shown,
        summary,
    )
    from hgpo_train.cli.display import print_table

    result = summary(tables["curves"])
    parts: list[tuple[str, pl.DataFrame, list[str], Sequence[str]]]
    parts = [("Success in percent", result, ["estimator"], NUMBERS)]
    if "gains" in tables:
        for (iteration,), rows in gains_summary(tables["gains"]).group_by(
            "iteration", maintain_order=True
        ):
            parts.append(
                (
                    f"Gain after {counted(iteration, 'update')}, in percent",
                    rows,
                    ["estimator"],
                    GAINS,
                )
            )
    if "metrics" in tables:
        rows = metrics_summary(tables["metrics"])
        parts.append(
            (
                "Weights, in percent",
                rows,
                ["estimator", "updates"],
                metrics_of(tables["metrics"]),
            )
        )
    charts: dict[str, Callable[[pl.DataFrame], Any]] = {
        "curves": curves_chart,
        "gains": lambda rows: gains_chart(rows, result),
    }
    for name, rows in tables.items():
        rows.write_parquet(
            out / f"{name}.parquet",
            metadata={"hgpo.command": shlex.join(["hgpo", *sys.argv[1:]])},
        )
        if name in charts and find_spec("altair") and find_spec("vl_convert"):
            from hgpo_train.analysis.charts import save_chart

            save_chart(charts[name](rows), out / f"{name}.svg")
    texts = [
        f"{title}:\n\n{markdown(rows, keys, names)}\n"
        for title, rows, keys, names in parts
    ]
    (out / "summary.md").write_text("\n".join(texts), "utf-8")
    for title, rows, keys, names in parts:
        titles, cells = shown(rows, keys, names)
        titles = [text.replace(" ", "\n") for text in titles]
        print_table(
            titles,
            [[folded(first), *rest] for first, *rest in cells],
            title=title,
            texts=len(keys),
        )
