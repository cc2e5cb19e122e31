"""The documents of a group and of a step: what the page shows of them, as JSON values.

A group's document has one entry per row of the group in each list of `steps`, in the order of the table. Texts that
occur in many rows are listed once, and rows refer to them by position. Long texts are `shortened`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_envs.responses import parse, tool_calls
from hgpo_train.advantages.input_columns import CHAINS
from hgpo_train.view.tokens import texts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

    from hgpo_train.view.index import Index

STATE_CHARACTERS: Final = 20_000
"""Characters of a state or an action that a group's document contains."""
STEP_CHARACTERS: Final = 200_000
"""Characters of a prompt or a response that a step's document contains."""
ACTIONS: Final = 2_000
"""Admissible actions that a step's document contains."""
TOKENS: Final = 20_000
"""Tokens that a step's document contains."""

TRAJECTORY: Final = (
    "trajectory",
    "parent",
    "branch_step",
    "row",
    "length",
    "episode_return",
    "score",
    "won",
    "aborted",
    "truncated",
    "invalid",
)
"""Columns of `Index.episodes` that documents contain."""
_ROW: Final = (
    "trajectory",
    "step",
    "state",
    "next_state",
    "action",
    "action_valid",
    "reward",
    "score",
    "won",
    "state_hash",
    "next_state_hash",
    "action_hash",
)
_COPIED: Final = (
    "trajectory",
    "step",
    "action_valid",
    "finish_reason",
    "cut_pairs",
    "policy_version",
    "policy_s",
)
_TEXTS: Final = {
    "state": STATE_CHARACTERS,
    "action": STATE_CHARACTERS,
    "prompt": STEP_CHARACTERS,
    "response": STEP_CHARACTERS,
    "message": STEP_CHARACTERS,
}
_LISTS: Final = (
    "admissible_actions",
    "action_admissible",
    "prompt_token_ids",
    "response_token_ids",
    "response_logprobs",
)

STEPS: Final = 50
"""Steps whose documents can be requested together."""

Text = str | dict[str, Any] | None


def shortened(text: str | None, most: int = STATE_CHARACTERS) -> Text:
    """Return a text, or ``{"cut": its beginning, "length": its characters}`` if it is long.

    >>> shortened("abc"), shortened("abc", 2)
    ('abc', {'cut': 'ab', 'length': 3})
    """
    return (
        text
        if text is None or len(text) <= most
        else {"cut": text[:most], "length": len(text)}
    )


def group_document(index: Index, number: int) -> dict[str, Any]:
    """Return the document of the group at a position: its trajectories, steps, distinct texts, and contexts.

    Returns:
        The columns of `Index.groups`, and

        * ``trajectories``: their columns of `Index.episodes`, and ``end``, the position of the last state or null;
        * ``tree``: what `tree_of` returns;
        * ``states`` and ``actions``: the distinct texts;
        * ``steps``: lists of ``trajectory`` (position), ``step``, ``state``, ``next`` (positions of states), ``action``
          (position or null), ``valid``, ``reward`` and ``score``;
        * ``contexts``: for ``states`` and ``states_actions`` one list per depth k with a number per row, equal for
          equal contexts, null where there are fewer than k previous states.

    Raises:
        InputError: There is no such group, or its rows cannot be read.
    """
    group = index.group(number)
    chains = {
        kind: [f"{stem}{k}" for k in range(index.depth + 1)]
        for kind, stem in CHAINS.items()
    }
    rows = index.read(
        group["row"],
        group["rows"],
        [*_ROW, *chains["states"], *chains["states_actions"]],
    )

    # Texts by their keys. The text of a next state is stored only where it is not the state of the next row.
    reached = rows.filter(pl.col("next_state_hash").is_not_null())
    acted = rows.filter(pl.col("action_hash").is_not_null())
    keys = pl.concat([rows["state_hash"], reached["next_state_hash"]])
    states = _distinct(keys, pl.concat([rows["state"], reached["next_state"]]))
    actions = _distinct(acted["action_hash"], acted["action"])
    state_at = {key: position for position, key in enumerate(states)}
    action_at = {key: position for position, key in enumerate(actions)}

    trajectories = index.members(number).select(*TRAJECTORY, "error").to_dicts()
    trajectory_at = {
        one["trajectory"]: position for position, one in enumerate(trajectories)
    }
    for one in trajectories:
        one["error"] = shortened(one["error"])
    return {
        **group,
        "task": shortened(group["task"]),
        "depth": index.depth,
        "states": [shortened(text) for text in states.values()],
        "actions": [shortened(text) for text in actions.values()],
        "trajectories": trajectories,
        "tree": tree_of(trajectories),
        "steps": {
            "trajectory": [trajectory_at[name] for name in rows["trajectory"]],
            "step": rows["step"].to_list(),
            "state": [state_at[key] for key in rows["state_hash"]],
            "next": [state_at.get(key) for key in rows["next_state_hash"]],
            "action": [action_at.get(key) for key in rows["action_hash"]],
            "valid": rows["action_valid"].to_list(),
            "reward": rows["reward"].to_list(),
            "score": rows["score"].to_list(),
        },
        "contexts": {
            kind: [rows[name].rank("dense").cast(pl.Int64).to_list() for name in names]
            for kind, names in chains.items()
        },
    }


