"""Users' prompt templates that cannot be used are refused before anything is played, wherever they are given."""

from pathlib import Path

import gymnasium
import pytest

import hgpo_envs
from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.prompts import bundled_templates
from hgpo_train.rollout.env_handle import open_env

gymnasium.register_envs(hgpo_envs)
DOORS, GUESS = "doors_env:HGPO-Test/Doors-v0", "foreign:Foreign/Guess-v0"
BAD = {
    "reaches Python": "{{ task.__class__.__mro__ }}",
    "changes what it is given": "{{ admissible_actions.append('x') }}",
    "not there": "{{ admissible_actions[999] }}",
    "fails after a step": "{% if steps_taken %}{{ pairs[7].action }}{% endif %}",
}


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", BAD)
def test_opening_an_environment_refuses_them(tmp_path: Path, name: str) -> None:
    bad = written(tmp_path / "bad.j2", BAD[name])
    for env_id, make in ((DOORS, open_env), (GUESS, open_env), (DOORS, gymnasium.make), (DOORS, gymnasium.make_vec)):
        with pytest.raises(InputError, match=rf"^prompt template {bad} fails") as caught:
            make(env_id, prompt_template=str(bad))
        assert "\n" not in str(caught.value)


def test_a_template_that_fails_later_aborts_the_rollouts_that_reach_the_failure(tmp_path: Path, hgpo) -> None:
    template = written(tmp_path / "late.j2", "{{ task }}{% if step > 2 %}{{ admissible_actions[999] }}{% endif %}")
    sizes = ["--tasks", "4", "--group-size", "2", "--out", tmp_path / "run"]
    hgpo("rollout", "--env", DOORS, "--env-option", f"prompt_template={template}", *sizes)
    steps = scan_steps(tmp_path / "run").collect()
    failed = steps.filter("aborted")
    assert failed.height
    assert all("prompt template" in error and "late.j2 fails" in error for error in failed["error"])
    assert steps["step"].max() == 1, "no prompt was made for the third step"


def test_every_way_of_naming_a_template_accepts_the_same_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prompt_of(template: str | None) -> str:
        return gymnasium.make("HGPO/ALFWorld-v0", prompt_template=template).reset(seed=0)[0]["prompt"]

    monkeypatch.chdir(tmp_path)
    expected = prompt_of(str(bundled_templates()["compact"]))
    assert expected != prompt_of(None)
    assert prompt_of("compact") == expected
    (tmp_path / "compact").mkdir()
    assert prompt_of("compact") == expected, "a folder is no template"
    (tmp_path / "compact").rmdir()
    written(tmp_path / "compact", "mine: {{ task }}")
    assert prompt_of("compact").startswith("mine: ")
