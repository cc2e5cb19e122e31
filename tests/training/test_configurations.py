"""The shipped configurations against the official scripts, and the data that they play."""

from pathlib import Path

import pytest

from hgpo_envs.errors import InputError
from hgpo_train.training.config import load_config
from hgpo_train.training.data import env_options
from tools import configurations_page

PAGE = Path(__file__).parents[2] / "docs" / "configurations.md"
ON_PURPOSE = {"checkpoint.every", "advantage: step_weight", "model.gradient_checkpointing"}
"""Values in which configurations differ from the scripts; the page explains them."""


def test_the_page_has_the_values_of_the_configurations() -> None:
    page = PAGE.read_text("utf-8")
    hint = "run: python -m tools.configurations_page docs/configurations.md"
    assert configurations_page.rewrite(page) == page, hint


def test_there_are_28_configurations_and_nothing_differs_by_accident() -> None:
    names = configurations_page.configurations()
    assert len(names) == 28
    different: dict[str, list[str]] = {}
    for name in names:
        for title, (ours, official) in configurations_page.compared(name).items():
            if ours != official:
                different.setdefault(title, []).append(name)
    assert different.keys() == ON_PURPOSE
    assert all(name.split("-")[2] in ("grpo", "gigpo", "g2po", "graphgpo") for name in different["checkpoint.every"])
    assert different["advantage: step_weight"] == ["webshop-1.5b-g2po", "webshop-7b-g2po"]


def test_configurations_without_an_official_script_say_so() -> None:
    for name in configurations_page.configurations():
        path = Path(configurations_page.shipped()[name])
        parts = (path.parent / "parts" / "lora.toml").read_text() if name.endswith("lora") else ""
        says = "no official script" in path.read_text() + parts
        assert says is not configurations_page.script_of(*name.split("-", 2)).exact, name


@pytest.mark.parametrize(
    ("world", "command"), [("alfworld", "hgpo data fetch alfworld"), ("webshop", "hgpo data build")]
)
def test_without_the_official_data_a_run_stops_with_the_command(world, command, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "nothing"))
    config = load_config(f"{world}-1.5b-grpo")
    with pytest.raises(InputError, match=f"official tasks of .* are not on this machine.*{command}"):
        env_options(config, config.environment.split)
    bundled = load_config(f"{world}-1.5b-grpo", ["environment.data=bundled"])
    assert "data" not in env_options(bundled, "train")
    for override in ("environment.data=/some/where", "environment.options.data=/some/where"):
        named = load_config(f"{world}-1.5b-grpo", [override])
        assert env_options(named, "train")["data"] == "/some/where"


def test_official_games_are_found_where_alfworld_keeps_them(tmp_path, monkeypatch) -> None:
    pack = Path(__file__).parents[1] / "alfworld" / "official.pack"
    if not pack.exists():
        pytest.skip("no pack of official games")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "alfworld.pack").write_bytes(pack.read_bytes())
    config = load_config("alfworld-1.5b-grpo", ["environment.split=all"])
    assert env_options(config, config.environment.split)["data"] == "alfworld.pack"
