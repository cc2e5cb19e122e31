"""Evaluation: every task once per seed, statistics compared with plain arithmetic, and the command."""

import itertools
import json
import statistics
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.cli import app
from hgpo_train.evaluation import compare, evaluate
from hgpo_train.evaluation.report import episode_table, evaluation_reports
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout.env_handle import EnvHandle, open_env
from hgpo_train.rollout.run import ExecutionOptions


def table(rows: list[tuple[int, str, float]], aborted: bool = False) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {"seed": seed, "task_id": task, "task_type": "kind", "success": value, "score": value}
            | {"length": 5.0, "validity": 1.0, "aborted": aborted}
            for seed, task, value in rows
        ]
    )


@pytest.fixture(scope="module")
def handle() -> EnvHandle:
    return open_env("HGPO/ALFWorld-v0", split="valid_seen", action_format="command")


def test_every_task_is_played_once_per_seed(handle: EnvHandle, tmp_path: Path) -> None:
    policy = make_policy("expert", PolicyContext("ALFWorld", "command"))
    with StepWriter(tmp_path / "run", config={}) as writer:
        assert evaluate(handle, policy, writer, seeds=(5, 6), execution=ExecutionOptions(slots=7))
    played = episode_table(scan_steps(tmp_path / "run"))
    assert played.select("seed", "task_id").rows() == [(s, t) for s in (5, 6) for t in sorted(handle.tasks)]
    assert played["success"].to_list() == [1.0] * len(played)
    everything = evaluation_reports(played)[0]
    assert (everything.tasks, everything.episodes, everything.seeds) == (
        len(handle.tasks),
        2 * len(handle.tasks),
        (5, 6),
    )


def test_random_is_reproducible_and_seeds_differ(handle: EnvHandle, tmp_path: Path) -> None:
    files = []
    for name in ("a", "b"):
        policy = make_policy("random", PolicyContext("ALFWorld", "command"))
        with StepWriter(tmp_path / name, config={}, run="same") as writer:
            evaluate(handle, policy, writer, seeds=(1, 2), execution=ExecutionOptions(slots=3 if name == "a" else 50))
        files.append([path.read_bytes() for path in sorted((tmp_path / name).glob("steps/*.parquet"))])
    assert files[0] == files[1]
    actions = scan_steps(tmp_path / "a").sort("iteration", "task_id", "step").collect()
    assert actions.filter(iteration=1)["action"].to_list() != actions.filter(iteration=2)["action"].to_list()


def test_mean_and_std_equal_those_of_the_statistics_module() -> None:
    rows = [(1, "a", 1.0), (1, "b", 0.0), (1, "c", 1.0), (2, "a", 1.0), (2, "b", 0.0), (2, "c", 0.0)]
    (everything, _) = evaluation_reports(table(rows))
    success = everything.measures["success"]
    assert success.mean == pytest.approx(statistics.fmean(value for *_, value in rows))
    assert success.std == pytest.approx(statistics.stdev([2 / 3, 1 / 3]))
    assert success.low == 0.0
    assert success.high == 1.0


def test_the_interval_has_its_nominal_coverage() -> None:
    covered, runs, chance = 0, 200, 0.3
    draw = __import__("random").Random(5)
    for _ in range(runs):
        rows = [(1, f"t{task:03d}", float(draw.random() < chance)) for task in range(80)]
        success = evaluation_reports(table(rows))[0].measures["success"]
        covered += success.low <= chance <= success.high
    assert 0.89 <= covered / runs <= 0.99  # 95%, four standard errors either way


def test_one_seed_has_no_std() -> None:
    assert evaluation_reports(table([(1, "a", 1.0)]))[0].measures["success"].std is None


def test_aborted_episodes_are_counted_and_excluded() -> None:
    both = pl.concat([table([(1, "a", 1.0)]), table([(1, "b", 0.0)], aborted=True)])
    everything = evaluation_reports(both)[0]
    assert (everything.tasks, everything.episodes, everything.aborted) == (2, 1, 1)
    assert everything.measures["success"].mean == 1.0
    with pytest.raises(InputError, match="no episode without failure"):
        evaluation_reports(table([(1, "b", 0.0)], aborted=True))


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=8))
def test_the_permutation_test_counts_all_sign_flips(pairs: list[tuple[float, float]]) -> None:
    first = table([(1, f"t{i}", a) for i, (a, _) in enumerate(pairs)])
    second = table([(1, f"t{i}", b) for i, (_, b) in enumerate(pairs)])
    compared = compare(first, second)
    differences = [a - b for a, b in pairs]
    flips = [
        sum(s * d for s, d in zip(signs, differences, strict=True))
        for signs in itertools.product((1, -1), repeat=len(pairs))
    ]
    assert compared.p == pytest.approx(statistics.fmean(abs(f) >= abs(sum(differences)) - 1e-9 for f in flips))
    assert compared.difference == pytest.approx(statistics.fmean(differences))
    assert compared.better + compared.worse == sum(d != 0 for d in differences)


