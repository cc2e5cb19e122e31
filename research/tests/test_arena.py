"""The arena: its small worlds, what is measured in one of them, and its files."""

import linecache

import numpy as np
import polars as pl
import pytest

from hgpo_envs.errors import InputError
from hgpo_research.arena import arena as running
from hgpo_research.arena import measuring
from hgpo_research.arena.arena import arena, file_name, read
from hgpo_research.arena.ranking import REFERENCE
from hgpo_research.arena.small_worlds import FLOES, FormEngine, IceEngine, SignsEngine
from hgpo_research.arena.worlds import WORLDS
from hgpo_research.commands.arena import arena as command
from hgpo_research.tabular.graphs import CHANCE
from hgpo_research.tabular.learning import AGAIN

TINY = ["signs"]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Two policies and two batches: the numbers mean nothing, the files are those of an arena."""
    monkeypatch.setattr(measuring, "POLICIES", 2)
    monkeypatch.setattr(measuring, "COPIES", 4)
    monkeypatch.setattr(measuring, "REPEATS", 1)
    monkeypatch.setattr(running, "SEEDS", 2)


def bytes_of(folder):
    """Return the content of all files of results and worlds."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for kind in ("results", "worlds")
        for path in sorted((folder / kind).rglob("*.parquet"))
    }


@pytest.mark.slow
def test_the_same_bytes_twice_and_after_an_interruption(tmp_path):
    names = [REFERENCE, REFERENCE + AGAIN, "progress", "hgpo", "adaptive"]
    arena(tmp_path / "one", names, TINY, seeds=2)

    def stop(text, done):
        if text.endswith("hgpo") and not done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        arena(tmp_path / "two", names, TINY, seeds=2, progress=stop)
    assert len(bytes_of(tmp_path / "two")) < len(bytes_of(tmp_path / "one"))
    arena(tmp_path / "two", names, TINY, seeds=2)
    assert bytes_of(tmp_path / "two") == bytes_of(tmp_path / "one")


@pytest.mark.slow
def test_what_is_there_is_kept_unless_its_settings_change(tmp_path):
    cell = (tmp_path, "signs", WORLDS["signs"], "rloo")
    assert running.measure(*cell, seeds=2, overwrite=False)
    assert not running.measure(*cell, seeds=2, overwrite=False)
    assert running.measure(*cell, seeds=3, overwrite=False)
    assert running.measure(*cell, seeds=3, overwrite=True)
    assert read(tmp_path).filter(measure="final", setting="separate")[
        "seed"
    ].to_list() == [0, 1, 2]


