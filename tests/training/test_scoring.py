"""Scores: equal to those computed from all logits, stored beside the run, and found where they are read."""

import shutil

import polars as pl
import pytest
from groups import step, write_run
from lazily import Lazy
from logits import of_response
from planted import plant
from refusals import refused

from hgpo_datasets import VerifyReport, scan_steps
from hgpo_datasets.row_tables import (
    files_of,
    path_of,
    read_metadata,
    read_table,
    verify_tables,
    write_table,
)
from hgpo_train.advantages import compute, estimator
from hgpo_train.scores import get, names, score
from hgpo_train.scores.tables import METADATA, with_scores
from hgpo_train.training.config import Config, replace

score_run = Lazy("hgpo_train.training.scoring:score_run")
load_model = Lazy("hgpo_train.models.loading:load_model")


@score("mean_logprob", columns={"mean_logprob": pl.Float64()})
def mean_logprob(rows):
    """Score each response by its mean log-probability."""
    return {"mean_logprob": rows.per_token(rows.policy.logprobs).list.mean()}


@score("wrong", columns={"wrong": pl.Float64()})
def wrong(rows):
    """Return one value for all rows."""
    return {"wrong": pl.Series([1.0])}


@score("words", columns={"words": pl.Float64()})
def words(rows):
    """Return texts."""
    return {"words": pl.Series(["many"] * len(rows.steps))}


