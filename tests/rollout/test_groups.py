"""The choice of groups: with dynamic sampling, failures, interruptions, and any order in which rollouts end."""

from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_train.rollout.groups import GroupScheduler
from hgpo_train.rollout.plan import (
    ExecutionOptions,
    FailedGroup,
    Key,
    PlannedGroup,
    RolloutSpec,
)

SIZE = 3
END = st.sampled_from([0.0, 0.0, 1.0])
ENDS = st.lists(st.tuples(*[END] * SIZE), min_size=12, max_size=12)
"""The end of each rollout of each group, independent of when and how often it is played."""


@dataclass
class Played:
    """A finished rollout with the attributes that `GroupScheduler` reads."""

    group: PlannedGroup
    member: int
    end: float
    aborted: bool

    @property
    def rows(self) -> list["PlayedRow"]:
        return [PlayedRow((self.group.position, self.member), self.end, self.aborted)]


class PlayedRow(NamedTuple):
    at: tuple[int, int]
    reward: float
    aborted: bool
    prompt: str | None = None
    response: str | None = None


@dataclass
class Table:
    """The content of a run: the end of each rollout, None for a failed one."""

    ends: dict[int, dict[int, float | None]] = field(default_factory=dict)

    def commit(self, new: list[PlayedRow], again: list[PlayedRow]) -> None:
        for row in new + again:
            position, member = row.at
            self.ends.setdefault(position, {})[member] = (
                None if row.aborted else row.reward
            )

    def failed(self) -> set[tuple[int, int]]:
        return {
            (at, member)
            for at, ends in self.ends.items()
            for member, end in ends.items()
            if end is None
        }

    def says(self, position: int) -> bool:
        return len({end for end in self.ends[position].values() if end is not None}) > 1

    def earlier(self) -> tuple[dict[Key, bool], dict[Key, FailedGroup]]:
        hurt = {position for position, _ in self.failed()}
        done = {
            key(position): self.says(position)
            for position in self.ends
            if position not in hurt
        }
        failed = {
            key(position): FailedGroup(
                frozenset(
                    group(position).trajectory(member)
                    for at, member in self.failed()
                    if at == position
                ),
                [end for end in self.ends[position].values() if end is not None],
            )
            for position in hurt
        }
        return done, failed


def key(position):
    return 0, f"task {position}", 0


def group(position):
    return PlannedGroup(position, 0, f"task {position}", 0, SIZE)


def play(
    table,
    ends,
    wanted,
    most,
    *,
    failing=frozenset(),
    choose=lambda _: 0,
    turns=10_000,
    slots=5,
):
    """Simulate one run of the command: rollouts end in the order of `choose`, or the run stops after some turns."""
    done, failed = table.earlier()
    spec = RolloutSpec(wanted, SIZE, dynamic=most)
    execution = ExecutionOptions(groups_per_shard=2)
    groups = GroupScheduler(
        map(group, count()), spec, execution, table.commit, done, failed
    )
    members: list[tuple[PlannedGroup, int]] = []
    going: list[tuple[PlannedGroup, int]] = []
    for _ in range(turns):
        while len(going) < slots:
            if not members:
                begun = groups.begin()
                if begun is None:
                    break
                members = [(begun[0], member) for member in begun[1]]
            going.append(members.pop(0))
        if not going:
            break
        one, member = going.pop(choose(len(going)))
        at = (one.position, member)
        groups.finish(
            Played(one, member, ends[one.position % len(ends)][member], at in failing)
        )
    groups.close()


FAILING = st.frozensets(
    st.tuples(st.integers(0, 16), st.integers(0, SIZE - 1)), max_size=12
)
CUT = st.one_of(st.just(10_000), st.integers(0, 30))


@pytest.mark.slow
@given(ENDS, st.integers(1, 5), st.integers(0, 12), FAILING, CUT, st.data())
def test_a_retried_run_contains_what_an_undisturbed_one_does(
    ends, wanted, spare, failing, cut, data
):
    """With dynamic sampling, a resumed run may contain surplus groups, but never more than `dynamic`."""

    def choose(number: int) -> int:
        return data.draw(st.integers(0, number - 1))

    most = wanted + spare
    sound = Table()
    run = Table()
    play(sound, ends, wanted, most)
    play(run, ends, wanted, most, failing=failing, choose=choose, turns=cut)
    play(run, ends, wanted, most, choose=choose)
    assert not run.failed()
    assert {at: run.ends[at] for at in sound.ends} == sound.ends
    assert len(run.ends) <= most
    hurt = {at for at, _ in failing if at in run.ends and run.says(at)}
    assert sum(map(run.says, run.ends)) <= max(
        sum(map(sound.says, sound.ends)), wanted
    ) + len(hurt)
    if not failing:
        assert run.ends.keys() == sound.ends.keys()
    before = dict(run.ends)
    play(run, ends, wanted, most, failing={(at, 0) for at in range(20)})
    assert run.ends == before, "a run that is whole is left as it is"


@pytest.mark.slow
@given(ENDS, st.integers(1, 12), FAILING, CUT, st.data())
def test_without_dynamic_sampling_a_retried_run_is_the_undisturbed_one(
    ends, wanted, failing, cut, data
):
    def choose(number: int) -> int:
        return data.draw(st.integers(0, number - 1))

    sound = Table()
    run = Table()
    play(sound, ends, wanted, None)
    play(run, ends, wanted, None, failing=failing, choose=choose, turns=cut)
    play(run, ends, wanted, None, choose=choose)
    assert run.ends == sound.ends


def test_a_failure_that_hides_a_difference_adds_one_group():
    """Group 0 differs in its last rollout, which fails at first: group 1 is played instead, and both are stored."""
    ends = [(0.0, 0.0, 1.0), (0.0, 1.0, 0.0), (1.0, 1.0, 1.0)]
    sound = Table()
    run = Table()
    play(sound, ends, 1, 9)
    play(run, ends, 1, 9, failing={(0, 2)})
    assert (set(sound.ends), set(run.ends)) == ({0}, {0, 1})
    play(run, ends, 1, 9)
    assert run.ends == {
        0: {0: 0.0, 1: 0.0, 2: 1.0},
        1: {0: 0.0, 1: 1.0, 2: 0.0},
    }


def test_groups_that_finish_after_a_commit_failed_are_committed_all_the_same():
    """Commits run beside the play: the failure of one is raised by the next, whose rows are not lost."""
    received = []

    def commit(new, again):
        received.append({row.at[0] for row in new})
        if len(received) == 1:
            raise OSError("disk full")

    groups = GroupScheduler(
        map(group, count()),
        RolloutSpec(3, SIZE),
        ExecutionOptions(groups_per_shard=1),
        commit,
        {},
        {},
    )
    playing = [groups.begin() for _ in range(3)]

    def finish(number: int) -> None:
        planned, members = playing[number]
        for member in members:
            groups.finish(Played(planned, member, 0.0, aborted=False))

    finish(0)
    with pytest.raises(OSError, match="disk full"):
        finish(1)
    finish(2)
    groups.close()
    assert received == [{0}, {1}, {2}]
