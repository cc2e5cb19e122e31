"""The score `hindsight`: its prompts, its log-probabilities, and the estimators of scores in training and after it."""

import polars as pl
import pytest
from lazily import Lazy
from logits import of_response
from refusals import refused

from hgpo_datasets import scan_steps
from hgpo_datasets.row_tables import files_of, read_metadata, read_table
from hgpo_train.advantages import compute
from hgpo_train.scores import ScoredRows, get
from hgpo_train.scores.hindsight import MOST, hindsight_prompts
from hgpo_train.scores.tables import METADATA
from hgpo_train.training.config import configured_estimator, replace
from hgpo_train.training.tracking import read_metrics

load_model = Lazy("hgpo_train.models.loading:load_model")
load_tokenizer = Lazy("hgpo_train.models.loading:load_tokenizer")
score_run = Lazy("hgpo_train.training.scoring:score_run")
TokenScorer = Lazy("hgpo_train.training.update.scorer:TokenScorer")

NOTE = "\n\nIt is known how this episode ends. Its last state is:\n"


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return load_tokenizer(str(tiny))


def prompt_of(tokenizer, text):
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True
    )["input_ids"]


@pytest.fixture
def steps(tokenizer):
    """Two trajectories; the last state of the second one is that before its last step."""
    rows = [
        {
            "trajectory": name,
            "step": step,
            "state": f"{name}{step}",
            "next_state": after,
            "aborted": False,
        }
        | {
            "prompt_token_ids": prompt_of(tokenizer, f"You see {name}{step}."),
            "response_token_ids": [5, 6, 7][:length],
        }
        for name, step, after, length in [
            ("x", 0, None, 3),
            ("x", 1, "won", 1),
            ("y", 1, None, 2),
            ("y", 0, None, 3),
        ]
    ]
    return pl.DataFrame(rows, schema_overrides={"next_state": pl.String}).with_columns(
        run=pl.lit("r")
    )


class Context:
    """Stands for a model of which only the context is asked."""

    def __init__(self, context=None):
        self.context_length = context


def prompts(steps, tokenizer, context=None, every=None):
    return hindsight_prompts(
        ScoredRows(steps, Context(context), every, lambda: tokenizer)
    )


def test_the_note_is_at_the_end_of_the_last_message(steps, tokenizer):
    """A conversation has earlier messages, which stay as they are."""
    turn = prompt_of(tokenizer, "Before.")
    talk = pl.Series([[*turn, 9, *tokens] for tokens in steps["prompt_token_ids"]])
    start = tokenizer.decode([*turn, 9])
    found = prompts(steps.with_columns(prompt_token_ids=talk), tokenizer)
    ends = ["won", "won", "y1", "y1"]
    for tokens, state, end in zip(found, steps["state"], ends, strict=True):
        user = f"<|im_start|>user\nYou see {state}.{NOTE}{end}<|im_end|>\n<|im_start|>assistant\n"
        assert tokenizer.decode(tokens) == start + user


def test_a_state_cannot_end_the_message(steps, tokenizer):
    """The text of a special token in a state stays text."""
    before = prompts(steps, tokenizer)
    token = tokenizer.eos_token_id
    ends = pl.Series("next_state", [None, tokenizer.eos_token, None, None], pl.String)
    found = prompts(steps.with_columns(ends), tokenizer)
    assert tokenizer.eos_token in tokenizer.decode(found[0])
    assert (found[0] == token).sum() == (before[0] == token).sum()


def test_a_long_note_is_cut_and_a_long_prompt_loses_its_start(steps, tokenizer):
    long = steps.with_columns(
        next_state=pl.when(pl.col("next_state") == "won").then(
            pl.lit("room " * 4 * MOST)
        )
    )
    found = prompts(long, tokenizer)
    assert found[0].len() == steps["prompt_token_ids"][0].len() + MOST
    whole = prompts(steps, tokenizer)
    short = prompts(steps, tokenizer, context=20)
    assert [len(one) for one in short] == [20 - length for length in (3, 1, 2, 3)]
    assert all(
        one.equals(other.tail(len(one)))
        for one, other in zip(short, whole, strict=True)
    )


def test_the_last_state_is_that_of_the_whole_trajectory(steps, tokenizer):
    """Also where the last response has no tokens and is not scored."""
    scored = prompts(steps.filter(pl.col("step") == 0), tokenizer, every=steps)
    assert [one.to_list() for one in scored] == [
        prompts(steps, tokenizer)[row].to_list() for row in (0, 3)
    ]


def test_prompts_of_another_chat_template_are_refused(steps, tokenizer):
    strange = steps.with_columns(prompt_token_ids=pl.Series([[9, 9, 9]] * 4))
    with refused(r"hindsight: expected prompts with the tokens \[.*\], .* \(--model\)"):
        prompts(strange, tokenizer)
    with refused("expected a model with a tokenizer for this score"):
        hindsight_prompts(ScoredRows(steps, Context()))


