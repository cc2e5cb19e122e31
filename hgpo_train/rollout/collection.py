"""`collect`: rollouts of any policy in any environment, into a run's folder, in one call.

    from hgpo_train.rollout import Request, collect

    def first(request: Request) -> str:
        return request.admissible_actions[0]

    run = collect("HGPO/ALFWorld-v0", first, "runs/first", tasks=4, group_size=8)
    run.summary, run.steps

A run in the folder is resumed, like that of `hgpo rollout`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gymnasium
import polars as pl
from rich.console import Console

from hgpo_datasets import manifest, scan_steps
from hgpo_envs.env import TextEnv
from hgpo_envs.errors import InputError
from hgpo_train.policies.own import has_protocol, name_of, own_policy, source_hash
from hgpo_train.policies.registry import PolicyContext, PolicySpec, default_action_format, make_policy
from hgpo_train.rollout.env_handle import EnvHandle, open_env
from hgpo_train.rollout.failures import MAX_FAILED, failures_of_run, failures_of_tally, raise_if_too_many
from hgpo_train.rollout.open_run import open_run
from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec, default_slots, run_config

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import UnionType
    from typing import Protocol

    from hgpo_train.policies.base import Failure, Policy, Reply, Request
    from hgpo_train.rollout.collector import Tally

    Result = str | Reply | Failure

    class Responder(Protocol):
        """An object that replies to lists of requests."""

        def respond(self, requests: Sequence[Request], /) -> Sequence[Result]:
            """Return one result per request, in the same order."""
            ...

    AnyPolicy = (
        str | PolicySpec | Policy | Responder | Callable[[Request], Result] | Callable[[Request], Awaitable[Result]]
    )

_RETRY: Final = "Call collect again with the same arguments to retry the failed rollouts."


@dataclass(frozen=True, eq=False)
class CollectedRun:
    """A run that `collect` has played or resumed. It can be used as a path, as in ``scan_steps(run)``.

    Attributes:
        path: The run's folder.
        tally: Counts of this call, without the rollouts that the folder contained before.
    """

    path: Path
    tally: Tally

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def steps(self) -> pl.LazyFrame:
        """All steps of the run, one per row (docs/step_table.md)."""
        return scan_steps(self.path)

    @property
    def summary(self) -> dict[str, int | float | None]:
        """Results of the whole run.

        `groups`, `rollouts`, `failed` (rollouts) and `steps` are counts. `success` (fraction of solved tasks),
        `mean_return`, `mean_length` (in steps) and `valid` (fraction of valid actions) are of the rollouts that did
        not fail, and None if all failed.
        """
        rollouts = self.steps.group_by("iteration", "task_id", "group", "trajectory").agg(
            pl.len().alias("length"),
            pl.col("reward").sum(),
            pl.col("won").any(ignore_nulls=False),
            pl.col("action_valid").sum(),
            pl.col("aborted").any(),
        )
        whole = ~pl.col("aborted")
        found = rollouts.select(
            pl.struct("iteration", "task_id", "group").n_unique().alias("groups"),
            pl.len().alias("rollouts"),
            pl.col("aborted").sum().alias("failed"),
            pl.col("length").sum().alias("steps"),
            pl.col("won").filter(whole).mean().alias("success"),
            pl.col("reward").filter(whole).mean().alias("mean_return"),
            pl.col("length").filter(whole).mean().alias("mean_length"),
            (pl.col("action_valid").filter(whole).sum() / pl.col("length").filter(whole).sum()).alias("valid"),
        )
        summary: dict[str, int | float | None] = found.collect().row(0, named=True)
        return summary

    def __repr__(self) -> str:
        shown = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in self.summary.items()}
        return f"CollectedRun({str(self.path)!r}: {', '.join(f'{value} {name}' for name, value in shown.items())})"


def collect(
    env: str | EnvHandle | gymnasium.Env[Any, Any],
    policy: AnyPolicy,
    out: str | os.PathLike[str],
    *,
    tasks: int = 16,
    group_size: int = 8,
    seed: int = 0,
    order: str = "shuffled",
    dynamic: int | None = None,
    policy_options: Mapping[str, Any] | None = None,
    slots: int | None = None,
    workers: bool = False,
    retry_failed: bool = True,
    max_failed: float = MAX_FAILED,
    without: str | Iterable[str] = (),
    progress: bool = True,
    **env_options: Any,
) -> CollectedRun:
    """Collect groups of rollouts into a run's folder, as `hgpo rollout` does. A run in the folder is resumed.

    Args:
        env: Gymnasium id of the environment; or an environment from `gymnasium.make` or `open_env`.
        policy: One of

            - a function of a `Request` that returns the action or response as a text; it may be async;
            - an object with ``respond(requests)``, which returns a list of texts for a list of requests;
            - a name such as ``"random"``, ``"expert"`` or ``"openai:MODEL"``, or ``"module:object"``;
            - a `Policy`.

            Instead of a text, a `Reply` also gives token ids and log-probabilities, and a `Failure` fails the rollout.
        out: The run's folder.
        tasks: Number of tasks, each played by one group.
        group_size: Number of rollouts per group.
        seed: Seed of the task order and of every rollout.
        order: Task order: ``shuffled``, ``sweep``, ``random`` or ``verl-agent``.
        dynamic: Dynamic sampling: count only groups whose returns are not all equal, and play at most this many.
        policy_options: Options of a policy that is selected by name, such as ``{"temperature": 0.7}``.
        slots: Number of concurrent environments; affects only the speed. Default: 256, or one per processor with
            `workers`.
        workers: Whether each environment runs in its own process.
        retry_failed: Whether rollouts that failed in an earlier call are played again.
        max_failed: The largest share of failed rollouts without an error, in [0, 1].
        without: Columns or families of columns to omit, such as ``"prompt"``.
        progress: Whether to show a progress line if standard error is a terminal.
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
    folder = _folder(out)
    spec = RolloutSpec(tasks, group_size, seed, order, max_groups=dynamic)
    execution = ExecutionOptions(default_slots(workers=workers) if slots is None else slots, workers)
    _check_type("max_failed", max_failed, int | float, "a share from 0 to 1")
    if not 0 <= max_failed <= 1:
        raise InputError(f"max_failed: expected a share from 0 to 1, received {max_failed}")
    _check_type("workers", workers, bool, "True or False")
    _check_type("retry_failed", retry_failed, bool, "True or False")
    _check_type("without", without, Iterable, "names of columns")
    _check_type("policy_options", policy_options, Mapping | None, "a dictionary")
    left_out = [without] if isinstance(without, str) else list(without)
    handle, options = _opened(env, env_options, _action_format(policy))
    acting, name, identity = _policy(policy, handle, dict(policy_options or {}))
    with closing(acting):
        identity = _with_stored_code(folder, name, identity)
        with open_run(
            folder,
            run_config(handle, options, name, identity, spec),
            acting,
            handle,
            Console(stderr=True, quiet=not progress),
            execution,
            expected=lambda groups: (tasks - groups) * group_size,
            policy_options=policy_options or {},
            warn=partial(warnings.warn, stacklevel=4),  # names the line that calls `collect`
            without=left_out,
        ) as run:
            run.collect(spec, retry_failed=retry_failed)
    if run.should_stop.requested:
        raise KeyboardInterrupt(f"finished groups are in {folder}; call collect again to resume")
    for failures in (failures_of_run(folder), failures_of_tally(run.tally)):
        raise_if_too_many(failures, max_failed, _RETRY)
    return CollectedRun(folder, run.tally)


