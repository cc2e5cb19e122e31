"""`collect`: rollouts of any policy in any environment, into a run's folder, in one call.

    from hgpo_train.rollout import Request, collect

    def first(request: Request) -> str:
        return request.admissible_actions[0]

    run = collect("HGPO/ALFWorld-v0", first, "runs/first", tasks=4, group_size=8)
    run.summary, run.steps

`hgpo rollout` parses its options and calls the same function. A run in the folder is resumed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gymnasium
import polars as pl

from hgpo_datasets import StepWriter, manifest, scan_steps
from hgpo_envs.env import TextEnv
from hgpo_envs.episode_options import EpisodeOptions
from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import LOCK, FolderLock, missing_folders, remove_unused
from hgpo_envs.sources import Split
from hgpo_envs.task_sampling import SORTED
from hgpo_train.measures import figures
from hgpo_train.policies.registry import (
    PolicyContext,
    PolicySpec,
    find_policy,
    name_of,
    own_policy,
    source_hash,
)
from hgpo_train.rollout import branch_rules
from hgpo_train.rollout.env_handle import EnvHandle, open_env
from hgpo_train.rollout.failures import (
    MAX_FAILED,
    RolloutError,
    allowed_in_a_row,
    failures_of,
    raise_if_too_many,
)
from hgpo_train.rollout.outcomes import GROUP, rollout_table
from hgpo_train.rollout.plan import ExecutionOptions, RolloutSpec
from hgpo_train.rollout.progress_line import live_progress
from hgpo_train.rollout.run import collect_groups
from hgpo_train.rollout.sessions import NAME as SESSIONS
from hgpo_train.rollout.sessions import Session, read_sessions, record_session
from hgpo_train.rollout.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hgpo_train.policies.base import Policy

    AnyEnv = str | EnvHandle | gymnasium.Env[Any, Any]

_LOCAL_MODELS: Final = ("transformers", "vllm")
_SUMMARY: Final = (
    "steps",
    "success",
    "success_95_low",
    "success_95_high",
    "success_if_aborted_lost",
    "success_if_aborted_won",
    "mean_return",
    "mean_length",
    "valid",
    "admissible",
)
"""The figures in a run's summary, besides its counts of groups and rollouts."""


@dataclass(frozen=True, eq=False)
class CollectedRun:
    """A run that was played or resumed. It can be used as a path, as in ``scan_steps(run)``.

    Attributes:
        path: The run's folder.
        tally: Counts of this call, without the rollouts that the folder contained before.
        trajectories: One row per rollout and per branch of the run (`hgpo_train.rollout.outcomes.rollout_table`).
    """

    path: Path
    tally: Tally
    trajectories: pl.DataFrame = field(repr=False)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def steps(self) -> pl.LazyFrame:
        """All steps of the run, one per row (docs/step_table.md)."""
        return scan_steps(self.path)

    @cached_property
    def rollouts(self) -> pl.DataFrame:
        """The trajectories without branches, which are no independent rollouts."""
        return self.trajectories.filter(~pl.col("branch")).drop("branch")

    @property
    def summary(self) -> dict[str, Any]:
        """Results of the whole run.

        `groups`, `rollouts`, `failed` (rollouts) and `steps` are counts. `success` (share of solved tasks),
        `mean_return`, `mean_length` (in steps), `valid` and `admissible` (shares of well-formed and of admissible
        actions) are of the rollouts that did not fail, and None if there is none or if they are unknown.
        `success_95_low` and `success_95_high` are the 95% interval of success; `success_if_aborted_lost` and
        `success_if_aborted_won` count the failed rollouts as lost and as won.
        """
        (found,) = figures(self.rollouts).to_dicts()
        counts = {
            "groups": self.rollouts.n_unique(GROUP),
            "rollouts": found["episodes"],
            "failed": found["aborted"],
        }
        return counts | {name: found[name] for name in _SUMMARY}

    def __repr__(self) -> str:
        shown = {
            name: f"{value:.3g}" if isinstance(value, float) else value
            for name, value in self.summary.items()
        }
        return f"CollectedRun({str(self.path)!r}: {', '.join(f'{value} {name}' for name, value in shown.items())})"


