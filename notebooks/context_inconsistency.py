# /// script
# requires-python = ">=3.11"
# dependencies = ["hgpo[notebooks]"]
# ///
"""Context inconsistency of a run by level: how often steps at the same state have different histories.

marimo edit notebooks/context_inconsistency.py                     collects a small run of the bundled games
marimo edit notebooks/context_inconsistency.py -- --run runs/first uses any run or Parquet file of steps
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="Context inconsistency")


@app.cell
def imports():
    import tempfile
    from pathlib import Path

    import altair as alt
    import marimo as mo
    import polars as pl

    from hgpo_datasets import StepWriter, scan_steps
    from hgpo_train.advantages import compute
    from hgpo_train.analysis.describe import describe
    from hgpo_train.analysis.statistics import statistics

    return Path, StepWriter, alt, compute, mo, pl, scan_steps, describe, statistics, tempfile


@app.cell(hide_code=True)
def title(mo):
    mo.md("""
    # Which steps are in the same situation?

    Group advantages compare steps of different rollouts of one task. **GiGPO** compares steps at the same *state*.
    However, an agent that enters the kitchen for the first time and one that returns with a clean plate may observe the
    same text in different situations: their *contexts* are inconsistent. **HGPO** therefore also compares steps with
    the same last *k* states, for k = 0 … K, and gives deeper levels larger weights.

    This notebook shows for one run how often this matters, and what it costs.
    """)
    return


@app.cell
def choose(mo, tempfile, Path):
    given = mo.cli_args().get("run")
    example = Path(tempfile.gettempdir()) / "hgpo-notebook-run"
    source = mo.ui.text(
        value=str(given or example), label="Run (a folder, or a Parquet file of steps)", full_width=True
    )
    source
    return example, source


@app.cell
def open_run(StepWriter, example, mo, scan_steps, source):
    def play(out):
        """Collect 8 rollouts of each of 16 bundled games, with the expert's action in a quarter of the steps."""
        from hgpo_train.policies.registry import PolicyContext, make_policy
        from hgpo_train.rollout.env_handle import open_env
        from hgpo_train.rollout.run import RolloutSpec, collect_groups

        handle = open_env("HGPO/ALFWorld-v0", split="train", action_format="command")
        policy = make_policy("mixture:expert=0.25,random=0.75", PolicyContext(handle.shared.source.name, "command", {}))
        with StepWriter(out, config={"made_for": "the notebook"}, without=["prompt"]) as writer:
            collect_groups(handle, policy, writer, RolloutSpec(tasks=16, group_size=8, seed=1))
        policy.close()

    if source.value == str(example):
        with mo.status.spinner("playing 16 bundled games"):
            play(example)
    steps = scan_steps(source.value)
    return (steps,)


@app.cell
def controls(mo):
    depth = mo.ui.slider(1, 8, value=4, label="K, the deepest level", show_value=True)
    context = mo.ui.dropdown(
        {"states": "states", "states and actions (what the prompt shows)": "states_actions"},
        value="states",
        label="Contexts are",
    )
    mo.hstack([depth, context], justify="start", gap=2)
    return context, depth


@app.cell
def count(context, depth, statistics, steps):
    found = statistics(steps, history_length=depth.value, context=context.value, reward_scale=10)
    return (found,)


@app.cell(hide_code=True)
def in_words(describe, found, mo):
    mo.md("## Summary\n\n" + "\n".join(f"- {sentence}" for sentence in describe(found)))
    return


@app.cell(hide_code=True)
def about_inconsistency(mo):
    mo.md("""
    ## How many of the compared pairs differ?

    Level 0 compares all pairs of steps of one task at the same state. The bars show the fraction of these pairs whose
    last k states differ. It increases with k, up to the *oracle*, which uses complete histories.
    """)
    return


