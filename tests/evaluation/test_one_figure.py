"""The same figures of a run in the viewer, the commands and Python."""

import json
import math
from dataclasses import asdict
from typing import Any

import polars as pl
import pytest

from hgpo_datasets import StepWriter, scan_steps
from hgpo_train.analysis.run_summary import summarize_run
from hgpo_train.analysis.statistics import statistics
from hgpo_train.evaluation import compare
from hgpo_train.evaluation.report import MEASURES as NAMES
from hgpo_train.evaluation.report import episode_table, evaluation_reports
from hgpo_train.evaluation.reporting_rules import success_by_rule
from hgpo_train.evaluation.summary import write_summary
from hgpo_train.proportions import wilson_interval
from hgpo_train.rollout import collect
from hgpo_train.rollout.collection import CollectedRun
from hgpo_train.rollout.outcomes import rollout_table, success
from hgpo_train.rollout.tally import Tally
from hgpo_train.training.metrics import episode_metrics
from hgpo_train.view.encoding import encode
from hgpo_train.view.overview import (
    comparison_document,
    levels_document,
    overview_document,
)
from hgpo_train.view.sources import open_sources


def write_unequal(run, shift=0, early=False):
    """Write eight tasks with groups of one to four rollouts of other lengths, some aborted or with invalid actions.

    All steps but the last have the result `early`; a recorded run tells of it in the last step alone.
    """
    with StepWriter(run) as writer:
        for task in range(8):
            rows: list[dict[str, Any]] = []
            for number in range(1 + task % 4):
                length = 1 + (5 * task + 3 * number + shift) % 7
                won = (task + number + shift) % 3 == 0
                once = {
                    "task_id": f"t{task}",
                    "env_id": "e",
                    "task": "win",
                    "trajectory": f"{task}/{number}",
                }
                aborted = (task, number) in {(3, 1), (6, 0)}
                for step in range(length):
                    ended = (
                        {"aborted": True, "error": "-"}
                        if aborted
                        else {"terminated": True, "won": won}
                    )
                    last = (
                        ended | {"score": 0.25 + won / 2} if step + 1 == length else {}
                    )
                    flags = {"action_valid": (step + number) % 3 != 0, "won": early}
                    reward = float(won and bool(last))
                    shown = {
                        "step": step,
                        "state": f"room {step % 3}",
                        "action": "go",
                        "reward": reward,
                    }
                    rows.append({**once, **shown, **flags, **last})
            writer.add_group(rows)
    return run


@pytest.fixture(
    params=[
        "unequal",
        "told at the end",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("alfworld", "webshop")
        ),
    ]
)
def pair(request, tmp_path):
    """Return two runs of the same tasks."""
    early = {"unequal": False, "told at the end": None}
    if request.param in early:
        told = early[request.param]
        first = write_unequal(tmp_path / "first", early=told)
        return first, write_unequal(tmp_path / "second", 1, early=told)
    env = {"alfworld": "HGPO/ALFWorld-v0", "webshop": "HGPO/WebShop-v0"}[request.param]
    options = {"tasks": 8, "group_size": 2, "max_steps": 6, "progress": False}
    runs = [
        collect(env, policy, tmp_path / policy, seed=5, **options)
        for policy in ("random", "expert")
    ]
    return runs[0].path, runs[1].path


def test_every_figure_is_the_same_wherever_it_is_shown(pair):
    first, second = open_sources(map(str, pair))
    run = pair[0]
    viewed = json.loads(encode(overview_document(first, first.index())))["total"]
    low, high = viewed["intervals"]["success"]
    lost, won = viewed["bounds"] or (viewed["success"], viewed["success"])
    bounds = {"success_95_low": low, "success_95_high": high}
    bounds |= {"success_if_aborted_lost": lost, "success_if_aborted_won": won}
    summary = statistics(run).summary.row(0, named=True)
    for shown in (
        summarize_run(run)["total"],
        CollectedRun(
            run, Tally(), rollout_table(scan_steps(run), branches=True).collect()
        ).summary,
        summary,
    ):
        asked = {
            name: value
            for name, value in (viewed | bounds).items()
            if name in shown and name in NAMES.values()
        }
        asked |= {name: bounds[name] for name in bounds if name in shown}
        assert {
            "success",
            "mean_length",
            "valid",
            "success_if_aborted_lost",
        } <= asked.keys()
        for name, value in asked.items():
            assert shown[name] == (
                None if value is None else pytest.approx(value, rel=1e-12)
            ), name
        assert shown["mean_return"] == pytest.approx(viewed["mean_return"], rel=1e-12)

    episodes = episode_table(scan_steps(run))
    measures = evaluation_reports(episodes)[0].measures
    longest = episodes.filter(~pl.col("aborted"))["length"].max()
    for name, measure in measures.items():
        interval = viewed["intervals"][NAMES[name]]
        if measure is None:
            assert viewed[NAMES[name]] is interval is None
            continue
        assert viewed[NAMES[name]] == measure.mean
        assert interval == (
            None if measure.low is None else [measure.low, measure.high]
        )
        if interval is not None:
            assert (
                interval[0]
                <= measure.mean
                <= interval[1]
                <= (longest if name == "length" else 1)
            )
    assert viewed["intervals"]["success"] is not None

    differences = json.loads(
        encode(comparison_document(first.index(), second.index()))
    )["differences"]
    for name in (name for name, measure in measures.items() if measure):
        found = compare(episode_table(scan_steps(pair[1])), episodes, name)
        assert differences[NAMES[name]] == asdict(found) | {"measure": NAMES[name]}

    levels = statistics(run)
    shared = levels_document(first.index())
    assert [row["shared"] for row in shared["levels"]] == levels.levels[
        "shared"
    ].to_list()
    for row in levels.intervals.iter_rows(named=True):
        assert (
            shared["intervals"][row["statistic"]][row["level"]].items() <= row.items()
        )


