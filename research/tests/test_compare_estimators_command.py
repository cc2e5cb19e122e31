"""`hgpo compare-estimators`: its files, its report and its errors."""

import re
from pathlib import Path

import orjson
import polars as pl
import polars.testing
import pytest
from command import invoke, outcome
from tabular_world import play, store

from hgpo_datasets.row_tables import path_of, write_table
from hgpo_envs.errors import InputError
from hgpo_research.comparison.files import FILES
from hgpo_research.comparison.inputs import truth_rewards
from hgpo_research.comparison.measures import MEASURES
from hgpo_research.truth.table import METADATA
from hgpo_train.advantages import estimator

FAST = ["--resamples", 100, "--permutations", 2, "--redraws", 1]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A run, `first`, and its truth table, `truth.parquet`."""
    steps, truth = play(tasks=12, rollouts=8, seed=3, noise=0.1)
    store(steps, tmp_path / "first")
    truth.with_columns(run=pl.lit("first")).write_parquet(tmp_path / "truth.parquet")
    return tmp_path


def compare(
    world: Path,
    *more: object,
    estimators: str = "hgpo,grpo:cross_steps=false",
) -> str:
    given = [
        world / "first",
        "--truth",
        world / "truth.parquet",
        "-e",
        estimators,
    ]
    return invoke("compare-estimators", *given, *FAST, *more)


def test_the_files_contain_what_is_printed(world: Path) -> None:
    output = compare(world)
    out = world / "first.comparison"
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    estimates = pl.read_parquet(out / "estimates.parquet")
    assert set(estimates["group_size"]) == {4, 8}
    row = estimates.filter(
        estimator="hgpo",
        group_size=8,
        dimension="all",
        measure="correlation",
    ).row(0, named=True)
    assert f"{row['value']:.3f}" in output
    details = orjson.loads((out / "comparison.json").read_bytes())
    assert details["estimators"]["grpo:cross_steps=false"]["parameters"]["cross_steps"] is False
    assert details["estimators"]["hgpo"]["parameters"]["reward_scale"] == 10
    assert (
        details["tasks"],
        details["rollouts"],
        details["group_size"],
    ) == (
        12,
        96,
        8,
    )
    differences = pl.read_parquet(out / "differences.parquet")
    assert differences.filter(first="hgpo", second="grpo:cross_steps=false", dimension="all").height == 2 * len(
        MEASURES
    )


@pytest.fixture(autouse=True)
def _no_pictures(request, monkeypatch):
    """Draw pictures, which takes a second, only in the slow tests."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(
            "hgpo_research.comparison.report.pictures",
            lambda found, size: [],
        )


@pytest.mark.slow
def test_the_report_is_one_page_with_pictures_and_no_links(
    world: Path,
) -> None:
    pytest.importorskip("altair")
    compare(world)
    page = (world / "first.comparison" / "report.html").read_text("utf-8")
    assert page.count("<svg") == 3
    assert "<script" not in page
    assert not re.search(r"(?:src|href)=.https?:", page)


