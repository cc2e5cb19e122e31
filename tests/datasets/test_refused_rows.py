"""Rows that the writer refuses, each in one line that names it, and values of other programs that it keeps."""

import datetime as dt
import decimal
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from groups import group, step, write_run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nightly import sample_or_all

from hgpo_datasets import StepWriter, scan_steps, schema, verify
from hgpo_datasets.rows import RowError
from hgpo_envs.errors import InputError


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([step("t", "a", 0), step("t", "a", 2)], "steps 0, 1, 2"),
        ([step("t", "a", 0), step("t", "a", 0)], "steps 0, 1, 2"),
        ([step("t", "a", 0), step("u", "a", 0)], "in two groups"),
        (
            [step("t", "a", 0, response_logprobs=[-1.0], response_token_ids=[1, 2])],
            "one value per token",
        ),
        (
            [step("t", "a", 0, terminated=True), step("t", "a", 1)],
            "terminated before the last row",
        ),
        (
            [step("t", "a", 0, next_state="elsewhere"), step("t", "a", 1)],
            "not the state of the next step",
        ),
        (
            [step("t", "a", 0, history_hash_0=5)],
            "expected history_hash_0 as computed .*, received history_hash_0 = 5",
        ),
        (
            [step("t", "a", 0, task_id=None)],
            "row 0, column task_id: expected a value in every row, received None",
        ),
        (
            [step("t", "a", 0, stat="x")],
            "unknown step table column 'stat'; did you mean 'state'?",
        ),
        (
            [{"task_id": "t", "trajectory": "a", "step": 0, "state": ""}],
            "expected a column 'reward'",
        ),
        (group("good"), "already in run"),
        (group("good", iteration=1), "trajectory 'good/0' is already in run"),
        *(
            (rows, "expected")
            for rows in (
                None,
                3,
                "rows",
                b"rows",
                {"task_id": "t"},
                [1],
                [[1]],
                pl.LazyFrame(),
            )
        ),
    ],
)
def test_bad_rows_are_refused_in_one_line_and_leave_nothing(
    tmp_path: Path, rows: Any, line: str
) -> None:
    with StepWriter(tmp_path) as writer:
        writer.add_group(group("good"))
        with pytest.raises(InputError, match=rf"^.*{line}.*$"):
            writer.add_group(rows)
        writer.commit()
        with pytest.raises(InputError, match=rf"^.*{line}.*$"):
            writer.add_group(rows)
    assert scan_steps(tmp_path).select("task_id").unique().collect().rows() == [
        ("good",)
    ]


EXAMPLES = sample_or_all(20, 5_000)


class Odd:
    """An object that is nothing a table knows."""

    def __repr__(self) -> str:
        return "two\nlines"


