"""Truth tables: true values and advantages of a run's steps, in one Parquet file beside the run.

Each task is computed by one process and from its own random numbers, so the table does not depend on the number of
processes. It takes minutes: an interrupted command starts again.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import polars as pl

from hgpo_datasets import manifest, scan_steps
from hgpo_datasets.branches import has_branches
from hgpo_datasets.sources import run_at
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import making_folder, new_path
from hgpo_envs.files.secrets import redact_json
from hgpo_envs.hashing import text_hash, text_hashes
from hgpo_envs.plugins import check_code_in_file
from hgpo_envs.registration import code_of as code_of_environment
from hgpo_research.policies.distributions import known_policy
from hgpo_research.truth.graph import Graph
from hgpo_research.truth.places import Step
from hgpo_research.truth.rewards import Rewards
from hgpo_research.truth.task import Budget, task_truth, without_collector
from hgpo_train.policies.registry import PolicyContext
from hgpo_train.policies.registry import code_of as code_of_policy
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.sessions import installed_versions

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Generator,
        Iterator,
        Mapping,
        Sequence,
    )
    from pathlib import Path

    from hgpo_research.policies.distributions import KnownPolicy
    from hgpo_train.rollout.env_handle import EnvHandle

METADATA: Final = "hgpo.truth"
"""The key of a truth table's metadata."""
KEYS: Final = (
    "run",
    "iteration",
    "env_id",
    "task_id",
    "group",
    "trajectory",
    "step",
)
"""The columns that identify a row, as in the step table. Those that it lacks are left out."""

_KINDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(
        (
            "value",
            "q",
            "advantage",
            "value_error",
            "q_error",
            "advantage_error",
        ),
        pl.Float64,
    ),
    **dict.fromkeys(
        (
            "value_first",
            "value_second",
            "advantage_first",
            "advantage_second",
        ),
        pl.Float64,
    ),
    "rollouts": pl.Int32,
    "exact": pl.Boolean,
    "choice": pl.Int32,
    "probabilities": pl.List(pl.Float64),
}
_READ: Final = (
    "state",
    "action",
    "response",
    "action_valid",
    "reward",
    "prompt",
)


@dataclass(frozen=True, kw_only=True)
class TruthPlan:
    """What a truth table contains. The same values give the same bytes.

    Attributes:
        run: The run's folder.
        env_id: The run's environment.
        env_options: Keyword arguments of the environment.
        policy: The policy whose values are computed, by name.
        policy_options: Its options.
        rewards: The definition of rewards.
        budget: How much is computed.
    """

    run: Path
    env_id: str
    env_options: Mapping[str, Any]
    policy: str
    policy_options: Mapping[str, Any]
    rewards: Rewards
    budget: Budget


@dataclass(frozen=True)
class TruthReport:
    """What was computed.

    Attributes:
        rows: Number of steps in the table.
        rollout_steps: Number of steps of Monte Carlo rollouts.
    """

    rows: int
    rollout_steps: int


def plan_truth(
    run: Path,
    rewards: Rewards,
    budget: Budget,
    *,
    policy: str | None = None,
    policy_options: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
) -> TruthPlan:
    """Return the plan for a run, with the run's environment and, by default, its policy.

    Args:
        run: The run's folder.
        rewards: The definition of rewards.
        budget: How much is computed.
        policy: The policy; by default the run's.
        policy_options: Its options, which precede those of the run.
        allow: Names of code, such as `module:object`, that the run may import or start: it can be a stranger's.

    Raises:
        InputError: The run does not name its environment, or not its policy, or names code that is not allowed.
    """
    folder = run_at(run)
    header = None if folder is None else manifest.read(folder).header
    if folder is None or header is None:
        raise InputError(f"{run}: expected the folder of a run")
    env = header.config.get("env")
    acting = header.config.get("policy")
    if not isinstance(env, dict) or "id" not in env:
        raise InputError(
            f"{run}: expected a run of `hgpo rollout` or `hgpo eval`, which stores its environment"
        )
    options = {name: value for name, value in env.items() if name != "id"}
    named = code_of_environment(env["id"], options)
    given = dict(policy_options or {})
    # Code that the run names is a stranger's; a policy that the caller names is not.
    if policy is None:
        if not isinstance(acting, dict) or "name" not in acting:
            raise InputError(
                f"{run}: expected a run that stores its policy; choose one with --policy"
            )
        policy = str(acting["name"])
        named["the policy"] = code_of_policy(policy)
        given = {
            name: value
            for name, value in acting.items()
            if name not in ("name", "weights", "code")
        } | given
    check_code_in_file(named, folder / manifest.NAME, allow)
    return TruthPlan(
        run=folder,
        env_id=env["id"],
        env_options=options,
        policy=policy,
        policy_options=given,
        rewards=rewards,
        budget=budget,
    )


