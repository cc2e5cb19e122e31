"""Users' prompt templates that cannot be used are refused before anything is played, wherever they are given."""

from pathlib import Path

import gymnasium
import pytest
from command import hgpo
from typer.testing import CliRunner

import hgpo_envs
from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.prompts import bundled_templates
from hgpo_train.cli import app
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.training.config import EnvironmentConfig, template_path

gymnasium.register_envs(hgpo_envs)
ENVIRONMENTS = [
    "HGPO/ALFWorld-v0",
    "HGPO/WebShop-v0",
    "doors_env:HGPO-Test/Doors-v0",
    "foreign:Foreign/Guess-v0",
]
DOORS = ENVIRONMENTS[-2]
BAD = {
    "reaches Python": "{{ task.__class__.__mro__ }}",
    "changes what it is given": "{{ admissible_actions.append('x') }}",
    "never ends": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "too large": "{% for a in range(99999) %}{{ observation }}{{ 'x' | center(9999) }}{% endfor %}",
    "not there": "{{ admissible_actions[999] }}",
    "fails after a step": "{% if steps_taken %}{{ pairs[7].action }}{% endif %}",
}
FAILS_LATER = "{{ task }}{% if step > 2 %}{{ admissible_actions[999] }}{% endif %}"


@pytest.fixture(params=BAD)
def bad(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "bad.j2"
    path.write_text(BAD[request.param])
    return path


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_opening_an_environment_refuses_them(bad: Path, env_id: str) -> None:
    with pytest.raises(InputError, match=rf"^prompt template {bad} fails") as caught:
        open_env(env_id, prompt_template=str(bad))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("env_id", ENVIRONMENTS[:-1])
@pytest.mark.parametrize("make", [gymnasium.make, gymnasium.make_vec])
def test_gymnasium_refuses_them(bad: Path, env_id: str, make) -> None:
    with pytest.raises(InputError, match=rf"^prompt template {bad} fails"):
        make(env_id, prompt_template=str(bad))


@pytest.mark.parametrize("command", ["rollout", "eval"])
@pytest.mark.parametrize("env_id", [DOORS, "foreign:Foreign/Guess-v0"])
def test_commands_refuse_them_in_one_line_and_leave_nothing(tmp_path: Path, command: str, env_id: str) -> None:
    template = written(tmp_path / "bad.j2", BAD["never ends"])
    process = hgpo(
        *(command, "--env", env_id, "--env-option", f"prompt_template={template}"),
        *("--split", "train", "--out", str(tmp_path / "run")),
    )
    out, error = process.communicate(timeout=120)
    assert process.returncode == 2, out + error
    assert [line for line in error.splitlines() if line.startswith("error: ")] == error.splitlines()[-1:]
    assert f"prompt template {template} fails" in error
    assert [path.name for path in tmp_path.iterdir()] == ["bad.j2"]


def test_a_template_that_fails_later_aborts_the_rollouts_that_reach_the_failure(tmp_path: Path) -> None:
    template = written(tmp_path / "late.j2", FAILS_LATER)
    command = ["rollout", "--env", DOORS, "--env-option", f"prompt_template={template}", "--tasks", "4"]
    CliRunner().invoke(app, [*command, "--group-size", "2", "--out", str(tmp_path / "run")])
    steps = scan_steps(tmp_path / "run").collect()
    failed = steps.filter("aborted")
    assert failed.height
    assert all("prompt template" in line and "late.j2 fails" in line for line in failed["error"])
    assert steps["step"].max() == 1, "no prompt was made for the third step"


@pytest.mark.parametrize("text", ["{{ task }}", FAILS_LATER])
def test_a_failing_environment_is_not_reported_as_a_template_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    outage = written(tmp_path / "outage", " ".join(f"train-{number}" for number in range(10)))
    monkeypatch.setenv("HGPO_TEST_OUTAGE", str(outage))
    template = written(tmp_path / "mine.j2", text)
    handle = open_env("outage_env:HGPO-Test/Outage-v0", prompt_template=str(template))
    assert not handle.settings.template.trusted


def test_every_way_of_naming_a_template_accepts_the_same_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = bundled_templates()["compact"]
    expected = prompt_of(str(file))
    assert expected != prompt_of(None)
    assert prompt_of("compact") == expected
    assert template_path(EnvironmentConfig(prompt_template="compact")) == str(file)
    (tmp_path / "compact").mkdir()
    assert prompt_of("compact") == expected, "a folder is no template"
    (tmp_path / "compact").rmdir()
    written(tmp_path / "compact", "mine: {{ task }}")
    assert prompt_of("compact").startswith("mine: ")
    assert template_path(EnvironmentConfig(prompt_template="compact")) == "compact"


def prompt_of(template: str | None) -> str:
    env = gymnasium.make("HGPO/ALFWorld-v0", prompt_template=template)
    return env.reset(seed=0)[0]["prompt"]


def test_commands_accept_the_name_of_a_bundled_template(tmp_path: Path) -> None:
    options = ["--policy", "random", "--env-option", "prompt_template=compact", "--max-steps", "2"]
    for command in (["rollout", "--tasks", "1"], ["eval", "--seeds", "1"]):
        done = CliRunner().invoke(app, [*command, *options, "--out", str(tmp_path / command[0])])
        assert done.exit_code == 0, done.output