def tree_of(rollouts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the tree of a group: where its branches leave, in the order in which lines between them cross nothing.

    Args:
        rollouts: Their ``trajectory``, ``parent``, ``branch_step`` and ``length``.

    Returns:
        ``order``: positions, each branch below its parent, and those that leave later above those that leave earlier;
        ``parent``: the position of each parent. It is null for a rollout, and where a table that `hgpo verify` would
        not accept names no rollout that has the step.

    >>> one = {"parent": None, "branch_step": None, "length": 5}
    >>> two = {"parent": "a", "length": 1}
    >>> tree_of([one | {"trajectory": "a"}, two | {"trajectory": "b", "branch_step": 1},
    ...          two | {"trajectory": "c", "branch_step": 3}])
    {'order': [0, 2, 1], 'parent': [None, 0, 0]}
    """
    places = {rollout["trajectory"]: place for place, rollout in enumerate(rollouts)}
    first = [rollout["branch_step"] or 0 for rollout in rollouts]
    children: dict[int | None, list[int]] = {}
    for place, rollout in enumerate(rollouts):
        parent = places.get(rollout["parent"])
        if (
            parent is not None
            and not 0 <= first[place] - first[parent] < rollouts[parent]["length"]
        ):
            parent = None
        children.setdefault(parent, []).append(place)

    parents: list[int | None] = [None] * len(rollouts)
    order: list[int] = []
    waiting = children.get(None, [])[::-1]
    while waiting:
        place = waiting.pop()
        order.append(place)
        below = children.get(place, [])
        for child in below:
            parents[child] = place
        waiting += sorted(below, key=lambda child: (first[child], -child))
    # Rollouts that name each other as parents are in no tree.
    order += sorted(set(range(len(rollouts))) - set(order))
    return {"order": order, "parent": parents}


def _distinct(keys: pl.Series, texts: pl.Series) -> dict[int, str | None]:
    """Return each key once, in the order of first appearance, with a text of it if one is known."""
    frame = pl.DataFrame({"key": keys, "text": texts})
    first = frame.group_by("key", maintain_order=True).agg(
        pl.col("text").drop_nulls().first()
    )
    return dict(first.iter_rows())


def step_documents(
    index: Index, row: int, steps: int = 1, tokenizer: Tokenizer | None = None
) -> list[dict[str, Any]]:
    """Return the documents of neighbouring rows: the texts and tokens that a group's document does not contain.

    Raises:
        InputError: There are no such rows, or more than `STEPS`, or they cannot be read.
    """
    if not 1 <= steps <= STEPS:
        raise InputError(
            f"steps: expected a number from 1 to {STEPS}, received {steps}"
        )
    rows = index.read(row, steps, [*_COPIED, *_TEXTS, *_LISTS])
    return [
        _step(step, row + place, tokenizer)
        for place, step in enumerate(rows.iter_rows(named=True))
    ]


def _step(
    step: dict[str, Any], row: int, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    listed, admissible, prompt, tokens, logprobs = (step[name] for name in _LISTS)
    texts = None
    if tokens is not None and tokenizer is not None:
        texts = texts_of(
            tokenizer,
            tokens[:TOKENS],
            step["response"] if len(tokens) <= TOKENS else None,
        )
    return {
        "row": row,
        **{name: step[name] for name in _COPIED},
        **{name: shortened(step[name], most) for name, most in _TEXTS.items()},
        "why_invalid": why_invalid(
            step["action_valid"], step["action"], step["response"], admissible
        ),
        "admissible": admissible,
        "admissible_actions": listed and [shortened(text) for text in listed[:ACTIONS]],
        "admissible_count": _length(listed),
        "prompt_tokens": _length(prompt),
        "response_tokens": _length(tokens),
        "tokens": tokens and tokens[:TOKENS],
        "token_texts": texts,
        "logprobs": logprobs and logprobs[:TOKENS],
    }


def _length(values: list[Any] | None) -> int | None:
    return None if values is None else len(values)


def why_invalid(
    valid: bool, action: str | None, response: str | None, admissible: bool | None
) -> str | None:
    """Return why an action is invalid, as far as the row shows it; None for a valid one.

    >>> why_invalid(False, "look", "<action>look</action>", None)
    'the response has no <think> tags'
    >>> why_invalid(False, "<tool_call>{", "<tool_call>{", None)
    'the response has a malformed tool call'
    >>> why_invalid(False, "fly", "fly", False)
    'the action is not admissible in this state'
    """
    if valid:
        return None
    if not action:
        return "there was no action"
    if tool_calls(action) is None:
        return "the response has a malformed tool call"
    parsed = None if response is None else parse(response, lowercase=True)
    if parsed is not None and parsed.flaw and response != action:
        has = "contains" if parsed.flaw.startswith("CJK") else "has"
        return f"the response {has} {parsed.flaw}"
    if admissible is False:
        return "the action is not admissible in this state"
    return "the environment did not accept it; the row does not say why"
