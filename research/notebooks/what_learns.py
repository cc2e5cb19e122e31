# /// script
# requires-python = ">=3.11"
# dependencies = ["hgpo[notebooks]"]
# ///
"""What learns: gain, learning curves and the worth of history, in a game of levers.

marimo edit research/notebooks/what_learns.py
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="What learns")


@app.cell
def imports():
    import marimo as mo
    import polars as pl

    from hgpo_research.tabular.gain import gains_chart, gains_of
    from hgpo_research.tabular.graphs import compile_tasks
    from hgpo_research.tabular.learning import Learning, curves
    from hgpo_research.tabular.methods import methods
    from hgpo_research.tabular.report import curves_chart, summary

    return (
        Learning,
        compile_tasks,
        curves,
        curves_chart,
        gains_chart,
        gains_of,
        methods,
        mo,
        pl,
        summary,
    )


@app.cell(hide_code=True)
def title(mo):
    mo.md("""
    # What learns?

    An advantage may be close to the true one, and teach little. What counts is its **gain**: how much success improves
    along the policy gradient that it gives, in an update of a fixed size. Here, small policies learn a game with
    several estimators, many seeds at once, and the gain is measured beside.

    The game: pull one of four levers, read which one, walk on twice, and open the door that this lever unlocks. At the
    doors, only the past tells which lever it was. What holds on ALFWorld, WebShop and TextWorld is in the study
    (`research/docs/study.md`).
    """)
    return


@app.cell
def choose(mo):
    written = mo.ui.text_area(
        value="grpo:cross_steps=false, discounted_grpo, adaptive, hgpo:mode=mean_norm, oracle",
        label="Estimators (NAME:PARAMETER=VALUE)",
        full_width=True,
    )
    reads = mo.ui.slider(0, 4, value=2, label="past steps that the policy reads")
    mo.vstack([written, reads])
    return reads, written


@app.cell
def learn(
    Learning, compile_tasks, curves, gains_of, methods, mo, pl, reads, summary, written
):
    tasks, _ = compile_tasks(
        "hgpo_research.levers:LEVERS",
        {},
        {"skill": 0.0, "memory": 0},
        4,
        seed=1,
        reads=reads.value,
    )
    named = methods([written.value], ["invalid_action_penalty=0"])
    how = Learning(seeds=12, iterations=12, kl=0.02)
    measured = []

    def watch(_tasks, name, iteration, policies):
        if name == next(iter(named)) and iteration in (0, 6):
            measured.append(gains_of(policies, 4, named, how, 16, iteration))

    with mo.status.spinner("learning"):
        learned = curves({"levers": tasks}, named, how, watch)
    table = summary(learned.success)
    gains = pl.concat(measured)
    return gains, learned, table


@app.cell(hide_code=True)
def about_curves(mo):
    mo.md("""
    ## Learning curves

    Bands are 95% intervals over seeds. The first estimator learns twice, with other random numbers: what differs
    between these two curves is chance.
    """)
    return


@app.cell
def draw_curves(curves_chart, learned):
    curves_chart(learned.success)
    return


@app.cell(hide_code=True)
def about_gain(mo):
    mo.md("""
    ## Gain and final success

    The gain of one batch at the first estimator's policies, at the start and after six updates.
    """)
    return


@app.cell
def draw_gains(gains, gains_chart, table):
    gains_chart(gains, table)
    return


@app.cell(hide_code=True)
def about_truth(mo):
    mo.md("""
    ## Gain without truth

    `one_batch` needs true advantages. `cross_validated` needs only the batches: the gradient of three quarters of the
    rollouts, against the returns of the last quarter. It is that of a batch a quarter smaller.
    """)
    return


@app.cell
def without_truth(gains, mo, pl):
    names = ("one_batch", "cross_validated")
    mo.ui.table(
        gains.group_by("estimator", maintain_order=True).agg(
            (pl.col(names).mean() * 100).round(2)
        )
    )
    return


@app.cell(hide_code=True)
def about_weight(mo):
    mo.md("""
    ## How much to bootstrap

    `adaptive` mixes discounted, bootstrapped and undiscounted advantages by their cross-validated gains: their weights,
    mean over seeds.
    """)
    return


@app.cell
def weights(learned, mo, pl):
    shown = mo.md("`adaptive` is not among the estimators.")
    if learned.metrics.height:
        shown = mo.ui.table(
            learned.metrics.group_by("iteration", maintain_order=True).agg(
                pl.col("^weight_.*$").mean().round(2)
            )
        )
    shown
    return


if __name__ == "__main__":
    app.run()