def collect(
    env: AnyEnv,
    policy: object,
    out: str | os.PathLike[str],
    *,
    tasks: int | Sequence[str] | None = 16,
    group_size: int = 8,
    seed: int | Sequence[int] = 0,
    order: str = "shuffled",
    dynamic: int | None = None,
    branch: str | None = None,
    width: int = branch_rules.WIDTH,
    policy_options: Mapping[str, Any] | None = None,
    slots: int | None = None,
    workers: bool = False,
    retry_failed: bool = True,
    max_failed: float = MAX_FAILED,
    without: str | Iterable[str] = (),
    progress: bool | Callable[[Tally], None] = True,
    metadata: Mapping[str, Any] = {},
    **env_options: Any,
) -> CollectedRun:
    """Collect groups of rollouts into a run's folder. A run in the folder is resumed.

    Args:
        env: Gymnasium id of the environment; or an environment from `gymnasium.make` or `open_env`.
        policy: One of

            - a function of a `Request` that returns the action or response as a text; it may be async;
            - an object with ``respond(requests)``, which returns a list of texts for a list of requests;
            - a name such as ``"random"``, ``"expert"`` or ``"openai:MODEL"``, or ``"module:object"``;
            - a `Policy`.

            Instead of a text, a `Reply` also gives token ids and log-probabilities, and a `Failure` fails the rollout.
        out: The run's folder.
        tasks: Number of tasks, each played by one group; None for all tasks of the split; or ids of tasks of the split.
        group_size: Number of rollouts per group.
        seed: Seed of the task order and of every rollout. With several seeds, everything is played once for each, which
            is then the column `iteration`.
        order: Task order: ``shuffled``, ``sweep``, ``random`` or ``verl-agent``.
        dynamic: Dynamic sampling: count only groups whose returns are not all equal, and play at most this many.
        branch: The rule at which rollouts branch (`hgpo_train.rollout.branch_rules`). Half of a group are then rollouts
            of their own, and their branches take as many steps as the others would, on average.
        width: Number of branches at each step where rollouts branch.
        policy_options: Options of a policy that is selected by name, such as ``{"temperature": 0.7}``.
        slots: Number of concurrent environments; affects only the speed. Default: 256, 32 for scripted policies, or
            one per processor with `workers`.
        workers: Whether each environment runs in its own process.
        retry_failed: Whether rollouts that failed in an earlier call are played again.
        max_failed: The largest share of failed rollouts without an error, in [0, 1].
        without: Columns or families of columns to omit, such as ``"prompt"``.
        progress: Whether to show a progress line, or lines in a file now and then; or a function that is called
            regularly with the counts so far.
        metadata: Further JSON values that the run's configuration contains.
        **env_options: Keyword arguments of the environment, such as ``split="valid_seen"``, ``history_length=4`` or
            ``max_steps=30``. The default of ``action_format`` is ``"command"`` for functions and objects with
            `respond`, whose texts are then actions, and ``"response"`` otherwise: the prompt then asks for thoughts
            and an action in tags, and the text is parsed.

    Returns:
        The run, with all its steps.

    Raises:
        InputError: An argument is invalid, or the folder contains a run with other settings.
        RolloutError: More than `max_failed` of the rollouts failed, or too many in a row. They are stored with the
            reason.
        Exception: The exception of a function or object of one's own, unless it is a `ConnectionError` or
            `TimeoutError`, which fail the rollout.
        KeyboardInterrupt: Ctrl-C was pressed. In all these cases, finished groups are committed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = collect("HGPO/ALFWorld-v0", lambda request: "look", folder, tasks=2, group_size=3, max_steps=5)
    ...     run.summary["rollouts"], run.summary["steps"], run.steps.collect()["action"].unique().to_list()
    (6, 30, ['look'])
    """
    folder = Path(out)
    options = dict(policy_options or {})
    if not 0 <= max_failed <= 1:
        raise InputError(
            f"max_failed: expected a share from 0 to 1, received {max_failed}"
        )
    # 1. The policy's specification and the environment, whose default of `action_format` depends on it.
    maker, argument = find_policy(policy)
    handle, stored_options = _open(env, env_options, maker.action_format)
    size = len(handle.tasks)
    if tasks is None and size > SORTED:
        raise InputError(
            f"tasks: expected a number, because the split has {size:,} tasks; received none"
        )
    if isinstance(tasks, Sequence):
        chosen = Split(handle.shared, handle.tasks.name, tasks)
        handle = replace(handle, tasks=chosen)
        tasks = len(chosen)
    # 2. What is played, once for each seed.
    several_seeds = isinstance(seed, Iterable)
    seeds = list(seed) if isinstance(seed, Iterable) else [seed]
    specs = [
        RolloutSpec(
            tasks=size if tasks is None else tasks,
            group_size=group_size,
            seed=number,
            order=order,
            iteration=number if several_seeds else 0,
            dynamic=dynamic,
            branch=branch,
            width=width,
        )
        for number in seeds
    ]
    allowed = allowed_in_a_row(sum(spec.rollouts for spec in specs), max_failed)
    execution = ExecutionOptions(
        slots, workers, max_failed=max_failed, max_consecutive_failures=allowed
    )
    # 3. The policy, and what a run stores of it: not the options that affect only the execution.
    context = PolicyContext(
        handle.shared.source.name, handle.settings.action_format, options
    )
    player, identity = player_of(maker, argument, policy, context)
    name = identity["name"]
    # 4. The run's folder, in which everything is played. What the caller opened stays open.
    tally = Tally()
    with ExitStack() as opened:
        if isinstance(env, str):
            opened.enter_context(closing(handle))
        if player.close != getattr(policy, "close", None):
            opened.enter_context(closing(player))
        earlier = read_sessions(folder)
        session = Session(
            endpoint=getattr(player, "endpoint", None),
            policy_code=None
            if isinstance(policy, str | PolicySpec)
            else source_hash(policy),
            policy_options={
                key: value for key, value in options.items() if key not in identity
            },
            slots=execution.slots_for(player),
            workers=workers,
        )
        config = {
            **handle.identity(stored_options),
            "policy": identity,
            "group_size": group_size,
            # further seeds can be added
            **({"evaluation": True} if several_seeds else {"seed": seed}),
            "order": order,
            "dynamic": dynamic is not None,
            **(branch_rules.identity(branch, width) if branch else {}),
            **metadata,
        }
        columns = [without] if isinstance(without, str) else list(without)
        with (
            removed_if_unused(folder),
            StepWriter(folder, config=config, without=columns) as writer,
        ):
            changes = _changes(folder, earlier[-1], session, name) if earlier else []
            for text in changes:
                warnings.warn(text, stacklevel=2)  # names the line that calls `collect`
            expected = (
                sum(spec.tasks for spec in specs) - len(writer.committed)
            ) * group_size
            with (
                record_session(writer, earlier, session, tally) as should_stop,
                live_progress(expected, progress) as show,
            ):
                for spec in specs:
                    collect_groups(
                        handle,
                        player,
                        writer,
                        spec,
                        execution,
                        retry_failed=retry_failed,
                        progress=show,
                        should_stop=should_stop,
                        tally=tally,
                    )
                    if should_stop():
                        break
            trajectories = rollout_table(writer.scan(), branches=True).collect()
    # 5. The verdict is about the whole run, with the rollouts of earlier calls.
    run = CollectedRun(folder, tally, trajectories)
    try:
        raise_if_too_many(
            failures_of(run.rollouts),
            max_failed,
            "Run it again with the same arguments to retry them.",
        )
    except RolloutError as error:
        error.run = run
        raise
    return run