@estimator("likely", reads=(), scores=("mean_logprob",))
def likely(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Take the score as the advantage."""
    return steps.with_columns(advantage="mean_logprob")


@pytest.fixture(scope="module")
def settings(tiny):
    model = {
        "path": str(tiny),
        "compute_dtype": "float32",
        "gradient_checkpointing": False,
        "device": "cpu",
    }
    return replace(
        Config(), model=model, update={"micro_batch_tokens": 64, "logit_chunk": 2}
    )


ROWS = [
    ([3, 4, 5], [6, 7]),
    ([3, 4], [8]),
    ([9, 9, 9, 9], [1, 2, 3]),
]
"""The tokens of prompts and responses."""


@pytest.fixture
def run(tmp_path):
    """A run of two iterations; its last trajectory is aborted."""
    groups = [
        [
            step(
                "a",
                f"{iteration}-{number}",
                0,
                iteration=iteration,
                group=iteration,
                won=True,
                terminated=True,
                aborted=number == 2,
                prompt_token_ids=prompt,
                response_token_ids=response,
            )
            for number, (prompt, response) in enumerate(ROWS)
        ]
        for iteration in range(2)
    ]
    return write_run(tmp_path / "run", *groups, config={"policy": {"temperature": 0.5}})


def test_scores_are_those_of_all_logits(run, settings):
    """log softmax(logits / temperature), one row at a time, without batches and chunks."""
    assert (
        score_run(run, ["logprobs", "entropy", "entropies", "mean_logprob"], settings)
        == 4
    )
    model = load_model(settings.model, 0).eval()
    first, second = map(read_table, files_of(run, "scores"))
    assert (first["trajectory"].to_list(), second["trajectory"].to_list()) == (
        ["0-0", "0-1"],
        ["1-0", "1-1"],
    )
    for row, (prompt, response) in zip(first.iter_rows(named=True), ROWS, strict=False):
        expected = of_response(model, prompt, response, 0.5)
        logprobs = expected[range(len(response)), response]
        entropies = -(expected.exp() * expected).sum(-1)
        assert row["logprobs"] == pytest.approx(logprobs.tolist(), abs=1e-5)
        assert row["entropies"] == pytest.approx(entropies.tolist(), abs=1e-5)
        assert row["entropy"] == pytest.approx(entropies.mean().item(), abs=1e-5)
        assert row["mean_logprob"] == pytest.approx(logprobs.mean().item(), abs=1e-5)
    about = read_metadata(path_of(run, "scores", 1), METADATA)
    assert (about["entropy"]["temperature"], about["entropies"]["score"]) == (
        0.5,
        "entropies",
    )


def test_scores_are_added_kept_and_replaced(run, settings, tiny, tmp_path):
    assert score_run(run, ["entropy"], settings) == 4
    before = read_table(path_of(run, "scores", 2))
    assert score_run(run, ["entropy"], settings) == 0  # they are there
    path_of(run, "scores", 1).unlink()
    assert score_run(run, ["entropy"], settings) == 2
    assert score_run(run, ["reference_logprobs"], settings, reference=str(tiny)) == 4
    after = read_table(path_of(run, "scores", 2))
    assert after.select(before.columns).equals(before)
    with refused(r"entropy of .* at temperature 0.5; replace it with --overwrite"):
        score_run(run, ["entropy"], settings, temperature=2.0)
    assert score_run(run, ["entropy"], settings, temperature=2.0, overwrite=True) == 4
    hot = read_table(path_of(run, "scores", 2))
    assert (hot["entropy"] > before["entropy"]).all()
    assert hot["reference_logprobs"].equals(after["reference_logprobs"])
    report = VerifyReport(str(run))
    verify_tables(run, "scores", report)
    assert (report.files, report.problems) == (2, [])


def test_an_estimator_finds_the_scores_of_a_run(run, settings, hgpo):
    with refused(
        r"no scores mean_logprob; add them with: hgpo score .* -s mean_logprob"
    ):
        compute(run, "likely")
    score_run(run, ["mean_logprob"], settings)
    expected = pl.concat(map(read_table, files_of(run, "scores")))["mean_logprob"]
    for source in (run, run / "steps", [run], run / "steps" / "steps-000000.parquet"):
        found = (
            compute(source, "likely")
            .filter(pl.col("advantage").is_not_null())
            .collect()
        )
        assert found["advantage"].to_list() == expected.to_list()[: found.height]
        assert found.height in (2, 4)
    table = with_scores(scan_steps(run), run, ["mean_logprob"])
    assert compute(table.collect(), "likely").collect()["advantage"].null_count() == 2
    with refused("the table has no `mean_logprob`, which likely reads"):
        compute(scan_steps(run).collect(), "likely").collect()
    code, output, errors = hgpo(
        "advantages", run, "-e", "likely", "--out", run.parent / "table.parquet"
    )
    assert (code, "6 rows" in output) == (0, True), errors


def test_steps_that_were_added_after_a_score_are_scored(run, settings):
    """A rollout is continued after `hgpo score`: its iteration has a file, which lacks the new steps."""
    score_run(run, ["entropy"], settings)
    new = (
        scan_steps(run)
        .filter(iteration=0)
        .drop("run")
        .with_columns(pl.format("more-{}", "trajectory"), group=2)
    )
    write_run(run, new.sort("trajectory", "step").collect())
    # of iteration 1, and none of iteration 2
    assert score_run(run, ["entropy"], settings) == 4
    first, second = map(read_table, files_of(run, "scores"))
    assert (first.height, second.height, first["entropy"].null_count()) == (4, 2, 0)


def test_iterations_may_have_different_scores(run, settings):
    """As after an interrupted `hgpo score`: only the second iteration has a score, and can be used."""
    score_run(run, ["logprobs"], settings)
    path = path_of(run, "scores", 1)
    before = path.read_bytes()
    score_run(run, ["mean_logprob"], settings)
    path.write_bytes(before)
    second = scan_steps(run).filter(iteration=1)
    # the aborted one
    assert (
        with_scores(second, run, ["mean_logprob"])
        .collect()["mean_logprob"]
        .null_count()
        == 1
    )
    for steps in (scan_steps(run), scan_steps(run).filter(iteration=0)):
        with refused(r"add them with: hgpo score .*run --model MODEL -s mean_logprob"):
            with_scores(steps, run, ["mean_logprob"])


def test_rows_that_are_there_twice_and_missing_steps_are_refused(run, settings):
    """A join would repeat the steps of the first, and the second have no score."""
    score_run(run, ["mean_logprob"], settings)
    path = path_of(run, "scores", 1)
    table = read_table(path)
    write_table(
        path, pl.concat([table, table]), {METADATA: read_metadata(path, METADATA)}
    )
    with refused(r"scores: expected each step once, found some twice"):
        compute(run, "likely")
    write_table(path, table.head(1), {METADATA: read_metadata(path, METADATA)})
    with refused(
        r"1 step with a response has no score; add it with: hgpo score .*mean_logprob"
    ):
        compute(run, "likely")
    without = scan_steps(run).with_columns(
        response_token_ids=pl.lit(None, pl.List(pl.Int32))
    )
    found = with_scores(without, run, ["mean_logprob"]).collect()
    assert found.filter(~pl.col("aborted"))["mean_logprob"].null_count() == 1


def test_runs_of_one_name_have_their_own_scores(run, settings, tmp_path):
    other = shutil.copytree(run, tmp_path / "other/run")
    score_run(run, ["mean_logprob"], settings)
    score_run(other, ["mean_logprob"], settings)
    alone = compute(run, "likely").collect()["advantage"].to_list()
    assert compute([run, other], "likely").collect()["advantage"].to_list() == 2 * alone


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a device"])
def test_what_is_planted_among_scores_is_refused(run, settings, kind, tmp_path):
    """Opening a pipe would wait forever."""
    score_run(run, ["mean_logprob"], settings)
    plant(path_of(run, "scores", 2), kind, tmp_path)
    with refused(r"cannot read .*000002.parquet: expected a file"):
        compute(run, "likely")
    with refused(r"cannot read .*000002.parquet: expected a file"):
        score_run(run, ["mean_logprob"], settings)
    report = VerifyReport(str(run))
    verify_tables(run, "scores", report)
    assert [problem.kind for problem in report.problems] == ["unreadable"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"scores": ["nothing"]},
            "unknown score 'nothing'. Known: .*logprobs, entropy",
        ),
        (
            {"scores": ["wrong"]},
            "score wrong: expected 2 values of wrong, one per row, received 1",
        ),
        (
            {"scores": ["words"]},
            "score words: expected columns of Float64 .conversion from `str` to `f64` failed",
        ),
        (
            {"scores": ["reference_logprobs"]},
            "expected a reference model for reference_logprobs",
        ),
        (
            {"scores": ["hgpo_train.advantages:hgpo"]},
            "expected a function with the decorator `score`",
        ),
        ({"run": "steps/steps-000000.parquet"}, "expected the folder of a run"),
    ],
)
def test_what_cannot_be_scored_is_an_error_and_leaves_nothing(
    run, settings, change, message
):
    with refused(message):
        score_run(
            run / change.get("run", ""), change.get("scores", ["entropy"]), settings
        )
    assert not (run / "scores").exists()
    assert {"logprobs", "entropy", "reference_logprobs"} <= set(names())
    assert get("entropy").summary.startswith("Score each response by the mean entropy")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"policy": {"temperature": -0.5}},
            "--temperature: expected a positive number, received -0.5",
        ),
        (
            {"policy": {"temperature": 0}},
            "--temperature: expected a positive number, received 0",
        ),
        (
            {"policy": ["x"], "training": {"rollout.temperature": "hot"}},
            "expected a number as temperature, .*'hot'",
        ),
        ({"policy": [], "training": None}, "has no token ids"),
    ],
)
def test_temperatures_and_tables_are_checked_before_a_model_is_loaded(
    tmp_path, settings, config, message
):
    write_run(tmp_path / "run", [step("a", "x", 0)], config=config)
    with refused(message):
        score_run(
            tmp_path / "run",
            ["entropy"],
            replace(settings, model={"path": "no/such/model"}),
        )


def test_the_command_scores_and_says_what_is_next(run, tiny, hgpo):
    settings = ("--set", "model.compute_dtype=float32", "--set", "model.device=cpu")
    output = hgpo.output("score", run, "--model", tiny, "-s", "entropy", *settings)
    assert "4 scored steps" in output
    assert f"Next: hgpo advantages {run} -e empg" in " ".join(output.split())
    code, output, _ = hgpo("score", run, "--model", tiny, *settings)
    assert (code, "Next: hgpo advantages --list" in " ".join(output.split())) == (
        0,
        True,
    )
    code, output, _ = hgpo("score", run, "--model", tiny, "--list")
    assert (code, "reference_logprobs" in output) == (0, True)


def test_every_flipped_byte_of_a_table_is_found(tmp_path):
    path = path_of(tmp_path, "scores", 1)
    rows = pl.DataFrame(
        {"run": ["r"], "trajectory": ["t"], "step": [0], "entropy": [0.5]}
    )
    write_table(path, rows, {"about": {"a": 1}})
    assert (read_metadata(path, "about"), read_metadata(path, "other")) == (
        {"a": 1},
        None,
    )
    for file in (path, path.with_name(path.name + ".sha256")):
        data = file.read_bytes()
        for place in range(0, len(data), 7):
            changed = bytearray(data)
            changed[place] ^= 1 << place % 8
            file.write_bytes(changed)
            report = VerifyReport("run")
            verify_tables(tmp_path, "scores", report)
            assert len(report.problems) == 1, place
            with refused("delete it, and it is computed again"):
                read_table(path)
        file.write_bytes(data)
    path.write_bytes(b"PAR1")
    with refused(r"cannot be read .* delete it, and it is computed again"):
        read_table(path)
