"""The columns of the step table: name, type, unit, meaning and null rule.

`columns` is the source of the Polars schema (and thus the file's schema), of the validation and of the page
docs/step_table.md. One row is one step of one trajectory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_envs.hashing import DEFAULT_DEPTH

if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION: Final = 4
"""The schema version of files, which is incremented when the columns change. Only this one is read."""

MAX_DEPTH: Final = 64
"""Largest k of the history and context hashes that a run can store."""

GROUP_KEY: Final = ("iteration", "task_id", "group")
"""Columns that identify a group of rollouts within a run."""

SORT_KEY: Final = (*GROUP_KEY, "trajectory", "step")
"""Columns by which the rows of a file are sorted; texts are sorted by their UTF-8 bytes."""

FAMILIES: Final = (
    "identity",
    "text",
    "flags",
    "numbers",
    "tokens",
    "hashes",
    "timings",
)

TEXT: Final = pl.String()
TEXTS: Final = pl.List(pl.String())
TOKENS: Final = pl.List(pl.Int32())
LOGPROBS: Final = pl.List(pl.Float32())
HASH: Final = pl.Int64()


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the step table.

    Attributes:
        name: Name of the column.
        type: Polars type.
        meaning: Meaning of a value.
        null: When the value is null; an empty text means never.
        unit: Unit of a number, or format of a text.
        default: Value for rows without the column. None means null, or required if the column is never null.
        derived: Whether the writer computes the column from other columns.
        family: One of `FAMILIES`.
    """

    name: str
    type: pl.DataType
    meaning: str
    null: str = ""
    unit: str = ""
    default: object = None
    derived: bool = False
    family: str = ""


def _family(name: str, *columns: Column) -> tuple[Column, ...]:
    return tuple(replace(column, family=name) for column in columns)


_UNSTORED: Final = "the run does not store it"

_IDENTITY: Final = _family(
    "identity",
    Column("run", TEXT, "Name of the run that contains the row."),
    Column(
        "iteration",
        pl.Int32(),
        "Training iteration that the row was collected for; 0 outside training.",
        unit="count from 0",
        default=0,
    ),
    Column(
        "policy_version",
        pl.Int32(),
        "Number of weight updates of the acting policy; less than `iteration` if the rollout is stale.",
        unit="count from 0",
        default=0,
    ),
    Column(
        "env_id",
        TEXT,
        "Gymnasium id of the environment.",
        "unknown, as in imported rows",
        "`HGPO/<Name>-v<n>`",
    ),
    Column(
        "env_version",
        TEXT,
        "Versions that determine the environment's behaviour: of the package, and of the games or the catalogue.",
        "unknown",
        "JSON object",
    ),
    Column("split", TEXT, "Split of the task.", "unknown"),
    Column("task_id", TEXT, "Identifier of the task in its benchmark."),
    Column(
        "group",
        pl.Int32(),
        "Number of the group among this task's groups in this iteration; above 0 if a task is drawn repeatedly.",
        unit="count from 0",
        default=0,
    ),
    Column("trajectory", TEXT, "Identifier of the trajectory, unique in the run."),
    Column(
        "step",
        pl.Int32(),
        "Position in the trajectory, contiguous. The rows of a branch begin at `branch_step`.",
        unit="count from 0",
    ),
    Column(
        "parent",
        TEXT,
        "Of a branch, the trajectory of the same group with which it shares the steps before `branch_step`.",
        "the trajectory began at the start of its task",
    ),
    Column(
        "branch_step",
        pl.Int32(),
        "Of a branch, its first own step. It begins in the state of the parent's step of that number.",
        "as `parent`",
        "count from 0",
    ),
    Column("task_type", TEXT, "The benchmark's name for this kind of task.", "unknown"),
)

