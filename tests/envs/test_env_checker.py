"""`hgpo_envs.env_checker`: a sound environment passes, and each of several faults is named, with its repair."""

import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from command import outcome
from corridor import (
    UNLISTED,
    Corridor,
    Counting,
    Drawing,
    Entangled,
    Faulty,
    Limited,
    Mute,
    Shared,
    Shuffled,
    Source,
    Unlisted,
    checked,
    findings,
    walk,
)
from refusals import refused
from unusual import Endless, boxed, in_box

from hgpo_envs.engine import State, Task
from hgpo_envs.env_checker import check_environment
from hgpo_envs.env_checks import play as checking
from hgpo_envs.env_checks import replays, task_lists
from hgpo_envs.episode import Episode, settings_for
from hgpo_envs.errors import InputError, UnknownTask
from hgpo_envs.sources import SharedSource, Split


@pytest.fixture(autouse=True)
def one_process(request, monkeypatch):
    """Other processes take seconds."""
    if "test_the_own" not in request.node.name:
        monkeypatch.setattr(replays, "HASH_SEEDS", ())


def test_a_sound_environment_passes():
    before = random.getstate()
    found = findings(Corridor)
    assert {
        name: each.message for name, each in found.items() if each.verdict != "pass"
    } == {}
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("engine", "check", "verdict", "message"),
    [
        (
            Shuffled,
            "replay",
            "fail",
            "text has its lines in another order (sort them, or set state_key='sort-lines'",
        ),
        (
            Shared,
            "many at a time",
            "fail",
            "engines share what must be their own alone",
        ),
        (Drawing, "replay", "fail", "text is 'A voice says"),
        (
            Mute,
            "admissible actions",
            "warning",
            'the environment lists none; list them in info["admissible_actions"]',
        ),
        (
            "lists nothing later",
            "admissible actions",
            "fail",
            "step 1 after 'go on': no admissible",
        ),
        (Counting, "repeated states", "warning", "set state_key='mask-numbers'"),
        (
            "tags in actions",
            "parser",
            "fail",
            "</action></action>', is parsed as 'say'",
        ),
        ("won unknown", "success", "warning", "do not say whether they were won"),
        (Limited, "step limit", "warning", "set max_steps=4 in the specification"),
        (Entangled, "fork", "fail", "after a copy played on"),
        ("won as a number", "values", "fail", "won: expected bool, received int"),
        (
            "exits",
            "plays",
            "fail",
            "SystemExit: 3; every task and text must be answered",
        ),
        ("no text", "values", "fail", "text: expected str, received NoneType"),
        ("no text", "repeated states", "fail", "TypeError"),
        (
            "lists an array",
            "plays",
            "fail",
            "actions: expected a list of texts, received ndarray",
        ),
        ("ends at its start", "plays", "fail", "task 0 ends at its start"),
        ("hangs", "plays", "fail", "no answer in 0.3 s"),
        (
            "lists what it does not do",
            "admissible actions",
            "fail",
            "'dance' is listed, and not executed",
        ),
        ("lists twice", "admissible actions", "warning", "is listed twice"),
        ("changes a list", "kept states", "fail", "return a new State and a new list"),
        ("percent", "values", "fail", "score 100: expected a number in [0, 1]"),
        ("negative score", "values", "fail", "score -1: expected a number in [0, 1]"),
        ("terminated and truncated", "values", "fail", "expected one of them"),
        ("nan", "values", "fail", "expected finite numbers"),
        ("huge", "values", "fail", "reward 1e+39: expected at most 1e+30"),
        ("prints", "process", "warning", "playing prints 'moved\\n"),
        ("changes folder", "process", "fail", "changed the working directory to /"),
        ("reward at start", "values", "warning", "the first state has the reward 5"),
        ("won without reward", "success", "warning", "won with return 0"),
        ("never won", "success", "warning", "ended with score 1, but not won"),
        ("won early", "success", "warning", "won before the end"),
        ("surrogates", "values", "fail", "'\\ud800' has lone surrogates"),
        ("silent", "values", "warning", "no state has a text"),
        ("one key", "repeated states", "warning", "makes states equal that differ in"),
        ("always valid", "odd commands", "warning", "is not listed, and yet valid"),
        ("moves by any text", "odd commands", "warning", "should change nothing"),
        ("long", "odd commands", "fail", "ValueError: too long"),
        (
            "goes on after the end",
            "after the end",
            "warning",
            "continues after the end",
        ),
        ("keeps", "one engine again", "fail", "start must reset everything"),
        (
            "one game",
            "distinct tasks",
            "warning",
            "all 20 tasks that were compared are one",
        ),
    ],
)
def test_faults_are_named_with_their_repair(
    engine, check, verdict, message, monkeypatch
):
    before = Path.cwd()
    monkeypatch.setattr(checking, "ANSWER_SECONDS", 0.3 if engine == "hangs" else 60)
    found = findings(partial(Faulty, engine) if isinstance(engine, str) else engine)[
        check
    ]
    assert found.verdict == verdict
    assert message in found.message
    assert Path.cwd() == before


