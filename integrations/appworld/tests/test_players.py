"""The scripted players: one follows the solution, one reads the documentation first."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_appworld.generation.plan import make_plan
from hgpo_appworld.players.expert import ExpertPlayer, split_solution
from hgpo_appworld.players.explorer import ExplorerPlayer, plan
from hgpo_appworld.players.skills import SKILLS, find_skill
from hgpo_envs.engine import State, Task
from hgpo_envs.environment_spec import make_player
from hgpo_envs.errors import InputError

START = State("", ())


def task(instruction: str) -> Task:
    return Task("a_1", "train", instruction, "difficulty 1")


# ------------------------------------------------------------------------------------------------------------ expert


def test_a_solution_is_divided_at_its_markers_and_keeps_its_imports() -> None:
    body = "    # %%\n    x = 1\n    # %%\n    if x:\n        print(x)\n"
    text = f"# Canary\nimport json\n\ndef solution(apis, requester):\n{body}"
    assert split_solution(text, "t") == ["import json\n\nx = 1", "if x:\n    print(x)"]
    assert split_solution("def solution(apis):\n    print(1)\n    print(2)\n", "t") == [
        "print(1)\nprint(2)"
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [("x = = 1", "of t is no Python"), ("x = 1", "expected a function `solution`")],
)
def test_a_file_that_is_no_solution_is_one_line(text: str, line: str) -> None:
    with pytest.raises(InputError, match=line):
        split_solution(text, "t")


def test_the_expert_needs_the_engine() -> None:
    with pytest.raises(
        InputError, match="reads the world of its own process; run it without --workers"
    ):
        make_player("expert", "AppWorld").reset(task("x"), START, None)


# ---------------------------------------------------------------------------------------------------------- explorer


@settings(max_examples=5)  # each makes a whole world
@given(st.integers(0, 2**31))
def test_the_explorer_understands_every_generated_instruction(seed: int) -> None:
    used = set()
    for planned in make_plan(seed).tasks:
        found = find_skill(
            f"{planned.draft.instruction}\n\nSupervisor: Ada Lovelace, email a@b.c, phone number 1"
        )
        assert found is not None, planned.draft.instruction
        used.add(found[0].instruction)
        assert set(found[0].apps) == set(planned.scenario.apps)
        for attempt in found[0].attempts(found[1]):
            compile(attempt.program, "program", "exec")
    assert len(used) == len(SKILLS)


def play(player: ExplorerPlayer, outputs: list[str]) -> list[str]:
    return [player.act(State(output, ())) for output in outputs]


def test_the_explorer_reads_documentation_before_it_acts() -> None:
    player = ExplorerPlayer()
    player.reset(task("How many songs are there in my Spotify song library?"), START)
    programs = [
        attempt.program
        for attempt in plan("How many songs are there in my Spotify song library?")
    ]
    assert programs[0] == "print(apis.api_docs.show_app_descriptions())"
    assert "show_api_descriptions(app_name='spotify')" in programs[1]
    assert "api_name='show_song_library'" in programs[2]
    assert programs[-1] == "apis.supervisor.complete_task(answer=reply)"
    assert play(player, [""]) == programs[:1]
    assert play(player, ['{"name": "supervisor"}']) == programs[1:2]
    assert (
        play(player, ['[{"name": "show_song_library", "description": ""}]'])
        == programs[2:3]
    )


def test_the_explorer_tries_again_and_then_goes_on() -> None:
    player = ExplorerPlayer()
    player.reset(task("How many songs are there in my Spotify song library?"), START)
    said = play(player, ["", "something else", "something else", "something else"])
    assert said[0] == said[1] == said[2] != said[3]
    copy = player.fork(None)
    assert play(copy, ["x"] * 40) == play(player, ["x"] * 40)
    # the end, again and again
    assert play(copy, ["x"]) == ["apis.supervisor.complete_task(answer=reply)"]


def test_the_explorer_gives_up_on_what_it_does_not_understand() -> None:
    programs = [
        attempt.program for attempt in plan("Tidy up my Gmail and my file system.")
    ]
    assert "print(apis.api_docs.show_api_descriptions(app_name='gmail'))" in programs
    assert (
        "print(apis.api_docs.show_api_descriptions(app_name='file_system'))" in programs
    )
    assert programs[-1] == "apis.supervisor.complete_task(status='fail')"


# ------------------------------------------------------------------------------------------------------ with AppWorld


def episode(source, name: str, task_id: str) -> tuple[list[str], list[State]]:
    engine = source.engine()
    player = make_player(name, "AppWorld")
    states = [engine.start(task_id)]
    programs = []
    player.reset(source.task(task_id), states[0], engine)
    while not states[-1].terminated and len(programs) < 50:
        programs.append(player.act(states[-1]))
        states.append(engine.act(programs[-1]))
    return programs, states


@pytest.mark.original
def test_the_explorer_explores_and_wins_where_the_first_page_is_enough(opened) -> None:
    source = opened()
    task_id = next(
        one
        for one in source.ids("all")
        if "Create the file" in source.task(one).instruction
    )
    programs, states = episode(source, "explorer", task_id)
    assert (states[-1].terminated, states[-1].won) == (True, True)
    assert not any(state.info["execution_failed"] for state in states[1:])
    assert len(programs) == len(set(programs)) == 8
    # deterministic, to the byte
    assert episode(source, "explorer", task_id) == (programs, states)


@pytest.mark.original
def test_the_explorer_loses_where_it_is_not(opened) -> None:
    """It sends the message to the first five of six friends."""
    source = opened()
    wanted = (
        one
        for one in source.ids("all")
        if "to each of my friends" in source.task(one).instruction
    )
    task_id = next(wanted, None)
    if task_id is None:
        pytest.skip("this world has no such task")
    _, states = episode(source, "explorer", task_id)
    assert (states[-1].terminated, states[-1].won) == (True, False)


@pytest.mark.original
def test_the_expert_goes_on_when_others_have_taken_turns(opened) -> None:
    source = opened()
    task_id = source.ids("train")[0]
    engine = source.engine()
    expert = ExpertPlayer()
    state = engine.start(task_id)
    expert.reset(source.task(task_id), state, engine)
    alone, _ = episode(source, "expert", task_id)
    said = []
    for _ in alone:
        state = engine.act("print('not the expert')")
        expert.act(state)  # asked, but not executed
        said.append(expert.act(state))
        state = engine.act(said[-1])
    assert said == alone
    assert state.won


@pytest.mark.original
@pytest.mark.slow
def test_a_mixture_is_collected_and_weighed(
    appworld_python, appworld_root, tmp_path
) -> None:
    from hgpo_datasets import scan_steps
    from hgpo_train import collect, compute

    given = {
        "data": str(appworld_root),
        "python": appworld_python,
        "tasks": 2,
        "group_size": 3,
        "max_steps": 30,
    }
    run = tmp_path / "run"
    collect(
        "HGPO/AppWorld-v0",
        "mixture:expert=0.5,explorer=0.5",
        run,
        **given,
        progress=False,
    )
    steps = scan_steps(run)
    assert steps.collect()["trajectory"].n_unique() == 6
    for name in ("grpo", "gigpo", "hgpo", "g2po"):
        advantages = compute(steps, name).collect()["advantage"]
        assert advantages.is_finite().all()
