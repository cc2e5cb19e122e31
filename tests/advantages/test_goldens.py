"""Every estimator against recordings of the official code: every case, every configuration."""

import json
from pathlib import Path

import polars as pl
import pytest

from hgpo_envs.errors import InputError
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


GOLDEN = Path(__file__).parent.parent / "golden" / "estimators"


def recording(kind: str, case: str) -> pl.DataFrame:
    """One case of a recorded table, with the columns that it has."""
    rows = pl.read_parquet(GOLDEN / f"{kind}.parquet").filter(case=case).drop("case")
    return rows[[column.name for column in rows if column.null_count() < len(column)]]


def table(case: str) -> pl.DataFrame:
    steps = recording("input", case)
    return steps.rename({old: new for old, new in NAMES.items() if old in steps.columns}).drop("episode_reward")


def differences(steps: pl.DataFrame, column: pl.Series, **extra: object) -> tuple[float, int]:
    """The largest difference to a recorded column (relative where it is above 1), and how many zeros differ."""
    name, parameters = configuration(column.name.rsplit("|", 1)[0])
    got = compute(steps, name, **parameters | extra).collect()["advantage"].to_numpy()
    want = column.to_numpy()
    return float((abs(got - want) / abs(want).clip(min=1.0)).max()), int(((got == 0) != (want == 0)).sum())


def cases(manifest: str) -> list[str]:
    found = json.loads((GOLDEN / manifest).read_text())["cases"]
    return [case for case in found if case != "nan_reward"]  # refused: test_nan_is_refused


def test_every_case_and_configuration() -> None:
    compared = 0
    for case in cases("manifest.json"):
        steps = table(case)
        for column in recording("expected", case):
            undefined = (case, column.name) == ("one_step", "g2po__mode_mean_std_norm|x64")  # NaN, and 0 here
            if column.name.endswith("|x64") and not column.name.startswith("returns") and not undefined:
                difference, zeros = differences(steps, column)
                assert difference <= 1e-9, (case, column.name, difference)
                assert not zeros, (case, column.name, zeros)
                compared += 1
    assert compared > 1_000


def test_every_graphgpo_case_and_configuration() -> None:
    compared = 0
    for case in cases("graphgpo.manifest.json"):
        steps = table(case)
        for column in recording("graphgpo", case):
            base, _, kind = column.name.partition("|")
            if kind not in {"x64", "d64"}:
                continue
            extra: dict[str, object] = {"success": "full"} if base.endswith("__success_eq10") else {}
            if kind == "d64":
                extra["precision"] = "float64"
            difference, zeros = differences(steps, column.alias(base.removesuffix("__success_eq10")), **extra)
            assert difference <= (1e-9 if kind == "x64" else 1e-8), (case, column.name, difference)
            assert not zeros or kind == "d64", (case, column.name, zeros)  # d64 has noise where x64 has zeros
            compared += 1
    assert compared > 500


def test_graphgpo_distances() -> None:
    for case in cases("graphgpo.manifest.json"):
        recorded = recording("graphgpo", case)["__d_next"]
        distances = compute(table(case), "graphgpo", details=True).collect()["advantage_distance"]
        assert distances.to_list() == recorded.to_list(), case


@pytest.mark.parametrize("estimator", names())
def test_nan_is_refused(estimator: str) -> None:
    steps = table("nan_reward")
    with pytest.raises(InputError, match=r"reward must be a finite number, got nan at task='a', trajectory=.*step="):
        compute(steps, estimator).collect()


def test_float32_numbers_within_their_own_tolerance() -> None:
    """The official float32 output, but for rows where it is noise: there, equal returns have an advantage."""
    compared, noise = 0, 0
    for case in cases("manifest.json"):
        steps, recorded = table(case), recording("expected", case)
        for column in recorded.columns:
            base, _, kind = column.partition("|")
            if kind != "f32" or base == "returns" or (case, base) == ("one_step", "g2po__mode_mean_std_norm"):
                continue
            name, parameters = configuration(base)
            got = compute(steps, name, **parameters, precision="float32").collect()["advantage"].to_numpy()
            official, exact = recorded[column].to_numpy().astype(float), recorded[f"{base}|x64"].to_numpy()
            noisy = abs(exact - official) > 1e-3
            assert abs(got - official)[~noisy].max(initial=0) <= 2e-4, (case, base)
            noise, compared = noise + int(noisy.sum()), compared + len(noisy)
    assert 0 < noise < compared / 100