def _check_type(name: str, value: object, kind: type | UnionType, expected: str) -> None:
    if not isinstance(value, kind):
        raise InputError(f"{name}: expected {expected}, received {value!r}")


def _folder(out: object) -> Path:
    if not isinstance(out, str | os.PathLike) or not os.fspath(out):
        raise InputError(f"out: expected the path of a folder, received {out!r}")
    return Path(os.fspath(out))


def _action_format(policy: object) -> str:
    """Return the default action format: `command` for functions and objects with `respond`."""
    if isinstance(policy, PolicySpec):
        return policy.action_format
    if isinstance(policy, str):
        return default_action_format(policy)
    return "response" if has_protocol(policy) else "command"


def _opened(
    env: str | EnvHandle | gymnasium.Env[Any, Any], given: Mapping[str, Any], action_format: str
) -> tuple[EnvHandle, dict[str, Any]]:
    """Return the environment and its options as they are stored with the run."""
    if isinstance(env, str):
        plain = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in given.items()}
        options = {"split": "train", "history_length": 2, "action_format": action_format, **plain}
        return open_env(env, **options), options
    if not isinstance(env, EnvHandle | gymnasium.Env):
        raise InputError(f"env: expected a Gymnasium id such as 'HGPO/ALFWorld-v0', received {env!r}")
    if given:
        raise InputError(f"env: expected an id together with {', '.join(given)}, received an environment that is open")
    if isinstance(env, gymnasium.Env):
        text_env = env.unwrapped
        if not isinstance(text_env, TextEnv) or env.spec is None:
            raise InputError(f"env: expected a Gymnasium id, or a text environment of gymnasium.make, received {env}")
        env = EnvHandle(env.spec.id, text_env.shared, text_env.episode.settings, text_env.tasks)
    names = ("history_length", "action_format", "max_steps")
    return env, {"split": env.tasks.name, **{name: getattr(env.settings, name) for name in names}}


def _policy(policy: AnyPolicy, handle: EnvHandle, options: dict[str, Any]) -> tuple[Policy, str, dict[str, Any]]:
    """Return the policy, its name, and its options or a hash of its code, which are stored with the run."""
    context = PolicyContext(handle.shared.source.name, handle.settings.action_format, options)
    if isinstance(policy, str):
        return make_policy(policy, context), policy, options
    if isinstance(policy, PolicySpec):
        acting = own_policy(policy.make("", context))
        return acting, name_of(acting), options
    if options:
        raise InputError(f"policy_options: expected none for a policy that is no name, received {', '.join(options)}")
    code = source_hash(policy)
    acting = own_policy(policy)
    return acting, acting.name, {} if code is None else {"code": code}


def _with_stored_code(folder: Path, name: str, identity: dict[str, Any]) -> dict[str, Any]:
    """Return the policy's identity with the hash that the run stores; warn if the code has changed since.

    The run can be resumed after a bug in the policy is fixed, but its groups are not played again.
    """
    try:
        header = manifest.read(folder).header
    except InputError:
        return identity  # opening the run raises the error
    stored = None if header is None else header.config.get("policy")
    if not isinstance(stored, dict) or stored.get("name") != name or not {"code"} <= stored.keys() & identity.keys():
        return identity
    if stored["code"] != identity["code"]:
        warnings.warn(
            f"{folder} was started with other code of the policy {name}; its groups are not played again. Use another "
            "folder to collect all of them with the new code.",
            stacklevel=3,
        )
    return {**identity, "code": stored["code"]}
