"""`hgpo truth`: true values and advantages of a policy at the steps of a saved run."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations

from hgpo_train.advantages.parameters import GAMMA, REWARD_SCALE
from hgpo_train.cli import common, options


def truth(
    run: Path,
    /,
    *,
    policy: str | None = None,
    policy_option: options.PolicyOption = None,
    gamma: float = GAMMA,
    reward: str = "reward",
    reward_scale: float = REWARD_SCALE,
    invalid_action_penalty: float = 0.0,
    rollouts: int = 16,
    error: float | None = None,
    steps: int | None = None,
    most_rollouts: int = 4096,
    exact_nodes: int = 300,
    seed: int = 0,
    processes: int = 1,
    out: Path | None = None,
    overwrite: bool = False,
    allow: options.Allow = None,
) -> None:
    """Compute true values and advantages of a policy at the steps of a saved run, with standard errors.

    Args:
        run: The folder of a run. It is not modified.
        policy: The policy whose values are computed; its action probabilities must be known (softmax, random,
            transformers:MODEL, …). Default: the run's, with its options.
        policy_option: Options of the policy.
        gamma: Discount factor per step.
        reward: Rewards: reward (of each step), success or score.
        reward_scale: Factor of rewards; verl-agent trains with 10.
        invalid_action_penalty: Subtracted from the scaled reward of a step with an invalid action.
        rollouts: M, the number of Monte Carlo rollouts of a step that no visited branch covers, rounded up to an even
            number of at least 4.
        error: Add rollouts until the root mean square of each task's advantage errors is at most this.
        steps: Add rollouts as long as those of each task take about this number of steps.
        most_rollouts: The largest number of rollouts of a step, for --error and --steps; rounded like M.
        exact_nodes: Solve a task exactly if at most this many nodes can be reached.
        seed: Seed of the rollouts.
        processes: Number of processes; affects only the speed.
        out: The table. Default: <run>.truth/<policy>.parquet.
        overwrite: Replace an existing table.
        allow: Code that files of the run may name.
    """
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
