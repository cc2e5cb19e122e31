"""The games: only the past tells the lever, and logits that read enough of it do; the longer way wins more often."""

from itertools import product

import pytest

from hgpo_research.levers import Levers
from hgpo_research.tabular.graphs import compile_tasks
from hgpo_research.two_ways import COLOURS, SPINS, TwoWays


def test_only_the_door_of_the_lever_opens():
    engine = Levers(levers=3, corridors=1).engine()
    texts = set()
    wins = 0
    for lever in (1, 2, 3):
        for door in (1, 2, 3):
            engine.start("train-4")
            shown = [
                engine.act(command).text
                for command in (f"pull lever {lever}", "walk on", "walk on")
            ]
            texts.add(shown[-1])
            assert str(lever) in shown[0]
            assert engine.act("pull lever 1").valid is False
            copy = engine.fork()
            state = engine.act(f"open door {door}")
            assert state.terminated
            assert copy.act(f"open door {door}") == state
            wins += state.won
    assert (texts, wins) == ({"A room with 3 doors."}, 3)


@pytest.mark.parametrize(("reads", "contexts"), [(0, 1), (1, 1), (2, 3), (3, 3)])
def test_logits_that_read_enough_of_the_past_know_the_lever(reads, contexts):
    options = {"levers": 3, "corridors": 1}
    policy = {"skill": 0.0, "memory": 0, "invalid": 0.0}
    tasks, _ = compile_tasks(
        "hgpo_research.levers:LEVERS",
        options,
        policy,
        ["train-4"],
        reads=reads,
    )
    (graph,) = tasks.graphs
    assert graph.close(300)
    doors = [
        node
        for node in range(graph.graph.nodes)
        if graph.graph.text(node) == "A room with 3 doors."
    ]
    names = {
        int(graph.parameters.names[graph.parameter[graph.graph.first[node]]])
        for node in doors
    }
    assert len(names) == contexts


@pytest.mark.parametrize(("way", "wins"), [("short", 8), ("long", 14)])
def test_the_longer_way_wins_more_of_the_sixteen_spins(way, wins):
    engine = TwoWays().engine()
    won = 0
    for spins in product(COLOURS, repeat=SPINS):
        engine.start("train-3")
        state = engine.act(f"take {way} way")
        walked = 0
        while state.actions == ("walk on",):
            assert engine.act("spin red").valid is False
            state = engine.fork().act("walk on")
            assert engine.act("walk on") == state
            walked += 1
        for colour in spins:
            assert not state.terminated
            state = engine.act(f"spin {colour}")
        assert state.terminated
        won += state.won
        assert walked == 0 if way == "short" else 16 <= walked <= 24
    assert won == wins
