"""Step tables of few tasks and two states, drawn by Hypothesis or written as rows."""

import polars as pl
import polars.testing
from hypothesis import strategies as st

NAMES = ["task", "trajectory", "step", "state", "reward", "action_valid"]


def table_of(rows: list[tuple]) -> pl.DataFrame:
    """Return a table with the values of `NAMES`."""
    return pl.DataFrame(rows, NAMES, orient="row")


@st.composite
def tables(draw):
    rows = []
    for task in range(draw(st.integers(1, 3))):
        for rollout in range(draw(st.integers(1, 4))):
            for step in range(draw(st.integers(1, 6))):
                row = {
                    "task": str(task),
                    "task_type": "even" if task % 2 == 0 else "odd",
                    "step": step,
                }
                row |= {
                    "trajectory": f"{task}/{rollout}",
                    "state": draw(st.sampled_from(["a", "b"])),
                }
                row |= {"reward": draw(st.sampled_from([0.0, 0.0, 10.0]))}
                rows.append(row | {"action_valid": draw(st.booleans())})
    return rows