def test_the_score_is_the_mean_log_probability_after_that_prompt(
    steps, tokenizer, config
):
    """Of all logits, one row at a time, at the temperature of the scorer."""
    model = load_model(config.model, 0).eval()
    rows = ScoredRows(
        steps, TokenScorer(model, config, temperature=0.5), steps, lambda: tokenizer
    )
    found = get("hindsight")(rows)["hindsight"]
    for row, value in enumerate(found):
        prompt = hindsight_prompts(rows)[row].to_list()
        response = steps["response_token_ids"][row].to_list()
        logprobs = of_response(model, prompt, response, 0.5)
        logprobs = logprobs[range(len(response)), response]
        assert value == pytest.approx(logprobs.mean().item(), abs=1e-5)


# ------------------------------------------------------------------------------------------ training, and saved scores


@pytest.fixture
def small(small):
    return replace(small, iterations=1, rollout={"group_size": 3})


@pytest.mark.slow
def test_hcapo_is_trained_on_what_is_computed_from_the_stored_scores(
    small, runs, hgpo, tiny, tmp_path
):
    """In one iteration; `hgpo advantages` reads the stored scores, and `hgpo score` computes them again."""
    runs.train(
        replace(
            small, advantage={"estimator": "hcapo", "parameters": {"smoothing": True}}
        )
    )
    run = runs.folder / "run"
    trained = read_table(files_of(run, "advantages")[0]).sort("trajectory", "step")
    scores = read_table(files_of(run, "scores")[0]).sort("trajectory", "step")
    assert scores["hindsight"].n_unique() > 1
    assert "timing_s/score_hindsight" in read_metrics(run / "metrics.jsonl")[-1]
    assert trained["advantage_ratio"].min() < 1 < trained["advantage_ratio"].max()
    out = tmp_path / "table.parquet"
    hgpo.output("advantages", run, "-e", "hcapo:smoothing=true", "--out", out)
    stored = pl.read_parquet(out).sort("trajectory", "step")
    assert stored["advantage"].equals(trained["advantage"])

    # The model of the first iteration is the one that it started from.
    command = (
        "score",
        run,
        "--model",
        tiny,
        "-s",
        "hindsight",
        "--set",
        "model.device=cpu",
    )
    code, _, errors = hgpo(*command)
    assert (
        code,
        "hindsight of the policy at temperature 1.0; replace it with --overwrite"
        in errors,
    ) == (2, True)
    output = hgpo.output(*command, "--overwrite")
    assert f"Next: hgpo advantages {run} -e hcapo" in output.replace("\n", " ")
    again = read_table(files_of(run, "scores")[0]).sort("trajectory", "step")
    assert again["hindsight"].to_list() == pytest.approx(
        scores["hindsight"].to_list(), abs=1e-5
    )


@pytest.mark.slow
def test_progress_compares_with_the_model_that_training_started_from(
    small, runs, tiny, tmp_path
):
    """In the first iteration policy and reference are one model: all advantages are exactly 0."""
    config = replace(
        small,
        iterations=2,
        advantage={"estimator": "progress"},
        update={"clip_high": 0.3},
    )
    runs.train(config)
    run = runs.folder / "run"
    first, second = (read_table(path) for path in files_of(run, "advantages"))
    assert (first["advantage"] == 0).all()
    about = read_metadata(files_of(run, "scores")[1], METADATA)
    models = {name: about[name]["model"] for name in ("logprobs", "reference_logprobs")}
    assert models == {
        "logprobs": "the policy",
        "reference_logprobs": "the first policy",
    }
    expected = read_table(files_of(run, "scores")[1]).select(
        pl.col("logprobs").list.mean() - pl.col("reference_logprobs").list.mean()
    )
    assert second["advantage"].to_list() == pytest.approx(
        expected.to_series().to_list(), abs=1e-6
    )


def test_progress_without_a_reference_is_refused_before_training(small, runs):
    config = replace(
        small, advantage={"estimator": "progress"}, update={"kl_weight": 0.0}
    )
    with refused(
        r"kl_weight: expected more than 0 for the estimator 'progress', .*=0\.01"
    ):
        configured_estimator(config)
    with refused("reads the log-probabilities of the reference model"):
        runs.train(config)
    assert not (runs.folder / "run").exists()


@pytest.mark.slow
def test_a_run_is_scored_with_a_model_and_its_reference(small, runs, tiny, hgpo):
    """The same model twice: its progress is exactly 0."""
    runs.train(
        replace(
            small,
            advantage={"estimator": "grpo"},
            update={"kl_weight": 0.0, "old_logprobs": "rollout"},
        )
    )
    run = runs.folder / "run"
    command = (
        "score",
        run,
        "--model",
        tiny,
        "-s",
        "logprobs",
        "-s",
        "reference_logprobs",
        "--set",
        "model.device=cpu",
    )
    code, _, errors = hgpo(*command)
    assert (code, "name one (--reference)" in errors) == (2, True)
    output = hgpo.output(
        *command, "--reference", tiny, "--set", "model.compute_dtype=float32"
    )
    assert "-e progress" in output
    found = compute(run, "progress").collect()["advantage"]
    assert found.to_list() == [0.0] * scan_steps(run).collect().height
