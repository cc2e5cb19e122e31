"""Every estimator against recordings of the official code, in all cases and configurations."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from refusals import refused

from hgpo_train.advantages import compute, names

NAMES = {
    "traj": "trajectory",
    "obs": "state",
    "is_action_valid": "action_valid",
    "next_obs": "next_state",
}
PARAMETERS = {"K": "history_length", "thresh": "similarity_threshold"}
PARAMETERS |= {"step_w": "step_weight", "episode_w": "episode_weight"}


def configuration(column):
    """Return the estimator's name and parameters of a column such as `hgpo__K_2__mode_mean_norm`."""
    name, *pairs = column.split("__")
    parameters: dict[str, object] = {}
    for pair in pairs:
        key, text = (
            ("mode", pair[5:]) if pair.startswith("mode_") else pair.rsplit("_", 1)
        )
        flags = {"True": True, "False": False}
        number = int if key == "K" else float
        parameters[PARAMETERS.get(key, key)] = (
            text if key == "mode" else flags[text] if text in flags else number(text)
        )
    if name == "reinforce_pp_baseline":
        return "reinforce_pp", parameters | {"baseline": True}
    return name, parameters


GOLDEN = Path(__file__).parent.parent / "golden" / "estimators"


@cache
def recording(kind, case):
    """Return one case of a recorded table, without columns that are null."""
    rows = pl.read_parquet(GOLDEN / f"{kind}.parquet").filter(case=case).drop("case")
    return rows[[column.name for column in rows if column.null_count() < len(column)]]


def table(case):
    steps = recording("input", case)
    return steps.rename(
        {old: new for old, new in NAMES.items() if old in steps.columns}
    ).drop("episode_reward")


def advantages(steps, column, **extra):
    name, parameters = configuration(column)
    return (
        compute(steps, name, **{"reward_scale": 1.0} | parameters | extra)
        .collect()["advantage"]
        .to_numpy()
    )


def differences(received, recorded):
    """Return the largest difference (relative above 1), and the number of differing zeros."""
    want = recorded.to_numpy()
    return float((abs(received - want) / abs(want).clip(min=1.0)).max()), int(
        ((received == 0) != (want == 0)).sum()
    )


def cases(manifest):
    found = json.loads((GOLDEN / manifest).read_text())["cases"]
    # an error, see test_nan_is_reported
    return [case for case in found if case != "nan_reward"]


CASES = cases("manifest.json")
GRAPHGPO_CASES = cases("graphgpo.manifest.json")


def exact_columns(case):
    """The float64 recordings of a case, one per estimator and configuration."""
    names = [
        name for name in recording("expected", case).columns if name.endswith("|x64")
    ]
    # recorded as NaN
    undefined = "g2po__mode_mean_std_norm|x64" if case == "one_step" else ""
    return [
        name for name in names if not name.startswith("returns") and name != undefined
    ]


@pytest.mark.parametrize("case", CASES)
def test_every_configuration_matches_the_recording(case):
    """In float64, and in float32 except in few rows, where the official advantages of equal returns are noise."""
    steps = table(case)
    recorded = recording("expected", case)
    columns = exact_columns(case)
    assert len(columns) > 50
    for column in columns:
        base = column.removesuffix("|x64")
        received = advantages(steps, base)
        difference, zeros = differences(received, recorded[column])
        assert difference <= 1e-9, (column, difference)
        assert not zeros, (column, zeros)
        official = recorded[f"{base}|f32"].to_numpy()
        noise = abs(recorded[column].to_numpy() - official) > 1e-3
        assert (
            abs(received.astype(np.float32) - official)[~noise].max(initial=0) <= 2e-4
        ), base
        assert noise.mean() < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("case", GRAPHGPO_CASES)
def test_every_graphgpo_configuration_matches_the_recording(case):
    steps = table(case)
    recorded = recording("graphgpo", case)
    columns = [
        name for name in recorded.columns if name.partition("|")[2] in {"x64", "d64"}
    ]
    assert len(columns) > 30
    for column in columns:
        base, _, kind = column.partition("|")
        extra: dict[str, object] = (
            {"success": "full"} if base.endswith("__success_eq10") else {}
        )
        if kind == "d64":
            extra["precision"] = "float64"
        received = advantages(steps, base.removesuffix("__success_eq10"), **extra)
        difference, zeros = differences(received, recorded[column])
        assert difference <= (1e-9 if kind == "x64" else 1e-8), (column, difference)
        # d64 has noise where x64 has zeros
        assert not zeros or kind == "d64", (column, zeros)
    distances = compute(steps, "graphgpo", details=True, reward_scale=1.0).collect()[
        "advantage_distance"
    ]
    assert distances.to_list() == recorded["__d_next"].to_list()


@pytest.mark.parametrize("estimator", names())
def test_nan_is_reported(estimator):
    steps = table("nan_reward").with_columns(action=pl.lit("go"))
    line = r"expected a finite number as reward, received nan at task='a', trajectory=.*step="
    with refused(line):
        compute(steps, estimator).collect()
