"""`hgpo rollout` with each of its flags, in every environment: each flag has the effect that its help describes."""

import json
from collections.abc import Callable
from pathlib import Path

import gymnasium
import polars as pl
import pytest
import typer
from chat_server import Api
from typer.testing import CliRunner

import hgpo_envs
from hgpo_datasets import manifest, scan_steps, verify
from hgpo_envs.alfworld.data.pack import write_pack
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.errors import InputError
from hgpo_envs.webshop.data.build import build
from hgpo_envs.webshop.generation import synthetic
from hgpo_train.cli import app
from hgpo_train.rollout.failures import RolloutError

pytestmark = pytest.mark.slow
gymnasium.register_envs(hgpo_envs)
SHIPPED = ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"]
SPLITS = {
    "HGPO/ALFWorld-v0": "train valid_seen valid_unseen all",
    "HGPO/WebShop-v0": "train eval test all",
}
OWN_OPTIONS = {
    "HGPO/ALFWorld-v0": ["grammar=put", "history_depth=3"],
    "HGPO/WebShop-v0": ["show_attributes=true", "price_seed=5", 'observation_mode="text"'],
}
PLAYERS = ["expert", "explorer"]
CHOOSING = ["random", "outdated", "mixture:expert=0.5,random=0.5"]  # among admissible actions
SMALL = {"--tasks": "2", "--group-size": "2", "--max-steps": "3", "--seed": "1"}


class Played:
    """Run the command and return its table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        assert verify(folder).ok
        self.steps = scan_steps(folder).collect()
        header = manifest.read(folder).header
        assert header is not None
        self.config = header.config

    def number(self, column: str) -> int:
        return self.steps[column].n_unique()

    def rows(self) -> pl.DataFrame:
        return self.steps.drop("run").sort("trajectory", "step")


Play = Callable[..., Played]


@pytest.fixture(params=SHIPPED)
def env_id(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def play(tmp_path: Path, env_id: str, request: pytest.FixtureRequest) -> Play:
    own = {"--policy": "random"}

    def run(*flags: str, out: str = "run", **small: str) -> Played:
        named = {"--env": env_id, "--out": str(tmp_path / out), **own, **SMALL}
        given = [part for name, value in named.items() if name not in flags for part in (name, value)]
        done = CliRunner().invoke(app, ["rollout", *given, *flags], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return Played(tmp_path / out)

    return run


def test_small(play: Play, env_id: str) -> None:
    """`--env` and `--out`; the other tests compare with this run."""
    played = play()
    assert played.steps["env_id"].unique().to_list() == [env_id]
    assert (played.number("task_id"), played.number("trajectory")) == (2, 4)
    assert not played.steps["aborted"].any()
    assert play(out="again").rows().equals(played.rows())


@pytest.mark.parametrize("policy", [*PLAYERS, *CHOOSING])
def test_policy(play: Play, env_id: str, policy: str) -> None:
    played = play("--policy", policy)
    assert played.config["policy"] == {"name": policy}
    assert not played.steps["aborted"].any()


@pytest.mark.parametrize("number", [1, 3])
def test_tasks_and_group_size(play: Play, number: int) -> None:
    assert play("--tasks", str(number)).number("task_id") == number
    sizes = play("--group-size", str(number), out="other").steps.group_by("task_id")
    assert sizes.agg(pl.col("trajectory").n_unique())["trajectory"].to_list() == [number] * 2


def test_seed(play: Play) -> None:
    one, other = play("--seed", "0"), play("--seed", "7", out="other")
    assert one.steps["task_id"].unique().to_list() != other.steps["task_id"].unique().to_list()
    assert play("--seed", "7", out="again").rows().equals(other.rows())


@pytest.mark.parametrize("at", range(4))
def test_split(play: Play, env_id: str, at: int) -> None:
    split = SPLITS[env_id].split()[at]
    played = play("--split", split)
    assert split == "all" or played.steps["split"].unique().to_list() == [split]


@pytest.mark.parametrize("order", ["shuffled", "sweep", "random", "verl-agent"])
def test_order(play: Play, order: str) -> None:
    played = play("--order", order)
    assert played.config["order"] == order
    if order == "sweep":
        other = play("--order", order, "--seed", "9", out="other")
        assert played.steps["task_id"].unique().sort().equals(other.steps["task_id"].unique().sort())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small generated data for every environment."""
    folder = tmp_path_factory.mktemp("data")
    source = ALFWorldSource(None)
    task_id = source.ids("train")[5]
    write_pack(folder / "one.pack", [(task_id, source.read(task_id), source.trajectory(task_id))])
    synthetic.write_synthetic(folder / "raw", 30, 1)
    build(*(folder / "raw" / name for name in synthetic.FILES), folder / "shop", nouns="stand-in")
    return {"HGPO/ALFWorld-v0": folder / "one.pack", "HGPO/WebShop-v0": folder / "shop"}


