"""`hgpo eval`: play every task of a split once per seed; write a step table and print a table of results."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from hgpo_train.cli import common, options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from hgpo_envs.sources import Split
    from hgpo_train.evaluation import EvaluationReport
    from hgpo_train.evaluation.report import MeasureSummary
    from hgpo_train.panels import Panel
    from hgpo_train.rollout.collection import CollectedRun

DEFAULT_ENV: Final = "HGPO/ALFWorld-v0"

ENV: Final = f"Gymnasium id of the environment, or module:EnvironmentSpec. Default: {DEFAULT_ENV}."

PANEL: Final = (
    "What is played: a panel of `hgpo panels`, or a TOML file; name+setting=value changes a setting and the name. "
    "Instead of --env and the options of the environment."
)


def evaluate(
    *,
    out: options.RunFolder,
    policy: str = "random",
    panel: Annotated[str | None, Parameter(help=PANEL)] = None,
    env: Annotated[str | None, Parameter(help=ENV)] = None,
    environment: options.EpisodeOptions = options.EpisodeOptions(),
    seeds: str | None = None,
    temperature: float | None = None,
    execution: options.RolloutOptions = options.RolloutOptions(),
    against: Path | None = None,
    as_json: options.Json = False,
) -> None:
    """Evaluate a policy on every task of a split, or on the tasks of a panel, once per seed.

    Args:
        out: The run's folder.
        policy: random, expert, openai:MODEL, vllm:MODEL, transformers:MODEL, … (docs/rollouts.md)
        panel: The panel.
        env: The environment. Default: ALFWorld.
        environment: The options of the environment.
        seeds: Comma-separated seeds; every task is played once per seed. Default: 123,456,789.
        temperature: A model's temperature. Default: 0.4, as published.
        execution: The options of the policy and of the execution.
        against: Another evaluation, or a certificate of the same panel, for a paired comparison by task.
        as_json: Whether to print JSON.
    """
    import polars as pl

    from hgpo_datasets import scan_steps
    from hgpo_envs.errors import InputError
    from hgpo_train.evaluation import episode_table
    from hgpo_train.evaluation import evaluate as play
    from hgpo_train.evaluation.play import SAMPLING, SEEDS
    from hgpo_train.rollout.env_handle import evaluation_split, open_env

    try:
        numbers = (
            [*SEEDS] if seeds is None else [int(part) for part in seeds.split(",")]
        )
    except ValueError:
        raise InputError(
            f"--seeds: expected integers separated by commas, received {seeds!r}"
        ) from None
    sampling = {} if temperature is None else {"temperature": temperature}
    if sampling and policy.partition(":")[0] not in SAMPLING:
        raise InputError(
            f"--temperature: policy {policy!r} does not sample from a model; remove the option"
        )
    if panel is not None:
        given: dict[str, Any] = {
            "env": env,
            "temperature": temperature,
            "seeds": seeds and numbers,
        }
        _evaluate_panel(
            panel, policy, out, environment, given, execution, against, as_json=as_json
        )
        return
    env = env or DEFAULT_ENV
    if against is not None and against.is_file() and against.suffix == ".json":
        raise InputError(
            f"--against {against}: a certificate is compared with a run of its panel; give the --panel"
        )
    arguments = environment.arguments(split=environment.split or evaluation_split(env))
    other = None if against is None else episode_table(scan_steps(against))
    if other is not None:
        with closing(open_env(env, **arguments)) as handle:
            both = other.filter(
                pl.col("env_id") == handle.env_id, _is_listed(handle.tasks)
            )
        if both.is_empty():
            raise InputError(
                f"--against {against}: it has no task of {handle.env_id} that would be evaluated"
            )
    play = partial(
        play,
        env,
        policy,
        out,
        seeds=numbers,
        **execution.arguments(policy, **sampling),
        **arguments,
    )
    common.play_and_report(
        play, partial(_report, against=against, other=other, as_json=as_json)
    )


def _evaluate_panel(
    name: str,
    policy: str,
    out: Path,
    environment: options.EpisodeOptions,
    given: dict[str, Any],
    execution: options.RolloutOptions,
    against: Path | None,
    *,
    as_json: bool,
) -> None:
    """Evaluate a policy on a panel. Options that a panel fixes are refused; `given` are those of them, None if not."""
    from hgpo_envs.errors import InputError
    from hgpo_train.evaluation import evaluate_panel
    from hgpo_train.evaluation.certificate_check import read_comparable
    from hgpo_train.panels import load_panel

    panel = load_panel(name)
    given |= {
        each: getattr(environment, each)
        for each in ("split", "history_length", "max_steps", "action_format")
    }
    given["env_option"] = environment.env_option
    for option, value in given.items():
        if value is None:
            continue
        instead = f"{name}+{option}={value}".replace(" ", "")
        can_change = option in panel.flat() and option != "env"
        advice = (
            f"to change it, write --panel '{instead}'" if can_change else "leave it out"
        )
        raise InputError(
            f"--{option.replace('_', '-')}: the panel {panel.title} fixes it; {advice}"
        )
    other = (
        None
        if against is None
        else read_comparable(against, panel, environment.data).table()
    )
    play = partial(
        evaluate_panel,
        panel,
        policy,
        out,
        data=environment.data,
        **execution.arguments(policy),
    )
    # A certificate is checked against the panel of its title, which knows no file.
    check = common.given_options(
        {"--panel": name if ".toml" in name else None, "--data": environment.data}
    )
    report = partial(
        _report, against=against, other=other, as_json=as_json, panel=panel, check=check
    )
    common.play_and_report(play, report)


def _is_listed(tasks: Split) -> pl.Expr:
    """Return whether a task is of a split; any is of one that is too long to be read."""
    import polars as pl

    from hgpo_envs.task_sampling import SORTED

    return (
        pl.lit(value=True)
        if len(tasks) > SORTED
        else pl.col("task_id").is_in(list(tasks))
    )


def _report(
    run: CollectedRun,
    against: Path | None,
    other: pl.DataFrame | None,
    *,
    as_json: bool,
    panel: Panel | None = None,
    check: Sequence[object] = (),
) -> None:
    """Print the results of an evaluation, and its comparison with the episodes of another one, if there is one.

    Of a panel, `check` are the further options of `hgpo certificate check`.
    """
    from dataclasses import asdict

    from hgpo_datasets.wordings import wordings_of
    from hgpo_envs.wording import counted
    from hgpo_train.cli.display import print_json, shown
    from hgpo_train.evaluation import compare, episode_table, evaluation_reports
    from hgpo_train.evaluation.certificate import NAME as CERTIFICATE
    from hgpo_train.evaluation.summary import NAME as SUMMARY

    episodes = episode_table(run.steps)
    reports = evaluation_reports(episodes)
    measures = [
        name
        for name in ("success", "score")
        if name == "success" or _is_scored(reports)
    ]
    known = [
        name for name in measures if reports and reports[0].measures[name] is not None
    ]
    comparisons = (
        []
        if other is None
        else [compare(episodes, other, measure) for measure in known]
    )
    wordings = wordings_of(run.steps)
    if as_json:
        document: dict[str, object] = {
            "run": str(run.path),
            "reports": [asdict(report) for report in reports],
        }
        document["wordings"] = wordings
        if panel is not None:
            document |= {
                "panel": panel.title,
                "digest": panel.digest,
                "certificate": str(run.path / CERTIFICATE),
            }
        if against is not None:
            document |= {
                "against": str(against),
                "comparisons": [asdict(comparison) for comparison in comparisons],
            }
        print_json(document)
        return
    if reports:
        _print_reports(reports, "" if panel is None else f"{panel.title}, ")
        if wordings:
            print(f"wording: {', '.join(wordings)}")
        print(f"success of all tasks: {reports[0].success.describe()}")
    for comparison in comparisons:
        values = (comparison.difference, comparison.low, comparison.high)
        difference, low, high = (shown(value, "+z.3f", "unknown") for value in values)
        print(
            f"{comparison.measure} against {against}: {difference} (95% {low} … {high}) over "
            f"{counted(comparison.tasks, 'task')}, better on {comparison.better}, worse on {comparison.worse}; paired "
            f"permutation test p = {comparison.p:.4f}"
        )
    following = common.next_commands(("stats", run.path))
    if panel is not None:
        path = run.path / CERTIFICATE
        following = common.next_commands(
            ("certificate", "check", path, "--run", run.path, "--replay", 10, *check)
        )
    hint = f"Steps are in {run.path}, all numbers in {run.path / SUMMARY}. {following}"
    print(hint, file=sys.stderr)


def _print_reports(reports: list[EvaluationReport], panel: str) -> None:
    from hgpo_train.cli.display import print_table, shown

    is_scored = _is_scored(reports)
    is_grouped = reports[0].scenarios is not None
    intervals = "success: Wilson, score: jackknife" if is_scored else "Wilson"
    seeds = ", ".join(map(str, reports[0].seeds))
    columns = ["task type", "tasks", "success\n%", "95%"]
    if is_scored:
        columns += ["score", "95%"]
    if is_grouped:
        columns.append("scenarios\n%")
    rows = []
    # The only task type of an evaluation has the row of all tasks.
    is_one = (
        len(reports) == 2 and reports[1].success.rollouts == reports[0].success.rollouts
    )
    for report in reports[1:] if is_one else reports:
        values = report.measures
        row = [
            report.name,
            str(report.tasks),
            *_mean_and_interval(values["success"], 100, 1),
        ]
        if is_scored:
            row += _mean_and_interval(values["score"], 1, 3)
        if is_grouped:
            share = report.scenario_success
            row.append(shown(share and 100 * share, ".1f"))
        row += [
            _mean(values["length"], 1),
            _mean(values["validity"], 100),
            _mean(values["admissibility"], 100),
        ]
        rows.append(row)
    title = (
        f"{panel}seeds {seeds}; ± std over seeds, 95% interval over tasks ({intervals})"
    )
    print_table([*columns, "steps", "valid\n%", "admis.\n%"], rows, title=title)


def _is_scored(reports: list[EvaluationReport]) -> bool:
    """Return whether mean scores differ from success rates, so they are worth showing."""
    means = [
        [report.measures[name] for name in ("score", "success")] for report in reports
    ]
    return any(
        score and (not success or score.mean != success.mean)
        for score, success in means
    )


def _mean(summary: MeasureSummary | None, scale: float) -> str:
    return "unknown" if summary is None else f"{scale * summary.mean:.1f}"


def _mean_and_interval(
    summary: MeasureSummary | None, scale: float, places: int
) -> tuple[str, str]:
    if summary is None:
        return "unknown", "–"
    values = (summary.mean, summary.low, summary.high)
    mean, low, high = (
        "" if value is None else f"{scale * value:.{places}f}" for value in values
    )
    if summary.std is not None:
        mean += f" ±{scale * summary.std:.{places}f}"
    return mean, f"{low}–{high}"
