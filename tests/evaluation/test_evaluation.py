"""Evaluation: every task once per seed, statistics against plain arithmetic, Wilson's interval, and the command."""

import itertools
import json
import math
import statistics
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from groups import step, write_run
from hypothesis import example, given
from hypothesis import strategies as st
from refusals import refused

from hgpo_datasets import scan_steps
from hgpo_train.analysis.run_summary import summarize_run
from hgpo_train.analysis.statistics import statistics as run_statistics
from hgpo_train.evaluation import compare, evaluate
from hgpo_train.evaluation.report import episode_table, evaluation_reports
from hgpo_train.measures import measure
from hgpo_train.proportions import Z, by_length, paired_interval, wilson_interval
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.training.metrics import episode_metrics


def table(rows, aborted=False):
    same = {"task_type": "kind", "env_id": "e", "task": "win", "aborted": aborted}
    same |= {"length": 5.0, "invalid": 0, "judged": 5, "admissible": 5}
    played = pl.DataFrame(rows, ["seed", "task_id", "success"], orient="row")
    return played.with_columns(
        score="success",
        won=pl.col("success") > 0.5,
        **{n: pl.lit(v) for n, v in same.items()},
    )


@pytest.mark.slow
def test_every_task_is_played_once_per_seed(tmp_path):
    options = {
        "split": "valid_seen",
        "seeds": (5, 6),
        "slots": 7,
        "progress": False,
        "max_steps": 30,
    }
    run = evaluate(
        "HGPO/ALFWorld-v0",
        "expert",
        tmp_path / "run",
        action_format="command",
        **options,
    )
    tasks = sorted(open_env("HGPO/ALFWorld-v0", split="valid_seen").tasks)
    played = episode_table(scan_steps(run))
    assert played.select("seed", "task_id").rows() == [
        (seed, task) for seed in (5, 6) for task in tasks
    ]
    assert played["success"].to_list() == [1.0] * len(played)
    report = evaluation_reports(played)[0]
    assert (report.tasks, report.episodes, report.seeds) == (
        len(tasks),
        2 * len(tasks),
        (5, 6),
    )
    assert report.measures["admissibility"].mean == 1.0
    assert run.tally.trajectories == 2 * len(tasks)
    assert (
        evaluate(
            "HGPO/ALFWorld-v0", "expert", run, action_format="command", **options
        ).tally.trajectories
        == 0
    )


@pytest.mark.slow
def test_random_is_reproducible_and_seeds_differ(tmp_path):
    options = {"seeds": (1, 2), "progress": False, "max_steps": 9}
    tables = []
    for slots in (3, 50):
        run = evaluate(
            "HGPO/ALFWorld-v0", "random", tmp_path / f"{slots}", slots=slots, **options
        )
        tables.append(
            scan_steps(run)
            .drop("run")
            .sort("iteration", "trajectory", "step")
            .collect()
        )
    assert tables[0].equals(tables[1])
    assert (
        tables[0].filter(iteration=1)["action"].to_list()
        != tables[0].filter(iteration=2)["action"].to_list()
    )


def test_mean_and_std_equal_those_of_the_statistics_module():
    rows = [
        (1, "a", 1.0),
        (1, "b", 0.0),
        (1, "c", 1.0),
        (2, "a", 1.0),
        (2, "b", 0.0),
        (2, "c", 0.0),
    ]
    (everything, _) = evaluation_reports(table(rows))
    success = everything.measures["success"]
    assert success.mean == pytest.approx(statistics.fmean(value for *_, value in rows))
    assert success.std == pytest.approx(statistics.stdev([2 / 3, 1 / 3]))
    # more seeds of a task are not more trials
    assert (success.low, success.high) == wilson_interval(success.mean, 3)
    length = everything.measures["length"]
    assert (length.low, length.high) == (None, None)  # of three tasks
    assert evaluation_reports(table([(1, "a", 1.0)]))[0].measures["success"].std is None


