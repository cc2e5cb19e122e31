"""Ranks as intervals, what predicts learning, and the arena's page."""

import re
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hgpo_envs.errors import InputError
from hgpo_research.arena.page import write_page
from hgpo_research.arena.prediction import (
    pairs,
    prediction,
    predictions,
    spearman,
    verdict,
)
from hgpo_research.arena.questions import answers, points
from hgpo_research.arena.ranking import (
    CONTROLS,
    REFERENCE,
    contrasts,
    differences,
    rank_intervals,
    ranks,
    sample,
)
from hgpo_research.resampling import task_weights

SCHEMA = {
    "world": pl.String,
    "estimator": pl.String,
    "setting": pl.String,
    "measure": pl.String,
    "stage": pl.Int64,
    "seed": pl.Int64,
    "value": pl.Float64,
}
BETTER = {
    REFERENCE: 0.0,
    CONTROLS[0]: 0.0,
    "gigpo": 0.1,
    "hgpo": 0.2,
    "g2po": -0.1,
    "bepo": 0.3,
    "turn": 0.4,
    CONTROLS[1]: 0.5,
}


def results(worlds: int = 6, seeds: int = 8) -> pl.DataFrame:
    """Areas that differ from the reference's by BETTER, and gains of a tenth of that; seeds add the same to all."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(worlds):
        for seed, common in enumerate(rng.normal(0.4, 0.05, seeds)):
            for name, better in BETTER.items():
                where = (f"world {number}", name)
                rows.append(
                    (
                        *where,
                        "shared",
                        "area",
                        None,
                        seed,
                        common + better + rng.normal(0, 0.01),
                    )
                )
                rows.append((*where, "separate", "gain", 0, seed, better / 10))
    return pl.DataFrame(rows, SCHEMA, orient="row")


def area(*rows: tuple[str, str, int, float]) -> pl.DataFrame:
    full = [
        (world, name, "shared", "area", None, seed, value)
        for world, name, seed, value in rows
    ]
    return pl.DataFrame(full, SCHEMA, orient="row")


def test_differences_are_paired_and_worlds_count_equally():
    table = area(
        *[("a", REFERENCE, seed, 0.1 * seed) for seed in range(6)],
        *[("a", "gigpo", seed, 0.1 * seed + 0.2) for seed in range(6)],
        *[("b", REFERENCE, seed, 0.5) for seed in range(3)],
        *[("b", "gigpo", seed, 0.4) for seed in (2, 1, 0, 7)],
    )
    found = differences(sample(table, "shared", "area"))
    assert found["difference"].to_list() == pytest.approx([0.05, 0.0]), (
        "(0.2 - 0.1) / 2; seed 7 has no pair"
    )
    by_world = contrasts(table, "shared", "area", REFERENCE, "gigpo")
    assert by_world["difference"].to_list() == pytest.approx([-0.2, 0.1])
    assert differences(
        sample(table.sample(fraction=1, shuffle=True, seed=1), "shared", "area")
    ).equals(found)
    with pytest.raises(InputError, match="reference"):
        differences(sample(table, "shared", "area"), "hgpo")
    with pytest.raises(InputError, match="received none"):
        sample(table, "adam", "area")


def test_ranks_of_what_is_apart_and_of_ties():
    found = ranks(sample(results(), "shared", "area"))
    assert found["estimator"].to_list() == [
        "turn",
        "bepo",
        "hgpo",
        "gigpo",
        REFERENCE,
        "g2po",
    ]
    assert found["low"].to_list() == found["high"].to_list() == [1, 2, 3, 4, 5, 6]
    ties = np.random.default_rng(0).normal(0, 1, (500, 4))
    for low, high in (
        rank_intervals(np.zeros(4), ties, 20),
        rank_intervals(np.arange(4.0), ties * 0, 1),
    ):
        assert low.tolist() == [1] * 4
        assert high.tolist() == [4] * 4
    # No noise and no difference: tied as well; no noise and a difference: apart.
    low, high = rank_intervals(
        np.array([0.5, 0.5, 0.7]), np.tile([0.5, 0.5, 0.7], (9, 1)), 9
    )
    assert low.tolist() == [2, 2, 1]
    assert high.tolist() == [3, 3, 1]


@pytest.mark.parametrize("order", [[4, 2, 0, 3, 1], [1, 0, 3, 2, 4]])
def test_ranks_do_not_depend_on_the_order(order):
    values = np.array([0.0, 1.0, 1.2, 3.0, 9.0])
    draws = values + np.random.default_rng(3).normal(0, 0.4, (100, 5))
    low, high = rank_intervals(values, draws, 30)
    moved_low, moved_high = rank_intervals(values[order], draws[:, order], 30)
    assert (low[order] == moved_low).all()
    assert (high[order] == moved_high).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "means",
    [
        (0, 0, 0, 0, 0, 0),
        (0, 0, 0.3, 0.6, 0.6, 2),
        (0, 0.5, 1, 1.5, 2, 2.5),
    ],
)
def test_rank_intervals_contain_all_ranks_at_once(means):
    rng = np.random.default_rng(1)
    above = np.array([sum(other > mean for other in means) for mean in means])
    below = np.array([sum(other < mean for other in means) for mean in means])
    hits = 0
    for trial in range(400):
        values = rng.normal(0, 1, (20, 1)) + rng.standard_t(5, (20, 6)) + means
        draws = task_weights(20, 500, trial) @ values / 20
        low, high = rank_intervals(values.mean(0), draws, 20)
        hits += bool((low <= 1 + above).all() and (high >= 6 - below).all())
    assert hits >= 0.917 * 400, "95%, less three standard errors of the simulation"


def test_rank_correlations_by_hand():
    assert spearman(
        np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 1, 4, 3, 5])
    ) == pytest.approx(1 - 6 * 4 / (5 * 24))
    assert spearman(
        np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 3, 4])
    ) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert np.isnan(spearman(np.ones(3), np.arange(3.0)))


def test_a_measure_that_orders_as_learning_does_predicts_it():
    table = results()
    found = pairs(table, "gain", None, "shared", "area")
    assert set(found.estimators) == BETTER.keys() - set(CONTROLS)
    assert found.measured[0] == pytest.approx(
        [BETTER[name] / 10 for name in found.estimators]
    )
    row = prediction(found)
    assert row["correlation"] == row["high"] == 1
    # Of the 720 orders of six estimators one agrees wholly, and one disagrees.
    assert row["p"] == pytest.approx(2 / 720, abs=0.006)
    table = table.vstack(
        table.filter(measure="gain").with_columns(
            stage=pl.lit(1, pl.Int64), value=-2 * pl.col("value")
        )
    )
    assert (
        prediction(pairs(table, "gain", None, "shared", "area"))["correlation"] == -1
    ), "stages count equally"
    assert "does not predict" in verdict(predictions(table))
    assert "not known" in verdict(
        predictions(results().filter(pl.col("estimator").is_in(list(BETTER)[:4])))
    )


def test_questions_have_verdicts_or_say_what_is_missing():
    assert points(-0.03, -0.04, -0.02) == "-3.0 ± 1.0"
    more = area(
        *[
            (f"world {w}", "discounted_grpo", s, 0.5 + s / 1000)
            for w in range(6)
            for s in range(8)
        ]
    )
    above, gain, gagpo, *_ = answers(pl.concat([results(), more]))
    assert above.verdict == "yes"
    assert "bepo" in above.numbers
    assert gain.verdict == "missing", "asked of separate logits"
    assert gagpo.verdict == "missing"


def page(folder: Path) -> Path:
    costs = pl.DataFrame(
        {"world": ["world 0"], "estimator": ["hgpo"], "ms_per_10k_steps": [12.0]}
    )
    (folder / "results/world 0").mkdir(parents=True)
    table = results()
    table.write_parquet(folder / "results/world 0/a&b.parquet")
    write_page(table, costs, folder / "page.html", folder / "worlds")
    return folder / "page.html"


@pytest.mark.slow
def test_the_page_is_one_file_with_its_rows(tmp_path):
    text = page(tmp_path).read_text("utf-8")
    assert not re.findall(r"(?:src|href)=\"(?!results/)", text), (
        "nothing from elsewhere"
    )
    main = text.partition("<main>")[2]
    assert main.index("predicts learning") < main.index("<h1>"), (
        "the verdict comes first"
    )
    assert main.count("<svg") == 6
    assert ">missing<" not in main, "questions that need other results are left out"
    assert 'href="results/world%200/a%26b.parquet"' in text
    (query,) = set(re.findall(r"data-query=\"(pl[^\"]*bepo[^\"]*area[^\"]*)\"", text))
    query = query.replace("&#34;", '"').replace("results/", f"{tmp_path}/results/")
    assert eval(query)["value"].len() == 6 * 8
    with pytest.raises(InputError, match="columns"):
        write_page(
            pl.DataFrame({"world": ["a"]}),
            pl.DataFrame(),
            tmp_path / "x.html",
            tmp_path / "worlds",
        )


@pytest.mark.slow
def test_columns_are_sorted_by_a_click(tmp_path):
    driver = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium")
    with driver.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )
        shown = browser.new_page(viewport={"width": 390, "height": 800})
        shown.goto(page(tmp_path).as_uri())
        assert shown.evaluate("document.documentElement.scrollWidth") == 390
        head = shown.locator(".sorted thead th").nth(2)
        first = shown.locator(".sorted tbody th").first
        assert (head.get_attribute("aria-sort"), first.inner_text()) == (
            "none",
            "oracle truth",
        )
        for order, name in (("descending", "oracle truth"), ("ascending", "g2po")):
            head.locator("button").click()
            assert (head.get_attribute("aria-sort"), first.inner_text()) == (
                order,
                name,
            )
        shown.locator("[data-query]").first.click()
        assert "filter(" in shown.locator("dialog[open] code").inner_text()
        browser.close()
