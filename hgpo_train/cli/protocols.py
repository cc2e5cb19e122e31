"""`hgpo protocols`: what each protocol adds to a policy's number."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hgpo_train.cli import common, options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from hgpo_train.evaluation.protocols import Effect, Reference


def protocols(
    run: Path | None = None,
    /,
    *,
    policy: str | None = None,
    panel: str = "alfworld-bundled",
    out: Path | None = None,
    data: Path | None = None,
    execution: options.RolloutOptions = options.RolloutOptions(),
    plot: Annotated[Path | None, Parameter(alias="-o")] = None,
    as_json: options.Json = False,
) -> None:
    """Show by how much each protocol of published evaluations moves a policy's number.

    With a saved run, the same rollouts are scored in other ways. A policy plays a panel, and the panel under other
    settings: seeds, split, wording, limit, prices, temperature. (docs/repeatable.md)

    Args:
        run: A run of hgpo eval or hgpo train.
        policy: Play this policy, as in hgpo eval.
        panel: What it plays: a panel of hgpo panels, or a TOML file; name+setting=value changes a setting.
        out: The folder of what is played; it is resumed.
        data: Where the panel's data are. Default: the bundled data, or the usual places.
        execution: The options of the policy and of the execution.
        plot: A picture: .html, .svg, .png or .json (extra notebooks).
        as_json: Whether to print JSON.
    """
    import polars as pl

    from hgpo_envs.errors import InputError
    from hgpo_train.cli.display import print_json
    from hgpo_train.evaluation.protocol_variations import played_effects
    from hgpo_train.evaluation.protocols import read_reference, table_effects
    from hgpo_train.panels import load_panel

    if plot is not None:
        from hgpo_train.analysis.charts import (
            check_chart_file,
            protocols_chart,
            save_chart,
        )

        check_chart_file("--plot", plot)
    if (run is None) == (policy is None) or (policy is None) != (out is None):
        raise InputError(
            "expected a run, or a policy with a folder: hgpo protocols RUN, or --policy P --out FOLDER"
        )

    # 1. The number and the effects on it: of a saved run's table, and of what is played.
    played: list[Effect] = []
    if run is not None:
        title = run.name
        reference = read_reference(run)
        following = common.next_commands(
            ("protocols", "--policy", "POLICY", "--panel", "PANEL", "--out", "FOLDER")
        )
    else:
        assert policy is not None
        assert out is not None
        found = load_panel(panel)
        title = f"{policy}, {found.title}"
        arguments = execution.arguments(policy)
        with common.resumable(
            "Finished groups are committed; run the same command again to resume."
        ):
            reference, played = played_effects(
                found, policy, out, data=data, **arguments
            )
        following = common.next_commands(("view", out / "reference"))
    effects = [*table_effects(reference), *played]

    # 2. The report.
    if as_json:
        rows = [each._asdict() for each in effects]
        print_json(
            {"success": reference.success, "tasks": reference.tasks, "effects": rows}
        )
    else:
        _print_effects(title, reference, effects)
    if plot is not None:
        table = pl.DataFrame(
            [each._asdict() for each in effects], infer_schema_length=None
        )
        save_chart(protocols_chart(table.with_columns(policy=pl.lit(title))), plot)
        print(f"The picture is {plot}.", file=sys.stderr)
    print(following, file=sys.stderr)


def _print_effects(title: str, reference: Reference, effects: list[Effect]) -> None:
    from hgpo_envs.wording import counted
    from hgpo_train.cli.display import print_table, shown

    rows = []
    for each in effects:
        values = (each.effect, each.low, each.high)
        effect, low, high = (
            shown(value and 100 * value, "+z.1f", "") for value in values
        )
        interval = f"{low} … {high}" if low else ""
        rows.append(
            [each.protocol, each.note or each.sentence, each.kind, effect, interval]
        )
    size = f"{counted(reference.tasks, 'task')}, {counted(len(reference.rollouts), 'rollout')}"
    head = f"{title}: success {reference.success:.1%} of {size}; what protocols add, in points"
    print_table(
        ["protocol", "what it does", "kind", "points", "95%"], rows, title=head, texts=3
    )
    print(
        "shift: 95% interval over tasks. spread: where 95% of its numbers lie, by chance."
    )
