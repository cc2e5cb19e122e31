"""`hgpo protocols`: what each protocol adds to a policy's number."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hgpo_train.cli import options  # noqa: TC001 - cyclopts reads the annotations

if TYPE_CHECKING:
    from hgpo_train.evaluation.protocols import Effect, Reference


def protocols(
    run: Path,
    /,
    *,
    plot: Annotated[Path | None, Parameter(alias="-o")] = None,
    as_json: options.Json = False,
) -> None:
    """Show by how much each protocol of published evaluations moves a run's number: the same rollouts, scored again.

    Args:
        run: A run of hgpo eval or hgpo train.
        plot: A picture: .html, .svg, .png or .json (extra notebooks).
        as_json: Whether to print JSON.
    """
    import polars as pl

    from hgpo_train.cli.display import print_json
    from hgpo_train.evaluation.protocols import read_reference, table_effects

    if plot is not None:
        from hgpo_train.analysis.charts import check_chart_file, protocols_chart, save_chart

        check_chart_file("--plot", plot)
    reference = read_reference(run)
    effects = table_effects(reference)
    rows = [each._asdict() for each in effects]
    if as_json:
        print_json({"success": reference.success, "tasks": reference.tasks, "effects": rows})
    else:
        _print_effects(run.name, reference, effects)
    if plot is not None:
        table = pl.DataFrame(rows, infer_schema_length=None)
        save_chart(protocols_chart(table.with_columns(policy=pl.lit(run.name))), plot)
        print(f"The picture is {plot}.", file=sys.stderr)


def _print_effects(title: str, reference: Reference, effects: list[Effect]) -> None:
    from hgpo_envs.wording import counted
    from hgpo_train.cli.display import print_table

    rows = []
    for each in effects:
        values = (each.effect, each.low, each.high)
        effect, low, high = ("" if value is None else f"{round(100 * value, 1) + 0.0:+.1f}" for value in values)
        interval = f"{low} … {high}" if low else ""
        rows.append([each.protocol, each.note or each.sentence, each.kind, effect, interval])
    size = f"{counted(reference.tasks, 'task')}, {counted(len(reference.rollouts), 'rollout')}"
    head = f"{title}: success {reference.success:.1%} of {size}; what protocols add, in points"
    print_table(["protocol", "what it does", "kind", "points", "95%"], rows, title=head, texts=3)
    print("shift: 95% interval over tasks. spread: where 95% of its numbers lie, by chance.")