class EndlessSource(Source):
    def ids(self, split):
        return Endless() if super().ids(split) else ()

    def task(self, task_id):
        if not task_id.isdecimal():
            raise UnknownTask(f"unknown task {task_id}")
        return Task(task_id, "train", "Walk on.", "walk")


class Slippery(Corridor):
    """Steps fail at random."""

    def act(self, command):
        return super().act(
            "Look"
            if command == "go on" and random.SystemRandom().random() < 0.3
            else command
        )


class Graded(Corridor):
    def state(self, **flags):
        state = super().state(**flags)
        return replace(
            state,
            reward=self.place / 3 if state.terminated else 0.0,
            score=self.place / 3,
        )


class Walker:
    def reset(self, task, state, engine=None):
        self.next = iter(
            ["Look", "go back", "go on", "go on", "go back", "go on", "go on"]
        )

    def act(self, state):
        return next(self.next)


def rooms_seen(past, state):
    return f"{len(past)} rooms."


@pytest.mark.parametrize(
    ("engine", "source", "changes"),
    [
        (Slippery, Source, {"stochastic": True}),
        (Corridor, Source, {"parse_response": boxed, "format_response": in_box}),
        (Corridor, EndlessSource, {}),
        (Unlisted, Source, {"tools": [walk], **UNLISTED}),
        (Graded, Source, {}),
        (Unlisted, Source, {"players": {"explorer": Walker}, **UNLISTED}),
        (Corridor, Source, {"memory": rooms_seen}),
    ],
    ids=["stochastic", "boxed", "endless", "tools", "graded", "no list", "memory"],
)
def test_right_environments_of_other_kinds_pass(engine, source, changes):
    found = checked(engine, source, **changes)
    assert {
        name: each.message for name, each in found.items() if each.verdict != "pass"
    } == {}
    assert set(found) >= {"plays", "values", "success", "parser"}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (4, r"4 rollouts of 1 task, \d+ steps$"),
        (5, r"8 rollouts of 2 tasks, \d+ steps \(5 asked for; each task is played 4 times\)"),
        (999, r"12 rollouts of 3 tasks, \d+ steps \(999 asked for; each task is played 4 times\)"),
    ],
)  # fmt: skip
def test_as_many_rollouts_are_played_as_were_asked_for(asked, message):
    source = SharedSource(Source(Corridor))
    settings = settings_for("Corridor", max_steps=9)
    tasks = source.source.ids("train")[:3]
    found = next(
        each
        for each in check_environment(source, settings, tasks, episodes=asked)
        if each.check == "plays"
    )
    assert re.search(message, found.message), found.message


class Safe:
    """A number to find. Tasks differ in it alone, and most commands do not tell."""

    def start(self, task_id):
        self.number = task_id
        return self.state("A safe.")

    def act(self, command):
        return self.state("It opens." if command == self.number else "Nothing.")

    def state(self, text):
        won = text == "It opens."
        return State(text, [], None, won, won, float(won), float(won))


class Refusing(Safe):
    """Accepts no call that is played, which tells nothing about its tasks."""

    def act(self, command):
        return replace(self.state("Nothing."), valid=False)


class Opener:
    def reset(self, task, state, engine=None):
        self.number = engine.number

    def act(self, state):
        return self.number


class TwoSplits(Source):
    """Tasks 0 to 9, and others to evaluate with; "twin 3" is task 3 under another name."""

    test = ("10", "11")

    def ids(self, split):
        known = {"train": [str(number) for number in range(10)], "test": self.test}
        if split == "all":
            return [task_id for ids in known.values() for task_id in ids]
        if split not in known:
            raise InputError(f"unknown split {split}")
        return list(known[split])

    def task(self, task_id):
        if task_id not in self.ids("all"):
            raise UnknownTask(f"unknown task {task_id}")
        return Task(
            task_id,
            "test" if task_id in self.test else "train",
            "Open the safe.",
            "safe",
        )


class Copied(TwoSplits):
    test = ("10", "twin 3")


class Twins(Safe):
    def start(self, task_id):
        state = super().start(task_id)
        self.number = task_id.removeprefix("twin ")
        return state


def test_some_tasks_of_a_split_are_one():
    """Of 0 to 9, which their starts show, 3 is listed twice."""

    class Open(Twins):
        def start(self, task_id):
            state = super().start(task_id)
            return replace(state, text=f"Safe {self.number}.")

    class Doubled(TwoSplits):
        def ids(self, split):
            twin = ["twin 3"] if split in ("train", "all") else []
            return [*super().ids(split), *twin]

    changes = {"players": {"expert": Opener}, "tools": [walk], **UNLISTED}
    found = checked(Open, Doubled, **changes)["distinct tasks"]
    assert found.verdict == "warning"
    assert "2 (such as 3, twin 3) of 11 tasks that were compared are one" in (
        found.message
    )


