"""`branch_run`: rollouts of a saved run that fork where it matters, into a run of their own.

    run = branch_run("runs/first", at="mixed-outcomes", width=4)
    run.steps.filter(pl.col("parent").is_not_null())

The new run contains every row of the saved one and the branches, so that it stands alone. `hgpo branch` parses its
options and calls the same function.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hgpo_datasets import StepWriter, manifest, scan_steps
from hgpo_datasets.partitions import partitions
from hgpo_datasets.sources import run_at
from hgpo_envs.errors import InputError
from hgpo_envs.plugins import check_code_in_file
from hgpo_envs.registration import code_of as code_of_environment
from hgpo_train.advantages.advantage_tables import fingerprint
from hgpo_train.policies.registry import (
    PolicyContext,
    code_of,
    find_policy,
    policy_names,
)
from hgpo_train.rollout import branch_rules
from hgpo_train.rollout.branch_groups import ROWS, Branches
from hgpo_train.rollout.collection import (
    CollectedRun,
    player_of,
    removed_if_unused,
)
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.failures import MAX_FAILED, allowed_in_a_row
from hgpo_train.rollout.outcomes import rollout_table
from hgpo_train.rollout.plan import ExecutionOptions
from hgpo_train.rollout.progress_line import live_progress
from hgpo_train.rollout.sessions import Session, read_sessions, record_session
from hgpo_train.rollout.tally import Tally
from hgpo_train.scores.tables import with_scores

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Mapping

    from hgpo_datasets.manifest import Header
    from hgpo_train.rollout.env_handle import EnvHandle


@dataclass(frozen=True, eq=False)
class BranchedRun(CollectedRun):
    """A run that was branched or resumed. It can be used as a path, as in ``scan_steps(run)``.

    Attributes:
        points: Number of points at which branches start.
        branches: Number of branches of the run, with those of earlier calls.
        replayed: Number of stored actions that this call replayed once per trajectory, to rebuild states.
    """

    points: int = 0
    branches: int = 0
    replayed: int = 0


def branch_run(
    run: str | os.PathLike[str],
    at: str = "uniform",
    *,
    width: int = branch_rules.WIDTH,
    out: str | os.PathLike[str] | None = None,
    budget: int | None = None,
    seed: int = 0,
    policy: object = None,
    policy_options: Mapping[str, Any] | None = None,
    slots: int | None = None,
    retry_failed: bool = True,
    max_failed: float = MAX_FAILED,
    allow: Collection[str] = (),
    progress: bool | Callable[[Tally], None] = True,
) -> BranchedRun:
    """Continue rollouts of a saved run from some of their steps, each several times, with new actions from there on.

    Args:
        run: The folder of the saved run, whose environment can be opened here. It is not changed.
        at: The rule that chooses the steps (`hgpo_train.rollout.branch_rules`), or ``module:function``.
        width: W, the number of branches at each of them.
        out: The new run's folder; `run` with ``-branched`` by default. A run in it is resumed.
        budget: Number of environment steps, and so of model calls, of the branches: they are planned with the mean
            number of steps that rollouts of the run still take, and so are met on average. By default as many as the
            run has.
        seed: Seed of the choice of steps and of every branch.
        policy: As in `hgpo_train.rollout.collect`; the run's own by default.
        policy_options: Options of a policy that is selected by name; those of the run's own by default.
        slots: Number of concurrent environments; affects only the speed.
        retry_failed: Whether branches that failed in an earlier call are played again.
        max_failed: The largest share of failed branches without an error, in [0, 1].
        allow: Names of code, such as `module:object`, that the run may import or start: it can be a stranger's.
        progress: As in `hgpo_train.rollout.collect`.

    Returns:
        The new run.

    Raises:
        InputError: An argument is invalid, the run cannot be replayed here, or the folder contains another run.
        RolloutError: More than `max_failed` of the branches failed, or too many in a row.
        KeyboardInterrupt: Ctrl-C was pressed. In all these cases, finished groups are committed.
    """
    if not 1 <= width <= branch_rules.WIDEST:
        expected = f"a number of branches from 1 to {branch_rules.WIDEST}"
        raise InputError(f"width: expected {expected}, received {width}")
    if not 0 <= max_failed <= 1:
        raise InputError(
            f"max_failed: expected a share from 0 to 1, received {max_failed}"
        )
    if not -(1 << 63) <= seed < 1 << 63:
        raise InputError(f"seed: expected an integer of 64 bits, received {seed}")
    if budget is not None and budget < 1:
        raise InputError(
            f"budget: expected a number of steps of at least 1, received {budget}"
        )
    # 1. The saved run, and the names of what it was collected with.
    source, header = _saved(Path(run))
    folder = (
        Path(out) if out is not None else source.with_name(f"{source.name}-branched")
    )
    if folder.resolve() == source.resolve():
        raise InputError(
            f"--out {folder}: expected another folder than that of the run, which is not changed"
        )
    policy, options = _policy(header, policy, policy_options)
    rule = branch_rules.get(at)
    maker, argument = find_policy(policy)
    with closing(_opened(header, source, allow)) as handle:
        # 2. The steps that can be branched.
        columns = scan_steps(source).select(*branch_rules.READ, "run")
        steps = with_scores(columns, source, rule.scores).drop("run").collect()
        # 3. The policy, and what the new run says of itself.
        context = PolicyContext(
            handle.shared.source.name, handle.settings.action_format, options
        )
        player, identity = player_of(maker, argument, policy, context)
        branched = {
            "run": header.run,
            # branches of a run that has changed are others
            "run_fingerprint": fingerprint(source),
            "at": at,
            "outcomes": rule.outcomes,
            "width": width,
            "budget": budget,
            "seed": seed,
            "policy": identity,
        }
        config = {**header.config, "branches": branched}
        # 4. All groups of the run, with their branches.
        tally = Tally()
        session = Session(
            endpoint=getattr(player, "endpoint", None),
            slots=ExecutionOptions(slots).slots_for(player),
        )
        with (
            closing(player),
            removed_if_unused(folder),
            StepWriter(folder, config=config, depth=header.depth) as writer,
        ):
            branches = Branches(
                handle,
                writer,
                steps,
                rule,
                width=width,
                budget=budget,
                seed=seed,
                retry_failed=retry_failed,
            )
            points = branches.points.height
            if not points:
                raise InputError(
                    f"{source}: the rule {at} found no step to branch at; use another rule, or more rollouts"
                )
            earlier = read_sessions(folder)
            allowed = allowed_in_a_row(points * width, max_failed)
            execution = ExecutionOptions(
                slots, max_failed=max_failed, max_consecutive_failures=allowed
            )
            with (
                record_session(writer, earlier, session, tally) as should_stop,
                live_progress(branches.expected, progress) as show,
            ):
                parts = (part.scan() for part in partitions(source, ROWS))
                branches.play(
                    parts,
                    player,
                    execution,
                    tally,
                    progress=show,
                    should_stop=should_stop,
                )
            trajectories = rollout_table(writer.scan(), branches=True).collect()
    return BranchedRun(
        folder, tally, trajectories, points, branches.played.height, branches.replayed
    )


def _saved(run: Path) -> tuple[Path, Header]:
    """Return the folder of a saved run, and what its manifest says of it."""
    folder = run_at(run) if run.is_dir() else None
    if folder is None:
        raise InputError(
            f"{run}: expected the folder of a saved run, as of hgpo rollout"
        )
    header = manifest.read(folder).header
    if header is None or not isinstance(header.config.get("env"), dict):
        raise InputError(
            f"{run}: expected a run that names its environment, as one of hgpo rollout or hgpo eval does"
        )
    return folder, header


def _policy(
    header: Header, policy: object, options: Mapping[str, Any] | None
) -> tuple[object, dict[str, Any]]:
    """Return the policy, and its options; by default those of the saved run, unless they are code."""
    if policy is not None:
        return policy, dict(options or {})
    stored = header.config.get("policy")
    stored = stored if isinstance(stored, dict) else {}
    name = stored.get("name")
    # A name must be that of a registered policy, and import no code of its own.
    if (
        not isinstance(name, str)
        or name.partition(":")[0] not in policy_names()
        or code_of(name) is not None
    ):
        raise InputError(
            f"--policy: expected the policy that plays the branches, because that of the run ({name!r}) is none of "
            "this installation"
        )
    unused = ("name", "weights", "chat_template_hash")
    kept = {key: value for key, value in stored.items() if key not in unused}
    return name, {**kept, **(options or {})}


def _opened(header: Header, run: Path, allow: Collection[str]) -> EnvHandle:
    """Open a saved run's environment with its options, if these name no code but what is allowed."""
    options = dict(header.config["env"])
    env_id = options.pop("id", None)
    if not isinstance(env_id, str) or ":" in env_id:
        raise InputError(
            f"expected the Gymnasium id of an installed environment in the run, received {env_id!r}"
        )
    check_code_in_file(code_of_environment(env_id, options), run / manifest.NAME, allow)
    return open_env(env_id, **options)
