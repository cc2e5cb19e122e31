# /// script
# requires-python = ">=3.11"
# dependencies = ["hgpo[notebooks]"]
# ///
"""Context inconsistency: how often steps at the same state have different histories, and whether that matters.

marimo edit notebooks/context_inconsistency.py                     ALFWorld (long episodes) and WebShop (a training run)
marimo edit notebooks/context_inconsistency.py -- --run runs/first any run or Parquet file of steps
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="Context inconsistency")


@app.cell
def imports():
    from pathlib import Path

    import altair as alt
    import marimo as mo
    import numpy as np
    import polars as pl

    from hgpo_datasets import scan_steps
    from hgpo_envs.errors import InputError
    from hgpo_envs.wording import listed
    from hgpo_train.advantages import compute
    from hgpo_train.analysis.charts import COLOURS, levels_chart
    from hgpo_train.analysis.describe import beginning, percent
    from hgpo_train.analysis.statistics import statistics
    from hgpo_train.resampling import ratio_interval

    return (
        COLOURS,
        InputError,
        Path,
        alt,
        beginning,
        compute,
        levels_chart,
        listed,
        mo,
        np,
        percent,
        pl,
        ratio_interval,
        scan_steps,
        statistics,
    )


@app.cell(hide_code=True)
def title(mo):
    mo.md("""
    # Which steps are in the same situation?

    Group advantages compare steps of different rollouts of one task. **GiGPO** compares steps at the same *state*.
    Two rollouts can show the same text after different histories: their *contexts* are inconsistent. **HGPO**
    (arXiv 2602.22817) therefore also compares steps with the same last *k* states, for k = 0 … K, and gives deeper
    levels larger weights. It reports success rates on ALFWorld (1.5B) of 93.29% for GiGPO, 92.77% for HGPO with K = 2
    and 94.85% with K = 4.

    The two runs here are small: scripted players that win half of 144 ALFWorld games, and the training of a small model
    on WebShop. Lines are 95% intervals over tasks.
    """)
    return


@app.cell
def choose(mo):
    depth = mo.ui.slider(1, 8, value=4, label="K, the deepest level", show_value=True)
    context = mo.ui.dropdown(
        {
            "states": "states",
            "states and actions (what the prompt shows)": "states_actions",
        },
        value="states",
        label="Contexts are",
    )
    reward = mo.ui.dropdown(["success", "reward"], value="success", label="Rewards are")
    unchanged = mo.ui.switch(
        value=True, label="with replies to actions that changed nothing"
    )
    mo.hstack([depth, context, reward, unchanged], justify="start", gap=2)
    return context, depth, reward, unchanged


@app.cell
def read(Path, mo, pl, scan_steps):
    """Read the runs; `data` names them, and `part` divides training into thirds, in the order of time."""
    given = mo.cli_args().get("run")
    folder = Path(__file__).parent / "data"
    files = {
        name: folder / f"{name.lower()}.parquet" for name in ("ALFWorld", "WebShop")
    }
    if given:
        files = {Path(str(given)).stem: given}
    names = list(files)
    tables = [
        scan_steps(str(file), plain=True)
        .collect()
        .with_columns(data=pl.lit(name, pl.Enum(names)))
        for name, file in files.items()
    ]
    steps = pl.concat(tables, how="diagonal")
    return names, steps


@app.cell
def count(
    InputError, context, depth, mo, names, pl, reward, statistics, steps, unchanged
):
    options = {
        "history_length": depth.value,
        "context": context.value,
        "reward": reward.value,
        "without_unchanged": not unchanged.value,
    }
    try:
        found = statistics(steps, by="data", permutations=20, **options)
    except InputError as error:  # a table without a column that the statistics read
        mo.stop(True, mo.md(str(error)))

    def at(statistic, level, column="value"):
        """The values of a statistic at a level, by run."""
        rows = found.intervals.filter(
            pl.col("statistic") == statistic, pl.col("level") == str(level)
        )
        return dict(zip(names, rows[column], strict=True))

    return at, found, options


@app.cell
def shared_claim(at, claim, depth, mo):
    shared_contexts = f"With {depth.value} past states, {claim(at('shared', depth.value))} steps keep a group."
    mo.md(f"## {shared_contexts}")
    return (shared_contexts,)


@app.cell
def wording(listed, names, percent):
    def claim(values):
        """Shares of the runs, as in ``23% of ALFWorld's and 7% of WebShop's``."""
        return listed(
            [
                f"{percent(values[name])} of {name}'s"
                for name in names
                if values[name] is not None
            ]
        )

    return (claim,)


@app.cell
def sizes_chart(alt, found, pl):
    _labels = ["1 (singleton)", "2", "3–4", "5–8", "9–16", "more"]
    _number = pl.sum_horizontal(pl.col("size") > edge for edge in (1, 2, 4, 8, 16))
    _binned = (
        found.sizes.group_by(
            "data", "level", _number.alias("number"), maintain_order=True
        )
        .agg(pl.col("steps").sum())
        .with_columns(
            (pl.col("steps") / pl.col("steps").sum().over("data", "level")).alias(
                "share"
            ),
            pl.col("number")
            .replace_strict(dict(enumerate(_labels)))
            .alias("group size"),
        )
    )
    _bars = (
        alt.Chart(alt.InlineData(values=_binned.to_dicts()))
        .mark_bar()
        .encode(
            alt.X(
                "share:Q",
                axis=alt.Axis(format="%"),
                scale=alt.Scale(domain=[0, 1]),
                title="steps that have the level",
            ),
            alt.Y(
                "level:N",
                sort=found.sizes["level"].unique(maintain_order=True).to_list(),
                title="k",
            ),
            alt.Color("group size:O", sort=_labels, scale=alt.Scale(scheme="blues")),
            alt.Order("number:Q"),
            tooltip=[
                "level:N",
                "group size:N",
                "steps:Q",
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
        .properties(width=315, height=160)
    )
    _values = found.sizes["data"].unique(maintain_order=True).to_list()
    sizes = _bars.facet(column=alt.Column("data:N", sort=_values, title=None))
    sizes = sizes.properties(title="Steps by the size of their group")
    return (sizes,)


@app.cell
def shared(found, levels_chart, mo, sizes):
    mo.vstack(
        [
            mo.md(
                "Steps that share their context with another step of their group; a step without such a group has no "
                "advantage at that level. A step before step k has too few past states, and counts as having no "
                "group. The oracle compares whole histories. Below: how large the groups are."
            ),
            levels_chart(found.intervals, "shared", by="data"),
            sizes,
        ]
    )
    return


@app.cell
def inconsistency_claim(at, claim, depth, mo):
    inconsistent = (
        f"At one state, {claim(at('differing', depth.value))} pairs differ in history."
    )
    mo.md(f"## {inconsistent}")
    return (inconsistent,)


@app.cell
def inconsistency(found, levels_chart, mo):
    mo.vstack(
        [
            mo.md(
                "Context inconsistency: of the pairs of steps at the same state, those whose last k states differ. It "
                "never decreases with k."
            ),
            levels_chart(found.intervals, "differing", by="data"),
        ]
    )
    return


@app.cell
def states_claim(found, mo, names, percent, pl):
    largest = {
        name: found.states.filter(pl.col("data") == name)["pairs"][0] for name in names
    }
    most = max(names, key=lambda name: largest[name] or 0)
    carried = f"One state carries {percent(largest[most] or 0)} of {most}'s pairs."
    mo.md(f"## {carried}")
    return (carried,)


@app.cell
def states(beginning, found, mo, pl):
    carriers = found.states.group_by("data", maintain_order=True).head(3)
    mo.vstack(
        [
            mo.md(
                "The states with most pairs, and their shares of all pairs and of all steps. The switch above leaves "
                "out replies to actions that changed nothing, which are "
                + ", ".join(
                    f"{row['unchanged']:.0%} of {row['data']}'s"
                    for row in found.summary.to_dicts()
                )
                + " steps."
            ),
            mo.ui.table(
                carriers.with_columns(
                    state=pl.col("state").map_elements(beginning, pl.String)
                ),
                format_mapping=dict.fromkeys(("pairs", "steps"), "{:.1%}"),
                selection=None,
            ),
        ]
    )
    return


@app.cell
def weights_claim(claim, found, mo, names, pl):
    of_states = dict(
        zip(names, found.levels.filter(pl.col("level") == "0")["weight"], strict=True)
    )
    weighted = f"States alone carry {claim(of_states)} weight in HGPO."
    mo.md(f"## {weighted}")
    return (weighted,)


@app.cell
def weights(COLOURS, alt, depth, found, mo, names, pl):
    def nominal(first):
        """The weights of levels (k + first) that all have an advantage."""
        total = sum(k + first for k in range(depth.value + 1))
        return [(k + first) / total for k in range(depth.value + 1)]

    series = {"paper, (k + 1)": nominal(1), "official code, (k + 2)": nominal(2)}
    for name in names:
        series[name] = found.levels.filter(
            pl.col("data") == name, pl.col("weight").is_not_null()
        )["weight"].to_list()
    bars = [
        {"level": str(k), "weights": name, "weight": value}
        for name, values in series.items()
        for k, value in enumerate(values)
    ]
    scale = alt.Scale(domain=list(series), range=["#bbbbbb", "#777777", *COLOURS])
    weights_chart = (
        alt.Chart(alt.Data(values=bars))
        .mark_bar()
        .encode(
            alt.X("level:N", title="k", axis=alt.Axis(labelAngle=0)),
            alt.Y("weight:Q", title="weight"),
            alt.XOffset("weights:N", sort=list(series)),
            alt.Color(
                "weights:N",
                scale=scale,
                sort=list(series),
                legend=alt.Legend(orient="top", title=None),
            ),
        )
        .properties(width=420, height=220, title="Weights of the levels in HGPO's sum")
    )
    _about = mo.md(
        "Grey: the weights where all levels have an advantage, in the paper and in the official code. Colours: "
        "averages over the steps. Deep levels rarely have a group; a step without any has weight 0."
    )
    mo.vstack([_about, weights_chart])
    return (weights_chart,)


@app.cell
def influence_claim(at, depth, listed, mo, names):
    low = at("explained", depth.value, "low")
    chance = at("explained", depth.value, "chance")
    beyond = [
        name
        for name in names
        if low[name] is not None and low[name] > max(chance[name] or 0, 0)
    ]
    where = listed([f"in {name}" for name in beyond]) if beyond else "in no run"
    explaining = f"Histories explain returns beyond chance {where}."
    mo.md(f"## {explaining}")
    return (explaining,)


@app.cell
def influence(found, levels_chart, mo):
    mo.vstack(
        [
            mo.md(
                "How much of the variance of returns at the same state the k states before it explain. Grey ticks are "
                "what permuted returns give: only what lies above them, and above 0, is an influence of histories."
            ),
            levels_chart(found.intervals, "explained", by="data"),
        ]
    )
    return


@app.cell
def signs_claim(at, claim, mo):
    changing = (
        f"Among equal states alone, {claim(at('sign_disagreement', 0))} signs differ."
    )
    mo.md(f"## {changing}")
    return (changing,)


@app.cell
def signs(found, levels_chart, mo):
    mo.vstack(
        [
            mo.md(
                "Steps whose advantage at level k and among equal histories (k = K) have different signs, of "
                "those that have both. Many differ **by chance** (grey): smaller groups have noisier means, and in a "
                "group of two z-scores are 1 and -1 whatever the returns are."
            ),
            levels_chart(found.intervals, "sign_disagreement", by="data"),
        ]
    )
    return


@app.cell
def thirds(mo, np, options, pl, statistics, steps):
    """Divide the longest training run into thirds of its iterations."""
    trained = (
        steps.filter((pl.col("iteration").n_unique() > 2).over("data"))
        if "iteration" in steps.columns
        else None
    )
    by_part = None
    if trained is not None and trained.height:
        edges = np.quantile(trained["iteration"].unique(), [1 / 3, 2 / 3])
        parts = pl.Enum(["first third", "second third", "last third"])
        part = pl.sum_horizontal(pl.col("iteration") > edge for edge in edges)
        by_part = statistics(
            trained.with_columns(
                training=part.replace_strict(dict(enumerate(parts.categories))).cast(
                    parts
                )
            ),
            by="training",
            permutations=5,
            **options,
        )
    mo.md("" if by_part else "No run here has several iterations.")
    return (by_part,)


@app.cell
def thirds_claim(by_part, mo, percent, pl):
    trend = ""
    if by_part:
        early, *_, late = by_part.levels.filter(pl.col("level") == "1")["shared"]
        _verb = "raises" if late > early else "lowers"
        trend = f"Training {_verb} shared contexts (k = 1) from {percent(early)} to {percent(late)}."
    mo.md(f"## {trend}" if trend else "")
    return (trend,)


@app.cell
def thirds_charts(by_part, levels_chart, mo):
    mo.vstack(
        [
            levels_chart(by_part.intervals, name, by="training")
            for name in ("shared", "differing")
        ]
        if by_part
        else []
    )
    return


@app.cell
def positions(compute, depth, np, options, pl, ratio_interval, steps):
    def by_position(rows):
        """The share of steps with a group at each position, with intervals; level k begins at step k."""
        own = {name: options[name] for name in ("history_length", "context", "reward")}
        sized = compute(rows, "hgpo", details=True, column="a", **own).collect()
        numbers = (
            sized["task_id" if "task_id" in sized.columns else "task"]
            .rank("dense")
            .cast(pl.Int64)
            .to_numpy()
            - 1
        )
        tasks = int(numbers.max()) + 1
        shares = []
        for position in range(int(sized["step"].quantile(0.95)) + 1):
            here = (sized["step"] == position).to_numpy()
            total = np.bincount(numbers[here], minlength=tasks)
            for k in sorted({0, 1, depth.value}):
                if k <= position:
                    hits = np.bincount(
                        numbers[
                            here
                            & (sized[f"a_size_k{k}"] > 1).fill_null(False).to_numpy()
                        ],
                        minlength=tasks,
                    )
                    shares.append((position, f"k = {k}", *ratio_interval(hits, total)))
        return pl.DataFrame(
            shares,
            ["step", "level", "value", "low", "high"],
            orient="row",
            infer_schema_length=None,
        )

    first_run = steps["data"][0]
    by_step = by_position(steps.filter(pl.col("data") == first_run))
    return by_step, first_run


@app.cell
def positions_claim(by_step, depth, first_run, mo, percent, pl):
    deep = by_step.filter(pl.col("level") == f"k = {depth.value}")["value"]
    falling = "No step is that deep."
    if len(deep):
        _verb = "falls" if deep[-1] < deep[0] else "rises"
        falling = f"In {first_run}, k = {depth.value} {_verb} from {percent(deep[0])} to {percent(deep[-1])} of steps."
    mo.md(f"## {falling}")
    return (falling,)


@app.cell
def positions_chart(alt, by_step, mo):
    base = alt.Chart(alt.Data(values=by_step.to_dicts())).encode(
        alt.X("step:Q"),
        alt.Color("level:N", title=None, legend=alt.Legend(orient="top")),
    )
    share = alt.Axis(format="%")
    position_chart = (
        base.mark_area(opacity=0.2).encode(
            alt.Y("low:Q", axis=share, title="steps with a group"), y2="high:Q"
        )
        + base.mark_line(point=True).encode(
            y="value:Q",
            tooltip=["step:Q", "level:N", alt.Tooltip("value:Q", format=".1%")],
        )
    ).properties(
        width=560, height=240, title="Shared contexts by position in the episode"
    )
    _about = mo.md(
        "Steps with a group, by their position in the episode. Level k begins at step k."
    )
    mo.vstack([_about, position_chart])
    return (position_chart,)


@app.cell(hide_code=True)
def about_example(mo):
    mo.md("""
    ## Two steps at one state came from different places

    A pair, drawn at random and not chosen: one that was chosen for its difference of returns would show chance at its
    most extreme.
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
        groups = [
            name
            for name in ("data", "run", "iteration", "task_id", "group", "task")
            if name in steps.columns
        ]
        history = steps.with_columns(
            pl.col("state")
            .shift(1)
            .over("data", "trajectory", order_by="step")
            .alias("(before)")
        )
        visits = history.filter(pl.col("step") > 0).group_by(
            *groups, "state", maintain_order=True
        )
        several = visits.agg("trajectory", "step", "(before)").filter(
            pl.col("trajectory").list.n_unique() > 1,
            pl.col("(before)").list.n_unique() > 1,
        )
        rng = np.random.default_rng(draw.value)
        for number in rng.permutation(several.height):
            state = several.row(int(number), named=True)
            visited = list(zip(state["trajectory"], state["(before)"], strict=True))
            order = rng.permutation(len(visited)).tolist()
            apart = (
                (one, other)
                for place, one in enumerate(order)
                for other in order[place + 1 :]
                if visited[one][0] != visited[other][0]
                and visited[one][1] != visited[other][1]
            )
            if chosen := next(apart, None):
                break
        else:
            return mo.md("No such pair.")
        shown = [
            story(state["data"], state["trajectory"][n], state["step"][n])
            for n in chosen
        ]
        return mo.hstack(shown, widths="equal", gap=2)

    def story(data, trajectory, step):
        own = steps.filter(
            pl.col("data") == data, pl.col("trajectory") == trajectory
        ).sort("step")
        lines = [f"**{trajectory}**: return {own['reward'].sum():g}"]
        for row in own.filter(pl.col("step").is_between(step - 3, step)).iter_rows(
            named=True
        ):
            text, action = (
                " ".join((row.get(name) or "").split()).replace("`", "'")
                for name in ("state", "action")
            )
            text = text if len(text) <= 240 else f"…{text[-240:]}"
            lines.append(f"{row['step']}: `{text}`\n\n&emsp;**>** `{action}`")
        return mo.md("\n\n".join(lines))

    pair()
    return


if __name__ == "__main__":
    app.run()
