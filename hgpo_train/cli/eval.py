"""`hgpo eval`: play every task of a split once per seed; write a step table and print a table of results."""

from __future__ import annotations

from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from hgpo_train.cli import collection  # typer reads the annotations
from hgpo_train.rollout.failures import MAX_FAILED


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

    from hgpo_datasets import scan_steps
    from hgpo_envs.errors import InputError
    from hgpo_train.assignments import read_assignments
    from hgpo_train.cli.eval_results import print_results
    from hgpo_train.cli.output_paths import check_folder
    from hgpo_train.evaluation import episode_table
    from hgpo_train.evaluation import evaluate as play
    from hgpo_train.evaluation.play import SAMPLING
    from hgpo_train.evaluation.summary import Prices
    from hgpo_train.policies.registry import policy_spec
    from hgpo_train.rollout.env_handle import evaluation_split

    prices, chosen = Prices(price_in, price_out), _seeds(seeds)
    check_folder("--out", out)
    options = read_assignments("--policy-option", policy_option or (), policy_spec(policy).option_types)
    if temperature is not None:
        if policy.partition(":")[0] not in SAMPLING:
            raise InputError(f"--temperature: policy {policy!r} does not sample from a model; remove the option")
        options = {"temperature": temperature, **options}
    other = None if against is None else episode_table(scan_steps(against))
    env_options = collection.environment_options(
        split or evaluation_split(env), data, history_length, max_steps, action_format, env_option
    )
    console = Console(stderr=True)
    collection.play_and_report(
        out,
        partial(
            play,
            env,
            policy,
            out,
            seeds=chosen,
            policy_options=options,
            slots=slots,
            workers=workers,
            retry_failed=retry_failed,
            max_failed=max_failed,
            **env_options,
        ),
        lambda run: print_results(console, run, against, other, as_json=as_json),
        prices=prices,
        noun="episodes",
    )


def _seeds(text: str) -> list[int]:
    from hgpo_envs.errors import InputError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--seeds: expected integers separated by commas, received {text!r}") from error