@app.cell
def inconsistency(alt, found):
    levels = found.levels
    order = levels["level"].to_list()
    axis = alt.X("level:N", sort=order, title="level k (oracle: the whole history)", axis=alt.Axis(labelAngle=0))
    share = alt.Axis(format="%")
    alt.Chart(levels, width=560, height=240).mark_bar(color="#3b6ea8").encode(
        axis,
        alt.Y("differing:Q", title="pairs at the same state that differ", axis=share, scale=alt.Scale(domain=[0, 1])),
        tooltip=["level", alt.Tooltip("differing", format=".1%"), alt.Tooltip("inconsistency", format=".1%")],
    )
    return axis, levels, order, share


@app.cell(hide_code=True)
def about_shared_contexts(mo):
    mo.md("""
    ## Cost: fewer shared contexts, more singleton groups

    The deeper the context, the fewer steps share it, and a step in a singleton group has no advantage at that level.
    *Eligible* steps have k previous states, *shared* steps share their context with another step, and *cross* steps
    with a step of another rollout. HGPO uses each step's shared contexts. With the oracle alone, most steps would have
    no advantage.
    """)
    return


@app.cell
def shared_contexts(alt, axis, levels, share):
    kinds = ["eligible", "shared", "cross"]
    alt.Chart(
        levels.filter(levels["level"] != "oracle").unpivot(
            kinds, index="level", variable_name="steps that are", value_name="share"
        ),
        width=560,
        height=240,
    ).mark_line(point=True).encode(
        axis,
        alt.Y("share:Q", title="of all steps", axis=share, scale=alt.Scale(domain=[0, 1])),
        alt.Color("steps that are:N", sort=kinds),
        tooltip=["level", "steps that are", alt.Tooltip("share", format=".1%")],
    )
    return


@app.cell
def sizes(alt, found, order, pl, share):
    labels = ["1 (singleton)", "2", "3–4", "5–8", "9–16", "more"]
    size = pl.sum_horizontal(pl.col("size") > edge for edge in (1, 2, 4, 8, 16))
    binned = (
        found.sizes.with_columns(size.replace_strict(dict(enumerate(labels))).alias("group size"))
        .group_by("level", "group size", maintain_order=True)
        .agg(pl.col("steps").sum())
        .with_columns((pl.col("steps") / pl.col("steps").sum().over("level")).alias("share"))
    )
    alt.Chart(binned, width=560, height=200, title="Steps by the size of their group").mark_bar().encode(
        alt.X("share:Q", axis=share, title="of the steps that have the level"),
        alt.Y("level:N", sort=order, title="level k"),
        alt.Color("group size:O", sort=labels, scale=alt.Scale(scheme="blues")),
        alt.Order("size_order:Q"),
        tooltip=["level", "group size", "steps", alt.Tooltip("share", format=".1%")],
    ).transform_calculate(size_order=f"indexof({labels}, datum['group size'])")
    return


@app.cell(hide_code=True)
def about_bias(mo):
    mo.md("""
    ## Errors of grouping by state alone

    Each dot is a step that shares both its state and a deeper context. The x-axis is its advantage among steps at the
    same state, the y-axis its advantage among steps with the same last k states. On the diagonal both are equal. In the
    grey quarters their signs differ: an action would be reinforced instead of discouraged, or the reverse.
    """)
    return


@app.cell
def against(depth, mo):
    deeper = mo.ui.slider(1, depth.value, value=min(2, depth.value), label="k of the deeper level", show_value=True)
    deeper
    return (deeper,)


