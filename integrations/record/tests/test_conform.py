"""`hgpo conform`: seeded faults are found, right estimators are not accused."""

import json
import warnings
from fractions import Fraction

import numpy as np
import polars as pl
import pytest

from hgpo_envs.errors import InputError
from hgpo_record.conform import conform
from hgpo_record.conform.adapters import ADAPTERS, Advantages
from hgpo_record.conform.rollouts import table
from hgpo_record.conform.stopping import stop_gradient
from hgpo_train.advantages import get

torch = pytest.importorskip("torch")


def z(scores, index, *, divide=True, epsilon=1e-6):
    """Return the standardised scores of each group; 0 in a group of one."""
    found = torch.zeros_like(scores)
    for name in dict.fromkeys(index):
        rows = torch.tensor([other == name for other in index])
        group = scores[rows].double()
        if len(group) > 1:
            centred = group - group.mean()
            centred[centred.abs() < 1e-6 * group.abs().max()] = 0
            found[rows] = (
                centred / (group.std() + epsilon) if divide else centred
            ).float()
    return found


def verl_grpo(token_level_rewards, response_mask, index, **_):
    advantages = z(token_level_rewards.sum(-1), index)[:, None] * response_mask
    return advantages, advantages


def verl_dr_grpo(token_level_rewards, response_mask, index):
    return z(token_level_rewards.sum(-1), index, divide=False)[
        :, None
    ] * response_mask, None


def verl_agent_grpo(token_level_rewards, response_mask, index, traj_index):
    scores = token_level_rewards.sum(-1)
    first = [row for row, name in enumerate(traj_index) if name not in traj_index[:row]]
    by_rollout = dict(
        zip(traj_index[first], z(scores[first], index[first]), strict=True)
    )
    return torch.stack([by_rollout[name] for name in traj_index])[
        :, None
    ] * response_mask, None


def skyrl_grpo(token_level_rewards, response_mask, index, is_last_step):
    rollout = torch.cat([torch.tensor([0]), is_last_step[:-1].int().cumsum(0)])
    last = z(token_level_rewards.sum(-1)[is_last_step], index[is_last_step.numpy()])
    return last[rollout][:, None] * response_mask, None


def trl_grpo(rewards, num_generations):
    groups = rewards.double().view(-1, num_generations)
    centred = groups - groups.mean(1, keepdim=True)
    return (
        (centred / (groups.std(1, keepdim=True, correction=0) + 1e-4)).flatten().float()
    )


def plain_mean(steps: pl.DataFrame) -> pl.Series:
    """Return each rollout's return minus the mean of its task, without aborted rollouts."""
    known = (
        steps.filter(~pl.col("aborted"))
        .group_by("task_id", "trajectory")
        .agg(pl.col("reward").sum())
    )
    centred = known.with_columns(
        advantage=pl.col("reward") - pl.col("reward").mean().over("task_id")
    )
    centred = centred.with_columns(pl.col("advantage").round(12))
    return steps.join(
        centred, on=("task_id", "trajectory"), how="left", maintain_order="left"
    )["advantage"].fill_null(0)


RIGHT = {
    "verl": [verl_grpo, verl_dr_grpo, verl_agent_grpo],
    "skyrl": [skyrl_grpo],
    "trl": [trl_grpo],
    "plain": [
        plain_mean,
        get("turn").with_parameters(form="return"),
        *map(
            get, ("hgpo", "gigpo", "grpo", "graphgpo", "rloo", "ecpo", "gagpo", "bepo")
        ),
    ],
}


@pytest.mark.parametrize(
    ("adapter", "function"),
    [(name, each) for name, all_ in RIGHT.items() for each in all_],
)
def test_right_estimators_have_no_fault(adapter, function):
    assert [
        str(finding)
        for finding in conform(function, adapter)
        if finding.kind == "fault"
    ] == []


def test_reinforce_pp_over_a_batch_has_no_fault():
    findings = conform(get("reinforce_pp"), scope="batch")
    assert [str(finding) for finding in findings if finding.kind == "fault"] == []


def scores_of(token_level_rewards):
    return token_level_rewards.sum(-1)


def masked(function):
    """Return code of verl's form that computes one number for each sequence."""

    def code(token_level_rewards, response_mask, index):
        return function(scores_of(token_level_rewards), index)[
            :, None
        ] * response_mask, None

    return code


def no_mask(token_level_rewards, response_mask, index):
    return z(scores_of(token_level_rewards), index)[:, None].expand_as(
        response_mask
    ), None


def first_mask(token_level_rewards, response_mask, index):
    return z(scores_of(token_level_rewards), index)[:, None] * response_mask[:1], None


def only_reward_token(token_level_rewards, response_mask, index):
    return z(scores_of(token_level_rewards), index)[:, None] * (
        token_level_rewards != 0
    ), None


