"""`hgpo truth`: true values and advantages of a policy at the steps of a saved run."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from hgpo_train.advantages.parameters import GAMMA, REWARD_SCALE
from hgpo_train.cli import common


def truth(
    run: Annotated[Path, typer.Argument(help="The folder of a run. It is not modified.")],
    policy: Annotated[
        str | None,
        typer.Option(
            help="The policy whose values are computed; its action probabilities must be known (softmax, random, "
            "transformers:MODEL, …). Default: the run's, with its options."
        ),
    ] = None,
    policy_option: common.PolicyOption = None,
    gamma: Annotated[float, typer.Option(help="Discount factor per step.")] = GAMMA,
    reward: Annotated[str, typer.Option(help="Rewards: reward (of each step), success or score.")] = "reward",
    reward_scale: Annotated[float, typer.Option(help="Factor of rewards; verl-agent trains with 10.")] = REWARD_SCALE,
    invalid_action_penalty: Annotated[
        float, typer.Option(help="Subtracted from the scaled reward of a step with an invalid action.")
    ] = 0.0,
    rollouts: Annotated[
        int,
        typer.Option(
            help="M, the number of Monte Carlo rollouts of a step that no visited branch covers, rounded up to an even "
            "number of at least 4."
        ),
    ] = 16,
    error: Annotated[
        float | None,
        typer.Option(help="Add rollouts until the root mean square of each task's advantage errors is at most this."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Add rollouts as long as those of each task take about this number of steps.")
    ] = None,
    most_rollouts: Annotated[
        int,
        typer.Option(help="The largest number of rollouts of a step, for --error and --steps; rounded like M."),
    ] = 4096,
    exact_nodes: Annotated[
        int, typer.Option(help="Solve a task exactly if at most this many nodes can be reached.")
    ] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the rollouts.")] = 0,
    processes: Annotated[int, typer.Option(help="Number of processes; affects only the speed.")] = 1,
    out: Annotated[Path | None, typer.Option(help="The table. Default: <run>.truth/<policy>.parquet.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing table.")] = False,
    allow: common.Allow = None,
) -> None:
    """Compute true values and advantages of a policy at the steps of a saved run, with standard errors."""
    from time import perf_counter

    from hgpo_envs.errors import InputError
    from hgpo_research.truth import Budget, Rewards, plan_truth, write_truth
    from hgpo_research.truth.table import default_out
    from hgpo_train.advantages.advantage_tables import refuse_own_input
    from hgpo_train.cli.display import ProgressBars, terminal
    from hgpo_train.policies.registry import policy_spec
    from hgpo_train.settings import read_assignments

    rewards = Rewards(
        reward=reward,  # type: ignore[arg-type]  # checked by the dataclass
        reward_scale=reward_scale,
        gamma=gamma,
        invalid_action_penalty=invalid_action_penalty,
    )
    budget = Budget(
        rollouts=rollouts, error=error, steps=steps, most_rollouts=most_rollouts, exact_nodes=exact_nodes, seed=seed
    )
    plan = plan_truth(run, rewards, budget, policy=policy, allow=allow or ())
    given = read_assignments("--policy-option", policy_option or (), policy_spec(plan.policy).option_types)
    plan = plan_truth(run, rewards, budget, policy=policy, policy_options=given, allow=allow or ())
    target = out or default_out(plan)
    if target.suffix not in {"", ".parquet"}:
        raise InputError(f"--out: expected the path of a table, such as truth.parquet, received {target}")
    refuse_own_input(run, target)
    common.check_output_path(target)
    console, began = terminal(stderr=True), perf_counter()
    with ProgressBars() as bars:
        report = write_truth(
            plan,
            target,
            processes=processes,
            overwrite=overwrite,
            progress=lambda done, total: bars.show("tasks", done, total),
        )
    seconds = perf_counter() - began
    line = f"{report.rows:,} truths ({report.rows / seconds:,.0f}/s), {report.rollout_steps:,} steps of rollouts"
    console.print(f"{line}. The table is {target}", soft_wrap=True, markup=False, highlight=False)
    following = common.next_commands(("compare-estimators", run, "--truth", target, "-e", "hgpo,gigpo,grpo"))
    console.print(following, soft_wrap=True, markup=False, highlight=False)
