"""`hgpo branch`: continue rollouts of a saved run from some of their steps, each several times."""

from __future__ import annotations

from functools import partial
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hgpo_train.cli import common, options  # cyclopts reads the annotations
from hgpo_train.rollout.failures import MAX_FAILED

if TYPE_CHECKING:
    from hgpo_train.rollout.collection import CollectedRun


def branch(
    run: Path | None = None,
    /,
    *,
    at: str = "uniform",
    width: int = 1,
    out: Path | None = None,
    budget: int | None = None,
    seed: int = 0,
    policy: str | None = None,
    policy_option: options.PolicyOption = None,
    slots: int | None = None,
    retry_failed: Annotated[bool, Parameter(negative="--no-retry-failed")] = True,
    max_failed: float = MAX_FAILED,
    allow: options.Allow = None,
    listing: Annotated[bool, Parameter("--list")] = False,
) -> None:
    """Continue rollouts of a saved run from some of their steps, each several times, into a run of its own.

    Args:
        run: The folder of the saved run, which is not changed.
        at: The rule that chooses the steps (--list), or module:function.
        width: Number of branches at each of them.
        out: The new run's folder; a run in it is resumed. Default: RUN-branched.
        budget: Environment steps of all branches, met on average. Default: as many as the run has.
        seed: Seed of the choice of steps and of every branch.
        policy: The policy that plays the branches. Default: the run's own.
        policy_option: An option of the policy, name=value; may be repeated.
        slots: Number of concurrent environments. Default: 256, 32 for scripted policies.
        retry_failed: Retry branches that failed in an earlier run of this command.
        max_failed: Exit with code 1 if more than this share of the branches failed.
        allow: Code that files of the run may name.
        listing: List rules and exit.
    """
    from hgpo_envs.errors import InputError
    from hgpo_train.cli.display import print_table
    from hgpo_train.rollout import branch_rules
    from hgpo_train.rollout.branching import branch_run

    if listing:
        rows = [[name, branch_rules.get(name).summary] for name in branch_rules.names()]
        print_table(["rule", "summary"], rows, texts=2)
        return
    if run is None:
        raise InputError(
            "expected a run: hgpo branch RUN --at RULE --width W; hgpo branch --list lists rules"
        )
    from hgpo_train.settings import read_assignments

    play = partial(
        branch_run,
        run,
        at,
        width=width,
        out=out,
        budget=budget,
        seed=seed,
        policy=policy,
        policy_options=read_assignments("--policy-option", policy_option or (), {}),
        slots=slots,
        retry_failed=retry_failed,
        max_failed=max_failed,
        allow=allow or (),
    )
    common.play_and_report(play, partial(_report, fresh=branch_rules.get(at).outcomes))


def _report(run: CollectedRun, *, fresh: bool) -> None:
    from hgpo_train.cli.display import print_table, terminal
    from hgpo_train.rollout.branching import BranchedRun
    from hgpo_train.rollout.outcomes import success

    assert isinstance(run, BranchedRun)
    tally = run.tally
    rate = tally.steps / max(tally.seconds, 1e-9)
    rows = [
        ("rollouts", f"{run.rollouts.height:,}"),
        (
            "branches",
            f"{run.branches:,} at {run.points:,} steps, {tally.trajectories:,} of them new",
        ),
        (
            "new steps",
            f"{tally.steps:,} of the environment and of the policy ({rate:,.0f}/s)",
        ),
        ("replayed", f"{run.replayed:,} stored actions, to rebuild states"),
        ("solved, without branches", success(run.rollouts).describe()),
    ]
    console = terminal(stderr=True, highlight=False)
    print_table(["", ""], rows, texts=2, console=console)
    estimator = "tree_loo:fresh=true" if fresh else "tree_loo"
    following = common.next_commands(("advantages", run.path, "-e", estimator))
    console.print(f"Steps are in {run.path}. {following}", soft_wrap=True, markup=False)