_TEXT: Final = _family(
    "text",
    Column("task", TEXT, "The instruction.", "unknown"),
    Column(
        "state",
        TEXT,
        "Observation text before the action, without instruction and history.",
        f"{_UNSTORED} (`state_hash` is stored)",
    ),
    Column(
        "prompt",
        TEXT,
        "Input of the policy.",
        f"the policy uses no prompt, or {_UNSTORED}",
    ),
    Column(
        "response",
        TEXT,
        "Output of the policy.",
        f"the policy chose an action directly, or {_UNSTORED}",
    ),
    Column(
        "message",
        TEXT,
        "The assistant's message as the server sent it: tool calls with their ids, reasoning, further fields.",
        f"`response` is the whole message, or {_UNSTORED}",
        "JSON object",
    ),
    Column(
        "action",
        TEXT,
        "Action parsed from the response and passed to the environment.",
        f"there was no action (an aborted step), or {_UNSTORED} (`action_hash` is stored)",
    ),
    Column(
        "admissible_actions",
        TEXTS,
        "Admissible actions in `state`, in the benchmark's order.",
        f"unknown, or {_UNSTORED}",
    ),
    Column(
        "next_state",
        TEXT,
        "State after a trajectory's last step.",
        f"not a last step (see `state` of the next row), unknown, or {_UNSTORED}",
    ),
    Column(
        "extra",
        TEXT,
        "What the program that wrote an imported rollout knows besides; that of the whole rollout is in its first row.",
        "nothing, or the row was not imported",
        "JSON object",
    ),
)

_FLAGS: Final = _family(
    "flags",
    Column(
        "action_valid",
        pl.Boolean(),
        "Whether the response has the form that the environment parses (verl-agent's flag, used by the invalid-action "
        "penalty); for bare commands, whether the action is admissible.",
        default=True,
    ),
    Column(
        "action_admissible",
        pl.Boolean(),
        "Whether the environment could execute the action, whatever the form of the response.",
        "unknown, or the rollout was aborted at this step",
    ),
    Column(
        "terminated",
        pl.Boolean(),
        "Whether the task ended with this step; last rows only.",
        default=False,
    ),
    Column(
        "truncated",
        pl.Boolean(),
        "Whether the step limit ended the trajectory at this step; last rows only.",
        default=False,
    ),
    Column(
        "won",
        pl.Boolean(),
        "Whether this step solved the task. For rates of success, use `episode_won`.",
        "the environment does not tell",
    ),
    Column(
        "episode_won",
        pl.Boolean(),
        "Whether a step of the trajectory solved the task; equal in all rows of the trajectory.",
        "`won` is null in the last row, and true in none",
        derived=True,
    ),
    Column(
        "aborted",
        pl.Boolean(),
        "Whether the rollout was aborted at this step for a reason outside the task; last rows only.",
        default=False,
    ),
    Column(
        "error",
        TEXT,
        "Reason why the rollout was aborted; or why it was lost, where an action of the policy ended its world.",
        "neither",
    ),
)

_NUMBERS: Final = _family(
    "numbers",
    Column(
        "reward",
        pl.Float64(),
        "The benchmark's reward of this step; finite.",
        unit="ALFWorld: 1 for the winning step; WebShop: the score in [0, 1]",
    ),
    Column(
        "score",
        pl.Float64(),
        "The benchmark's score after this step; finite.",
        "unknown",
        "in [0, 1]",
    ),
    Column(
        "episode_return",
        pl.Float64(),
        "Undiscounted sum of the trajectory's rewards, rounded once; equal in all rows of the trajectory.",
        unit="as `reward`",
        derived=True,
    ),
    Column(
        "episode_length",
        pl.Int32(),
        "Number of steps of the trajectory; equal in all its rows.",
        unit="steps",
        derived=True,
    ),
)