def test_many_tasks_use_drawn_flips_near_the_exact_p() -> None:
    # 20 tasks differ, 15 one way: two-sided sign test, exact by the binomial distribution
    first = table([(1, f"t{i:02d}", float(i < 15)) for i in range(20)])
    second = table([(1, f"t{i:02d}", float(i >= 15)) for i in range(20)])
    exact = 2 * sum(__import__("math").comb(20, k) for k in range(15, 21)) / 2**20
    assert compare(first, second).p == pytest.approx(exact, abs=4 * (exact / 10_000) ** 0.5)


def test_evaluations_without_common_tasks_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="no task in common"):
        compare(table([(1, "a", 1.0)]), table([(1, "b", 1.0)]))


def test_the_command_resumes_compares_and_prints_json(tmp_path: Path) -> None:
    run = CliRunner()
    common = ["--seeds", "7", "--max-steps", "5"]
    first = run.invoke(app, ["eval", "--policy", "expert", "--out", str(tmp_path / "a"), *common])
    assert first.exit_code == 0, first.output
    files = sorted((tmp_path / "a").glob("steps/*"))
    assert files
    stamps = [file.stat().st_mtime_ns for file in files]
    again = run.invoke(app, ["eval", "--policy", "expert", "--out", str(tmp_path / "a"), *common])
    assert [file.stat().st_mtime_ns for file in sorted((tmp_path / "a").glob("steps/*"))] == stamps
    assert "valid_seen" not in again.output.splitlines()[0]
    arguments = ["eval", "--policy", "random", "--out", str(tmp_path / "b"), *common, "--against", str(tmp_path / "a")]
    told = json.loads(run.invoke(app, [*arguments, "--json"]).stdout)
    assert [one["measure"] for one in told["comparisons"]] == ["success"]
    assert told["reports"][0]["name"] == "all"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--seeds", "1,x"], "--seeds: expected integers"),
        (["--seeds", "1,1"], "seeds: expected distinct integers"),
        (["--policy", "exprt"], "did you mean 'expert'"),
        (["--split", "valid_sean"], "did you mean 'valid_seen'"),
        (["--temperature", "0.1"], "does not sample"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], line: str) -> None:
    result = CliRunner().invoke(app, ["eval", "--out", str(tmp_path / "run"), *arguments])
    assert isinstance(result.exception, InputError)
    assert line in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_scenario_is_solved_if_all_its_tasks_are(tmp_path: Path) -> None:
    """AppWorld's scenario goal completion, by seed; a scenario with a failed episode is excluded."""
    outcomes = {
        (1, "a_1"): True, (1, "a_2"): True, (1, "b_1"): True, (1, "b_2"): False, (1, "c_1"): True, (1, "c_2"): None,
        (2, "a_1"): True, (2, "a_2"): False, (2, "b_1"): False, (2, "b_2"): False, (2, "c_1"): True, (2, "c_2"): True,
    }  # fmt: skip
    rows = [
        {"iteration": seed, "task_id": task, "task_type": "difficulty 1", "env_id": "HGPO/AppWorld-v0", "step": 0}
        | {"trajectory": f"{seed}/{task}", "won": won or False, "score": 0.5, "action_valid": True}
        | {"aborted": won is None}
        for (seed, task), won in outcomes.items()
    ]
    played = episode_table(pl.DataFrame(rows).lazy())
    assert played["scenario"].unique().sort().to_list() == ["a", "b", "c"]
    everything, kind = evaluation_reports(played)
    assert everything.scenarios == kind.scenarios == 3
    assert everything.scenario_success == (1 / 2 + 1 / 3) / 2
    others = pl.DataFrame([{**row, "env_id": "HGPO/ALFWorld-v0"} for row in rows])
    assert evaluation_reports(episode_table(others.lazy()))[0].scenario_success is None