def ended(task_id, number, won, *, aborted=False, env_id="e"):
    """Return the row of a rollout of one step."""
    end = {"aborted": True, "error": "-"} if aborted else {"terminated": True}
    return {
        "env_id": env_id,
        "task_id": task_id,
        "task": "win",
        "trajectory": f"{env_id}/{task_id}/{number}",
        "step": 0,
        "state": "room",
        "action": "go",
        "reward": 0.0,
        "won": won,
    } | end


# rollouts; success, its number of tasks, and the bounds, by hand
CASES = {
    "every rollout aborted": (
        [ended("a", number, won=False, aborted=True) for number in range(2)],
        (None, 0, 0.0, 1.0),
    ),
    "the environment tells no outcome": (
        [ended("a", number, won=None) for number in range(2)],
        (None, 0, None, None),
    ),
    "an aborted rollout was won before": (
        [
            ended("a", 0, won=True),
            ended("a", 1, won=False),
            ended("b", 0, won=True, aborted=True),
            ended("b", 1, won=None),
        ],
        (1 / 2, 1, 1 / 4, 3 / 4),
    ),
    "two environments have a task of one name": (
        [ended("a", 0, won=True, env_id=env_id) for env_id in "ef"],
        (1.0, 2, 1.0, 1.0),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_success_is_the_same_where_results_are_missing(case, tmp_path):
    rows, (share, tasks, lost, won) = CASES[case]
    run = tmp_path / "run"
    with StepWriter(run) as writer:
        for row in rows:
            group = int(row["trajectory"][-1]) + 2 * (row["env_id"] == "f")
            writer.add_group([row | {"group": group}])
    interval = wilson_interval(share, tasks) if tasks else (None, None)
    expected = (share, *interval, lost, won)

    names = ("success", "success_95_low", "success_95_high")
    names += ("success_if_aborted_lost", "success_if_aborted_won")
    rollouts = rollout_table(scan_steps(run), branches=True).collect()
    shown = {
        "hgpo data show": summarize_run(run)["total"],
        "hgpo stats": statistics(run).summary.row(0, named=True),
        "collect": CollectedRun(run, Tally(), rollouts).summary,
        "viewer": overview_document(*sourced(run))["total"],
    }
    found = {
        place: tuple(values[name] for name in names) for place, values in shown.items()
    }
    episodes = episode_table(scan_steps(run))
    told = success(episodes)
    found["hgpo eval"] = (told.share, *(told.interval or (None, None)))
    found["hgpo eval"] += (told.if_aborted_lost, told.if_aborted_won)
    rules = success_by_rule(episodes)
    found["hgpo card"] = rules["aborted dropped"][:3]
    found["hgpo card"] += (rules["aborted lost"][0], rules["aborted won"][0])
    metrics = episode_metrics(scan_steps(run).collect())
    found["hgpo train"] = tuple(
        metrics.get(f"episode/{name}")
        for name in ("success_rate", "success_95_low", "success_95_high")
    )
    for place, values in found.items():
        numbers = [
            None if value is None or math.isnan(value) else value for value in values
        ]
        assert numbers == pytest.approx([*expected[: len(values)]]), place

    write_summary(run)
    solved = json.loads((run / "summary.json").read_bytes())["episodes"]["solved"]
    assert solved == sum(row["won"] is True and not row.get("aborted") for row in rows)


def sourced(run):
    """Return the viewer's source and index of a run."""
    (source,) = open_sources([str(run)])
    return source, source.index()