def test_a_score_that_is_success_has_its_intervals():
    """Two of 36 tasks are lost: by the jackknife two decide, and the interval would be .20 to .999."""
    lost = table([(1, f"t{task}", float(task > 1)) for task in range(36)])
    (all_tasks, _) = evaluation_reports(lost)
    assert all_tasks.measures["score"] == all_tasks.measures["success"]
    returns = measure(lost.with_columns(episode_return="success"), ["mean_return"])
    low, high = wilson_interval(34 / 36, 36)
    assert returns[None]["mean_return"] == (34 / 36, low, high)
    won = lost.with_columns(success=1.0, score=1.0)
    by_success, by_score = (compare(lost, won, name) for name in ("success", "score"))
    assert by_score == replace(by_success, measure="score")
    # a score between 0 and 1 has the jackknife's
    partly = lost.with_columns(score=pl.col("score") / 2)
    score = evaluation_reports(partly)[0].measures["score"]
    assert (score.low, score.high) != wilson_interval(score.mean, 36)


def test_a_task_with_most_of_the_rollouts_is_not_one_of_many_trials(tmp_path):
    """With 36 trials, the interval of 200 rollouts of one task and 35 others is .70 to .93, and never covers .5."""
    rows = [
        step(f"t{task}", f"t{task}/{number}", 0, won=task < 18, terminated=True)
        for task in range(36)
        for number in range(200 if task == 0 else 1)
    ]
    run = write_run(tmp_path / "run", rows)
    steps = scan_steps(run)
    share = (200 + 17) / 235
    # (200 + 35)² / (200² + 35) = 1.4 trials
    low, high = wilson_interval(share, 1)
    success = evaluation_reports(episode_table(steps))[0].measures["success"]
    metrics = episode_metrics(steps.collect())
    summary = run_statistics(steps).summary.row(0, named=True)
    total = summarize_run(run)["total"]
    found = [
        (success.low, success.high),
        (metrics["episode/success_95_low"], metrics["episode/success_95_high"]),
        (summary["success_95_low"], summary["success_95_high"]),
        wilson_interval(total["success"], total["success_trials"]),
    ]
    assert found == [(low, high)] * 4
    assert low < 0.5 < high


def test_the_interval_holds_where_no_task_was_solved():
    """A bootstrap of 36 lost episodes would have the interval 0 to 0."""
    success = evaluation_reports(table([(1, f"t{task}", 0.0) for task in range(36)]))[
        0
    ].measures["success"]
    assert (success.low, round(success.high, 3)) == (0.0, 0.096)


def test_aborted_episodes_are_excluded_counted_and_bound_the_success():
    ended = table([(1, "a", 1.0), (1, "c", 0.0)])
    aborted = table([(1, "b", 0.0)], aborted=True)
    both = pl.concat([ended, aborted])
    everything = evaluation_reports(both)[0]
    assert (everything.tasks, everything.episodes, everything.aborted) == (3, 2, 1)
    assert everything.measures["success"].mean == 0.5
    assert (everything.success.if_aborted_lost, everything.success.if_aborted_won) == (
        1 / 3,
        2 / 3,
    )
    assert evaluation_reports(aborted) == []


def test_unknown_success_is_none():
    unknown = table([(1, "a", 1.0)]).with_columns(
        success=pl.lit(None, pl.Float64), won=pl.lit(None, pl.Boolean)
    )
    (everything, _) = evaluation_reports(unknown)
    assert everything.measures["success"] is None
    assert everything.success.share is None
    with refused("no task in common"):
        compare(unknown, unknown)
    played = table([(1, "a", 1.0), (1, "b", 0.0)])
    # as pandas writes what is not known
    nan = table([(1, "a", float("nan")), (1, "b", 1.0)])
    assert (compare(nan, played).tasks, compare(played, nan).difference) == (1, -1.0)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])),
        min_size=1,
        max_size=8,
    )
)
def test_the_permutation_test_counts_all_sign_flips(pairs):
    first = table([(1, f"t{i}", a) for i, (a, _) in enumerate(pairs)])
    second = table([(1, f"t{i}", b) for i, (_, b) in enumerate(pairs)])
    compared = compare(first, second)
    differences = [a - b for a, b in pairs]
    signs = itertools.product((1, -1), repeat=len(pairs))
    flips = [sum(s * d for s, d in zip(one, differences, strict=True)) for one in signs]
    assert compared.p == pytest.approx(
        statistics.fmean(abs(f) >= abs(sum(differences)) - 1e-9 for f in flips)
    )
    assert compared.difference == pytest.approx(statistics.fmean(differences))
    assert compared.better + compared.worse == sum(d != 0 for d in differences)