def test_tasks_are_called_one_only_after_enough_commands():
    """One rollout tells few tasks apart: the others are played with their own solutions before they are called one."""
    changes = {"players": {"expert": Opener}, "tools": [walk], **UNLISTED}
    found = checked(Safe, TwoSplits, **changes)["distinct tasks"]
    assert found.verdict == "pass", found.message
    assert "of 10 tasks are distinguished by their start or by" in found.message
    found = checked(Twins, Copied, **changes)["distinct tasks"]
    assert found.verdict == "warning"
    said = re.search(
        r"task twin 3 of split test is task 3 of split train: .* alike to (\d+) commands",
        found.message,
    )
    assert int(said[1]) >= task_lists.ENOUGH
    assert (
        checked(Refusing, TwoSplits, tools=[walk], **UNLISTED)["distinct tasks"].verdict
        == "pass"
    )


class Timed(Corridor):
    """Ends after six turns, which its texts count and its keys leave out."""

    def start(self, task_id):
        self.turn = 0
        return super().start(task_id)

    def act(self, command):
        self.turn += 1
        return super().act(command)

    def state(self, **flags):
        state = super().state(**flags)
        over = state.terminated or self.turn >= 6
        actions = [] if over else state.actions
        return replace(
            state,
            text=f"{state.text} Turn {self.turn}.",
            key=state.text,
            terminated=over,
            actions=actions,
        )


def test_turns_that_run_out_are_no_outcome_of_a_command():
    assert findings(Timed)["repeated states"].verdict == "pass"


class Generates(Source):
    def ids(self, split):
        return iter(super().ids(split))


def test_ids_that_are_read_once_are_refused():
    """A generator has no length, and the second reader would find nothing."""
    line = r"ids\('all'\) of Corridor: expected a list of texts, received list_iterator; return list"
    with refused(line):
        Split(SharedSource(Generates(Corridor)), "all")


class OtherSplit(Source):
    def task(self, task_id):
        return replace(super().task(task_id), split="test")


class AcceptsAll(Source):
    def task(self, task_id):
        return Task(task_id, "train", "Walk on.", "walk")


@pytest.mark.parametrize(
    ("source", "changes", "check", "message"),
    [
        (
            OtherSplit,
            {},
            "tasks",
            "the task '0' of split 'train' says that it is of 'test'",
        ),
        (AcceptsAll, {}, "unknown tasks", "an unknown task is accepted"),
        (
            Source,
            {"template": "{{ observation }} Write <answer>move</answer>."},
            "parser",
            "the prompt asks for '<answer>",
        ),
        (
            Source,
            {"template": "Answer in \\boxed{move}."},
            "parser",
            "the prompt asks for '\\\\boxed{move}'",
        ),
    ],
)
def test_mistakes_of_sources_and_prompts_are_found(source, changes, check, message):
    found = checked(Corridor, source, **changes)[check]
    assert found.verdict != "pass"
    assert message in found.message


class Unsorted(Corridor):
    """Shows a set, whose order is another one in every process."""

    def state(self, **flags):
        return replace(
            super().state(**flags),
            text=" ".join({"a lamp", "a door", "a chair", "a bed", "a rug"}),
        )


@pytest.mark.slow
def test_the_order_of_sets_is_found_in_other_processes(monkeypatch):
    monkeypatch.setattr(replays, "HASH_SEEDS", ("1", "2", "3"))
    found = checked(Unsorted)
    assert (found["replay"].verdict, found["other processes"].verdict) == (
        "pass",
        "fail",
    )
    assert "sort them" in found["other processes"].message


def test_numbers_that_are_the_state_are_not_masked():
    class Countdown(Corridor):
        def state(self, **flags):
            return replace(
                super().state(**flags), text=f"{3 - self.place} left of {self.task_id}."
            )

    assert findings(Countdown)["repeated states"].verdict == "pass"


def test_an_engine_that_fails_ends_the_checks():
    found = findings(partial(Faulty, "breaks"))
    assert list(found) == ["tasks", "unknown tasks", "plays"]
    assert "OSError: no such room; every task and text" in found["plays"].message


def test_an_array_of_actions_is_named():
    episode = Episode(
        SharedSource(Source(partial(Faulty, "lists an array"))),
        settings_for("Corridor"),
    )
    episode.start("0")
    with refused(r"^actions: expected a list of texts, received ndarray$"):
        episode.prompt()


def test_functions_and_tasks_that_fail_are_named():
    def fails(text):
        raise ValueError("a mistake")

    assert findings(Corridor, state_key=fails)["repeated states"].message.endswith(
        "raised ValueError: a mistake"
    )
    assert (
        "which returned '<think>"
        in findings(Corridor, parse_response=str)["parser"].message
    )
    assert "1 is listed twice" in findings(Corridor, ["1", "1"])["tasks"].message
    assert "the split all lacks" in findings(Corridor, ["1", "99"])["tasks"].message


@pytest.mark.slow
@pytest.mark.parametrize("env", ["HGPO/ALFWorld-v0", "HGPO/WebShop-v0"])
def test_the_own_environments_pass(env):
    code, printed = outcome("check", "env", env, COLUMNS="80")
    assert code == 0
    assert "FAIL" not in printed
    assert "!" not in printed
    lines = printed.splitlines()
    assert max(map(len, lines)) <= 80
    assert " " * 25 + "other, give equal states" in lines