def player_of(
    maker: PolicySpec, argument: str, policy: object, context: PolicyContext
) -> tuple[Policy, dict[str, Any]]:
    """Return a policy that was found by `find_policy`, and what a run stores of it."""
    player = own_policy(maker.make(argument, context))
    options = context.options
    unstored = getattr(maker.options, "EXECUTION", ())
    name = policy if isinstance(policy, str) else name_of(player)
    identity = {
        "name": name,
        **{key: value for key, value in options.items() if key not in unstored},
    }
    if name.partition(":")[0] in _LOCAL_MODELS:
        from hgpo_train.models.chat_format import chat_template_hash
        from hgpo_train.models.checkpoint_files import stored_model

        # of a run that goes on, the newest checkpoint
        identity["weights"] = stored_model(argument)
        model: Any = player
        identity["chat_template_hash"] = chat_template_hash(model.tokenizer)
    return player, identity


def _open(
    env: AnyEnv, options: Mapping[str, Any], action_format: str
) -> tuple[EnvHandle, dict[str, Any]]:
    """Return the environment and its options as they are stored with the run."""
    if isinstance(env, str):
        plain = {
            name: os.fspath(value) if isinstance(value, os.PathLike) else value
            for name, value in options.items()
        }
        shown = {
            "history_length": EpisodeOptions.history_length,
            "action_format": action_format,
        }
        stored = {"split": "train", **shown, **plain}
        try:
            return open_env(env, **stored), stored
        except InputError as error:
            for name in options:
                similar = get_close_matches(name, signature(collect).parameters, 1)
                if similar and f"argument {name!r}" in str(error):
                    raise InputError(
                        f"unknown argument {name!r}; did you mean {similar[0]!r}?"
                    ) from error
            raise
    if not isinstance(env, EnvHandle | gymnasium.Env):
        raise InputError(
            f"env: expected a Gymnasium id such as 'HGPO/ALFWorld-v0', received {env!r}"
        )
    if options:
        raise InputError(
            f"env: expected an id with {', '.join(options)}, received an environment that is open"
        )
    if isinstance(env, gymnasium.Env):
        text_env = env.unwrapped
        if not isinstance(text_env, TextEnv) or env.spec is None:
            raise InputError(
                f"env: expected a Gymnasium id, or a text environment of gymnasium.make, received {env}"
            )
        env = EnvHandle(
            env.spec.id,
            text_env.shared,
            text_env.episode.settings,
            text_env.tasks,
        )
    names = ("history_length", "action_format", "max_steps")
    return env, {
        "split": env.tasks.name,
        **{name: getattr(env.settings, name) for name in names},
    }


def _changes(folder: Path, last: Session, session: Session, name: str) -> list[str]:
    """Return warnings of what differs from the last session of a run without being part of its configuration."""
    texts = []
    if last.endpoint != session.endpoint:
        texts.append(
            f"{folder} was played with {last.endpoint} and is now resumed with {session.endpoint}"
        )
    if (
        None not in (last.policy_code, session.policy_code)
        and last.policy_code != session.policy_code
    ):
        texts.append(
            f"{folder} was played with other code of the policy {name}; its groups are not played again. Use another "
            "folder to collect all of them with the new code."
        )
    return texts


@contextmanager
def removed_if_unused(folder: Path, *worthless: str) -> Iterator[None]:
    """Remove a run's folder if the block raises before anything is stored, and with it the parents that are new.

    A folder that existed before the block is unchanged. `worthless` names further files that are written at the start.
    """
    new = missing_folders(folder)
    try:
        yield
    except BaseException:
        if new and folder.is_dir():
            # unless it is in use
            with (
                suppress(OSError, InputError),
                FolderLock(folder, "removing an empty run"),
            ):
                remove_unused(new, {LOCK, manifest.NAME, SESSIONS, *worthless})
        raise