def write_truth(
    plan: TruthPlan,
    out: Path,
    *,
    processes: int = 1,
    overwrite: bool = True,
    progress: Callable[[int, int], object] = lambda _done, _total: None,
) -> TruthReport:
    """Compute a run's truth and write the table atomically; the rows are those of the run, in its order.

    Args:
        plan: What to compute.
        out: The file.
        processes: Number of processes. The table does not depend on it.
        overwrite: Whether an existing file is replaced.
        progress: Called with the number of finished tasks and of all tasks.

    Raises:
        InputError: The run has no rows, the policy's probabilities are not known, the run's states are not those of its
            environment, or the file exists.
    """
    if processes < 1:
        raise InputError(
            f"processes: expected an integer of at least 1, received {processes}"
        )
    if out.exists() and not overwrite:
        raise InputError(
            f"{out} exists already; replace it with --overwrite, or use another --out"
        )
    # Tasks in the order of their names, whatever the order of the run: a seed belongs to a name.
    tasks = (
        _steps(plan.run)
        .select(pl.col("task_id").unique().sort())
        .collect()
        .to_series()
        .to_list()
    )
    if not tasks:
        raise InputError(f"{plan.run} contains no complete rollouts")
    tables: list[pl.DataFrame] = []
    steps = 0
    with _open(plan) as of_task:  # before anything is computed, to find bad input
        found = (
            (of_task(task) for task in tasks)
            if processes == 1
            else _in_processes(plan, tasks, processes)
        )
        with closing(found):
            for table, count in found:
                tables.append(table)
                steps += count
                progress(len(tables), len(tasks))
    # The rows of the run in its order.
    truth = pl.concat(tables).sort("(row)").drop("(row)")
    with making_folder(out.absolute().parent), new_path(out) as content:
        truth.write_parquet(content, metadata={METADATA: _metadata(plan)})
    return TruthReport(truth.height, steps)


def default_out(plan: TruthPlan) -> Path:
    """Return the default path of a table: ``<run>.truth/<policy>.parquet``."""
    # Names of policies may contain paths and colons.
    name = "".join(
        character if character.isalnum() or character in "-_.=," else "-"
        for character in plan.policy
    )
    return plan.run.with_name(f"{plan.run.absolute().name}.truth") / f"{name}.parquet"


def read_metadata(path: Path) -> dict[str, Any]:
    """Return a truth table's metadata.

    The keys are `environment`, `policy`, `rewards` (reward, reward_scale, gamma, invalid_action_penalty), `budget`
    (rollouts, error, seed, …), `run` and `versions`.

    Raises:
        InputError: The file is not a truth table.
    """
    metadata = pl.read_parquet_metadata(path)
    if METADATA not in metadata:
        raise InputError(
            f"{path}: expected a truth table, received a file without the metadata {METADATA}"
        )
    return dict(orjson.loads(metadata[METADATA]))


def truth_rewards(truth: Path, run: Path) -> Rewards:
    """Return the definition of rewards of a run's truth table.

    Args:
        truth: The truth table; one of another program, without metadata, has the environment's rewards.
        run: The run, or a Parquet file of steps.

    Raises:
        InputError: There is no such file, or it is the truth of another run.
    """
    if not truth.is_file():
        raise InputError(
            f"{truth}: expected a truth table, received no file; write it with hgpo truth"
        )
    if METADATA not in pl.read_parquet_metadata(truth):
        return Rewards(reward_scale=1.0)
    described = read_metadata(truth)
    folder = run_at(run)
    header = None if folder is None else manifest.read(folder).header
    if header is not None and described.get("run") != header.run:
        raise InputError(
            f"{truth} is not the truth of {run}; compute it with hgpo truth {run}"
        )
    return Rewards(**described["rewards"])