_TOKENS: Final = _family(
    "tokens",
    Column(
        "prompt_token_ids",
        TOKENS,
        "Token ids of the prompt.",
        f"unknown, or {_UNSTORED}",
    ),
    Column(
        "response_token_ids",
        TOKENS,
        "Token ids of the response.",
        f"unknown, or {_UNSTORED}",
    ),
    Column(
        "response_logprobs",
        LOGPROBS,
        "Log-probability of each response token under the acting policy; one per token, never NaN.",
        f"unknown, or {_UNSTORED}",
        "nats",
    ),
    Column(
        "finish_reason",
        TEXT,
        "Why generation ended: an end-of-text token, the token limit, or another reason of the server.",
        "unknown",
        "`stop`, `length`, …",
    ),
    Column(
        "cut_pairs",
        pl.Int32(),
        "Number of past observation-action pairs removed from the prompt to fit its token budget.",
        "there was no budget, or unknown",
        "count",
    ),
    Column(
        "cut_tokens",
        pl.Int32(),
        "Number of tokens removed from the start of the prompt to fit the policy's token budget.",
        f"the policy has no budget, or {_UNSTORED}",
        "tokens",
    ),
)

_TIMINGS: Final = _family(
    "timings",
    Column(
        "environment_s",
        pl.Float64(),
        "Duration of the environment's step.",
        "not measured",
        "seconds",
    ),
    Column(
        "policy_s",
        pl.Float64(),
        "Duration of the policy's response.",
        "not measured",
        "seconds",
    ),
)


_hash = partial(
    Column,
    type=HASH,
    unit="xxh3_64 bits as int64",
    derived=True,
    family="hashes",
)
_STATE_HASH: Final = _hash(
    "state_hash",
    meaning="Hash of `state`, or of the key that is compared instead of it.",
)
_ACTION_HASH: Final = _hash(
    "action_hash", meaning="Hash of `action`.", null="there was no action"
)
_NEXT_HASH: Final = _hash(
    "next_state_hash",
    meaning="Hash of the state after this step: the next row's `state_hash`, or at a last step the hash of "
    "`next_state` or of its key.",
    null="a last step whose next state is unknown",
)

_CHAINS: Final = {
    f"{name}_hash_{k}": Column(
        f"{name}_hash_{k}",
        HASH,
        meaning.format(k=k) if k else "Hash of the state alone.",
        (f"step < {k}" + rest) if k else "",
        "64-bit chain as int64",
        derived=True,
        family="hashes",
    )
    for name, meaning, rest in (
        ("history", "Hash of the state and the {k} states before it.", ""),
        (
            "context",
            "Hash of the same states and the actions between them.",
            ", or one of the actions is unknown",
        ),
    )
    for k in range(MAX_DEPTH + 1)
}


@cache
def columns(depth: int = DEFAULT_DEPTH) -> tuple[Column, ...]:
    """Return all columns in file order, with history and context hashes up to this k.

    >>> [column.name for column in columns(depth=1) if column.family == "hashes"][2:6]
    ['history_hash_0', 'history_hash_1', 'context_hash_0', 'context_hash_1']
    """
    chains = [
        _CHAINS[f"{name}_hash_{k}"]
        for name in ("history", "context")
        for k in range(depth + 1)
    ]
    return (
        *_IDENTITY,
        *_TEXT,
        *_FLAGS,
        *_NUMBERS,
        *_TOKENS,
        _STATE_HASH,
        _ACTION_HASH,
        *chains,
        _NEXT_HASH,
        *_TIMINGS,
    )


def polars_schema(depth: int = DEFAULT_DEPTH) -> pl.Schema:
    """Return the Polars schema of a file with hashes up to this k."""
    return pl.Schema({column.name: column.type for column in columns(depth)})


def stored_depth(names: Iterable[str]) -> int:
    """Return the largest k such that `history_hash_0` … `history_hash_k` and `context_hash_0` … are among the names.

    >>> stored_depth(["history_hash_0", "context_hash_0", "history_hash_1"])
    0
    """
    known = set(names)
    depth = -1
    while {f"history_hash_{depth + 1}", f"context_hash_{depth + 1}"} <= known:
        depth += 1
    return depth


class VersionError(InputError):
    """A file is no step table, or has another schema version."""


def check_version(version: int, name: str) -> None:
    """Raise VersionError unless a file, which is named in the error, has the schema version of this package."""
    if version != VERSION:
        repair = "use the hgpo that wrote it, or upgrade hgpo if it is newer"
        raise VersionError(
            f"{name}: expected schema version {VERSION}, received {version}; {repair}"
        )
