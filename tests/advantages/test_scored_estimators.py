"""Estimators that read scores: tables computed by hand, plain Python on random tables, and invalid scores."""

import math
import statistics
from collections import defaultdict
from fractions import Fraction

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from hgpo_train.advantages import compute, empg, get, hcapo, names, progress

# an example takes about 15 ms
SOME = settings(max_examples=max(10, settings().max_examples // 6))
PLAIN = {"reward_scale": 1.0, "invalid_action_penalty": 0.0, "precision": "float64"}
MEAN = PLAIN | {"mode": "mean_norm"}


def table(trajectories, **scores):
    """Return a step table of one task: the rewards of each trajectory, and the columns of scores."""
    rows = [
        {
            "task": "a",
            "trajectory": name,
            "step": step,
            "state": f"s{step % 2}",
            "reward": float(reward),
        }
        for name, rewards in trajectories.items()
        for step, reward in enumerate(rewards)
    ]
    return pl.DataFrame(rows).with_columns(
        action_valid=True, **{name: pl.Series(scores[name]) for name in scores}
    )


def values(frame, column="advantage"):
    return frame.collect()[column].to_list()


def approx(numbers, accuracy=1e-12):
    return pytest.approx([float(number) for number in numbers], abs=accuracy)


# ----------------------------------------------------------------------------------------------------------------- empg

TWO = {"x": [0, 1], "y": [0, 0]}


def test_empg_by_hand():
    """Ĥ is 0 or 1, and e^-k is 1/2: the confidences 1, 1/2, 1/2 and 1 have the mean 3/4."""
    steps = table(TWO, entropy=[1.0, 3.0, 3.0, 1.0])
    options = MEAN | {
        "cross_steps": False,
        "k": math.log(2),
        "future_k": math.log(2),
        "zeta": 0.2,
    }
    found = empg(steps, details=True, **options)
    assert values(found, "advantage_scale") == approx(
        [4 / 3, 2 / 3, 2 / 3, 4 / 3], 1e-7
    )
    assert values(found, "advantage_bonus") == approx([0.1, 0, 0.2, 0], 1e-8)
    half = Fraction(1, 2)
    terms = [
        half * 4 / 3 + Fraction(1, 10),
        half * 2 / 3,
        -half * 2 / 3 + Fraction(1, 5),
        -half * 4 / 3,
    ]
    assert values(found) == approx([term - sum(terms) / 4 for term in terms], 1e-7)


def test_empg_of_equal_entropies_and_of_responses_without_tokens():
    options = MEAN | {"cross_steps": False, "zeta": 0.2}
    equal = table(TWO, entropy=[0.7] * 4)
    # The bonuses are 0.2, 0, 0.2 and 0, whose mean is 0.1.
    assert values(empg(equal, **options)) == approx([0.6, 0.4, -0.4, -0.6])
    nothing = table({"x": [0, 0], "y": [0]}, entropy=[0.5, 2.0, 1.0])
    assert values(empg(nothing, zeta=0.0)) == [0.0] * 3
    assert values(empg(table({"x": [0]}, entropy=[0.5]), zeta=1.0)) == [0.0]
    # Without a score, the factor is 1, and the step before has no bonus: the confidences of the others are 1 and 1.
    missing = table(TWO, entropy=[0.7, None, 0.7, None])
    assert values(empg(missing, **options)) == approx([0.5, 0.5, -0.5, -0.5])


def test_the_batch_of_empg_is_an_iteration():
    """Not the chunk and not the table: other iterations change nothing."""
    steps = table(TWO, entropy=[1.0, 3.0, 3.0, 1.0]).with_columns(iteration=0)
    other = steps.with_columns(
        pl.col("entropy") * 9, pl.col("trajectory") + "2", iteration=1
    )
    assert values(empg(pl.concat([steps, other])))[:4] == approx(values(empg(steps)))
    assert get("empg").scope == "batch"


# ---------------------------------------------------------------------------------------------------------------- hcapo

LONG = {"x": [0, 0, 1], "y": [0]}
# of 9, 10 and 11 to their mean: 0.9, 1 and 1.1
RATIOS = [math.log(9), math.log(10), math.log(11), math.log(5)]


def test_hcapo_by_hand():
    """With γ = 1/2, Q is 0.9/4, 1/2, 1.1 and 0, whose mean is 0.45625. The first micro term would be negative."""
    steps = table(LONG, hindsight=RATIOS)
    options = MEAN | {"gamma": 0.5, "temperature": 1.0}
    found = hcapo(steps, details=True, **options)
    assert values(found, "advantage_ratio") == approx([0.9, 1, 1.1, 1])
    assert values(found, "advantage_macro") == approx([0.5, 0.5, 0.5, -0.5])
    assert values(found, "advantage_micro") == approx([0, 0.04375, 0.64375, -0.45625])
    assert values(found) == approx([0.5, 0.54375, 1.14375, -0.95625])
    halved = hcapo(steps, step_weight=0.5, **options)
    assert values(halved) == approx([0.5, 0.521875, 0.821875, -0.728125])
    # Smoothed: 0.3625, 0.8, 1.1 and 0, whose mean is 0.565625.
    smoothed = hcapo(steps, smoothing=True, **options)
    assert values(smoothed) == approx(
        [0.5, 0.5 + 0.234375, 0.5 + 0.534375, -0.5 - 0.565625]
    )
    # In the same state: {0.225, 1.1, 0} with the mean 53/120 are s0, and {0.5} is alone in s1.
    of_states = hcapo(steps, micro="state", **options)
    mean = Fraction(53, 120)
    assert values(of_states) == approx(
        [0.5, 0.5, 0.5 + Fraction(11, 10) - mean, -0.5 - mean]
    )


def test_the_penalty_of_an_invalid_action_is_part_of_its_step():
    """Of lost rollouts, Q is -0.5, 0, 0 and 0, whose mean is -0.125; a successful rollout is not punished."""
    steps = table(TWO, hindsight=[-1.0] * 4).with_columns(
        action_valid=pl.Series([False, True, True, True])
    )
    options = MEAN | {"invalid_action_penalty": 0.5, "gamma": 1.0}
    lost = steps.with_columns(reward=0.0)
    assert values(hcapo(lost, **options)) == approx([-0.375, 0.125, 0.125, 0.125])
    # Q is 0.5, 1, 0 and 0, with the mean 0.375.
    assert values(hcapo(steps, **options)) == approx([0.625, 1.125, -0.875, -0.875])
    standardised = values(
        hcapo(lost, **options | {"mode": "mean_std_norm", "epsilon": 0.0})
    )
    assert standardised == approx(
        [each / 0.25 for each in [-0.375, 0.125, 0.125, 0.125]]
    )


def test_hcapo_clips_flattens_and_standardises():
    steps = table(TWO, hindsight=[math.log(1), math.log(3), -1.0, -1.0])
    q = [0.8 * 0.5, 1.2, 0.0, 0.0]
    found = values(hcapo(steps, gamma=0.5, temperature=1.0, epsilon=0.0, **PLAIN))
    macro = 0.5 / statistics.stdev([0, 1])
    micro = [(each - statistics.mean(q)) / statistics.stdev(q) for each in q]
    assert found == approx(
        [
            macro + max(micro[0], 0),
            macro + micro[1],
            -macro + micro[2],
            -macro + micro[3],
        ]
    )
    # π^(1/2): 1 and √3, which are 1 - 0.2679 and 1 + 0.2679 of their mean.
    ratio = hcapo(steps, temperature=2.0, ratio_low=0.0, ratio_high=9.0, details=True)
    mean = (1 + math.sqrt(3)) / 2
    assert values(ratio, "advantage_ratio") == approx(
        [1 / mean, math.sqrt(3) / mean, 1, 1]
    )


def test_hcapo_of_equal_returns_of_one_rollout_and_of_responses_without_tokens():
    lost = table({"x": [0, 0], "y": [0]}, hindsight=[-1.0, -2.0, -3.0])
    assert values(hcapo(lost)) == [0.0] * 3
    won = hcapo(
        table({"x": [0, 1], "y": [1]}, hindsight=[-1.0, -2.0, -3.0]), details=True
    )
    assert values(won, "advantage_macro") == [0.0] * 3
    assert min(values(won)) == 0.0
    assert max(values(won)) > 0
    alone = hcapo(table({"x": [1]}, hindsight=[-1.0]))
    assert values(alone) == [0.0]
    missing = hcapo(table(TWO, hindsight=[None, -4.0, None, None]), details=True)
    assert values(missing, "advantage_ratio") == [1.0] * 4
    # Log-probabilities whose exponentials are 0 in float64.
    small = hcapo(
        table(TWO, hindsight=[-9e4, -9e4 - 1, -1.0, -1.0]),
        temperature=1.0,
        ratio_low=0,
        ratio_high=9,
    )
    large = hcapo(
        table(TWO, hindsight=[0.0, -1.0, -1.0, -1.0]),
        temperature=1.0,
        ratio_low=0,
        ratio_high=9,
    )
    assert values(small) == approx(values(large))


# ------------------------------------------------------------------------------------------------------------- progress


def test_progress_by_hand():
    policy = [[-1.0, -2.0], [-0.25], [], None]
    reference = [[-1.5, -2.5], [-0.25], [], None]
    steps = table(TWO, logprobs=policy, reference_logprobs=reference)
    assert values(progress(steps)) == [0.5, 0.0, 0.0, 0.0]
    assert values(progress(steps, details=True), "advantage_logprob") == [
        -1.5,
        -0.25,
        None,
        None,
    ]


# ---------------------------------------------------------------------------------------------- plain Python, all three

SCORES = st.one_of(st.none(), st.floats(-20, 0, width=32))


@st.composite
def tables(draw):
    """Small tables with several tasks, lengths, rewards and missing scores, in any order."""
    rows = []
    for task in range(draw(st.integers(1, 2))):
        for rollout in range(draw(st.integers(1, 4))):
            for step in range(draw(st.integers(1, 5))):
                row = {
                    "task": f"{task}",
                    "trajectory": f"{task}/{rollout}",
                    "step": step,
                    "action_valid": True,
                }
                row |= {
                    "state": draw(st.sampled_from("st")),
                    "reward": draw(st.sampled_from([0.0, 0.0, 1.0, -0.5])),
                }
                row |= {"hindsight": draw(SCORES), "entropy": draw(SCORES)}
                rows.append(row)
    return draw(st.permutations(rows))


TYPES = {"hindsight": pl.Float64, "entropy": pl.Float64}


def deviations(rows, value, key):
    """Return (x - mean) / (std + 1e-6) of each row among those with an equal key; 0 where it is alone or all are."""
    groups = defaultdict(list)
    for row in rows:
        groups[key(row)].append(value(row))
    found = []
    for row in rows:
        group = groups[key(row)]
        spread = statistics.stdev(group) if len(group) > 1 else 0.0
        equal = spread <= 1e-12
        found.append(
            0.0 if equal else (value(row) - statistics.fmean(group)) / (spread + 1e-6)
        )
    return found


@SOME
@given(tables(), st.booleans(), st.sampled_from(["group", "state"]))
def test_hcapo_is_that_of_plain_python(rows, smoothing, micro):
    ordered = sorted(rows, key=lambda row: (row["trajectory"], row["step"]))
    trajectories = defaultdict(list)
    for row in ordered:
        trajectories[row["trajectory"]].append(row)
    for members in trajectories.values():
        scored = [
            math.exp(row["hindsight"] / 5)
            for row in members
            if row["hindsight"] is not None
        ]
        total = sum(row["reward"] for row in members)
        for row in members:
            ratio = 1.0
            if row["hindsight"] is not None:
                ratio = min(
                    max(math.exp(row["hindsight"] / 5) / statistics.fmean(scored), 0.8),
                    1.2,
                )
            row["R"] = total
            row["Q"] = ratio * 0.9 ** (len(members) - 1 - row["step"]) * total
        plain = [row["Q"] for row in members]
        for row, following in zip(members, [*plain[1:], plain[-1]], strict=True):
            row["Q"] = (row["Q"] + following) / 2 if smoothing else row["Q"]
    firsts = [row for row in ordered if row["step"] == 0]
    macro = deviations(firsts, lambda row: row["R"], lambda row: row["task"])
    of_trajectory = dict(zip((row["trajectory"] for row in firsts), macro, strict=True))
    key = (
        (lambda row: (row["task"], row["state"]))
        if micro == "state"
        else (lambda row: row["task"])
    )
    expected = {}
    for row, term in zip(
        ordered, deviations(ordered, lambda row: row["Q"], key), strict=True
    ):
        kept = max(term, 0.0) if row["R"] > 0 else term
        expected[row["trajectory"], row["step"]] = (
            of_trajectory[row["trajectory"]] + kept
        )

    steps = pl.DataFrame(rows, schema_overrides=TYPES).drop("R", "Q")
    found = values(hcapo(steps, gamma=0.9, smoothing=smoothing, micro=micro, **PLAIN))
    assert found == pytest.approx(
        [expected[row["trajectory"], row["step"]] for row in rows], abs=1e-9
    )


@SOME
@given(tables(), st.floats(0, 3), st.floats(0, 1))
def test_empg_is_that_of_plain_python(rows, k, zeta):
    known = [row["entropy"] for row in rows if row["entropy"] is not None]
    least = min(known, default=0.0)
    spread = max(known, default=0.0) - least + 1e-8
    scale = {None: 1.0} | {
        entropy: math.exp(-k * (entropy - least) / spread) for entropy in known
    }
    average = statistics.fmean([scale[entropy] for entropy in known] or [1.0])
    entropies = {(row["trajectory"], row["step"]): row["entropy"] for row in rows}
    steps = pl.DataFrame(rows, schema_overrides=TYPES)
    terms = []
    for row, episode in zip(rows, values(compute(steps, "grpo", **PLAIN)), strict=True):
        following = entropies.get((row["trajectory"], row["step"] + 1))
        own = 1.0 if row["entropy"] is None else scale[row["entropy"]] / average
        bonus = (
            0.0 if following is None else math.exp(-2 * (following - least) / spread)
        )
        terms.append(episode * own + zeta * bonus)
    expected = [term - statistics.fmean(terms) for term in terms]
    assert values(empg(steps, k=k, future_k=2.0, zeta=zeta, **PLAIN)) == pytest.approx(
        expected, abs=1e-9
    )


# ------------------------------------------------------------------------------------------------------- invalid scores

NAN = float("nan")


@pytest.mark.parametrize("name", ["empg", "hcapo", "progress"])
def test_tables_without_scores_are_refused_with_the_command(name):
    scores = get(name).scores
    reference = " --reference OTHER" if name == "progress" else ""
    command = f"hgpo score RUN --model MODEL -s {' -s '.join(scores)}{reference}$"
    with refused(
        rf"the table has no `{scores[0]}`.*, which {name} reads; .* {command}"
    ):
        compute(table(TWO), name)
    assert name in names(scored=True)
    assert name not in names()


@pytest.mark.parametrize(
    ("name", "scores", "message"),
    [
        ("empg", {"entropy": [1.0, NAN, 1.0, 1.0]}, "finite numbers as entropy, received nan at .*'x', step=1"),
        ("hcapo", {"hindsight": [1.0, 1.0, math.inf, 1.0]}, "finite numbers as hindsight, received inf .*step=0"),
        ("hcapo", {"hindsight": ["a"] * 4}, "column hindsight: expected Float64, received String"),
        ("progress", {"logprobs": [1.0] * 4}, r"column logprobs: expected List\(Float32\), received Float64"),
        ("progress", {"logprobs": [[-1.0, NAN]] * 4}, "finite numbers as logprobs, received nan at .*'x', step=0"),
    ],
)  # fmt: skip
def test_invalid_scores_are_reported(name, scores, message):
    plain = {"reference_logprobs": [[-1.0]] * 4} if name == "progress" else {}
    steps = table(TWO, **plain, **scores)
    with refused(message):
        compute(steps, name).collect()
    if "received nan" in message or "received inf" in message:
        every = compute(steps.with_columns(aborted=True), name).collect()
        assert every["advantage"].null_count() == 4


def test_invalid_parameters_are_reported():
    steps = table(TWO, hindsight=[-1.0] * 4, entropy=[1.0] * 4)
    for name, parameters, message in (
        (
            "hcapo",
            {"ratio_low": 2.0},
            "ratio_low: expected at most ratio_high = 1.2, received 2",
        ),
        ("hcapo", {"temperature": 0.0}, "parameter temperature: expected float > 0.0"),
        ("hcapo", {"micro": "states"}, "did you mean 'state'"),
        ("empg", {"k": -1.0}, "parameter k"),
        ("empg", {"zeta": NAN}, "parameter zeta: expected a finite number"),
    ):
        with refused(message):
            compute(steps, name, **parameters).collect()
