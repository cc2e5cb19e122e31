"""`hgpo protocols`: what each protocol adds to a policy's number."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from hgpo_train.cli import common, options  # cyclopts reads the annotations
from hgpo_train.cli.eval import DEFAULT_ENV, PANEL

if TYPE_CHECKING:
    from hgpo_train.evaluation.protocols import Effect, Reference

SEEDS: Final = "123,456,789"


def protocols(
    run: options.SavedRun | None = None,
    /,
    *,
    policy: str | None = None,
    panel: Annotated[str | None, Parameter(help=PANEL)] = None,
    env: options.Env = DEFAULT_ENV,
    environment: options.EpisodeOptions = options.EpisodeOptions(),
    seeds: str = SEEDS,
    temperature: float | None = None,
    execution: options.RolloutOptions = options.RolloutOptions(),
    out: Path | None = None,
    plot: Annotated[Path | None, Parameter(alias="-o")] = None,
    as_json: options.Json = False,
) -> None:
    """Show by how much each protocol of published evaluations moves a policy's number.

    With a saved run, the same episodes are scored in other ways. With --policy and --out, the policy is also played
    under other settings: seeds, split, wording, limit, prices, temperature. (docs/repeatable.md)

    Args:
        run: A run of hgpo eval or hgpo train.
        policy: Play this policy instead, as in hgpo eval.
        panel: The panel.
        env: The environment.
        environment: The options of the environment.
        seeds: Comma-separated seeds; every task is played once per seed.
        temperature: A model's temperature. Default: 0.4, or the panel's.
        execution: The options of the policy and of the execution.
        out: The folder of what is played; it is resumed.
        plot: A picture: .html, .svg, .png or .json (extra notebooks).
        as_json: Whether to print JSON.
    """
    import polars as pl

    from hgpo_envs.errors import InputError
    from hgpo_train.cli.display import print_json
    from hgpo_train.evaluation.protocol_variations import panel_settings, played_effects
    from hgpo_train.evaluation.protocols import read_reference, table_effects
    from hgpo_train.rollout.env_handle import evaluation_split

    if plot is not None:
        from hgpo_train.analysis.charts import check_chart_file, protocols_chart, save_chart

        check_chart_file("--plot", plot)
    if (run is None) == (policy is None) or (policy is None) != (out is None):
        raise InputError("expected a run, or a policy with a folder: hgpo protocols RUN, or --policy P --out FOLDER")

    # 1. The number and the effects on it: of a saved run's table, and of what is played.
    title = policy or Path(str(run)).name
    played: list[Effect] = []
    if policy is None or out is None:
        reference = read_reference(str(run))
    else:
        sampling = {} if temperature is None else {"temperature": temperature}
        settings = execution.arguments(policy, **sampling)
        if panel is None:
            split = environment.split or evaluation_split(env)
            settings |= environment.arguments(env=env, split=split) | {"seeds": common.read_seeds(seeds)}
        else:
            title = f"{policy} on {panel}"
            given = (env, environment, seeds, temperature)
            if given != (DEFAULT_ENV, options.EpisodeOptions(data=environment.data), SEEDS, None):
                raise InputError(
                    f"--panel {panel}: it fixes environment, seeds and temperature; write {panel}+name=value"
                )
            settings |= panel_settings(panel, policy, environment.data, settings["policy_options"])
        with common.resumable("Finished groups are committed; run the same command again to resume."):
            reference, played = played_effects(policy, out, **settings)
    effects = [*table_effects(reference), *played]

    # 2. The report.
    if as_json:
        found = [each._asdict() for each in effects]
        print_json({"success": reference.success, "tasks": reference.tasks, "effects": found})
    else:
        _print_effects(title, reference, effects)
    if plot is not None:
        table = pl.DataFrame([each._asdict() for each in effects], infer_schema_length=None)
        save_chart(protocols_chart(table.with_columns(policy=pl.lit(title))), plot)
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