def in_place(token_level_rewards, response_mask, index):
    token_level_rewards[token_level_rewards == 0] = -1e-9
    return verl_grpo(token_level_rewards, response_mask, index)


def wrong_shape(token_level_rewards, response_mask, index):
    return z(scores_of(token_level_rewards), index), None


def float32_noise(scores, index):
    found = torch.zeros_like(scores)
    for name in dict.fromkeys(index):
        rows = torch.tensor([other == name for other in index])
        group = scores[rows]
        mean = sum(group) * torch.tensor(1 / len(group), dtype=torch.float32)
        found[rows] = (group - mean) / (group.std(correction=0) + 1e-8)
    return found


def nan_alone(scores, index):
    found = torch.zeros_like(scores)
    for name in dict.fromkeys(index):
        rows = torch.tensor([other == name for other in index])
        found[rows] = (scores[rows] - scores[rows].mean()) / (scores[rows].std() + 1e-6)
    return found


def neighbour_baseline(scores, index):
    means = {
        name: scores[torch.tensor([other == name for other in index])].mean()
        for name in dict.fromkeys(index)
    }
    known = list(means)
    following = dict(zip(known, known[1:] + known[:1], strict=True))
    return scores - torch.stack([means[following[name]] for name in index])


def over_variance(scores, index):
    """Divide by the variance instead of its root."""
    found = torch.zeros_like(scores)
    for name in dict.fromkeys(index):
        rows = torch.tensor([other == name for other in index])
        deviation = scores[rows].double().std(correction=0) + 1e-6
        found[rows] = (z(scores, index)[rows] / deviation).float()
    return found


def distinct_scores(scores, index):
    found = torch.zeros_like(scores)
    for name in dict.fromkeys(index):
        rows = torch.tensor([other == name for other in index])
        found[rows] = scores[rows] - scores[rows].unique().mean()
    return found


def each_rollout_alone(token_level_rewards, response_mask, index, traj_index):
    return z(scores_of(token_level_rewards), traj_index)[:, None] * response_mask, None


def turns_within_index(
    token_level_rewards, response_mask, index, traj_index, step_rewards
):
    """Standardise rewards within task and turn, and sum those that follow (the biased form of verl #7244)."""
    turn = [list(traj_index[:row]).count(name) for row, name in enumerate(traj_index)]
    last = [row + 1 == len(turn) or turn[row + 1] == 0 for row in range(len(turn))]
    own = step_rewards - torch.where(torch.tensor(last), 0.0, step_rewards.roll(-1))
    keys = [f"{name}/{number}" for name, number in zip(index, turn, strict=True)]
    per_turn = z(own, keys, divide=False)
    to_go = per_turn.clone()
    for row in range(len(turn) - 2, -1, -1):
        if not last[row]:
            to_go[row] += to_go[row + 1]
    return to_go[:, None] * response_mask, None


def last_mask_for_all(token_level_rewards, response_mask, index, is_last_step):
    rollout = torch.cat([torch.tensor([0]), is_last_step[:-1].int().cumsum(0)])
    last = z(scores_of(token_level_rewards)[is_last_step], index[is_last_step.numpy()])
    return (last[:, None] * response_mask[is_last_step])[rollout], None


def only_last_step(token_level_rewards, response_mask, index, is_last_step):
    return skyrl_grpo(token_level_rewards, response_mask, index, is_last_step)[
        0
    ] * is_last_step[:, None], None


def zeros_of_earlier_steps(token_level_rewards, response_mask, index, is_last_step):
    return z(scores_of(token_level_rewards), index)[:, None] * response_mask, None


def wrong_view(rewards, num_generations):
    groups = rewards.view(num_generations, -1)
    return ((groups - groups.mean(0)) / (groups.std(0, correction=0) + 1e-4)).flatten()


def whole_batch(rewards, num_generations):
    return (rewards - rewards.mean()) / (rewards.std(correction=0) + 1e-4)


def no_guard(rewards, num_generations):
    groups = rewards.view(-1, num_generations)
    return (
        (groups - groups.mean(1, keepdim=True)) / groups.std(1, keepdim=True)
    ).flatten()


def aborted_counted(steps):
    return plain_mean(steps.with_columns(aborted=pl.lit(value=False)))


def states_of_all_tasks(steps):
    to_go = pl.col("reward").cum_sum(reverse=True).over("task_id", "trajectory")
    return steps.with_columns(advantage=to_go - to_go.mean().over("state"))


def nan_as_zero(steps):
    return plain_mean(steps.with_columns(pl.col("reward").fill_nan(0)))