@pytest.mark.slow
def test_an_estimator_of_ones_own_is_measured_again_when_its_code_changes(
    tmp_path, monkeypatch
):
    module = tmp_path / "my_credit.py"
    module.write_text(
        "import polars as pl\n\n\ndef mine(steps):\n    return steps.with_columns(advantage=pl.col('episode_return'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    cell = (tmp_path / "arena", "signs", WORLDS["signs"], "my_credit:mine")
    assert running.measure(*cell, seeds=2, overwrite=False)
    assert not running.measure(*cell, seeds=2, overwrite=False)
    module.write_text(module.read_text() + "\n# changed\n")
    linecache.checkcache()
    assert running.measure(*cell, seeds=2, overwrite=False)


def test_agreement_is_computed_from_the_frozen_tables(tmp_path):
    """A perfect estimator agrees, its negative does not, and the figures follow from the file by hand."""
    running.prepare(WORLDS["signs"], tmp_path)
    table = measuring.read_stage(tmp_path, 0)

    class Perfect:
        def __init__(self, sign):
            self.estimator = lambda steps, column: steps.with_columns(
                (sign * pl.col("true_advantage")).alias(column)
            )

    row = measuring.agreement(table, Perfect(1.0)).row(0, named=True)
    assert row["correlation"] == pytest.approx(1)
    assert row["sign_agreement"] == 1
    assert row["variance"] == pytest.approx(0, abs=1e-12)
    other = measuring.agreement(table, Perfect(-1.0)).row(0, named=True)
    assert other["correlation"] == pytest.approx(-1)
    assert other["sign_agreement"] == 0
    # By hand, from the file.
    method = measuring.method_of("rloo", WORLDS["signs"])()
    mine = method.estimator(table.lazy(), column="advantage").collect().filter(policy=1)
    e = mine["advantage"].to_numpy()
    a = mine["true_advantage"].to_numpy()
    found = measuring.agreement(table, method).row(1, named=True)
    assert found["correlation"] == pytest.approx(np.corrcoef(e, a)[0, 1])
    assert found["variance"] == pytest.approx(1 - (e @ a) ** 2 / (e @ e * (a @ a)))


def test_true_advantages_have_mean_zero_under_the_policy(tmp_path):
    """Also where chance decides: the mean of Q - V over actions is 0 in every state."""
    running.prepare(WORLDS["ice"], tmp_path)
    table = measuring.read_stage(tmp_path, 0)
    by_batch = table.group_by("run").agg(pl.col("true_advantage").sum(), n=pl.len())
    means = by_batch["true_advantage"].to_numpy() / by_batch["n"].to_numpy().mean()
    assert abs(means.mean()) < 4 * means.std(ddof=1) / len(means) ** 0.5
    # All outcomes of a jump are one action with one advantage.
    same = table.group_by("policy", "task_id", "step", "state_hash", "action_hash")
    assert (
        same.agg(pl.col("true_advantage").std().fill_null(0))["true_advantage"].max()
        < 1e-12
    )


def test_wrong_names_are_found_before_anything_runs(tmp_path):
    for wrong, names, worlds in (
        ("hgop", ["hgop"], TINY),
        ("sings", ["hgpo"], ["sings"]),
        ("hindsight", ["hcapo"], TINY),
    ):
        with pytest.raises(InputError, match=wrong):
            arena(tmp_path, [REFERENCE, *names], worlds, seeds=2)
    with pytest.raises(InputError, match="at least 2"):
        arena(tmp_path, seeds=1)
    with pytest.raises(InputError, match="at least 2, received 0"):
        command(out=tmp_path, seeds=0)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="expected an arena"):
        read(tmp_path)


def test_the_next_command_measures_nothing_again(tmp_path, monkeypatch, capsys):
    """With other seeds, it would replace what was measured."""
    monkeypatch.setattr(running, "arena", lambda *_, **__: None)
    command("add", "mine:own", worlds=TINY, seeds=4, out=tmp_path)
    words = f"arena add mine:own -w signs --seeds 4 --out {tmp_path} -o arena.html"
    assert words in capsys.readouterr().out
    with pytest.raises(InputError, match="expected a file that ends in"):
        command(page=tmp_path / "arena.txt", worlds=TINY)


def test_files_of_all_estimators_differ():
    assert len({file_name(name) for name in running.ESTIMATORS}) == len(
        running.ESTIMATORS
    )


def test_ice_is_won_by_climbing_where_it_is_slippery():
    engine = IceEngine()
    state = engine.start("train-0")
    before = state.text
    # The number that chance decides is part of the command; a failed jump leads back, but not before the first floe.
    assert engine.act(f"jump{CHANCE}1)").text == before
    assert engine.act(f"jump{CHANCE}3)").text != before
    engine.start("train-0")
    for _ in range(FLOES):
        assert engine.act(f"climb{CHANCE}1)").text.startswith("Half")
        state = engine.act(f"climb{CHANCE}2)")
    assert state.won
    assert state.score == 1


def test_signs_promise_progress_on_the_wrong_way():
    engine = SignsEngine()
    engine.start("train-0")
    right = engine.fork()
    doors = ("open left door", "open right door")
    texts = {door: right.fork().act(door).text for door in doors}
    rooms = sorted(int(text.split()[-3]) for text in texts.values())
    assert rooms == [3, 5]  # of 6: the wrong door's sign is nearer
    wrong = next(door for door, text in texts.items() if " 3 " in text)
    state = engine.act(wrong)
    while not state.terminated:
        state = engine.act(doors[0])
    assert state.score == 0


def test_the_score_of_a_form_is_the_share_of_right_answers():
    engine = FormEngine()
    state = engine.start("train-0")
    for _ in range(5):
        for action in state.actions:
            trial = engine.fork()
            trial.act(action)
            if trial._score > engine._score:
                break
        state = engine.act(action)
    assert state.won
    engine.start("train-0")
    for _ in range(5):
        state = engine.act("write yes")
    yes = sum(answer == 0 for answer in engine._right)
    assert state.score == pytest.approx(yes / 5)
    assert state.won == (yes == 5)
