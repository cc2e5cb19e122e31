# /// script
# requires-python = ">=3.11"
# dependencies = ["hgpo[notebooks]"]
# ///
"""Context inconsistency: how often steps at the same state have different histories, and whether that matters.

marimo edit notebooks/context_inconsistency.py                     a training run of a small model on WebShop
marimo edit notebooks/context_inconsistency.py -- --run runs/first any run or Parquet file of steps
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="Context inconsistency")


@app.cell
def imports():
    import os
    from pathlib import Path

    import altair as alt
    import marimo as mo
    import numpy as np
    import polars as pl

    from hgpo_datasets import scan_steps
    from hgpo_train.advantages import compute
    from hgpo_train.analysis.charts import levels_chart, sizes_chart
    from hgpo_train.analysis.describe import describe
    from hgpo_train.analysis.resampling import ratio_interval
    from hgpo_train.analysis.statistics import statistics

    return (
        Path,
        alt,
        compute,
        describe,
        levels_chart,
        mo,
        np,
        os,
        pl,
        ratio_interval,
        scan_steps,
        sizes_chart,
        statistics,
    )


@app.cell(hide_code=True)
def title(mo):
    mo.md("""
    # Which steps are in the same situation?

    Group advantages compare steps of different rollouts of one task. **GiGPO** compares steps at the same *state*.
    Two rollouts can show the same text after different histories: their *contexts* are inconsistent. **HGPO** therefore
    also compares steps with the same last *k* states, for k = 0 … K, and gives deeper levels larger weights.

    This notebook asks of one run: how often do histories differ, where, and does the difference *matter*? Every figure
    has a 95% bootstrap interval (tasks resampled). Figures about returns have a grey tick, the permutation baseline:
    returns are permuted among the rollouts that visit the same state, so that they do not depend on the history.
    """)
    return


@app.cell
def choose(Path, mo, os):
    bundled = Path(__file__).parent / "data" / "training.parquet"
    given = mo.cli_args().get("run")
    source = mo.ui.text(
        value=str(given or os.path.relpath(bundled)),
        label="Run (a folder, or a Parquet file of steps)",
        full_width=True,
    )
    depth = mo.ui.slider(1, 8, value=4, label="K, the deepest level", show_value=True)
    context = mo.ui.dropdown(
        {"states": "states", "states and actions (what the prompt shows)": "states_actions"},
        value="states",
        label="Contexts are",
    )
    reward = mo.ui.dropdown(["success", "environment"], value="success", label="Rewards are")
    mo.vstack([source, mo.hstack([depth, context, reward], justify="start", gap=2)])
    return context, depth, reward, source


@app.cell
def read(pl, scan_steps, source):
    """Read the run, and divide a training run into thirds."""
    table = scan_steps(source.value, plain=True).collect()
    if "iteration" in table.columns and table["iteration"].n_unique() > 2:
        edges = [int(table["iteration"].quantile(q, "lower")) for q in (1 / 3, 2 / 3)]
        names = [f"up to {edges[0]}", f"up to {edges[1]}", "later"]
        third = pl.sum_horizontal(pl.col("iteration") > edge for edge in edges)
        steps = table.with_columns(third.replace_strict(dict(enumerate(names))).alias("iterations"))
    else:
        steps = table.with_columns(iterations=pl.lit("all"))
    return (steps,)


@app.cell
def count(context, depth, reward, statistics, steps):
    options = {"context": context.value, "reward": reward.value}
    found = statistics(steps, history_length=depth.value, permutations=20, **options)
    return found, options


@app.cell(hide_code=True)
def in_words(describe, found, mo):
    mo.md("## Summary\n\n" + "\n".join(f"- {sentence}" for sentence in describe(found)))
    return


@app.cell(hide_code=True)
def about_thirds(mo):
    mo.md("""
    ## How often, and how does training change it?

    *First*: steps that share their context with another step of their group. Deep contexts have few members, and a step
    in a singleton group has no advantage at that level. *Second*: of the pairs of steps at the same state, those whose
    last k states differ, up to the *oracle*, which compares whole histories.
    """)
    return


@app.cell
def thirds(depth, levels_chart, mo, options, statistics, steps):
    by_third = statistics(steps, by="iterations", history_length=depth.value, **options, permutations=20).intervals
    split = "iterations" if by_third["iterations"].n_unique() > 1 else None
    mo.hstack([levels_chart(by_third, "shared", by=split), levels_chart(by_third, "differing", by=split)], wrap=True)
    return by_third, split


@app.cell
def sizes(found, sizes_chart):
    sizes_chart(found.sizes)
    return


@app.cell(hide_code=True)
def about_influence(mo):
    mo.md("""
    ## Does it matter?

    *First*: how much of the variance of returns at the same state the k states before it explain. Only what lies above
    the grey tick is an influence of histories. *Second*: steps whose advantage among equal states and among equal
    histories (k = K) have different signs. Many signs differ **by chance**: smaller groups have noisier means, and in a
    group of two, z-scores are 1 and -1 whatever the returns are. A share of sign changes is a finding only where its
    interval does not contain the tick.
    """)
    return


@app.cell
def influence(by_third, levels_chart, mo, split):
    mo.hstack(
        [levels_chart(by_third, "explained", by=split), levels_chart(by_third, "sign_disagreement", by=split)],
        wrap=True,
    )
    return


@app.cell(hide_code=True)
def about_kinds(mo):
    mo.md("""
    ## By type of task

    Types with few tasks have wide intervals. With many types, one of twenty is beyond its interval by chance.
    """)
    return


@app.cell
def kinds(depth, levels_chart, mo, options, pl, statistics, steps):
    def by_type():
        if "task_type" not in steps.columns:
            return mo.md("This run has no task types.")
        frequent = steps["task_type"].value_counts(sort=True)["task_type"].head(6)
        chosen = steps.filter(pl.col("task_type").is_in(frequent.to_list()))
        split_by_type = statistics(
            chosen, by="task_type", history_length=depth.value, **options, permutations=20
        ).intervals
        names = ("differing", "explained")
        return mo.hstack([levels_chart(split_by_type, name, by="task_type") for name in names], wrap=True)

    by_type()
    return


@app.cell(hide_code=True)
def about_positions(mo):
    mo.md("""
    ## Where in an episode?

    The share of steps at each position whose context another step of the group shares. All rollouts begin in the same
    state, so early steps share deep contexts, and late ones do not.
    """)
    return


@app.cell
def positions(alt, compute, context, depth, np, options, pl, ratio_interval, steps):
    def by_position():
        levels = sorted({0, 1, depth.value})
        sized = compute(steps, "hgpo", history_length=depth.value, details=True, column="a", **options).collect()
        last = int(sized["step"].quantile(0.95))
        task = "task_id" if "task_id" in sized.columns else "task"
        numbers = sized[task].rank("dense").cast(pl.Int64).to_numpy() - 1
        tasks = int(numbers.max()) + 1
        rows = []
        for position in range(last + 1):
            here = (sized["step"] == position).to_numpy()
            total = np.bincount(numbers[here], minlength=tasks)
            for k in levels:
                shared = (sized[f"a_size_k{k}"].fill_null(0) > 1).to_numpy() & here
                hits = np.bincount(numbers[shared], minlength=tasks)
                rows.append((position, f"k = {k}", *ratio_interval(hits, total)))
        return pl.DataFrame(rows, ["step", "level", "value", "low", "high"], orient="row", infer_schema_length=None)

    base = alt.Chart(alt.Data(values=by_position().to_dicts())).encode(
        alt.X("step:Q"), alt.Color("level:N", title=None)
    )
    share = alt.Axis(format="%")
    (
        base.mark_area(opacity=0.2).encode(alt.Y("low:Q", axis=share, title="steps that share a context"), y2="high:Q")
        + base.mark_line(point=True).encode(
            y="value:Q", tooltip=["step:Q", "level:N", alt.Tooltip("value:Q", format=".1%")]
        )
    ).properties(width=560, height=240, title=f"Shared contexts ({context.value}) by position in the episode")
    return


@app.cell(hide_code=True)
def about_aliasing(mo):
    mo.md("""
    ## Is what differs more than the way there?

    Two rollouts can come to the same state on different ways and be in the same situation, or only look as if they
    were. The environments are deterministic, so the next state tells: of the pairs of steps with the same state and the
    same action, in how many do the next states differ? If none do, histories differ, but not what can be done.
    """)
    return


@app.cell
def aliasing(mo, pl, ratio_interval, steps):
    def differing_next_states():
        groups = [name for name in ("run", "iteration", "task_id", "group", "task") if name in steps.columns]
        following = steps.with_columns(pl.col("state").shift(-1).over("trajectory", order_by="step").alias("(next)"))
        following = following.drop_nulls("(next)").filter("action_valid")
        n = pl.len().cast(pl.Int64)
        same = following.group_by(*groups, "state", "action").agg(n.alias("n"))
        also = following.group_by(*groups, "state", "action", "(next)").agg(n.alias("n"))
        pairs, equal = (
            frame.group_by("task_id" if "task_id" in groups else "task").agg((pl.col("n") * (pl.col("n") - 1)).sum())
            for frame in (same, also)
        )
        both = pairs.join(equal, on=pairs.columns[0], suffix="_equal").sort(pairs.columns[0])
        total, agree = (both[name].to_numpy() for name in ("n", "n_equal"))
        if not total.sum():
            return "No two steps have the same state and action."
        value, low, high = ratio_interval(total - agree, total)
        interval = "" if low is None else f" ({low:.1%} to {high:.1%})"
        pairs = int(total.sum() / 2)
        of = f"Of {pairs:,} pairs of steps with the same state and action"
        return f"{of}, **{value:.1%}**{interval} lead to different states."

    mo.md(differing_next_states())
    return


@app.cell(hide_code=True)
def about_example(mo):
    mo.md("""
    ## A pair, drawn at random

    Two steps at the same state, in different rollouts of one group, with different steps before. The pair is drawn, not
    chosen: a pair that was chosen for its difference of returns would show chance at its most extreme.
    """)
    return


@app.cell
def another(mo):
    draw = mo.ui.number(0, 999, value=0, label="draw")
    draw
    return (draw,)


@app.cell
def example_pair(draw, mo, np, pl, steps):
    def pair():
        groups = [name for name in ("run", "iteration", "task_id", "group", "task") if name in steps.columns]
        history = steps.with_columns(pl.col("state").shift(1).over("trajectory", order_by="step").alias("(before)"))
        places = history.filter(pl.col("step") > 0).group_by(*groups, "state", maintain_order=True)
        several = places.agg("trajectory", "step", "(before)").filter(pl.col("(before)").list.n_unique() > 1)
        if not several.height:
            return mo.md("No such pair.")
        rng = np.random.default_rng(draw.value)
        place = several.row(int(rng.integers(several.height)), named=True)
        order = rng.permutation(len(place["step"]))
        one = order[0]
        other = next(number for number in order if place["(before)"][number] != place["(before)"][one])
        return mo.hstack([story(place["trajectory"][n], place["step"][n]) for n in (one, other)], widths="equal", gap=2)

    def story(trajectory, step):
        own = steps.filter(pl.col("trajectory") == trajectory).sort("step")
        lines = [f"**{trajectory}**: return {own['reward'].sum():g}"]
        for row in own.filter(pl.col("step").is_between(step - 3, step)).iter_rows(named=True):
            text = " ".join(row["state"].split())[-240:].replace("`", "'")
            lines.append(f"{row['step']}: `{text}`\n\n&emsp;**>** `{row['action']}`")
        return mo.md("\n\n".join(lines))

    pair()
    return


if __name__ == "__main__":
    app.run()