def test_many_tasks_use_drawn_flips_near_the_exact_p():
    # 20 tasks differ, 15 one way: two-sided sign test, exact by the binomial distribution
    first = table([(1, f"t{i:02d}", float(i < 15)) for i in range(20)])
    second = table([(1, f"t{i:02d}", float(i >= 15)) for i in range(20)])
    exact = 2 * sum(math.comb(20, k) for k in range(15, 21)) / 2**20
    assert compare(first, second).p == pytest.approx(
        exact, abs=4 * (exact / 10_000) ** 0.5
    )


def test_evaluations_without_common_tasks_cannot_be_compared():
    with refused("no task in common"):
        compare(table([(1, "a", 1.0)]), table([(1, "b", 1.0)]))
    for other in ("env_id", "task"):
        with refused("no task in common"):
            compare(
                table([(1, "a", 1.0)]),
                table([(1, "a", 1.0)]).with_columns(pl.lit("another").alias(other)),
            )


@pytest.mark.slow
def test_the_command_resumes_compares_and_prints_json(tmp_path, hgpo):
    common = ["--seeds", "7", "--max-steps", "5"]
    out = hgpo.output("eval", "--policy", "expert", "--out", tmp_path / "a", *common)
    assert "admis." in out
    assert "61.0–100.0" in out  # Wilson's interval of 6 of 6
    assert "wording: move … to … (alfworld 0.4 and later)" in out
    assert json.loads((tmp_path / "a/summary.json").read_text())["wordings"] == [
        "move … to … (alfworld 0.4 and later)"
    ]
    files = sorted((tmp_path / "a").glob("steps/*"))
    stamps = [file.stat().st_mtime_ns for file in files]
    hgpo("eval", "--policy", "expert", "--out", tmp_path / "a", *common)
    assert [
        file.stat().st_mtime_ns for file in sorted((tmp_path / "a").glob("steps/*"))
    ] == stamps
    arguments = [
        "eval",
        "--policy",
        "random",
        "--out",
        tmp_path / "b",
        *common,
        "--against",
        tmp_path / "a",
        "--json",
    ]
    printed = json.loads(hgpo(*arguments)[1])
    assert [comparison["measure"] for comparison in printed["comparisons"]] == [
        "success"
    ]
    assert printed["reports"][0]["name"] == "all"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--seeds", "1,x"], "--seeds: expected integers"),
        (["--seeds", "1,1"], "seeds: expected distinct integers"),
        (["--split", "valid_sean"], "did you mean 'valid_seen'"),
        (["--temperature", "0.1"], "does not sample"),
        (["--slots", "0"], "slots: expected int >= 1"),
        (
            ["--policy", "openai:tiny", "--policy-option", "base_url=localhost:8000"],
            "an address such as http://local",
        ),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_folder(tmp_path, hgpo, arguments, line):
    if "openai:tiny" in arguments:
        pytest.importorskip("aiohttp")
    code, out, error = hgpo("eval", "--out", tmp_path / "new" / "run", *arguments)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert line in error
    assert not list(tmp_path.iterdir())


