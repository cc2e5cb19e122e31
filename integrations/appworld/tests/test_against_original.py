"""The engine compared with AppWorld's class and HTTP server on random programs."""

from dataclasses import replace

import pytest

from hgpo_appworld.reference.compare import (
    Played,
    batches,
    differences,
    play_class,
    play_engine,
    play_server,
)
from hgpo_appworld.reference.random_programs import STEPS, Episode, random_episodes
from hgpo_envs.errors import InputError

EPISODES = 6  # `python -m hgpo_appworld.reference ROOT` plays more


def test_every_difference_is_named() -> None:
    one = Played(("a",), (True,), True, 2, 2, ())
    assert differences(one, one) == []
    assert differences(one, replace(one, outputs=("b",))) == [
        "outputs: ('a',) != ('b',)"
    ]
    assert differences(one, replace(one, completed=(False,), passed=1)) == [
        "completed: (True,) != (False,)",
        "passed: 2 != 1",
    ]


def test_no_process_of_the_original_goes_on_after_a_logout() -> None:
    plain = Episode("a_1", ("print(1)",))
    leaving = Episode("a_1", ("x()", "apis.venmo.logout(access_token=t)"))
    assert batches([plain, leaving, plain, plain]) == [[plain, leaving], [plain, plain]]
    assert batches([leaving, leaving]) == [[leaving], [leaving]]
    assert batches([]) == []


def test_a_folder_without_tasks_is_refused(tmp_path) -> None:
    with pytest.raises(
        InputError, match="expected AppWorld's root with tasks and API documentation"
    ):
        random_episodes(tmp_path, 1)


@pytest.mark.original
def test_episodes_are_their_seed(appworld_root) -> None:
    episodes = random_episodes(appworld_root, 50, seed=5)
    assert episodes == random_episodes(appworld_root, 50, seed=5)
    assert episodes != random_episodes(appworld_root, 50, seed=6)
    assert all(program.strip() for episode in episodes for program in episode.programs)
    assert max(len(episode.programs) for episode in episodes) == STEPS
    called = {
        word
        for episode in episodes
        for program in episode.programs
        for word in program.split("apis.")
    }
    assert len(called) > 200


@pytest.mark.original
@pytest.mark.slow
def test_nothing_differs_from_the_original(appworld_root, appworld_python) -> None:
    episodes = random_episodes(appworld_root, EPISODES, seed=2)
    ours = list(play_engine(appworld_root, appworld_python, episodes))
    for play in (play_class, play_server):
        for number, played in enumerate(play(appworld_root, appworld_python, episodes)):
            assert differences(ours[number], played) == [], episodes[number]
