"""`hgpo eval`: play every task of a split once per seed; write a step table and print a table of results."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from hgpo_train.cli import collection  # typer reads the annotations
from hgpo_train.rollout.failures import MAX_FAILED

if TYPE_CHECKING:
    import polars as pl

_SAMPLING = ("openai", "transformers", "vllm")


def evaluate(
    out: Annotated[Path, typer.Option(help="The run's folder. An evaluation in it is resumed.")],
    policy: Annotated[
        str, typer.Option(help="random, expert, openai:MODEL, vllm:MODEL, transformers:MODEL, … (docs/rollouts.md)")
    ] = "random",
    env: Annotated[str, typer.Option(help="Gymnasium id of the environment, or module:EnvironmentSpec.")] = (
        "HGPO/ALFWorld-v0"
    ),
    split: Annotated[
        str,
        typer.Option(
            help="ALFWorld: valid_seen (default), valid_unseen. WebShop: eval (default), test. "
            "AppWorld: dev (default), test_normal, test_challenge."
        ),
    ] = "",
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds; every task is played once per seed.")] = (
        "123,456,789"
    ),
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature of a model; 0 is greedy. Default: 0.4, as published.")
    ] = None,
    data: collection.Data = None,
    history_length: collection.HistoryLength = 2,
    max_steps: collection.MaxSteps = None,
    action_format: collection.ActionFormat = None,
    env_option: collection.EnvOption = None,
    policy_option: collection.PolicyOption = None,
    against: Annotated[
        Path | None, typer.Option(help="The run of another evaluation, for a paired comparison by task.")
    ] = None,
    slots: collection.Slots = None,
    workers: collection.Workers = False,
    retry_failed: Annotated[
        bool, typer.Option(help="Retry episodes that failed in an earlier run of this command.")
    ] = True,
    max_failed: Annotated[
        float, typer.Option(help="Exit with code 1 if more than this share of the episodes failed.")
    ] = MAX_FAILED,
    price_in: Annotated[
        float | None, typer.Option(help="Price per million prompt tokens, for the cost in summary.json.")
    ] = None,
    price_out: Annotated[float | None, typer.Option(help="Price per million response tokens.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Evaluate a policy on every task of a split, once per seed."""
    from rich.console import Console

    from hgpo_envs.errors import InputError
    from hgpo_train.assignments import read_assignments
    from hgpo_train.cli.eval_results import print_results
    from hgpo_train.cli.output_paths import check_folder
    from hgpo_train.evaluation import evaluate as play
    from hgpo_train.evaluation.play import TEMPERATURE, check_seeds
    from hgpo_train.evaluation.summary import Prices, summarize, write_summary
    from hgpo_train.policies.registry import PolicyContext, default_action_format, make_policy, option_annotations
    from hgpo_train.rollout.env_handle import evaluation_split, open_env
    from hgpo_train.rollout.failures import allowed_in_a_row, failures_of_run, raise_if_too_many
    from hgpo_train.rollout.open_run import open_run
    from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec, run_config

    collection.check_max_failed(max_failed)
    prices = Prices(price_in, price_out)
    chosen = _seeds(seeds)
    check_seeds(chosen)
    split = split or evaluation_split(env)
    other = None if against is None else _episodes(against)
    action_format = action_format or default_action_format(policy)
    env_options = collection.environment_options(split, data, history_length, max_steps, action_format, env_option)
    policy_options = read_assignments("--policy-option", policy_option or (), option_annotations(policy))
    if policy.partition(":")[0] in _SAMPLING:
        policy_options = {"temperature": TEMPERATURE if temperature is None else temperature, **policy_options}
    elif temperature is not None:
        raise InputError(f"--temperature: policy {policy!r} does not sample from a model; remove the option")
    handle = open_env(env, **env_options)
    planned = len(handle.tasks) * len(chosen)
    in_a_row = allowed_in_a_row(planned, max_failed)
    slots = collection.default_slots(slots, workers=workers)
    execution = ExecutionOptions(slots, workers, max_consecutive_failures=in_a_row)
    check_folder("--out", out)
    acting = make_policy(policy, PolicyContext(handle.shared.source.name, action_format, policy_options))
    console = Console(stderr=True)
    spec = RolloutSpec(tasks=len(handle.tasks), order="sweep")
    config = {**run_config(handle, env_options, policy, policy_options, spec), "evaluation": True}
    del config["seed"]
    with (
        closing(acting),
        open_run(
            out,
            config,
            acting,
            handle,
            console,
            execution,
            expected=lambda groups: planned - groups,
            policy_options=policy_options,
            warn=partial(collection.note, console),
            at_end=lambda: write_summary(out, summarize(out, planned, prices)),
        ) as run,
    ):
        play(
            handle,
            acting,
            run.writer,
            chosen,
            execution,
            retry_failed=retry_failed,
            progress=run.progress,
            should_stop=run.should_stop,
            tally=run.tally,
        )
    if run.should_stop.requested:
        line = f"Interrupted. Finished episodes are in {out}; run the same command again to resume."
        console.print(line, markup=False)
        raise typer.Exit(130)
    raise_if_too_many(failures_of_run(out), 1.0, collection.RETRY, "episodes")
    print_results(console, out, against, _episodes(out), other, as_json=as_json)
    collection.check_failures(console, out, None, max_failed, "episodes")


def _episodes(run: Path) -> pl.DataFrame:
    from hgpo_datasets import scan_steps
    from hgpo_train.evaluation.report import episode_table

    return episode_table(scan_steps(run))


def _seeds(text: str) -> list[int]:
    from hgpo_envs.errors import InputError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--seeds: expected integers separated by commas, received {text!r}") from error