def _metadata(plan: TruthPlan) -> str:
    values = {
        "environment": {"id": plan.env_id, **plan.env_options},
        "policy": {"name": plan.policy, **plan.policy_options},
        "rewards": asdict(plan.rewards),
        "budget": asdict(plan.budget),
        "run": manifest.read(plan.run).header.run,  # type: ignore[union-attr]  # checked by `plan_truth`
        "versions": installed_versions(),
    }
    return orjson.dumps(redact_json(values), option=orjson.OPT_SORT_KEYS).decode()


def _steps(run: Path) -> pl.LazyFrame:
    """Return the rows of the run's complete trajectories, with their position as `(row)`."""
    steps = scan_steps(run).with_row_index("(row)")
    columns = steps.collect_schema().names()
    if has_branches(steps):
        raise InputError(
            f"{run} has branches, whose values hgpo truth does not compute; pass the run without them"
        )
    # Rollouts that failed for a reason outside of the task end anywhere: they have no return.
    if "aborted" in columns:
        steps = steps.filter(
            ~pl.col("aborted").fill_null(False).any().over("trajectory")
        )
    for name in (
        "task_id",
        "trajectory",
        "step",
        "state",
        "action",
        "action_valid",
        "reward",
    ):
        if name not in columns:
            raise InputError(
                f"{run}: expected the column {name}, which this run does not store"
            )
    return steps.select("(row)", *(name for name in (*KEYS, *_READ) if name in columns))


def _in_processes(
    plan: TruthPlan, tasks: Sequence[str], processes: int
) -> Generator[tuple[pl.DataFrame, int]]:
    # New processes, not forks: threads of Polars do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        processes, context, initializer=_begin_worker, initargs=(plan,)
    ) as pool:
        try:
            yield from pool.map(_work, tasks)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_worker: Callable[[str], tuple[pl.DataFrame, int]]
"""Computes the truth of a task in a worker process."""


def _begin_worker(plan: TruthPlan) -> None:
    global _worker  # noqa: PLW0603 - the way in which a pool's workers keep what they have opened
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops them
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _worker = _open(plan).__enter__()  # open until the process ends


def _work(task: str) -> tuple[pl.DataFrame, int]:
    return _worker(task)


@contextmanager
def _open(
    plan: TruthPlan,
) -> Iterator[Callable[[str], tuple[pl.DataFrame, int]]]:
    """Open the environment and the policy; return the function that computes a task (`_of_task`)."""
    with closing(open_env(plan.env_id, **plan.env_options)) as handle:
        context = PolicyContext(
            handle.shared.source.name,
            handle.settings.action_format,
            plan.policy_options,
        )
        with closing(known_policy(plan.policy, context)) as policy:
            yield partial(_of_task, plan, handle, policy)


def _of_task(
    plan: TruthPlan, handle: EnvHandle, policy: KnownPolicy, task: str
) -> tuple[pl.DataFrame, int]:
    """Return the rows of a task's steps, and the number of steps of Monte Carlo rollouts."""
    rows = _steps(plan.run).filter(task_id=task).collect().sort("trajectory", "step")
    trajectories = [
        _trajectory(part)
        for part in rows.partition_by("trajectory", maintain_order=True)
    ]
    # A task's random numbers depend on its name alone, not on the process that computes it.
    entropy = plan.budget.seed, text_hash(f"truth/{task}") % (1 << 63)
    with without_collector():
        graph = Graph(handle.shared, handle.settings, policy, plan.rewards, task)
        columns, count = task_truth(
            graph, trajectories, plan.rewards, plan.budget, entropy
        )
    series = [
        pl.Series(name, values, dtype=_KINDS[name]) for name, values in columns.items()
    ]
    return rows.drop(_READ, strict=False).with_columns(_prompts(rows), *series), count


def _trajectory(rows: pl.DataFrame) -> list[Step]:
    responses = rows["response"] if "response" in rows.columns else [None] * rows.height
    columns = (
        rows["state"],
        rows["action"],
        responses,
        rows["action_valid"],
        rows["reward"],
    )
    return [Step(*values) for values in zip(*columns, strict=True)]


def _prompts(rows: pl.DataFrame) -> pl.Series:
    """Return the hashes of the prompts; null if the run does not store them."""
    if "prompt" not in rows.columns or rows["prompt"].null_count():
        return pl.Series("prompt_hash", [None] * rows.height, dtype=pl.Int64)
    return pl.Series("prompt_hash", text_hashes(rows["prompt"]))
