"""Every estimator against recordings of the official code: every case, every configuration."""

import json
from pathlib import Path

import polars as pl
import pytest

from hgpo_train.advantages import compute, names

NAMES = {"traj": "trajectory", "obs": "state", "is_action_valid": "action_valid", "next_obs": "next_state"}
PARAMETERS = {
    "K": "history_length",
    "thresh": "similarity_threshold",
    "step_w": "step_weight",
    "episode_w": "episode_weight",
}


def configuration(column: str) -> tuple[str, dict[str, object]]:
    """`hgpo__K_2__mode_mean_norm` as an estimator's name and its parameters."""
    name, *pairs = column.split("__")
    parameters: dict[str, object] = {}
    for pair in pairs:
        key, text = ("mode", pair[5:]) if pair.startswith("mode_") else pair.rsplit("_", 1)
        flags = {"True": True, "False": False}
        number = int if key == "K" else float
        parameters[PARAMETERS.get(key, key)] = text if key == "mode" else flags[text] if text in flags else number(text)
    if name == "reinforce_pp_baseline":
        return "reinforce_pp", parameters | {"baseline": True}
    return name, parameters


def table(folder: Path, case: str) -> pl.DataFrame:
    steps = pl.read_parquet(folder / f"{case}.input.parquet")
    return steps.rename({old: new for old, new in NAMES.items() if old in steps.columns}).drop("episode_reward")


def test_every_case_and_configuration(shared: Path) -> None:
    folder = shared / "golden" / "estimators"
    manifest = json.loads((folder / "manifest.json").read_text())
    compared = 0
    for case in manifest["cases"]:
        if case == "nan_reward":
            continue
        steps, expected = table(folder, case), pl.read_parquet(folder / f"{case}.expected.parquet")
        for column in expected.columns:
            name, parameters = configuration(column.removesuffix("|x64"))
            if not column.endswith("|x64") or name not in names():
                continue
            got = compute(steps, name, **parameters).collect()["advantage"].to_numpy()
            want = expected[column].to_numpy()
            scale = max(1.0, abs(want).max())
            assert abs(got - want).max() <= 1e-9 * scale, (case, column)
            assert ((got == 0) == (want == 0)).all(), (case, column)
            compared += 1
    assert compared > 500


@pytest.mark.parametrize("estimator", ["hgpo", "grpo"])
def test_nan_is_refused(shared: Path, estimator: str) -> None:
    steps = table(shared / "golden" / "estimators", "nan_reward")
    with pytest.raises(ValueError, match=r"reward must be a finite number, got nan at task='a', trajectory=.*step="):
        compute(steps, estimator).collect()