def test_a_scenario_is_solved_if_all_its_tasks_are(monkeypatch):
    """AppWorld's scenario goal completion, by seed; a scenario with a failed episode is excluded."""
    spec = SimpleNamespace(scenario=lambda task: task.partition("_")[0])
    monkeypatch.setattr("hgpo_train.evaluation.report.environment_spec", lambda _: spec)
    # two tasks of the scenarios a, b and c, by seed
    outcomes = {
        1: {"a_1": True, "a_2": True, "b_1": True, "b_2": False}
        | {"c_1": True, "c_2": None},
        2: {"a_1": True, "a_2": False, "b_1": False, "b_2": False}
        | {"c_1": True, "c_2": True},
    }
    rows = [
        {
            "run": "run",
            "iteration": seed,
            "task_id": task,
            "task": "",
            "task_type": "difficulty 1",
            "env_id": "e",
        }
        | {
            "trajectory": f"{seed}/{task}",
            "group": 0,
            "step": 0,
            "won": won or False,
            "episode_won": won or False,
        }
        | {
            "score": 0.5,
            "episode_return": 0.0,
            "action_valid": True,
            "action_admissible": True,
        }
        | {"aborted": won is None, "truncated": False, "error": None}
        for seed, of_seed in outcomes.items()
        for task, won in of_seed.items()
    ]
    played = episode_table(pl.DataFrame(rows).lazy())
    assert played["scenario"].unique().sort().to_list() == ["a", "b", "c"]
    everything, kind = evaluation_reports(played)
    assert everything.scenarios == kind.scenarios == 3
    assert everything.scenario_success == (1 / 2 + 1 / 3) / 2


TRIALS = st.integers(1, 2000)


@given(TRIALS, st.floats(0, 1))
@example(404, 1 - 2**-53)
def test_each_bound_is_z_standard_errors_from_the_share(trials, share):
    low, high = wilson_interval(share, trials)
    assert 0 <= low <= share <= high <= 1
    for bound in (low, high):
        if 0 < bound < 1:
            assert (share - bound) ** 2 == pytest.approx(
                Z**2 * bound * (1 - bound) / trials, rel=1e-6, abs=1e-12
            )


def coverage(trials, chance):
    """Return the exact probability that the interval contains the chance of a success."""
    total = 0.0
    for won in range(trials + 1):
        low, high = wilson_interval(won / trials, trials)
        if low <= chance <= high:
            total += (
                math.comb(trials, won) * chance**won * (1 - chance) ** (trials - won)
            )
    return total


@pytest.mark.parametrize("trials", [5, 12, 36, 134])
def test_the_coverage_by_the_exact_binomial_distribution(trials):
    """Published: near 95% on average over the chance, and nowhere below 83% (Agresti and Coull, 1998)."""
    exact = [coverage(trials, (step + 0.5) / 400) for step in range(400)]
    assert sum(exact) / len(exact) == pytest.approx(0.95, abs=0.01)
    assert min(exact) > 0.83


@pytest.mark.parametrize(
    ("share", "trials"), [(0.5, 0), (1.5, 3), (-0.1, 3), (float("nan"), 3)]
)
def test_what_is_no_share_is_refused(share, trials):
    with refused("expected a share in"):
        wilson_interval(share, trials)


def test_lengths_are_classed():
    lengths = [1, 5, 6, 50, 51, 200]
    table = pl.DataFrame(
        {"length": lengths, "won": [True] * 6, "aborted": [False] * 5 + [True]}
    )
    assert by_length(table).rows() == [
        ("1–5", 2, 0, 2),
        ("6–10", 1, 0, 1),
        ("21–50", 1, 0, 1),
        ("51–", 2, 1, 1),
    ]


def test_wins_are_unknown_where_no_outcome_is():
    """Imported rollouts often lack `won`; a success rate of 0 would be wrong."""
    table = pl.DataFrame(
        {
            "length": [3, 3, 8, 8, 30],
            "won": pl.Series([None] * 3 + [True, None], dtype=pl.Boolean),
            "aborted": [False, True, False, False, True],
        }
    )
    assert by_length(table)["won"].to_list() == [None, 1, 0]


@pytest.mark.parametrize(
    ("first", "second", "tasks"),
    [(0.98, 0.95, 16), (0.95, 0.9, 36), (0.6, 0.5, 36), (0.9, 0.5, 8)],
)
def test_the_interval_of_a_paired_difference_covers_it(first, second, tasks):
    """Also where few tasks differ: a bootstrap of 16 tasks contains 0.98 - 0.95 half of the time."""
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(1000):
        differences = (rng.random(tasks) < first).astype(float) - (
            rng.random(tasks) < second
        )
        low, high = paired_interval(differences.tolist())
        covered += low <= first - second <= high
    assert covered > 930
