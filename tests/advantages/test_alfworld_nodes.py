"""G2PO's nodes in ALFWorld: the vectorised rule against a step-by-step one."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from hgpo_train.advantages import compute
from hgpo_train.advantages.alfworld_nodes import with_alfworld_nodes

OBSERVATIONS = ("room", "Nothing happens.", "You heat the egg", "You turn on the lamp", "shelf", "desk")
ACTIONS = (["look"], ["look", "help"], ["go to desk 1"])
EPISODES = st.lists(
    st.lists(st.tuples(st.sampled_from(OBSERVATIONS), st.sampled_from(ACTIONS)), min_size=1, max_size=9),
    min_size=1,
    max_size=5,
)


def expected_nodes(episode: list[tuple[str, list[str]]]) -> list[object]:
    """Return each step's node of an episode as a comparable value."""
    happened: list[tuple[str, list[str]]] = []
    nodes: list[object] = [episode[0][0]]
    for observation, actions in episode[1:]:
        if not observation.startswith("Nothing happens"):
            happened.append((observation, [action for action in actions if action != "help"]))
        hidden = len(happened) > 1 and happened[-2][0].startswith(("You heat", "You cool", "You clean", "You turn on"))
        nodes.append(happened[-2:] if hidden else happened[-1:] or ("the first prompt", episode[0][0]))
    return nodes


@given(EPISODES)
def test_nodes_are_equal_where_the_rule_requires_it(episodes: list[list[tuple[str, list[str]]]]) -> None:
    rows = [
        {"trajectory_key": number, "first": not step, "state": observation, "admissible_actions": actions}
        for number, episode in enumerate(episodes)
        for step, (observation, actions) in enumerate(episode)
    ]
    found = with_alfworld_nodes(pl.LazyFrame(rows)).collect()["alfworld_node"].to_list()
    expected = [repr(node) for episode in episodes for node in expected_nodes(episode)]
    pairs = pl.DataFrame({"found": found, "expected": expected}).unique()
    assert pairs.height == pairs["found"].n_unique() == pairs["expected"].n_unique()


def table() -> pl.DataFrame:
    """Return two rollouts of a task, of which the first wastes a step at the desk."""
    rows = [
        ("a", "room", "go to desk 1", False),
        ("a", "desk", "fly", False),
        ("a", "Nothing happens.", "take egg 1", False),
        ("a", "egg", "eat", True),
        ("b", "room", "go to shelf 1", False),
        ("b", "shelf", "look", False),
    ]
    table = pl.DataFrame(rows, schema=["trajectory", "state", "action", "won"], orient="row")
    return table.with_columns(
        task_id=pl.lit("t"),
        step=pl.int_range(pl.len()).over("trajectory"),
        admissible_actions=pl.lit(["look"], dtype=pl.List(pl.String)),
        action_valid=pl.col("action") != "fly",
    )


def test_hgpo_and_statistics_compare_nodes_too() -> None:
    """The wasted step stays at the desk, so that the state of both steps is one node."""
    from hgpo_train.analysis.statistics import statistics

    plain, nodes = (
        compute(table(), "hgpo", details=True, reward="success", state_key=key).collect()
        for key in (None, "alfworld-nodes")
    )
    assert plain["advantage_size_k0"].to_list() == [2, 1, 1, 1, 2, 1]
    assert nodes["advantage_size_k0"].to_list() == [2, 2, 2, 1, 2, 1]
    assert statistics(table(), state_key="alfworld-nodes", reward="success").levels["shared"][0] == 4 / 6
