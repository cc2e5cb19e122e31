"""Whatever rows the writer accepts, verify finds clean; what it refuses, it refuses in one line and names the rows."""

import datetime as dt
import decimal
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from groups import group, step
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nightly import sample_or_all

from hgpo_datasets import StepWriter, scan_steps, schema, verify
from hgpo_datasets.rows import RowError
from hgpo_envs.errors import InputError

EXAMPLES = sample_or_all(20, 5_000)


class Odd:
    """An object that is nothing a table knows."""

    def __repr__(self) -> str:
        return "two\nlines"


odd = st.sampled_from(
    [
        *(None, True, "", "text", "a\ud800", b"bytes", 1, -1, 0, 2**31, 2**63, -(2**63), 2**64, 2**2000),
        *(0.5, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -0.0, 1e300j, Odd(), Odd, Ellipsis),
        *([], [1], ["a"], ["a\udfff", 1], [None], [math.nan], [2**31], [[1]], (1, 2), {1, 2}, {"a": 1}, range(2)),
        *(np.int64(3), np.float32(0.5), np.str_("n"), np.array([1, 2]), np.array("x"), np.bool_(True), np.nan),
        *(
            dt.date(2020, 1, 1),
            decimal.Decimal("0.5"),
            "x" * 200_000,
            "\x00",
            [0.5] * 3,
            iter([1]),
            pl.Series([1]),
        ),
    ]
)
names = [column.name for column in schema.columns(1)]
odd_rows = st.lists(
    st.tuples(
        st.sampled_from(["t", "u"]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 3),
        st.dictionaries(st.sampled_from(names), odd, max_size=2),
    ),
    max_size=6,
)


def refused_in_one_line(error: InputError) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) < 1_000


@settings(deadline=None, max_examples=EXAMPLES)
@given(odd_rows)
@example([("u", "a", 0, {}), ("u", "a", 1, {"iteration": True})])
@example([("u", "a", 0, {}), ("u", "a", 0, {"iteration": True})])
def test_what_is_accepted_is_clean(tmp_path_factory: pytest.TempPathFactory, drawn: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("run")
    rows = [step(task, f"{task}/{name}", t, **more) for task, name, t, more in drawn]
    taken = 0
    with StepWriter(folder, run="run", depth=1) as writer:
        try:
            writer.add_group(rows)
            taken = len(rows)
        except InputError as error:
            refused_in_one_line(error)
        if not any(one.task_id == "good" for one in writer.committed):
            writer.add_group(group("good", 1, 2))  # nothing that was refused is in its way
    report = verify(folder)
    assert (report.problems, report.notes) == ([], [])
    assert scan_steps(folder).select(pl.len()).collect().item() >= taken + 2 * (taken == 0)


BAD_VALUES: list[tuple[str, Any]] = [
    *(("reward", value) for value in (math.nan, 1e308, "much", None)),  # the sum of three times 1e308 is no float
    *(("step", 2**31), ("score", math.inf), ("state", None), ("state", 3), ("task_type", b"bytes")),
    *(("finish_reason", 3), ("prompt_token_ids", [2**31]), ("prompt_token_ids", "text"), ("terminated", 2)),
    *(("response_logprobs", [math.nan]), ("admissible_actions", ["a\ud800", 1]), ("episode_return", 7.0)),
    *(("history_hash_2", 7), ("run", "another run")),
]


def test_one_bad_value_names_its_trajectory_alone(tmp_path: Path) -> None:
    """So that whoever collects can turn that trajectory into an aborted one, and keep the other groups."""
    for number, (column, value) in enumerate(BAD_VALUES):
        rows = [row for task in range(3) for row in group(f"t{task}", 2, 3)]
        for row in rows:
            if row["trajectory"] in {"t1/1", "t2/0"}:
                row[column] = value
        tables: list[Any] = [rows]
        if column in {"step", "history_hash_2", "run"} or (column == "reward" and isinstance(value, float)):
            tables.append(pl.DataFrame(rows, infer_schema_length=None))
        for table in tables:
            with StepWriter(tmp_path / f"{number}") as writer:
                with pytest.raises(RowError) as refused:
                    writer.add_group(table)
                assert refused.value.trajectories.keys() == {"t1/1", "t2/0"}
                assert all(column in line or "reward" in line for line in refused.value.trajectories.values())
                refused_in_one_line(refused.value)
        with StepWriter(tmp_path / f"{number}") as writer:
            writer.add_group([row for row in rows if row["trajectory"] not in refused.value.trajectories])
        assert verify(tmp_path / f"{number}").ok
        assert scan_steps(tmp_path / f"{number}").select(pl.len()).collect().item() == 12