odd = st.sampled_from(
    [
        *(
            None,
            True,
            "",
            "text",
            "a\ud800",
            b"bytes",
            1,
            -1,
            0,
            2**31,
            2**63,
            -(2**63),
            2**64,
            2**2000,
        ),
        *(
            0.5,
            math.nan,
            math.inf,
            -math.inf,
            1e308,
            -1e308,
            5e-324,
            -0.0,
            1e300j,
            Odd(),
            Odd,
            Ellipsis,
        ),
        *(
            [],
            [1],
            ["a"],
            ["a\udfff", 1],
            [None],
            [math.nan],
            [2**31],
            [[1]],
            (1, 2),
            {1, 2},
            {"a": 1},
            range(2),
        ),
        *(
            np.int64(3),
            np.float32(0.5),
            np.str_("n"),
            np.array([1, 2]),
            np.array("x"),
            np.bool_(True),
            np.nan,
        ),
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
odd_values = st.dictionaries(st.sampled_from(names), odd, max_size=2)
odd_row = st.tuples(
    st.sampled_from(["t", "u"]),
    st.sampled_from(["a", "b"]),
    st.integers(0, 3),
    odd_values,
)
odd_rows = st.lists(odd_row, max_size=6)


def refused_in_one_line(error: InputError) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) < 1_000


@pytest.mark.slow
@settings(deadline=None, max_examples=EXAMPLES)
@given(odd_rows)
@example([("u", "a", 0, {}), ("u", "a", 1, {"iteration": True})])
@example([("u", "a", 0, {}), ("u", "a", 0, {"iteration": True})])
def test_what_is_accepted_is_clean(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[Any]
) -> None:
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
            # nothing that was refused is in its way
            writer.add_group(group("good", 1, 2))
    report = verify(folder)
    assert (report.problems, report.notes) == ([], [])
    assert scan_steps(folder).select(pl.len()).collect().item() >= taken + 2 * (
        taken == 0
    )


BAD_VALUES: list[tuple[str, Any]] = [
    # the sum of three times 1e308 is no float
    *(("reward", value) for value in (math.nan, 1e308, "much", None)),
    *(
        ("step", 2**31),
        ("score", math.inf),
        ("state", None),
        ("state", 3),
        ("task_type", b"bytes"),
    ),
    *(
        ("finish_reason", 3),
        ("prompt_token_ids", [2**31]),
        ("prompt_token_ids", "text"),
        ("prompt_token_ids", [1, None]),
        ("response_token_ids", [-1]),
        ("terminated", 2),
    ),
    *(
        ("response_logprobs", [math.nan]),
        ("admissible_actions", ["a\ud800", 1]),
        ("episode_return", 7.0),
    ),
    *(("history_hash_2", 7), ("run", "another run")),
]


@pytest.mark.slow
def test_one_bad_value_names_its_trajectory_alone(tmp_path: Path) -> None:
    """So that whoever collects can turn that trajectory into an aborted one, and keep the other groups."""
    for number, (column, value) in enumerate(BAD_VALUES):
        rows = [row for task in range(3) for row in group(f"t{task}", 2, 3)]
        for row in rows:
            if row["trajectory"] in {"t1/1", "t2/0"}:
                row[column] = value
        tables: list[Any] = [rows]
        if column in {"step", "history_hash_2", "run"} or (
            column == "reward" and isinstance(value, float)
        ):
            tables.append(pl.DataFrame(rows, infer_schema_length=None))
        for table in tables:
            with StepWriter(tmp_path / f"{number}") as writer:
                with pytest.raises(RowError) as refused:
                    writer.add_group(table)
                assert refused.value.trajectories.keys() == {"t1/1", "t2/0"}
                assert all(
                    column in line or "reward" in line
                    for line in refused.value.trajectories.values()
                )
                refused_in_one_line(refused.value)
        write_run(
            tmp_path / f"{number}",
            [
                row
                for row in rows
                if row["trajectory"] not in refused.value.trajectories
            ],
        )
        assert verify(tmp_path / f"{number}").ok
        assert (
            scan_steps(tmp_path / f"{number}").select(pl.len()).collect().item() == 12
        )


NOT_UTF8 = pa.array([b"ok", b"\xff"], pa.binary()).view(pa.string())
"""Texts as other programs can make them: Arrow does not check their bytes."""


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("state", b"\xff"),
        ("trajectory", b"\xff"),
        ("admissible_actions", [b"\xff"]),
        *(
            ("response_token_ids", [value])
            for value in (
                0.5,
                2.0,
                math.nan,
                decimal.Decimal("1.5"),
                dt.date(2020, 1, 1),
                dt.timedelta(1),
                True,
                2**40,
            )
        ),
        *(("response_logprobs", [value]) for value in ("a", dt.date(2020, 1, 1))),
        *(
            ("cut_pairs", value)
            for value in (0.5, 2.0**53, math.inf, decimal.Decimal(1), True)
        ),
        *(("iteration", value) for value in (math.nan, 0.5, True)),
        *(
            (flag, value)
            for flag in ("aborted", "action_valid", "won")
            for value in (0.5, 2)
        ),
        *((flag, math.nan) for flag in ("aborted", "action_valid")),
    ],
)
def test_values_that_a_column_cannot_hold_are_refused_by_row(
    tmp_path: Path, column: str, value: Any
) -> None:
    """From tables of other programs and from rows: no value is cut, and none makes a committed shard unreadable."""
    rows = [step("t", name, 0) for name in "ab"]
    steps = {name: [row[name] for row in rows] for name in rows[0]}
    table = pa.table({**steps, column: [value, value]})
    sources: list[Any] = [
        table,
        pl.DataFrame(table),
        [{**row, column: value} for row in rows],
    ]
    if column == "admissible_actions":
        sources.append(
            pa.table({**steps, column: pa.ListArray.from_arrays([0, 1, 2], NOT_UTF8)})
        )
    elif value == b"\xff":
        sources += [
            pa.table({**steps, column: texts})
            for texts in (NOT_UTF8, NOT_UTF8.dictionary_encode())
        ]
        sources.append(
            {**steps, column: pl.DataFrame(pa.table({column: NOT_UTF8}))[column]}
        )
    with StepWriter(tmp_path / "run") as writer:
        for source in sources:
            with pytest.raises(
                InputError, match=rf"^row [01], column {column}: expected .*, received "
            ) as refused:
                writer.add_group(source)
            refused_in_one_line(refused.value)
        writer.add_group(group("good"))
    assert verify(tmp_path / "run").ok


@pytest.mark.parametrize(
    ("column", "values", "stored"),
    [
        ("cut_pairs", [1.0, math.nan], [1, None]),
        ("cut_pairs", [math.nan, math.nan], [None, None]),
        ("response_token_ids", pa.array([None, None], pa.string()), [None, None]),
        ("admissible_actions", pa.nulls(2), [None, None]),
        ("won", [math.nan, math.nan], [None, None]),
        ("history_hash_1", [math.nan, 1e18], [None, None]),
        ("state", ["é".encode(), b"b"], ["é", "b"]),
        ("admissible_actions", [["é".encode(), None], None], [["é", None], None]),
    ],
)
def test_columns_of_other_programs_keep_their_values(
    tmp_path: Path, column: str, values: Any, stored: Any
) -> None:
    """Nulls have no type; pandas makes floats of integers with nulls; other writers do not mark texts as UTF-8."""
    steps = {
        name: [row[name] for row in (step("t", "a", 0), step("t", "b", 0))]
        for name in step("t", "a", 0)
    }
    write_run(tmp_path, pa.table({**steps, column: values}))
    assert scan_steps(tmp_path).collect()[column].to_list() == stored