def rows_in_position(steps):
    """Group rows by their position, eight rows to a task."""
    sums = steps.select(pl.col("reward").sum().over("trajectory"))["reward"].to_numpy()
    means = [sums[row // 8 * 8 : row // 8 * 8 + 8].mean() for row in range(len(sums))]
    return sums - np.array(means)


def first_letters(steps):
    return plain_mean(steps.with_columns(task_id=pl.col("task_id").str.head(6)))


def ignored_gamma(steps, **_):
    return plain_mean(steps)


def fills_null(steps):
    return plain_mean(steps).replace(0.0, None)


FAULTS = {
    "no mask": ("verl", no_mask),
    "the mask of the first row": ("verl", first_mask),
    "only the token of the reward": ("verl", only_reward_token),
    "arguments changed": ("verl", in_place),
    "one number a sequence": ("verl", wrong_shape),
    "groups ignored": (
        "verl",
        masked(
            lambda scores, index: (
                (scores - scores.mean()) / (scores.std(correction=0) + 1e-6)
            )
        ),
    ),
    "groups by position": (
        "verl",
        masked(
            lambda scores, index: z(
                scores, [str(row // 4) for row in range(len(scores))]
            )
        ),
    ),
    "the start of names": (
        "verl",
        masked(lambda scores, index: z(scores, [name[:6] for name in index])),
    ),
    "names without case": (
        "verl",
        masked(lambda scores, index: z(scores, [name.lower() for name in index])),
    ),
    "NaN counted as 0": (
        "verl",
        masked(lambda scores, index: z(scores.nan_to_num(), index)),
    ),
    "the sign": ("verl", masked(lambda scores, index: -z(scores, index))),
    "magnitudes": ("verl", masked(lambda scores, index: z(scores, index).abs())),
    "only gains": ("verl", masked(lambda scores, index: z(scores, index).clamp(min=0))),
    "half precision": (
        "verl",
        masked(lambda scores, index: z(scores.bfloat16().float(), index)),
    ),
    "half precision of IEEE": (
        "verl",
        masked(lambda scores, index: z(scores.half().float(), index)),
    ),
    "a division by the variance": ("verl", masked(over_variance)),
    "scores as integers": (
        "verl",
        masked(lambda scores, index: z(scores.long().float(), index)),
    ),
    "a clipped score": (
        "verl",
        masked(lambda scores, index: z(scores.clamp(-1, 1), index)),
    ),
    "the next token's mask": (
        "verl",
        lambda token_level_rewards, response_mask, index: verl_grpo(
            token_level_rewards, response_mask.roll(1, -1), index
        ),
    ),
    "noise of float32": ("verl", masked(float32_noise)),
    "NaN in a group of one": ("verl", masked(nan_alone)),
    "no baseline": ("verl", masked(lambda scores, index: scores)),
    "the baseline of another task": ("verl", masked(neighbour_baseline)),
    "chance": (
        "verl",
        masked(lambda scores, index: z(scores, index) + 0.01 * torch.rand(len(scores))),
    ),
    "each rollout a group": ("verl", each_rollout_alone),
    "a bonus for every turn": ("verl", turns_within_index),
    "the last step's mask": ("skyrl", last_mask_for_all),
    "only the last step": ("skyrl", only_last_step),
    "rows as rollouts": ("skyrl", zeros_of_earlier_steps),
    "a wrong view": ("trl", wrong_view),
    "all tasks together": ("trl", whole_batch),
    "a division by 0": ("trl", no_guard),
    "the turn's rewards": ("plain", get("turn")),
    "aborted rollouts counted": ("plain", aborted_counted),
    "states of all tasks": ("plain", states_of_all_tasks),
    "NaN counted as a lost step": ("plain", nan_as_zero),
    "rows by position": ("plain", rows_in_position),
    "first letters": ("plain", first_letters),
    "null for 0": ("plain", fills_null),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_seeded_faults_are_found(fault):
    adapter, function = FAULTS[fault]
    assert [
        finding for finding in conform(function, adapter) if finding.kind == "fault"
    ]


def notes(function, adapter):
    return {
        finding.check
        for finding in conform(function, adapter)
        if finding.kind == "note"
    }


def test_choices_are_noted():
    assert "sum" in notes(masked(distinct_scores), "verl")
    assert "iterations" in notes(plain_mean, "plain")
    assert not notes(get("rloo").with_parameters(cross_steps=False), "plain") & {
        "iterations",
        "sum",
    }


@pytest.mark.parametrize(
    ("adapter", "function"),
    [
        (
            "plain",
            lambda steps: steps.with_columns(advantage=plain_mean(steps)).to_pandas(),
        ),
        ("plain", lambda steps: torch.tensor(plain_mean(steps).to_list()).bfloat16()),
        (
            "trl",
            lambda rewards, num_generations: trl_grpo(
                rewards, num_generations
            ).bfloat16(),
        ),
        (
            "verl",
            lambda token_level_rewards, response_mask, index: (
                verl_grpo(token_level_rewards, response_mask, index)[0].half().tolist()
            ),
        ),
    ],
)
def test_results_of_other_types(adapter, function):
    assert [
        str(finding)
        for finding in conform(function, adapter)
        if finding.kind == "fault"
    ] == []


def exits(_steps):
    raise SystemExit(3)


@pytest.mark.parametrize("function", [exits, lambda steps: [10**400] * len(steps)])
def test_what_stops_the_code_is_a_fault(function):
    (finding,) = conform(function)
    assert (finding.check, finding.kind) == ("call", "fault")


@pytest.mark.parametrize(
    ("function", "adapter"),
    [
        (5, "plain"),
        (dict, "plain"),
        (lambda token_level_rewards, eos_mask, index: eos_mask, "verl"),
    ],
)
def test_what_cannot_be_called_is_no_fault(function, adapter):
    with pytest.raises(InputError, match="expected a function"):
        conform(function, adapter)


def test_a_setting_without_an_effect_is_found():
    (finding,) = [
        each
        for each in conform(ignored_gamma, settings={"gamma": 0.5})
        if each.check == "setting gamma"
    ]
    assert finding.kind == "fault"
    assert "gamma=0.5 changes no advantage" in finding.text
    findings = conform(get("hgpo"), settings={"gamma": 0.5, "history_length": 1})
    assert {each.kind for each in findings if each.check.startswith("setting")} == {
        "ok"
    }


def test_the_bias_of_a_stopping_choice_is_that_of_theory():
    """By hand: with the mean of those that reach a turn, going on costs the mean reward of the first turn.

    Stopping gives 1; going on gives 0.5, then 1 or 0. A rollout that went on gets r0 - mean r0, and r1 minus the mean
    of r1 over those that went on, whose expectation is 0. What is left is r0 - mean r0, where r0 is 1 or 0.5. The
    gradient of the log-probability is 2 or -2: the expectation is (n - 1)/n · (0.5 - 1) for n rollouts.
    """
    game = {(1.0,): 0.5, (0.5, 1.0): 0.25, (0.5, 0.0): 0.25}

    def turns(steps):
        mean = pl.col("reward").mean().over("task_id", "step")
        centred = steps.with_columns(centred=pl.col("reward") - mean)
        return centred.select(
            pl.col("centred").cum_sum(reverse=True).over("task_id", "trajectory")
        )["centred"]

    def estimate(steps):
        return Advantages(turns(steps).to_numpy())

    assert stop_gradient(estimate, game) == pytest.approx(
        float(Fraction(3, 4) * Fraction(-1, 2)), abs=1e-12
    )


def test_tables_are_what_was_written():
    steps = table({"a": [[0.0, 1.0], [2.0]]})
    assert steps["reward"].to_list() == [0.0, 1.0, 2.0]
    assert steps["terminated"].to_list() == [False, True, True]
    assert steps["state"].n_unique() == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"adapter": "verk"}, "did you mean .verl.[?]"),
        ({"scope": "all"}, "scope"),
        ({"settings": {"gama": 0.9}}, "unknown setting 'gama'; did you mean 'gamma'"),
    ],
)
def test_unknown_names(arguments, message):
    with pytest.raises(InputError, match=message):
        conform(get("hgpo"), **arguments)
    assert set(ADAPTERS) == {"plain", "verl", "skyrl", "trl"}


def test_a_warning_of_groups_of_one_is_not_shown():
    """The checks have such groups, and torch's standard deviation warns of them."""

    def advantages(token_level_rewards, response_mask, index):
        scores = token_level_rewards.sum(-1)
        for name in set(index):
            group = scores[torch.tensor([other == name for other in index])]
            scores = scores - 0 * group.std().nan_to_num()
        return scores[:, None] * response_mask, None

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        findings = conform(advantages, "verl")
    assert "degrees of freedom" not in " ".join(map(str, findings))


def test_the_command(hgpo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_conform.py").write_text(
        "def advantages(steps):\n    return steps['reward']\n"
    )
    code, output, _ = hgpo("conform", "mine_conform:advantages")
    assert code == 1
    assert "checks found a fault" in output
    code, output, _ = hgpo("conform", "rloo", "--json")
    assert code == 0
    assert {finding["kind"] for finding in json.loads(output)["findings"]} <= {
        "ok",
        "note",
    }
    for arguments in (
        ["nowhere:advantages"],
        ["empg"],
        ["grpo", "--adapter", "verl"],
        ["hgpo", "--set", "gama=0.9"],
        ["hgpo", "--set", "gamma=much"],
        ["mine_conform:advantages", "--set", "gamma=0.9"],
    ):
        code, _, errors = hgpo("conform", *arguments)
        assert code == 2
        assert len(errors.splitlines()) == 1
