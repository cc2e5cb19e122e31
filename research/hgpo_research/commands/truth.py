"""`hgpo truth`: true values and advantages of a policy at the steps of a saved run."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import Annotated, Final

from cyclopts import Parameter

from hgpo_research.truth.rewards import Rewards
from hgpo_research.truth.task import Budget
from hgpo_train.cli import common, options

_REWARDS: Final = Rewards()
_BUDGET: Final = Budget()


def truth(
    run: Path,
    /,
    *,
    policy: str | None = None,
    policy_option: options.PolicyOption = None,
    rewards: Annotated[Rewards, Parameter(name="*")] = _REWARDS,
    budget: Annotated[Budget, Parameter(name="*")] = _BUDGET,
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
        rewards: The rewards.
        budget: How much is computed.
        processes: Number of processes; affects only the speed.
        out: The table. Default: <run>.truth/<policy>.parquet.
        overwrite: Replace an existing table.
        allow: Code that files of the run may name.
    """
    from time import perf_counter

    from hgpo_envs.errors import InputError
    from hgpo_research.truth import plan_truth, write_truth
    from hgpo_research.truth.table import default_out
    from hgpo_train.advantages.advantage_tables import refuse_own_input
    from hgpo_train.cli.display import ProgressBars, terminal
    from hgpo_train.policies.registry import find_policy
    from hgpo_train.settings import read_assignments

    plan = plan_truth(run, rewards, budget, policy=policy, allow=allow or ())
    given = read_assignments(
        "--policy-option", policy_option or (), find_policy(plan.policy)[0].option_types
    )
    plan = plan_truth(
        run, rewards, budget, policy=policy, policy_options=given, allow=allow or ()
    )
    target = out or default_out(plan)
    if target.suffix not in {"", ".parquet"}:
        raise InputError(
            f"--out: expected the path of a table, such as truth.parquet, received {target}"
        )
    refuse_own_input(run, target)
    common.check_output_path(target)
    console = terminal(stderr=True)
    began = perf_counter()
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
    console.print(
        f"{line}. The table is {target}", soft_wrap=True, markup=False, highlight=False
    )
    following = common.next_commands(
        ("compare-estimators", run, "--truth", target, "-e", "hgpo,gigpo,grpo")
    )
    console.print(following, soft_wrap=True, markup=False, highlight=False)
