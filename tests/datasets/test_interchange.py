"""Neighbours, each the real thing: DuckDB, pandas, Hugging Face, PyTorch, Minari."""

import polars as pl
import pytest
from command import invoke
from groups import group, write_run
from polars.testing import assert_frame_equal
from refusals import refused

from hgpo_datasets import StepWriter, scan_steps, schema
from hgpo_envs.hashing import UNDEFINED

HASHES = [column.name for column in schema.columns() if column.family == "hashes"]


@pytest.mark.parametrize(
    "types", [{}, {"dtype_backend": "pyarrow"}], ids=["default", "Arrow"]
)
def test_pandas_reads_and_gives_rows(tmp_path, rich_run, types):
    """With pandas' own types, hashes with nulls are floats, and columns without values are texts."""
    pandas = pytest.importorskip("pandas")
    steps = scan_steps(rich_run).collect()
    with StepWriter(tmp_path / "copy") as writer:
        for file in sorted(rich_run.glob("steps/*.parquet")):
            frame = pandas.read_parquet(file, **types)
            assert frame["state"].to_list() == pl.read_parquet(file)["state"].to_list()
            writer.add_group(frame.drop(columns="run"))
    assert_frame_equal(
        scan_steps(tmp_path / "copy").drop("run").collect(), steps.drop("run")
    )


@pytest.mark.slow
def test_hugging_face_plain_streaming_and_torch(tmp_path, rich_run, monkeypatch):
    pytest.importorskip("datasets.arrow_dataset")
    torch = pytest.importorskip("torch")
    from hgpo_datasets.interchange.huggingface import to_dataset

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    steps = scan_steps(rich_run).collect()
    hashes = steps.select(pl.col(HASHES).fill_null(UNDEFINED))
    plain = to_dataset(rich_run, cache_dir=str(tmp_path / "cache"))
    streamed = to_dataset(rich_run, streaming=True)
    for name in (
        "state",
        "admissible_actions",
        "response_token_ids",
        "run",
        "iteration",
    ):
        assert plain[:][name] == steps[name].to_list()
    assert [row["prompt"] for row in streamed] == steps["prompt"].to_list()
    for name in HASHES:
        wanted = torch.tensor(hashes[name].to_list())
        assert plain[:][name] == hashes[name].to_list()
        assert torch.equal(plain.with_format("torch")[:][name], wanted), name
        assert torch.equal(
            torch.stack([row[name] for row in streamed.with_format("torch")]), wanted
        ), name
    few = to_dataset(
        rich_run,
        columns=["reward", "history_hash_3"],
        cache_dir=str(tmp_path / "cache"),
    )
    assert few.column_names == ["reward", "history_hash_3"]
    with refused(r"'rewards'.*reward"):
        to_dataset(rich_run, columns=["rewards"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["lr[1]", "what?", "[a]", "**", "{a,b}", "~", "%61", "#a", "a b"]
)
def test_hugging_face_reads_the_run_that_was_named(tmp_path, name, monkeypatch):
    pytest.importorskip("datasets.arrow_dataset")
    from hgpo_datasets.interchange.huggingface import to_dataset

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    for folder in {"lr1", "whatX", "a", "b", name}:
        write_run(folder, group("mine" if folder == name else "other"))
    for source in (name, tmp_path / name):
        assert set(to_dataset(source, cache_dir="cache")["task_id"]) == {"mine"}
        assert {row["task_id"] for row in to_dataset(source, streaming=True)} == {
            "mine"
        }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["$HOME", "a::b"])
def test_hugging_face_refuses_names_that_it_would_replace(tmp_path, name):
    pytest.importorskip("datasets.arrow_dataset")
    from hgpo_datasets.interchange.huggingface import to_dataset

    write_run(tmp_path / name, group("mine"))
    with refused(r"expected a path without .*; rename it$"):
        to_dataset(tmp_path / name)


def test_minari(tmp_path, rich_run, monkeypatch):
    minari = pytest.importorskip("minari")
    from hgpo_datasets.interchange.minari import to_minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    to_minari(rich_run, "hgpo/rich-v0", author="someone")
    loaded = minari.load_dataset("hgpo/rich-v0")
    steps = (
        scan_steps(rich_run)
        .collect()
        .partition_by("task_id", "trajectory", maintain_order=True)
    )
    assert loaded.total_episodes == len(steps)
    for episode, rows in zip(loaded.iterate_episodes(), steps, strict=True):
        assert list(episode.observations["state"]) == [
            *rows["state"],
            rows["next_state"][-1],
        ]
        assert set(episode.observations["task"]) == {rows["task"][0]}
        assert list(episode.actions) == rows["action"].to_list()
        assert episode.rewards.tolist() == rows["reward"].to_list()
        assert list(episode.terminations) == rows["terminated"].to_list()
        assert list(episode.truncations) == rows["truncated"].to_list()
    rows = group("t", length=1, aborted=True, error="no answer")
    write_run(tmp_path / "aborted", rows)
    with refused("expected complete rollouts"):
        to_minari(tmp_path / "aborted", "hgpo/aborted-v0")
    write_run(tmp_path / "bare", group("t"), without=["state"])
    with refused("expected states"):
        to_minari(tmp_path / "bare", "hgpo/bare-v0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "option"),
    [("ALFWorld", "grammar=put"), ("WebShop", "observation_mode=text_rich")],
)
def test_minari_recovers_the_environment(env_id, option, tmp_path, monkeypatch):
    """The recorded actions lead to the recorded states, rewards and ends."""
    minari = pytest.importorskip("minari")
    from hgpo_datasets.interchange.minari import to_minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    options = ("--action-format", "response", "--env-option", option, "--max-steps", 6)
    sizes = ("--tasks", 3, "--group-size", 2, "--out", tmp_path / "run")
    invoke(
        "rollout", "--env", f"HGPO/{env_id}-v0", "--policy", "random", *options, *sizes
    )
    assert (
        to_minari(tmp_path / "run", "hgpo/run-v0").spec.env_spec.id
        == f"HGPO/{env_id}-v0"
    )
    dataset = minari.load_dataset("hgpo/run-v0")
    env = dataset.recover_environment()
    for episode, about in zip(
        dataset, dataset.storage.get_episode_metadata(range(6)), strict=True
    ):
        observation, _ = env.reset(options=about["options"])
        states = [observation["state"]]
        rewards = []
        ends = []
        for action in episode.actions:
            observation, reward, *end, _ = env.step(action)
            states.append(observation["state"])
            rewards.append(reward)
            ends.append(end)
        assert states == list(episode.observations["state"])
        assert rewards == episode.rewards.tolist()
        assert ends == list(
            map(list, zip(episode.terminations, episode.truncations, strict=True))
        )


def test_minari_names_no_environment_that_it_cannot_know(
    tmp_path, rich_run, monkeypatch
):
    pytest.importorskip("minari")
    from hgpo_datasets.interchange.minari import to_minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    assert (
        to_minari(str(rich_run / "steps" / "*.parquet"), "hgpo/files-v0").spec.env_spec
        is None
    )
    for number, config in enumerate(
        ({}, {"env": "HGPO/ALFWorld-v0"}, {"env": {"id": "os:system"}})
    ):
        write_run(tmp_path / str(number), group("t"), config=config)
        assert (
            to_minari(tmp_path / str(number), f"hgpo/run-v{number}").spec.env_spec
            is None
        )