@app.cell
def bias(alt, compute, context, deeper, depth, mo, pl, steps):
    both = (
        compute(
            steps, "hgpo", history_length=depth.value, context=context.value, details=True, column="a", reward_scale=10
        )
        .select(pl.col("a_k0").alias("state"), pl.col(f"a_k{deeper.value}").alias("history"), "step", "won")
        .drop_nulls()
        .filter(pl.col("state").ne(0) | pl.col("history").ne(0))
        .collect()
    )
    flips = both.filter(pl.col("state").sign() * pl.col("history").sign() < 0).height
    wrong = (
        alt.Chart(pl.DataFrame({"x": [-4, 0], "x2": [0, 4], "y": [0, -4], "y2": [4, 0]}))
        .mark_rect(color="#999", opacity=0.15)
        .encode(x="x:Q", x2="x2:Q", y="y:Q", y2="y2:Q")
    )
    dots = (
        alt.Chart(both.sample(min(both.height, 4000), seed=0))
        .mark_circle(size=22, opacity=0.35, color="#a8433b", clip=True)
        .encode(
            alt.X("state:Q", title="advantage among equal states (k = 0)", scale=alt.Scale(domain=[-4, 4])),
            alt.Y(
                "history:Q",
                title=f"advantage among equal histories (k = {deeper.value})",
                scale=alt.Scale(domain=[-4, 4]),
            ),
            tooltip=["step", alt.Tooltip("state", format=".2f"), alt.Tooltip("history", format=".2f")],
        )
    )
    mo.vstack(
        [
            (wrong + dots).properties(width=420, height=380),
            mo.md(f"**{flips:,} of {both.height:,}** such steps ({flips / max(both.height, 1):.0%}) change sign."),
        ]
    )
    return


@app.cell(hide_code=True)
def about_example(mo):
    mo.md("""
    ## Two steps at the same state

    The two steps at the same state, in different rollouts of one task, with the largest difference of returns, and the
    steps that led to each.
    """)
    return


@app.cell
def example_pair(mo, pl, steps):
    names = [
        name for name in ("run", "iteration", "task_id", "group", "task") if name in steps.collect_schema().names()
    ]
    to_end = pl.col("step").max().over("trajectory") - pl.col("step")
    rated = (
        steps.filter(pl.col("step") > 0)
        .with_columns((0.95**to_end * pl.col("reward").sum().over("trajectory")).alias("value"))
        .collect()
    )
    spread = (
        rated.group_by(*names, "state_hash", maintain_order=True)
        .agg(
            (pl.col("value").max() - pl.col("value").min()).alias("spread"),
            pl.col("trajectory").get(pl.col("value").arg_max()).alias("better"),
            pl.col("step").get(pl.col("value").arg_max()).alias("better_step"),
            pl.col("trajectory").get(pl.col("value").arg_min()).alias("worse"),
            pl.col("step").get(pl.col("value").arg_min()).alias("worse_step"),
        )
        .filter(pl.col("better") != pl.col("worse"))
        .sort("spread", descending=True)
    )

    def story(kind):
        row = spread.row(0, named=True)
        path = (
            steps.filter(
                (pl.col("trajectory") == row[kind])
                & (pl.col("step") <= row[f"{kind}_step"])
                & (pl.col("step") > row[f"{kind}_step"] - 4)
            )
            .select("step", "state", "action")
            .collect()
        )
        lines = [f"**{row[kind]}**, the {'higher' if kind == 'better' else 'lower'} return"]
        lines += [
            f"`{at['step']}` {' '.join(at['state'].split())[-160:]}  \n&emsp;**> {at['action']}**"
            for at in path.iter_rows(named=True)
        ]
        return mo.md("\n\n".join(lines))

    mo.hstack([story("better"), story("worse")], widths="equal", gap=2) if spread.height else mo.md("No such pair.")
    return


@app.cell(hide_code=True)
def kinds_of_tasks(mo, statistics, steps):
    columns = steps.collect_schema().names()
    by_type = statistics(steps, by=["task_type"], history_length=2).levels if "task_type" in columns else None
    mo.vstack(
        [
            mo.md("## By task type"),
            mo.ui.table(
                by_type.filter(by_type["level"] != "0").select(
                    "task_type", "level", "steps", "shared", "cross", "differing", "weight"
                ),
                selection=None,
                format_mapping=dict.fromkeys(("shared", "cross", "differing", "weight"), "{:.2f}"),
            ),
        ]
    ) if by_type is not None else None
    return


if __name__ == "__main__":
    app.run()
