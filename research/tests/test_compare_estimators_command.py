"""`hgpo compare-estimators`: its files, its report and its errors."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import orjson
import polars as pl
import polars.testing
import pytest
from command import invoke
from tabular_world import play
from typer.testing import CliRunner

from hgpo_datasets import StepWriter
from hgpo_envs.errors import InputError
from hgpo_research.comparison.files import FILES
from hgpo_research.comparison.inputs import truth_rewards
from hgpo_research.comparison.pictures import Dot, Series, dots, lines
from hgpo_research.truth.table import METADATA
from hgpo_train.cli import app

FAST = ["--resamples", 100, "--permutations", 3, "--redraws", 2]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A run, `first`, and its truth table, `truth.parquet`."""
    steps, truth = play(tasks=12, rollouts=8, seed=3, noise=0.1)
    rows = steps.drop("true_advantage", "^history_hash.*$").to_dicts()
    with StepWriter(tmp_path / "first") as writer:
        for task in sorted({row["task_id"] for row in rows}):
            writer.add_group([row for row in rows if row["task_id"] == task])
    truth.with_columns(run=pl.lit("first")).write_parquet(tmp_path / "truth.parquet")
    return tmp_path


def compare(world: Path, *more: object, estimators: str = "hgpo,grpo:cross_steps=false") -> str:
    given = [world / "first", "--truth", world / "truth.parquet", "-e", estimators]
    return invoke("compare-estimators", *given, *FAST, *more)


def test_the_files_contain_what_is_printed(world: Path) -> None:
    output = compare(world)
    out = world / "first.comparison"
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    estimates = pl.read_parquet(out / "estimates.parquet")
    assert set(estimates["group_size"]) == {4, 8}
    row = estimates.filter(estimator="hgpo", group_size=8, dimension="all", measure="correlation").row(0, named=True)
    assert f"{row['value']:.3f}" in output
    details = orjson.loads((out / "comparison.json").read_bytes())
    assert details["estimators"]["grpo:cross_steps=false"]["parameters"]["cross_steps"] is False
    assert details["estimators"]["hgpo"]["parameters"]["reward_scale"] == 10
    assert (details["tasks"], details["rollouts"], details["group_size"]) == (12, 96, 8)
    differences = pl.read_parquet(out / "differences.parquet")
    assert differences.filter(first="hgpo", second="grpo:cross_steps=false", dimension="all").height == 2 * 10


def test_the_report_is_one_page_with_pictures_and_no_links(world: Path) -> None:
    compare(world)
    page = (world / "first.comparison" / "report.html").read_text("utf-8")
    assert not re.search(r"<script|<link|<img|src=|href=", page)
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) >= 8
    for picture in pictures:
        drawn = ET.fromstring(picture)
        width, height = (float(drawn.attrib[name]) for name in ("width", "height"))
        for circle in drawn.iter("{http://www.w3.org/2000/svg}circle"):
            assert 0 <= float(circle.attrib["cx"]) <= width
            assert 0 <= float(circle.attrib["cy"]) <= height
    assert "Differences, groups of 4" in page


def test_pictures_place_numbers_by_their_value() -> None:
    rows = [Dot("a < b", 0.2, 0.1, 0.3), Dot("c", 0.6, None, None, (-0.1, 0.1))]
    drawn = ET.fromstring(dots("title", rows, mark=1.0))
    places = [float(circle.attrib["cx"]) for circle in drawn.iter("{http://www.w3.org/2000/svg}circle")]
    interval = next(line for line in drawn.iter("{http://www.w3.org/2000/svg}line") if line.get("stroke-width"))
    middle = (float(interval.attrib["x1"]) + float(interval.attrib["x2"])) / 2
    assert places[0] == pytest.approx(middle, abs=0.1)
    assert places[1] > places[0]
    assert dots("title", []) == lines("title", "under", []) == ""
    single = ET.fromstring(lines("title", "under", [Series("a", {"4": (0.5, 0.5, 0.5)})]))
    assert len(list(single.iter("{http://www.w3.org/2000/svg}circle"))) == 1


def test_an_existing_comparison_is_replaced_only_on_request(world: Path) -> None:
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


def test_the_run_is_not_changed_by_its_comparison(world: Path) -> None:
    before = {path: path.read_bytes() for path in (world / "first").rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="expected an output file outside of the input"):
        compare(world, "--out", world / "first" / "here")
    compare(world)
    assert {path: path.read_bytes() for path in (world / "first").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--group-sizes", "4,x"], "--group-sizes: expected integers separated by commas, received '4,x'"),
        (["--group-sizes", "9"], "group_sizes: expected numbers from 2 to the run's 8, received 9"),
        (["--set", "alpha"], "--set: expected name=value, received 'alpha'"),
        (["--set", "betta=1"], "unknown parameter 'betta'"),
        (["-e", "hgpo"], "received 'hgpo' twice"),
        (["-e", "hgppo"], "did you mean 'hgpo'"),
        (["--seed", -1], "seed: expected an integer of at least 0, received -1"),
        (["--depth", -1], "depth: expected an integer of at least 0, received -1"),
    ],
)
def test_wrong_options_are_reported(world: Path, options: list[object], line: str) -> None:
    with pytest.raises(InputError, match=re.escape(line)):
        compare(world, *options)
    assert not (world / "first.comparison").exists()


def test_wrong_truths_are_reported(world: Path) -> None:
    truth = pl.read_parquet(world / "truth.parquet")
    (world / "truth.parquet").unlink()
    with pytest.raises(InputError, match="expected a truth table, received no file"):
        compare(world)
    truth.drop("advantage_first").write_parquet(world / "truth.parquet")
    with pytest.raises(InputError, match="the truth table has no advantage_first"):
        compare(world)
    described = orjson.dumps({"rewards": {"gamma": 0.95}, "run_fingerprint": "sha256:0"}).decode()
    truth.write_parquet(world / "truth.parquet", metadata={METADATA: described})
    with pytest.raises(InputError, match=r"is not the truth of .*first as it is now"):
        compare(world)


def test_the_truth_is_read_in_its_own_unit(world: Path) -> None:
    """A truth of rewards × 10 gives the same figures as one of rewards."""
    from hgpo_train.advantages.advantage_tables import fingerprint

    compare(world, "--out", world / "one")
    truth = pl.read_parquet(world / "truth.parquet")
    scaled = truth.with_columns(pl.col("^(value|q|advantage).*$") * 10)
    described = {"rewards": {"gamma": 0.95, "reward_scale": 10.0}, "run_fingerprint": fingerprint(world / "first")}
    scaled.write_parquet(world / "truth.parquet", metadata={METADATA: orjson.dumps(described).decode()})
    assert truth_rewards(world / "truth.parquet", world / "first").reward_scale == 10
    compare(world, "--out", world / "ten")
    one, ten = (pl.read_parquet(world / name / "estimates.parquet") for name in ("one", "ten"))
    compared = [table.filter(pl.col("steps") > 100).select("estimator", "measure", "value") for table in (one, ten)]
    polars.testing.assert_frame_equal(*compared, rel_tol=1e-4, abs_tol=1e-6)  # returns are rounded to float32


def interrupted(steps: pl.LazyFrame) -> pl.LazyFrame:
    raise KeyboardInterrupt


def test_an_interruption_leaves_no_files(world: Path) -> None:
    before = sorted(world.rglob("*"))
    given = [world / "first", "--truth", world / "truth.parquet", "-e", f"{__name__}:interrupted"]
    done = CliRunner().invoke(app, ["compare-estimators", *map(str, given)])
    assert done.exit_code == 130
    assert sorted(world.rglob("*")) == before
