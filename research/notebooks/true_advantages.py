# /// script
# requires-python = ">=3.11"
# dependencies = ["hgpo[notebooks]"]
# ///
"""What an advantage is worth: group advantages of a run beside its true advantages.

marimo edit research/notebooks/true_advantages.py                                     a scripted policy on WebShop
marimo edit research/notebooks/true_advantages.py -- --run RUN --truth RUN.truth/P.parquet  any run after `hgpo truth`
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="True advantages")


@app.cell
def imports():
    from dataclasses import replace
    from pathlib import Path

    import altair as alt
    import marimo as mo
    import polars as pl

    from hgpo_datasets import scan_steps
    from hgpo_research.comparison.comparison import compare_estimators
    from hgpo_research.comparison.inputs import TRUTH_REWARDS, truth_rewards
    from hgpo_train.advantages import compute
    from hgpo_train.advantages.variants import read_variants

    return (
        Path,
        TRUTH_REWARDS,
        alt,
        compare_estimators,
        compute,
        mo,
        pl,
        read_variants,
        replace,
        scan_steps,
        truth_rewards,
    )


@app.cell(hide_code=True)
def title(mo):
    mo.md("""
    # What is an advantage worth?

    An estimator gives every step of a group of rollouts an advantage. Where the environment is deterministic and the
    policy's action probabilities are known, the **true** advantage A = Q - V of every step can be computed (`hgpo
    truth`), so that estimators can be compared with it instead of with each other.

    The bundled example is small: 32 tasks of WebShop, 16 rollouts each, of a scripted policy that wins a quarter of
    them. It shows the method, with the modes of the papers' WebShop scripts. What holds for other policies, and for
    ALFWorld, is in the study (`research/docs/study.md`).
    """)
    return


@app.cell
def read(Path, TRUTH_REWARDS, mo, pl, replace, scan_steps, truth_rewards):
    bundled = str(Path(__file__).parent / "data" / "truth.parquet")
    run, truth_path = mo.cli_args().get("run", bundled), mo.cli_args().get("truth", bundled)
    steps = scan_steps(run, plain=True).collect()
    truth = pl.read_parquet(truth_path)
    if truth_path == bundled:  # of `hgpo truth --reward success`
        rewards = replace(TRUTH_REWARDS, reward="success", reward_scale=10.0)
    else:
        rewards = truth_rewards(Path(truth_path), Path(run))
    return rewards, steps, truth


@app.cell
def choose(mo):
    written = mo.ui.text_area(
        value="grpo, grpo:invalid_action_penalty=0, gigpo:mode=mean_norm, gigpo:mode=mean_norm:episode_weight=0, "
        "hgpo:mode=mean_norm, hgpo:mode=mean_norm:history_length=4, hgpo, g2po:mode=mean_norm:step_weight=0.8, "
        "shrinkage_gae",
        label="Estimators (NAME:PARAMETER=VALUE)",
        full_width=True,
    )
    written
    return (written,)


@app.cell
def compare(compare_estimators, mo, read_variants, rewards, steps, truth, written):
    variants = read_variants([written.value], {"reward": rewards.reward, "reward_scale": rewards.reward_scale})
    with mo.status.spinner("comparing"):
        found = compare_estimators(steps, truth, variants, redraws=2, resamples=500, permutations=10, rewards=rewards)
    return (found,)


@app.cell(hide_code=True)
def about_correlation(mo):
    mo.md("""
    ## Correlation with the true advantage

    Groups of eight. Lines are 95% intervals by resampled tasks, the grey bar is what permuted advantages give: chance.
    `return - true value` uses the true value as its baseline, and still has the noise of one return: most of the error
    of a group advantage is not its baseline.
    """)
    return


@app.cell
def correlation(alt, found, pl):
    def dots(measure, size):
        chosen = found.estimates.filter(dimension="all", measure=measure, group_size=size)
        order = chosen.sort("value", descending=True)["estimator"].to_list()
        base = alt.Chart(alt.Data(values=chosen.to_dicts())).encode(y=alt.Y("estimator:N", sort=order, title=None))
        value = alt.X("value:Q", title=measure.replace("_", " "))
        tooltip = ["estimator:N", *(alt.Tooltip(f"{name}:Q", format=".3f") for name in ("value", "low", "high"))]
        return (
            base.mark_bar(color="#dddddd", height=14).encode(x="chance_low:Q", x2="chance_high:Q")
            + base.mark_rule(strokeWidth=2, color="#0072b2").encode(x="low:Q", x2="high:Q")
            + base.mark_circle(size=70, opacity=1, color="#0072b2").encode(x=value, tooltip=tooltip)
        ).properties(width=440, height=26 * pl.Series(order).len())

    colours = alt.Scale(domain=found.estimates["estimator"].unique(maintain_order=True).to_list(), scheme="tableau10")
    dots("correlation", 8)
    return (colours,)


@app.cell(hide_code=True)
def about_difference(mo):
    mo.md("""
    ## Which differences are significant?

    Two intervals that overlap do not say that two estimators are equal, and two that do not overlap say too much: the
    estimators see the same steps, so their *difference* has an interval of its own. These hold for all pairs at once.
    """)
    return


@app.cell
def differences(found, mo, pl):
    def table():
        rows = found.differences.filter(dimension="all", measure="correlation", group_size=8)
        down = pl.col("value") < 0
        better, worse = pl.when(down).then("second").otherwise("first"), pl.when(down).then("first").otherwise("second")
        low = pl.when(down).then(-pl.col("high_all")).otherwise("low_all")
        high = pl.when(down).then(-pl.col("low_all")).otherwise("high_all")
        shown = rows.select(
            better.alias("better"),
            worse.alias("worse"),
            pl.col("value").abs().round(3).alias("difference"),
            low.round(3).alias("from"),
            high.round(3).alias("to"),
        ).sort("difference", descending=True)
        significant = shown.filter(pl.col("from") > 0)
        text = mo.md(f"{significant.height} of {rows.height} pairs differ significantly; the others are open.")
        return mo.vstack([text, mo.ui.table(significant, selection=None)])

    table()
    return


@app.cell(hide_code=True)
def about_size(mo):
    mo.md("""
    ## Bias and variance by the size of the group

    `variance`: how much the advantage of a step varies when its group is drawn again. `slope`: of the regression on the
    true advantage; 1 is unbiased up to a constant.
    """)
    return


@app.cell
def sizes(alt, colours, found, mo, pl):
    def lines(measure):
        chosen = found.estimates.filter(dimension="all", measure=measure).drop_nulls("value")
        base = alt.Chart(alt.Data(values=chosen.to_dicts())).encode(
            alt.X("group_size:O", title="rollouts in a group", axis=alt.Axis(labelAngle=0)),
            alt.Color("estimator:N", scale=colours),
            xOffset=alt.XOffset("estimator:N"),
        )
        value = alt.Y("value:Q", title=measure)
        return (
            base.mark_rule().encode(y="low:Q", y2="high:Q")
            + base.mark_circle(size=40, opacity=1).encode(y=value, tooltip=["estimator:N", "group_size:O", "value:Q"])
        ).properties(width=440, height=260)

    known = [
        name for name in ("variance", "slope") if found.estimates.filter(pl.col("measure") == name)["value"].count()
    ]
    mo.vstack([lines(name) for name in known])
    return


@app.cell(hide_code=True)
def about_levels(mo):
    mo.md("""
    ## Where contexts are shared

    The same correlation, for steps by the deepest context that they share with another step of their group, and for
    those that are `alone`, which have an episode's advantage or none.
    """)
    return


@app.cell
def levels(alt, colours, found, pl):
    chosen = found.estimates.filter(pl.col("dimension") == "level", measure="correlation", group_size=8).drop_nulls(
        "value"
    )
    part = alt.X("part:N", title="deepest shared context", axis=alt.Axis(labelAngle=0))
    base = alt.Chart(alt.Data(values=chosen.to_dicts())).encode(
        part, alt.Color("estimator:N", scale=colours), xOffset="estimator:N"
    )
    (
        base.mark_rule().encode(y="low:Q", y2="high:Q")
        + base.mark_circle(size=40, opacity=1).encode(
            y=alt.Y("value:Q", title="correlation"), tooltip=["estimator:N", "value:Q"]
        )
    ).properties(width=560, height=260)
    return


@app.cell(hide_code=True)
def about_steps(mo):
    mo.md("""
    ## Step by step

    Each dot is a step: its true advantage and HGPO's (K = 2, `mean_norm`, as the paper runs it on WebShop). Errors of
    the truth itself are the `advantage_error` of the truth table, shown on hover.
    """)
    return


@app.cell
def scatter(alt, compute, rewards, steps, truth):
    keys = [
        name for name in ("run", "iteration", "trajectory", "step") if name in steps.columns and name in truth.columns
    ]
    estimated = compute(
        steps,
        "hgpo",
        history_length=2,
        mode="mean_norm",
        column="hgpo",
        reward=rewards.reward,
        reward_scale=rewards.reward_scale,
    ).collect()
    both = estimated.select(*keys, "hgpo", "action").join(
        truth.select(*keys, "advantage", "advantage_error"), on=keys, nulls_equal=True
    )
    alt.Chart(alt.Data(values=both.drop_nulls().to_dicts())).mark_circle(size=18, opacity=0.35, color="#0072b2").encode(
        alt.X("advantage:Q", title="true advantage"),
        alt.Y("hgpo:Q", title="HGPO's advantage"),
        tooltip=["action:N", alt.Tooltip("advantage:Q", format=".2f"), alt.Tooltip("advantage_error:Q", format=".2f")],
    ).properties(width=440, height=320)
    return


if __name__ == "__main__":
    app.run()
