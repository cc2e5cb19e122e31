"""Every column of the step table, in one place: name, type, unit, meaning, null rule.

The Polars schema (and with it the file's), the validation and the page docs/step_table.md all come from `columns`. One
row is one step of one trajectory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_envs.hashing import DEFAULT_DEPTH

if TYPE_CHECKING:
    from collections.abc import Iterable

VERSION: Final = 1
"""The version written. A reader of version n reads every version up to n and refuses what comes after."""

MAX_DEPTH: Final = 64
"""The deepest hash that a run may store."""

GROUP_KEY: Final = ("iteration", "task_id", "group")
"""Names one group of rollouts within a run."""

SORT_KEY: Final = (*GROUP_KEY, "trajectory", "step")
"""The order of rows in a file; text sorts by its UTF-8 bytes."""

FAMILIES: Final = ("identity", "text", "flags", "numbers", "tokens", "hashes", "timings")

TEXT: Final = pl.String()
TEXTS: Final = pl.List(pl.String())
TOKENS: Final = pl.List(pl.Int32())
LOGPROBS: Final = pl.List(pl.Float32())


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the step table.

    Attributes:
        name: Its name.
        family: One of `FAMILIES`.
        type: Its Polars type.
        meaning: What a value says.
        null: When the value is null; an empty text means never.
        unit: The unit of a number, or the form of a text.
        default: What a row that lacks the column gets; None is null, or for a column that is never null: required.
        derived: Computed by the writer from the other columns.
        since: The first schema version that has it; older files read as null.
    """

    name: str
    family: str
    type: pl.DataType
    meaning: str
    null: str = ""
    unit: str = ""
    default: object = None
    derived: bool = False
    since: int = 1

    @property
    def required(self) -> bool:
        """Whether every row given to the writer must hold it."""
        return not (self.null or self.derived or self.default is not None)


_UNSTORED: Final = "the run does not store it"

_IDENTITY: Final = (
    Column("run", "identity", TEXT, "Name of the run that the row was written in."),
    Column(
        "iteration",
        "identity",
        pl.Int32(),
        "Training iteration that the row was collected for; 0 outside training.",
        unit="count from 0",
        default=0,
    ),
    Column(
        "policy_version",
        "identity",
        pl.Int32(),
        "Weight updates that the acting policy had seen; below `iteration` where a rollout is stale.",
        unit="count from 0",
        default=0,
    ),
    Column(
        "env_id",
        "identity",
        TEXT,
        "Gymnasium id of the environment.",
        "unknown, as in imported rows",
        "`HGPO/<Name>-v<n>`",
    ),
    Column(
        "env_version",
        "identity",
        TEXT,
        "What the environment's behaviour depends on: versions of package, games or catalogue.",
        "unknown",
        "JSON object",
    ),
    Column("split", "identity", TEXT, "Split that holds the task.", "unknown"),
    Column("task_id", "identity", TEXT, "Identifier of the task in its benchmark."),
    Column(
        "group",
        "identity",
        pl.Int32(),
        "Which group of rollouts of this task in this iteration, where a task is drawn more than once.",
        unit="count from 0",
        default=0,
    ),
    Column("trajectory", "identity", TEXT, "Identifier of the trajectory, unique in the run."),
    Column("step", "identity", pl.Int32(), "Position in the trajectory, contiguous.", unit="count from 0"),
    Column("task_type", "identity", TEXT, "The benchmark's name for this kind of task.", "unknown"),
)

_TEXT: Final = (
    Column("task", "text", TEXT, "The instruction: what is to be done.", "unknown"),
    Column(
        "state",
        "text",
        TEXT,
        "What the environment shows before the action, without instruction and history.",
        f"{_UNSTORED} (`state_hash` stays)",
    ),
    Column("prompt", "text", TEXT, "What the policy read.", f"no prompt was made, or {_UNSTORED}"),
    Column("response", "text", TEXT, "What the policy wrote.", f"it named an action directly, or {_UNSTORED}"),
    Column(
        "action",
        "text",
        TEXT,
        "The action parsed out of the response and given to the environment.",
        f"no action was made (an aborted step), or {_UNSTORED} (`action_hash` stays)",
    ),
    Column(
        "admissible_actions",
        "text",
        TEXTS,
        "The actions offered in `state`, in the benchmark's order.",
        f"unknown, or {_UNSTORED}",
    ),
    Column(
        "next_state",
        "text",
        TEXT,
        "The state after a trajectory's last step.",
        f"not a last step (the next row's `state` is it), unknown, or {_UNSTORED}",
    ),
)

_FLAGS: Final = (
    Column(
        "action_valid",
        "flags",
        pl.Boolean(),
        "The response kept the form that the environment parses (verl-agent's flag, which the invalid-action penalty "
        "looks at); of bare commands: the benchmark offered it.",
        default=True,
    ),
    Column("terminated", "flags", pl.Boolean(), "The task ended with this step; last rows only.", default=False),
    Column(
        "truncated", "flags", pl.Boolean(), "The step limit ended the trajectory here; last rows only.", default=False
    ),
    Column("won", "flags", pl.Boolean(), "The task was solved by this step.", default=False),
    Column(
        "aborted",
        "flags",
        pl.Boolean(),
        "The rollout was aborted here for a reason outside the task; last rows only.",
        default=False,
    ),
    Column("error", "flags", TEXT, "Why the rollout was aborted.", "it did not"),
)

