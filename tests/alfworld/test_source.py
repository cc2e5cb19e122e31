"""Task sources: accepted data, splits, identifiers, and the errors for bad input."""

import copy
import json
import pickle
from pathlib import Path

import pytest

from hgpo_envs.alfworld.data.game_folder import write_folder
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine.commands import commands_of
from hgpo_envs.errors import InputError, UnknownTask

BUNDLED = ALFWorldSource()
IDS = [BUNDLED.ids(split)[0] for split in ("train", "valid_seen", "valid_unseen")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(BUNDLED, IDS, tmp_path)
    return tmp_path


def place(folder: Path, task: str) -> Path:
    return folder / "json_2.1.1" / task / "game.tw-pddl"


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_every_form_of_the_same_data(folder: Path) -> None:
    assert ALFWorldSource(folder).ids("all") == ALFWorldSource(folder / "json_2.1.1").ids("all") == sorted(IDS)
    assert ALFWorldSource(str(folder)).ids("train") == [IDS[0]]
    single = ALFWorldSource(place(folder, IDS[1]).parent)
    assert single.ids("all") == single.ids("valid_seen") == [IDS[1]]
    assert single.ids("train") == []
    task = single.task(IDS[1])
    assert (task.id, task.split, task.versions) == (IDS[1], "valid_seen", {"grammar": "move"})
    assert task.instruction == BUNDLED.task(IDS[1]).instruction
    assert single.engine().start(IDS[1]) == BUNDLED.engine().start(IDS[1])


def test_a_single_game_outside_any_split_belongs_to_train(folder: Path) -> None:
    lone = folder / "some" / "trial"
    lone.mkdir(parents=True)
    place(folder, IDS[0]).rename(lone / "game.tw-pddl")
    assert ALFWorldSource(lone).ids("train") == ["train/some/trial"]


def test_splits_are_disjoint_and_sorted() -> None:
    splits = [BUNDLED.ids(split) for split in ("train", "valid_seen", "valid_unseen")]
    assert all(list(ids) == sorted(ids) for ids in splits)
    assert sum(map(len, splits)) == len(set().union(*splits)) == len(BUNDLED.ids("all"))
    assert BUNDLED.ids("all") == sorted(BUNDLED.ids("all"))


@pytest.mark.parametrize("solvable", [False, None, "true"])
def test_games_not_marked_solvable_are_skipped(folder: Path, solvable: object) -> None:
    change(place(folder, IDS[0]), solvable=solvable)
    assert ALFWorldSource(folder).ids("all") == sorted(IDS[1:])


def test_the_solvable_mark_is_found_anywhere(folder: Path) -> None:
    path = place(folder, IDS[0])
    data = json.loads(path.read_text())
    marked = {"solvable": True, "note": '"solvable": false'} | {k: v for k, v in data.items() if k != "solvable"}
    path.write_text(json.dumps(marked | {"padding": "x" * 5000}))
    assert IDS[0] in ALFWorldSource(folder).ids("all")


@pytest.mark.parametrize(
    "part", ["pick_and_place_with_movable_recep-Mug-Bowl-Shelf-1", "pick_x-AppleSliced-None-Sink-1"]
)
def test_movable_and_sliced_games_are_skipped(folder: Path, part: str) -> None:
    trial = place(folder, IDS[0]).parent
    trial.parent.rename(trial.parent.with_name(part))
    assert ALFWorldSource(folder).ids("all") == sorted(IDS[1:])


def test_converted_games_play_the_other_wording(folder: Path) -> None:
    source = ALFWorldSource(folder, grammar="put")
    assert {source.task(task).versions["grammar"] for task in IDS} == {"put"}
    with pytest.raises(InputError, match="unknown grammar 'mve'; did you mean 'move'"):
        ALFWorldSource(folder, grammar="mve")


def test_bad_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no ALFWorld data at .*nowhere: expected a folder of official games or a"):
        ALFWorldSource(folder / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(
        InputError, match=r"no playable game in .*empty: expected .*game.tw-pddl marked solvable, received no"
    ):
        ALFWorldSource(empty)
    path = place(folder, IDS[0])
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    with pytest.raises(InputError, match=r"game.tw-pddl: not valid JSON"):
        ALFWorldSource(folder)
    path.write_text(text)
    copied = folder / "copy" / IDS[0]
    copied.mkdir(parents=True)
    (copied / "game.tw-pddl").write_text(text)
    with pytest.raises(InputError, match=f"{IDS[0]} occurs twice: in .* and in "):
        ALFWorldSource(folder)


def test_a_single_unsolvable_game(folder: Path) -> None:
    change(place(folder, IDS[0]), solvable=False)
    with pytest.raises(InputError, match="marked solvable, received 1 other"):
        ALFWorldSource(place(folder, IDS[0]).parent)


def test_games_are_shared_while_they_are_played(folder: Path) -> None:
    source = ALFWorldSource(folder, keep=1)
    engines = [source.engine() for _ in range(4)]
    for engine, task in zip(engines, [*IDS, IDS[0]], strict=True):
        engine.start(task)
    assert engines[0].game is engines[3].game
    assert commands_of(engines[0].game) is commands_of(engines[3].game)


def test_pickles_and_copies_are_opened_again(folder: Path) -> None:
    source = ALFWorldSource(folder, grammar="put")
    source.engine().start(IDS[0])
    for other in (pickle.loads(pickle.dumps(source)), copy.deepcopy(source)):
        assert other.engine().start(IDS[0]) == source.engine().start(IDS[0])
        assert other.task(IDS[0]).versions == {"grammar": "put"}


def test_errors_for_unknown_names_suggest_the_closest() -> None:
    with pytest.raises(InputError, match="unknown split 'valid_sen'; did you mean 'valid_seen'"):
        BUNDLED.ids("valid_sen")
    near = IDS[0][:-1]
    with pytest.raises(UnknownTask) as caught:
        BUNDLED.engine().start(near)
    assert isinstance(caught.value, KeyError)
    line = str(caught.value)
    assert line.startswith(f"unknown ALFWorld task '{near}'; did you mean 'train/")
    assert "\n" not in line
    assert len(line) < 600
