# /// script
# requires-python = ">=3.11"
# dependencies = ["hgpo[notebooks]"]
# ///
"""One table, seven estimators: advantages recomputed from saved rollouts, and where they disagree.

marimo edit notebooks/seven_estimators.py                     the last iterations of a training run on WebShop
marimo edit notebooks/seven_estimators.py -- --run runs/first any run or Parquet file of steps
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="One table, seven estimators")


@app.cell
def imports():
    from pathlib import Path

    import altair as alt
    import marimo as mo
    import numpy as np
    import polars as pl

    from hgpo_datasets import scan_steps
    from hgpo_envs.errors import InputError
    from hgpo_train.advantages import compute_many
    from hgpo_train.advantages.variants import read_variants
    from hgpo_train.resampling import ratio_interval

    return (
        InputError,
        Path,
        alt,
        compute_many,
        mo,
        np,
        pl,
        ratio_interval,
        read_variants,
        scan_steps,
    )


@app.cell(hide_code=True)
def title(mo):
    mo.md("""
    # One table, seven estimators

    A step table has everything that group advantages need, so they can be computed again after the run: with another
    estimator, another K, another reward. Estimators that disagree are not wrong for that;
    `research/notebooks/what_learns.py` shows what policies learn with them. This notebook says *where* they disagree.
    """)
    return


@app.cell
def choose(Path, mo, scan_steps):
    bundled = Path(__file__).parent / "data" / "webshop.parquet"
    table = scan_steps(mo.cli_args().get("run", str(bundled)), plain=True).collect()
    written = mo.ui.text_area(
        value="grpo, gigpo, hgpo:history_length=2, hgpo:history_length=4, g2po, graphgpo, rloo, reinforce_pp",
        label="Estimators (NAME:PARAMETER=VALUE)",
        full_width=True,
    )
    last = int(table["iteration"].max() or 0) if "iteration" in table.columns else 0
    chosen = mo.ui.range_slider(
        0,
        max(last, 1),
        value=[max(0, last - 9), last or 1],
        label="Iterations",
        show_value=True,
    )
    mo.vstack([written, chosen])
    return chosen, table, written


@app.cell
def estimate(InputError, chosen, compute_many, mo, pl, read_variants, table, written):
    variants = read_variants([written.value], {"reward": "success"})
    names = {each.estimator.column: each.name for each in variants}
    rows = (
        table.filter(pl.col("iteration").is_between(*chosen.value))
        if "iteration" in table.columns
        else table
    )
    try:
        estimated = (
            compute_many(rows, [each.estimator for each in variants])
            .collect()
            .rename(names)
        )
    except InputError as error:  # a table without a column that an estimator reads
        mo.stop(True, mo.md(str(error)))
    estimators = list(names.values())
    return estimated, estimators


@app.cell
def correlation_claim(estimated, estimators, mo, pl):
    ranked = estimated.select(pl.col(name).rank() for name in estimators).drop_nulls()
    _matrix = ranked.corr().to_numpy()
    _pairs = [
        (_matrix[i, j], estimators[i], estimators[j])
        for i in range(len(estimators))
        for j in range(i)
    ]
    alike = "The advantages of one estimator have nothing to be compared with."
    # NaN: all advantages are 0
    if _known := [pair for pair in _pairs if pair[0] == pair[0]]:
        _value, _first, _second = min(_known)
        alike = f"Least alike are {_second} and {_first}, with a correlation of {_value:.2f}."
    mo.md(f"## {alike}")
    return alike, ranked


@app.cell(hide_code=True)
def about_correlations(mo, estimated):
    mo.md(f"""
    Rank correlation of the advantages of {estimated.height:,} steps. Ranks, because estimators have different scales,
    of which an optimiser with normalised steps sees little.
    """)
    return


@app.cell
def correlations(alt, estimators, pl, ranked):
    matrix = ranked.corr().with_columns(first=pl.Series(estimators)).unpivot(
        index="first", variable_name="second", value_name="correlation"
    )  # fmt: skip
    base = alt.Chart(alt.Data(values=matrix.to_dicts())).encode(
        alt.X("first:N", sort=estimators, title=None, axis=alt.Axis(labelAngle=-40)),
        alt.Y("second:N", sort=estimators, title=None),
    )
    scale = alt.Scale(scheme="blueorange", domain=[-1, 1])
    (
        base.mark_rect().encode(alt.Color("correlation:Q", scale=scale, legend=None))
        + base.mark_text().encode(
            alt.Text("correlation:Q", format=".2f"),
            color=alt.condition(
                "abs(datum.correlation) > 0.8", alt.value("white"), alt.value("black")
            ),
        )
    ).properties(width=440, height=340)
    return


@app.cell
def pair(estimators, mo):
    first = mo.ui.dropdown(estimators, value=estimators[0], label="first")
    second = mo.ui.dropdown(
        estimators, value=estimators[min(2, len(estimators) - 1)], label="second"
    )
    mo.hstack([first, second], justify="start")
    return first, second


@app.cell
def signs_claim(estimated, first, mo, pl, second):
    _both = estimated.filter(pl.col(first.value) * pl.col(second.value) != 0)
    _share = (
        _both.select((pl.col(first.value) * pl.col(second.value) < 0).mean()).item()
        or 0.0
    )
    opposed = f"{first.value} and {second.value} push {_share:.0%} of steps in opposite directions."
    mo.md(f"## {opposed}")
    return (opposed,)


@app.cell(hide_code=True)
def about_signs(mo):
    mo.md("""
    A sign decides whether an action becomes more or less frequent. The bars are steps whose signs differ (among steps
    where neither is 0), with 95% intervals over tasks, for the two estimators chosen.
    """)
    return


@app.cell
def signs(alt, estimated, first, np, pl, ratio_interval, second):
    def by_position():
        one = pl.col(first.value)
        other = pl.col(second.value)
        task = "task_id" if "task_id" in estimated.columns else "task"
        known = estimated.filter(one * other != 0).with_columns(
            differs=(one.sign() != other.sign()).cast(pl.Int64),
            place=pl.min_horizontal("step", 9),
        )
        if not known.height:  # all returns are equal
            return []
        numbers = known[task].rank("dense").cast(pl.Int64) - 1
        tasks = int(numbers.max()) + 1
        found = []
        for place in known["place"].unique().sort():
            here = (known["place"] == place).to_numpy()
            total = np.bincount(numbers.to_numpy()[here], minlength=tasks)
            hits = np.bincount(
                numbers.to_numpy()[here], known["differs"].to_numpy()[here], tasks
            )
            share, low, high = ratio_interval(hits, total)
            found.append(
                {
                    "step": place,
                    "share": share,
                    "low": low,
                    "high": high,
                    "steps": int(total.sum()),
                }
            )
        return found

    bars = alt.Chart(alt.Data(values=by_position())).encode(
        alt.X("step:O", title="step (9: and later)")
    )
    share = alt.Y(
        "share:Q", title="steps whose signs differ", axis=alt.Axis(format="%")
    )
    (
        bars.mark_bar(color="#56b4e9").encode(
            share, tooltip=["step:O", "steps:Q", alt.Tooltip("share:Q", format=".1%")]
        )
        + bars.mark_rule().encode(alt.Y("low:Q"), alt.Y2("high:Q"))
    ).properties(width=480, height=240, title=f"{first.value} and {second.value}")
    return


@app.cell(hide_code=True)
def about_steps(mo):
    mo.md("""
    ## Steps to look at

    Drawn at random from those whose signs differ. `hgpo view` shows a step's groups, their members and returns.
    """)
    return


@app.cell
def steps_to_look_at(estimated, estimators, first, mo, pl, second):
    one = pl.col(first.value)
    other = pl.col(second.value)
    apart = estimated.filter(one * other < 0)
    drawn = apart.sample(min(12, apart.height), seed=0).select(
        "trajectory",
        "step",
        pl.col("state").str.slice(-90),
        "action",
        *(pl.col(name).round(2) for name in estimators),
    )
    mo.ui.table(drawn, selection=None)
    return


if __name__ == "__main__":
    app.run()
