# /// script
# requires-python = ">=3.11"
# dependencies = ["hgpo[notebooks]"]
# ///
"""Bring your own rollouts: JSON lines, verl-agent's dumps, a policy and an estimator of one's own, to a picture each.

marimo edit notebooks/own_rollouts.py
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="Bring your own rollouts")


@app.cell
def imports():
    import json
    import random
    import tempfile
    from pathlib import Path

    import marimo as mo
    import polars as pl

    from hgpo_datasets.interchange.rollouts import import_rollouts
    from hgpo_train import collect, compute, scan_steps
    from hgpo_train.advantages.windows import within
    from hgpo_train.analysis.charts import levels_chart
    from hgpo_train.analysis.statistics import statistics

    folder = Path(tempfile.mkdtemp(prefix="hgpo-notebook-"))
    return (
        Path,
        collect,
        compute,
        folder,
        json,
        levels_chart,
        mo,
        pl,
        random,
        scan_steps,
        tempfile,
        statistics,
        import_rollouts,
        within,
    )


@app.cell(hide_code=True)
def title(mo):
    mo.md("""
    # Bring your own rollouts

    Estimators and statistics read any table with six columns: `task`, `trajectory`, `step`, `state`, `reward` and
    `action_valid`. This notebook makes small tables in four ways and draws each. Replace a cell's data by yours.

    ## 1. JSON lines, one record a step

    Any names will do; rename them. The example is a corridor: from the middle, an agent walks left or right at random
    until it finds the exit on the right or falls into the pit on the left.
    """)
    return


@app.cell
def corridor(folder, json, random):
    def walk(task, number, rng):
        place = 3
        records = []
        while 0 < place < 6:
            move = rng.choice(["left", "right"])
            record = {
                "episode": f"{task}-{number}",
                "level": task,
                "t": len(records),
                "seen": f"place {place}",
            }
            place += 1 if move == "right" else -1
            records.append(record | {"did": move, "won": float(place == 6)})
        return records

    _rng = random.Random(0)
    records = [
        record
        for task in range(40)
        for number in range(8)
        for record in walk(f"level {task}", number, _rng)
    ]
    _ = (folder / "mine.jsonl").write_text("\n".join(map(json.dumps, records)))
    return


@app.cell
def from_json_lines(folder, levels_chart, pl, statistics):
    names = {
        "episode": "trajectory",
        "level": "task",
        "t": "step",
        "seen": "state",
        "did": "action",
        "won": "reward",
    }
    mine = (
        pl.read_ndjson(folder / "mine.jsonl")
        .rename(names)
        .with_columns(action_valid=pl.lit(value=True))
    )
    levels_chart(
        statistics(mine, history_length=3, permutations=20).intervals, "shared"
    )
    return (mine,)


@app.cell
def explained(levels_chart, mine, mo, statistics):
    mo.vstack(
        [
            mo.md(
                "Returns do not depend on the history here, so the intervals should contain chance, the grey ticks."
            ),
            levels_chart(
                statistics(mine, history_length=3, permutations=20).intervals,
                "explained",
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def about_verl(mo):
    mo.md("""
    ## 2. verl-agent's dumps

    The same as `hgpo data import dumps/ --out runs/theirs`. `docs/bring_your_own_rollouts.md` says which two lines make
    verl-agent write the ids.
    """)
    return


@app.cell
def from_verl_agent(
    folder, json, levels_chart, mine, scan_steps, statistics, import_rollouts
):
    def dump():
        (folder / "dumps").mkdir(exist_ok=True)
        lines = [
            {
                "traj_uid": row["trajectory"],
                "uid": row["task"],
                "anchor_obs": row["state"],
                "rewards": 10 * row["reward"],
            }
            | {
                "input": f"Step {row['step'] + 1}: {row['state']}",
                "output": row["action"],
                "is_action_valid": True,
            }
            for row in mine.iter_rows(named=True)
        ]
        (folder / "dumps" / "1.jsonl").write_text("\n".join(map(json.dumps, lines)))

    dump()
    import_rollouts(folder / "dumps", folder / "theirs")
    theirs = scan_steps(folder / "theirs")
    levels_chart(
        statistics(theirs, history_length=3, permutations=20).intervals, "shared"
    )
    return


@app.cell(hide_code=True)
def about_policy(mo):
    mo.md("""
    ## 3. A policy of one's own

    A function of a request: the text that the model would see, the admissible actions, the instruction. Here: any
    action that was not taken before, on eight bundled ALFWorld games.
    """)
    return


@app.cell
def own_policy(collect, folder, levels_chart, scan_steps, statistics):
    def curious(request):
        taken = {action for _, _, action in request.history}
        return request.rng.choice(
            [each for each in request.admissible_actions if each not in taken]
            or ["look"]
        )

    collect(
        "HGPO/ALFWorld-v0",
        curious,
        folder / "curious",
        tasks=8,
        group_size=8,
        action_format="command",
    )
    played = scan_steps(folder / "curious")
    levels_chart(
        statistics(played, history_length=3, permutations=20).intervals, "shared"
    )
    return


@app.cell(hide_code=True)
def about_estimator(mo):
    mo.md("""
    ## 4. An estimator of one's own

    A function from a step table to a step table with `advantage`. `hgpo advantages RUN -e module:function` and
    `hgpo compare-estimators` take it as well (`examples/own_estimator.py`).
    """)
    return


@app.cell
def own_estimator(compute, mine, mo, pl, within):
    def median_at_state(steps):
        """Return to go minus its median over the steps of the group at the same state."""
        return steps.with_columns(
            advantage=pl.col("return")
            - pl.col("return").median().over(within("history_hash_0"))
        )

    both = compute(
        compute(mine, median_at_state, column="mine"), "hgpo", column="hgpo"
    ).collect()
    shown = both.filter(pl.col("mine") != 0).select(
        "trajectory", "step", "action", pl.col("mine", "hgpo").round(2)
    )
    mo.ui.table(shown.head(20), selection=None)
    return


if __name__ == "__main__":
    app.run()