def test_data(play: Play, env_id: str, data: dict[str, Path]) -> None:
    played = play("--data", str(data[env_id]))
    assert played.config["env"]["data"] == str(data[env_id])
    assert played.config["tasks"] != play(out="bundled").config["tasks"]
    assert not played.steps["aborted"].any()


@pytest.mark.parametrize("length", [0, 1, 2])
def test_history_length(play: Play, env_id: str, length: int) -> None:
    past = r"\[Observation \d+: "
    shown = play("--history-length", str(length)).steps.select("step", pl.col("prompt").str.count_matches(past))
    assert all(count == min(step, length) for step, count in shown.iter_rows())


@pytest.mark.parametrize("most", [1, 4])
def test_max_steps(play: Play, most: int) -> None:
    steps = play("--max-steps", str(most)).steps
    assert steps["step"].max() <= most - 1
    last = steps.filter(pl.col("step") == most - 1)
    assert (last["terminated"] | last["truncated"]).all()


@pytest.mark.parametrize(
    ("action_format", "form"), [("response", r"<action>.*</action>"), ("command", r"^\S"), ("number", r"^\d+$|^\S")]
)
def test_action_format(play: Play, env_id: str, action_format: str, form: str) -> None:
    steps = play("--action-format", action_format).steps
    said = steps["response"].fill_null("") if action_format == "response" else steps["action"]
    assert said.str.contains(form).all()


@pytest.mark.parametrize("at", range(2))
def test_env_option(play: Play, env_id: str, at: int) -> None:
    name, _, value = OWN_OPTIONS[env_id][at].partition("=")
    played = play("--env-option", OWN_OPTIONS[env_id][at])
    assert str(played.config["env"][name]).lower() == value
    every = [part for option in OWN_OPTIONS[env_id] for part in ("--env-option", option)]
    assert not play(*every, out="every").steps["aborted"].any()


def test_policy_option(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-this-test")
    with Api() as api:
        server = ["--policy", "openai:tiny", "--policy-option", f"base_url={api.url}"]
        played = play(*server, "--policy-option", "temperature=0.25", "--policy-option", 'stop=["END"]')
        assert {(body["temperature"], *body["stop"]) for body in api.bodies} == {(0.25, "END")}
    assert played.config["policy"]["temperature"] == 0.25
    assert set(played.steps["response"]) == {"<action>look</action>"}


@pytest.mark.parametrize("policy", [*PLAYERS, "random", "outdated"])
def test_an_option_that_a_policy_does_not_have_is_refused(play: Play, policy: str) -> None:
    with pytest.raises(InputError, match="has no options, received temperature"):
        play("--policy", policy, "--policy-option", "temperature=1")


def test_dynamic(play: Play, env_id: str) -> None:
    played = play("--dynamic", "5", "--policy", "mixture:expert=0.5,random=0.5")
    assert played.config["dynamic"] is True
    groups = played.steps.group_by("task_id", "group").agg(pl.col("episode_return").n_unique() > 1)
    said = groups["episode_return"].sum()
    assert said == 2 or (said < 2 and groups.height == 5)


@pytest.mark.parametrize("flags", [["--slots", "1"], ["--slots", "64"], ["--workers", "2"], ["--workers"]])
def test_slots_and_workers_change_nothing(play: Play, env_id: str, flags: list[str]) -> None:
    assert play(*flags, out="other").rows().equals(play(out="plain").rows())


def test_retry_failed_and_max_failed(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that fails for one task: the allowed share of failures, and the retry of failed rollouts."""
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-this-test")
    with Api() as api:
        server = ["--policy", "openai:tiny", "--policy-option", f"base_url={api.url}"]
        server += ["--policy-option", "retries=0", "--group-size", "1", "--slots", "1"]
        sound = api.answer
        api.answer = lambda body, attempt: (
            (400, {"error": {"message": "no"}}) if len(api.bodies) == 1 else sound(body, 0)
        )
        for allowed, more in (("0", []), ("0.4", ["--no-retry-failed"])):
            with pytest.raises(RolloutError, match="1 of 2 rollouts failed"):
                play(*server, "--max-failed", allowed, *more)
        assert play(*server, "--max-failed", "0.5", "--no-retry-failed").steps["aborted"].sum() == 1
        assert play(*server, "--max-failed", "0", "--retry-failed").steps["aborted"].sum() == 0


def test_without(play: Play) -> None:
    steps = play("--without", "prompt,timings,tokens").steps
    for column in ("prompt", "environment_s", "policy_s", "prompt_token_ids", "response_token_ids"):
        assert steps[column].null_count() == steps.height
    assert steps["state"].null_count() == 0


def test_every_flag_has_a_test() -> None:
    group = typer.main.get_command(app)
    flags = {name for one in group.commands["rollout"].params for name in (*one.opts, *one.secondary_opts)}
    source = Path(__file__).read_text()
    assert {flag for flag in flags if json.dumps(flag) not in source} == set()
