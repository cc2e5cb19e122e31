"""Features of ALFWorld's commands: what the prompt shows decides what a command is worth."""

from hgpo_envs.memory import Pair
from hgpo_research.features.alfworld import CommandFeatures

FEATURES = CommandFeatures()
GO = ("go to cabinet 1", "go to shelf 1", "go to sinkbasin 1")


def features(instruction, observation, actions, *history):
    """Return all features of a state with a history of (observation, action)."""
    pairs = [Pair(number, *pair) for number, pair in enumerate(history, 1)]
    state = FEATURES.read(instruction, observation, actions)
    return {**state.choices, **state.changes(pairs)}


def names(found):
    return {action: set(values) for action, values in found.items()}


CLEAN = "put a clean mug in shelf."
CLEANED = "You clean the mug 1 using the sinkbasin 1."
AT_SHELF = (
    "examine mug 1",
    "examine shelf 1",
    *GO[:1],
    GO[2],
    "move mug 1 to shelf 1",
)


def test_a_treatment_counts_while_the_history_shows_it():
    here = "On the shelf 1, you see a vase 2."
    forgotten = names(features(CLEAN, here, AT_SHELF))
    assert forgotten["move mug 1 to shelf 1"] == {"deliver_early"}
    assert forgotten["go to sinkbasin 1"] == {"station"}
    known = names(features(CLEAN, here, AT_SHELF, (CLEANED, "go to shelf 1")))
    assert known["move mug 1 to shelf 1"] == {"deliver"}
    assert known["go to sinkbasin 1"] == set()
    other = names(
        features(
            CLEAN,
            here,
            AT_SHELF,
            ("You clean the mug 2 using the sinkbasin 1.", "go to shelf 1"),
        )
    )
    assert other == forgotten


def test_the_next_command_after_a_treatment_is_to_go_to_the_target():
    actions = (
        "clean mug 1 with sinkbasin 1",
        "examine mug 1",
        "examine sinkbasin 1",
        *GO[:2],
    )
    before = names(features(CLEAN, "On the sinkbasin 1, you see nothing.", actions))
    assert before["clean mug 1 with sinkbasin 1"] == {"treat"}
    assert before["go to shelf 1"] == set()
    after = features(
        CLEAN,
        CLEANED,
        actions,
        (
            "On the sinkbasin 1, you see nothing.",
            "clean mug 1 with sinkbasin 1",
        ),
    )
    assert names(after)["clean mug 1 with sinkbasin 1"] == {"mistake"}
    assert after["go to shelf 1"] == {"target": 1.0}


def test_receptacles_are_searched_once_while_the_history_shows_their_content():
    here = "On the cabinet 1, you see a vase 1."
    actions = (
        "examine cabinet 1",
        "go to shelf 1",
        "go to shelf 2",
        "look",
        "take vase 1 from cabinet 1",
    )
    without = features("put some mug on shelf.", here, actions)
    assert set(without["go to shelf 1"]) == {"search"}
    assert without["take vase 1 from cabinet 1"] == {"mistake": 1.0}
    assert without["look"] == {"idle": 1.0}
    empty = features(
        "put some mug on desk.",
        here,
        actions,
        ("On the shelf 1, you see nothing.", "go to cabinet 1"),
    )
    assert empty["go to shelf 1"] == {"searched": 1.0}
    full = features(
        "put some mug on desk.",
        here,
        actions,
        ("On the shelf 1, you see a mug 3.", "go to cabinet 1"),
    )
    assert full["go to shelf 1"] == {"find": 1.0}
    assert full["go to shelf 2"] == without["go to shelf 2"]


def test_repetitions_are_counted_at_the_same_observation():
    actions = ("examine cabinet 1", "go to shelf 1", "look")
    here = "On the cabinet 1, you see a vase 1."
    there = "You see nothing."
    found = features(
        "put some mug on desk.",
        here,
        actions,
        (here, "look"),
        (there, "look"),
        (here, "look"),
    )
    assert found["look"] == {"idle": 1.0, "repeated": 2.0}


def test_a_lamp_is_used_with_the_object_in_hand():
    wish = "look at book under the desklamp."
    actions = (
        "examine book 1",
        "examine desk 1",
        "go to bed 1",
        "use desklamp 1",
    )
    assert features(wish, "", actions)["use desklamp 1"] == {"use": 1.0}
    assert features(wish, "", actions[1:])["use desklamp 1"] == {"mistake": 1.0}
