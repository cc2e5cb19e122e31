"""TextWorld's generated games through the environment: one of each family."""

import json
import pickle
import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import hgpo_envs  # noqa: F401 - registers the environments
from hgpo_envs.environment_spec import make_player
from hgpo_envs.errors import InputError, UnknownTask

pytest.importorskip("textworld")
from hgpo_textworld.engine import game_text
from hgpo_textworld.games import FAMILIES, VERSION, compiled
from hgpo_textworld.source import TextWorldSource

SOURCES = [TextWorldSource(family=family, level=3) for family in FAMILIES] + [
    TextWorldSource(family="cooking", level=4)
]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Keep compiled games in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.ids("train")[0])
def test_the_expert_wins_and_a_fork_is_independent(source):
    task = source.task(source.ids("test")[0])
    engine = source.engine()
    again = source.engine()
    player = make_player("expert", "TextWorld")
    state = engine.start(task.id)
    assert again.start(task.id) == state
    player.reset(task, state, engine)
    total = 0.0
    while not state.terminated:
        assert state.actions
        # the banner's part of the first reply
        assert task.instruction not in state.text
        assert "$$" not in state.text
        assert not state.text.endswith(">")
        command = player.act(state)
        fork = engine.fork()
        before = engine.key()
        state = engine.act(command)
        assert again.act(command) == state
        assert again.key() == engine.key()
        assert fork.key() == before
        assert fork.act(command) == state
        total += state.reward
    assert state.won
    assert total == pytest.approx(1.0)
    assert state.score == 1.0
    assert engine.act("look") == state  # nothing happens after the end


@pytest.mark.slow
def test_a_game_depends_on_its_seed_alone(monkeypatch, tmp_path):
    first = compiled("treasure-hunter", 12, 5)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    again = compiled("treasure-hunter", 12, 5)
    other = compiled("treasure-hunter", 12, 6)
    games = [
        json.loads(game.with_suffix(".json").read_text("utf-8"))
        for game in (first, again, other)
    ]
    assert first != again
    assert games[0] == games[1] != games[2]


def test_two_processes_may_generate_a_game_at_the_same_time(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    theirs = tmp_path / "hgpo/textworld" / VERSION / "coin-collector-1-0/game.z8"

    def generate(family, level, seed, path):
        theirs.parent.mkdir()
        theirs.write_text("theirs")
        path.write_text("ours")

    monkeypatch.setattr("hgpo_textworld.games._generate", generate)
    assert compiled("coin-collector", 1, 0) == theirs
    assert theirs.read_text() == "theirs"


@pytest.mark.slow
def test_commands_that_the_list_does_not_name():
    source = TextWorldSource(family="coin-collector", level=3)
    engine = source.engine()
    listed = source.engine()
    state = engine.start("coin-collector-3-0")
    listed.start("coin-collector-3-0")
    move = next(action for action in state.actions if action.startswith("go "))
    abbreviated = engine.act(move.removeprefix("go ")[0])
    assert abbreviated == listed.act(move)  # "n" is "go north"
    before = engine.key()
    hostile = (
        "restart",
        "quit",
        "look. quit",
        "save",
        "script",
        "superbrief",
        "tw-trace-actions",
        "\x00",
        "é" * 5000,
    )
    for command in ("xyzzy", "", "go", "take coin coin", *hostile):
        refused = engine.act(command)
        assert not refused.valid, command
        assert not refused.terminated
        assert engine.key() == before
    assert engine.act("look").text == abbreviated.text


@pytest.mark.slow
def test_the_environment_conforms_to_gymnasium():
    options = {"family": "coin-collector", "level": 2, "split": "test"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(
            gymnasium.make("HGPO/TextWorld-v0", **options).unwrapped,
            skip_render_check=True,
        )
    env = gymnasium.make("HGPO/TextWorld-v0", **options)
    observation, _ = pickle.loads(pickle.dumps(env)).reset(seed=3)
    assert observation["state"] == env.reset(seed=3)[0]["state"]


@pytest.mark.slow
def test_a_folder_of_games(tmp_path):
    game = compiled("coin-collector", 2, 0)
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        for file in (game, game.with_suffix(".json")):
            (tmp_path / split / file.name).write_bytes(file.read_bytes())
    source = TextWorldSource(str(tmp_path))
    assert source.ids("all") == ["test/game", "train/game"]
    assert source.ids("test") == ["test/game"]
    assert source.task("test/game").split == "test"
    assert (
        source.engine().start("train/game").text
        == source.engine().start("test/game").text
    )
    with pytest.raises(InputError, match="unknown split 'valid'"):
        source.ids("valid")
    with pytest.raises(InputError, match="received none"):
        TextWorldSource(str(tmp_path / "nowhere"))


def test_errors():
    with pytest.raises(InputError, match="unknown family 'zork'"):
        TextWorldSource(family="zork")
    with pytest.raises(InputError, match="expected 1 to 4 for cooking, received 5"):
        TextWorldSource(family="cooking", level=5)
    source = TextWorldSource(family="coin-collector", level=2)
    for name in (
        "coin-collector-3-0",
        "coin-collector-2-99999",
        "coin-collector-2-x",
        "",
    ):
        with pytest.raises(
            UnknownTask, match="expected a task such as coin-collector-2-0"
        ):
            source.file(name)


def test_the_status_line_is_not_part_of_the_state():
    assert (
        game_text("\nYou take the knife.\n\n\n\n>            -= Kitchen =-1/4")
        == "You take the knife."
    )
    assert game_text("-= Kitchen =-\nA kitchen.\n") == "-= Kitchen =-\nA kitchen."