_NUMBERS: Final = (
    Column(
        "reward",
        "numbers",
        pl.Float64(),
        "The benchmark's own reward of this step; finite.",
        unit="ALFWorld 1 when won, WebShop the score in [0, 1]",
    ),
    Column("score", "numbers", pl.Float64(), "The benchmark's score after this step; finite.", "unknown", "in [0, 1]"),
    Column(
        "episode_return",
        "numbers",
        pl.Float64(),
        "Undiscounted sum of the trajectory's rewards, rounded once; the same on each of its rows.",
        unit="as `reward`",
        derived=True,
    ),
    Column(
        "episode_length",
        "numbers",
        pl.Int32(),
        "Steps of the trajectory; the same on each of its rows.",
        unit="steps",
        derived=True,
    ),
)

_TOKENS: Final = (
    Column("prompt_token_ids", "tokens", TOKENS, "The prompt as the policy's tokens.", f"unknown, or {_UNSTORED}"),
    Column("response_token_ids", "tokens", TOKENS, "The response as the policy's tokens.", f"unknown, or {_UNSTORED}"),
    Column(
        "response_logprobs",
        "tokens",
        LOGPROBS,
        "Log-probability of each response token under the acting policy; one a token, none is NaN.",
        f"unknown, or {_UNSTORED}",
        "nats",
    ),
    Column(
        "finish_reason",
        "tokens",
        TEXT,
        "Why the response ends: the policy stopped, or a limit cut it.",
        "unknown",
        "`stop` or `length`",
    ),
    Column(
        "cut_pairs",
        "tokens",
        pl.Int32(),
        "Past pairs of observation and action left out of the prompt to keep its budget of tokens.",
        "there was no budget, or unknown",
        "count",
    ),
    Column(
        "cut_tokens",
        "tokens",
        pl.Int32(),
        "Tokens dropped from the prompt's beginning to keep the policy's budget.",
        f"the policy has no budget, or {_UNSTORED}",
        "tokens",
    ),
)

_TIMINGS: Final = (
    Column("environment_s", "timings", pl.Float64(), "Time in the environment's step.", "not measured", "seconds"),
    Column(
        "policy_s", "timings", pl.Float64(), "Time that the policy took for this response.", "not measured", "seconds"
    ),
)


def _hashes(depth: int) -> tuple[Column, ...]:
    bits = "xxh3_64 bits as int64"
    keys = tuple(
        Column(
            f"{kind}_hash_{k}",
            "hashes",
            pl.Int64(),
            meaning.format(k=k) if k else "Key of the state alone.",
            (f"step < {k}" + rest) if k else "",
            "64-bit chain as int64",
            derived=True,
        )
        for kind, meaning, rest in (
            ("history", "Key of the state and the {k} states before it.", ""),
            ("context", "Key of the same states and the actions between them.", ", or an action between is unknown"),
        )
        for k in range(depth + 1)
    )
    return (
        Column("state_hash", "hashes", pl.Int64(), "Hash of `state`.", "", bits, derived=True),
        Column("action_hash", "hashes", pl.Int64(), "Hash of `action`.", "no action was made", bits, derived=True),
        *keys,
        Column(
            "next_state_hash",
            "hashes",
            pl.Int64(),
            "Hash of the state after this step: the next row's `state_hash`, at a last step the hash of `next_state`.",
            "a last step whose next state is unknown",
            bits,
            derived=True,
        ),
    )


def columns(depth: int = DEFAULT_DEPTH) -> tuple[Column, ...]:
    """Every column, in the order of the file.

    Args:
        depth: The deepest history and context hash that is stored.

    >>> [column.name for column in columns(depth=1) if column.family == "hashes"][2:6]
    ['history_hash_0', 'history_hash_1', 'context_hash_0', 'context_hash_1']
    """
    return (*_IDENTITY, *_TEXT, *_FLAGS, *_NUMBERS, *_TOKENS, *_hashes(depth), *_TIMINGS)


def polars_schema(depth: int = DEFAULT_DEPTH) -> pl.Schema:
    """The Polars schema of a file."""
    return pl.Schema({column.name: column.type for column in columns(depth)})


def stored_depth(names: Iterable[str]) -> int:
    """The deepest k such that `history_hash_0` … `history_hash_k` and their context twins are among the names.

    >>> stored_depth(["history_hash_0", "context_hash_0", "history_hash_1"])
    0
    """
    known = set(names)
    depth = -1
    while {f"history_hash_{depth + 1}", f"context_hash_{depth + 1}"} <= known:
        depth += 1
    return depth


def known_version(version: int, name: str) -> int:
    """The version, if this reader knows it.

    Args:
        version: The version that a file says it has.
        name: The file's name, for the message.

    Raises:
        InputError: It is newer than this reader.
    """
    if version > VERSION:
        raise InputError(
            f"{name}: step table version {version} is newer than this hgpo reads (up to {VERSION}); upgrade hgpo"
        )
    return version