@pytest.mark.slow
def test_an_existing_comparison_is_replaced_only_on_request(
    world: Path,
) -> None:
    compare(world)
    out = world / "first.comparison"
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(InputError, match="exists already; replace it with --overwrite"):
        compare(world)
    compare(world, "--overwrite")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before, "the same seed, the same bytes"
    (out / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists already; it is not a comparison"):
        compare(world, "--overwrite")
    assert (out / "mine.txt").exists()


@pytest.mark.slow
def test_the_run_is_not_changed_by_its_comparison(world: Path) -> None:
    before = {path: path.read_bytes() for path in (world / "first").rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="expected an output file outside of the input"):
        compare(world, "--out", world / "first" / "here")
    compare(world)
    assert {path: path.read_bytes() for path in (world / "first").rglob("*") if path.is_file()} == before


def test_wrong_options_are_reported(world: Path) -> None:
    for options, line in (
        (
            ["--group-sizes", "4,x"],
            "--group-sizes: expected integers separated by commas, received '4,x'",
        ),
        (
            ["--group-sizes", "9"],
            "group_sizes: expected numbers from 2 to the run's 8, received 9",
        ),
        (["--set", "betta=1"], "unknown parameter 'betta'"),
        (["--kl", -1], "--kl: expected a positive number, received -1"),
        (
            ["--measure", "gian"],
            "unknown measure 'gian'; did you mean 'gain'?",
        ),
        (
            ["--depth", -1],
            "depth: expected an integer of at least 0, received -1",
        ),
        (
            ["--kl", 1],
            "--kl is an option of --measure gain; leave it out, or change --measure",
        ),
        (["--folds", 2], "--folds is an option of --measure gain"),
        (
            ["--measure", "gain"],
            "--redraws is an option of --measure correlation",
        ),
    ):
        with pytest.raises(InputError, match=re.escape(line)):
            compare(world, *options)
    assert not (world / "first.comparison").exists()


def test_the_gain_of_a_policy_that_did_not_play_the_run_is_refused(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    invoke(
        "rollout",
        "--tasks",
        1,
        "--group-size",
        8,
        "--max-steps",
        3,
        "--out",
        run,
    )
    with pytest.raises(
        InputError,
        match=r"--model: expected the policy that played .*run, random, received softmax",
    ):
        invoke(
            "compare-estimators",
            run,
            "--measure",
            "gain",
            "--model",
            "softmax",
            "-e",
            "hgpo",
        )


def test_wrong_truths_are_reported(world: Path) -> None:
    truth = pl.read_parquet(world / "truth.parquet")
    (world / "truth.parquet").unlink()
    with pytest.raises(InputError, match="expected a truth table, received no file"):
        compare(world)
    truth.drop("advantage_first").write_parquet(world / "truth.parquet")
    with pytest.raises(InputError, match="the truth table has no advantage_first"):
        compare(world)
    described = orjson.dumps({"rewards": {"gamma": 0.95}, "run": "another"}).decode()
    truth.write_parquet(world / "truth.parquet", metadata={METADATA: described})
    with pytest.raises(InputError, match=r"is not the truth of .*first; compute"):
        compare(world)


def test_a_truth_is_named_by_a_path_or_a_text(world: Path) -> None:
    truth = world / "truth.parquet"
    run = world / "first"
    assert truth_rewards(str(truth), str(run)) == truth_rewards(truth, run)


@pytest.mark.slow
def test_estimators_of_another_reward_are_compared(world: Path) -> None:
    compare(world, "--set", "reward=success", "--group-sizes", 8)


@pytest.mark.slow
def test_long_names_are_broken_between_their_parts(world: Path, monkeypatch) -> None:
    found = compare(
        world,
        "--group-sizes",
        8,
        estimators="hgpo:history_length=1:mode=mean_norm,gigpo:episode_weight=0",
    )
    assert re.search(
        r"^hgpo:history_length=1: .*\n *mode=mean_norm *$",
        found,
        re.MULTILINE,
    )
    assert re.search(r"^gigpo:episode_weight=0 ", found, re.MULTILINE)
    assert re.search(r"^  95% interval +\d\.\d\d to ", found, re.MULTILINE)


@pytest.mark.slow
def test_the_truth_is_read_in_its_own_unit(world: Path) -> None:
    """A truth of rewards × 10 gives the same figures as one of rewards."""
    compare(world, "--out", world / "one")
    truth = pl.read_parquet(world / "truth.parquet")
    scaled = truth.with_columns(pl.col("^(value|q|advantage).*$") * 10)
    described = {
        "rewards": {"gamma": 0.95, "reward_scale": 10.0},
        "run": "first",
    }
    scaled.write_parquet(
        world / "truth.parquet",
        metadata={METADATA: orjson.dumps(described).decode()},
    )
    assert truth_rewards(world / "truth.parquet", world / "first").reward_scale == 10
    compare(world, "--out", world / "ten")
    one, ten = (pl.read_parquet(world / name / "estimates.parquet") for name in ("one", "ten"))
    compared = [table.filter(pl.col("steps") > 100).select("estimator", "measure", "value") for table in (one, ten)]
    polars.testing.assert_frame_equal(*compared, rel_tol=1e-4, abs_tol=1e-6)  # returns are rounded to float32


@pytest.mark.slow
def test_estimators_that_read_scores_are_compared(tmp_path: Path) -> None:
    """With a score that is the true advantage, which correlates with the truth perfectly."""
    steps, truth = play(tasks=12, rollouts=4, seed=3)
    run = tmp_path / "first"
    store(steps, run)
    truth.with_columns(run=pl.lit("first")).write_parquet(tmp_path / "truth.parquet")
    chosen = f"grpo,empg:k=0:zeta=0,{__name__}:of_score"
    line = r"first has no scores entropy; add them with: hgpo score .*first .* -s entropy"
    with pytest.raises(InputError, match=line):
        compare(tmp_path, estimators=chosen)
    scores = truth.select(pl.lit("first").alias("run"), "trajectory", "step", entropy="advantage")
    write_table(path_of(run, "scores", 1), scores, {})
    compare(tmp_path, "--group-sizes", 4, estimators=chosen)
    estimates = pl.read_parquet(tmp_path / "first.comparison" / "estimates.parquet")
    found = estimates.filter(dimension="all", measure="correlation")
    values = dict(found.select("estimator", "value").rows())
    assert values[f"{__name__}:of_score"] == pytest.approx(1)
    # Without modulation, empg is grpo minus the mean of the batch.
    assert values["empg:k=0:zeta=0"] == pytest.approx(values["grpo"])


@estimator("of_score", reads=(), scores=("entropy",))
def of_score(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Take the score as the advantage."""
    return steps.with_columns(advantage=pl.col("entropy").fill_null(0.0))


def interrupted(steps: pl.LazyFrame) -> pl.LazyFrame:
    raise KeyboardInterrupt


def test_an_interruption_leaves_no_files(world: Path) -> None:
    before = sorted(world.rglob("*"))
    given = [world / "first", "--truth", world / "truth.parquet", "-e", f"{__name__}:interrupted"]
    assert outcome("compare-estimators", *given)[0] == 130
    assert sorted(world.rglob("*")) == before
